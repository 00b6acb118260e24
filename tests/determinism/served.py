"""A real HTTP server that serves a layered run of the model, in both formats, and fails on demand.

Behind it is the reference engine with its slots, tree and cap. Outputs are digests through the
layers, or the states of the layered run itself (`LayeredForward`, by the rules), whose arithmetic
is exact: either way a stale row that reaches an output changes it.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, Literal

import torch

from kvproof.fuzz.drivers.layered import LayeredForward
from kvproof.kernels.exact_model import ExactModel
from kvproof.kernels.layer import LayerRules
from kvproof.model.digests import Digests
from kvproof.model.facts import Admitted, Step
from kvproof.model.forward import RuleForward
from kvproof.model.layers import Stack
from kvproof.model.player import Player
from kvproof.model.reference import Policy, ReferenceEngine, reference_player
from kvproof.model.scenario import (
    Decode,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Submit,
    number_texts,
)

WORDS = [f"w{number}" for number in range(1000)]
"""The vocabulary; a token's id is its place."""

Trouble = Literal["500", "hang", "drop", "nonsense", "no JSON", "400"]


@dataclass
class Model:
    """An engine that is asked one request at a time and keeps its rings and tree."""

    policy: Policy
    stack: Stack
    window: int = 4
    page_size: int = 8
    slots: int = 11
    count: int = 0

    def __post_init__(self) -> None:
        geometry = Geometry(
            window=self.window, page_size=self.page_size, slots=self.slots, pool_tokens=1 << 14
        )
        self.player: Player = reference_player(geometry, self.policy)
        self.digests = Digests(self.stack)
        self.digests.feed(self.player.engine.started())
        self.lock = threading.Lock()

    def complete(self, ids: list[int], output_len: int, *, salted: bool) -> tuple[list[str], int]:
        """Outputs and reused tokens."""
        with self.lock:
            self.count += 1
            name = f"request-{self.count}"
            # Salted prefixes are shared with nobody. One request runs at a time, so it is enough
            # that the tree is empty before and after.
            operations: list[Operation] = [Flush()] if salted else []
            prompt = tuple(Piece(WORDS[token], at) for at, token in enumerate(ids, 1))
            number_texts(self.player.texts, prompt)
            operations += [Submit(request=name, prompt=prompt), Prefill(request=name)]
            operations += [*[Decode()] * (output_len - 1), Finish(request=name)]
            operations += [Flush()] if salted else []
            reused = 0
            for operation in operations:
                self.digests.feed(Step(index=0, operation=operation))
                for fact in self.player._play(operation):
                    self.digests.feed(fact)
                    if isinstance(fact, Admitted):
                        reused = fact.matched_len
                self.digests.feed(self.player.engine.pools())
            return self._answer(len(ids), output_len), reused

    def _answer(self, prompt_len: int, output_len: int) -> list[str]:
        """Outputs of the request that has just ended."""
        _, outputs = self.digests.outputs[-1]
        return [output.hex() for output in outputs]


class LayeredModel(Model):
    """The same with a stack of layers behind it, whose buffers outlive the requests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        engine = self.player.engine
        assert isinstance(engine, ReferenceEngine)
        pool = SimpleNamespace(
            get_unified_kv=lambda _layer: torch.zeros(0),
            unified_swa_window=self.window,
            unified_swa_ring_size=engine.stride,
            unified_swa_pages=(self.slots + 1) * engine.stride,
        )
        order = self.policy.verify_order
        self.layered = LayeredForward(
            engine=SimpleNamespace(
                kv_pool=pool,
                geometry=engine.geometry,
                requests=SimpleNamespace(req_to_token=PageTable(engine)),
            ),
            launches=LayerRules(verify_order=order),
            follow=lambda ring: RuleForward(
                window=ring.window, stride=ring.stride, verify_order=order
            ),
            model=ExactModel.seeded(0, layers=self.stack.layers, heads=2, dim=16, device="cpu"),
            ratios=self.stack.ratios,
        )
        self.player.forward = self.layered

    def _answer(self, prompt_len: int, output_len: int) -> list[str]:
        trace = self.layered.traces.pop(self.player.occupancies)
        first = prompt_len - 1
        states = trace.above(self.stack.layers, first, first + output_len)
        return [f"{number & (2**64 - 1):x}" for number in states[:, 0].tolist()]


@dataclass(frozen=True)
class PageTable:
    """``req_to_token`` of the reference engine: locations of a slot's positions."""

    engine: ReferenceEngine

    def __getitem__(self, at: tuple[int, slice]) -> torch.Tensor:
        slot, positions = at
        [holding] = [one for one in self.engine.pools().holdings if one.slot == slot]
        return torch.tensor(holding.locs[positions])


@dataclass
class Served:
    """The server as tests see it.

    Attributes:
        api: which format it speaks.
        says_cached: whether it reports what it reused.
        salts: whether it takes notice of salts.
        tokenizes: whether it has the endpoints for it.
        trouble: what to do wrong with the n-th request to a path, counted from 1.
        asked: paths and how often they were asked for.
    """

    model: Model
    api: Literal["sglang", "openai"]
    says_cached: bool = True
    salts: bool = True
    tokenizes: bool = True
    takes_ids: bool = True
    trouble: Callable[[str, int], Trouble | None] = lambda _path, _number: None
    asked: Counter[str] = field(default_factory=Counter)
    headers: list[str | None] = field(default_factory=list)
    url: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)

    def reply(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Status and body of an answer."""
        if self.tokenizes and path == "/tokenize":
            ids = [hash_word(word) for word in body["prompt"].split()]
            return 200, {"tokens": ids, "count": len(ids), "max_model_len": 1000}
        if self.tokenizes and path == "/detokenize":
            return 200, {"text": " ".join(WORDS[token] for token in body["tokens"])}
        if self.api == "sglang":
            return self._sglang(path, body)
        return self._openai(path, body)

    def _sglang(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/model_info":
            return 200, {"model_path": "toy", "is_generation": True}
        if path == "/server_info":
            return 200, {"page_size": self.model.page_size, "version": "toy-1"}
        if path != "/generate":
            return 404, {"detail": "Not Found"}
        if "input_ids" in body and not self.takes_ids:
            return 400, {"error": {"message": "input_ids are not supported"}}
        ids = body["input_ids"] if "input_ids" in body else encode(body["text"])
        assert body["sampling_params"]["temperature"] == 0
        salted = self.salts and bool(body.get("extra_key"))
        outputs, reused = self.model.complete(
            ids, body["sampling_params"]["max_new_tokens"], salted=salted
        )
        meta = {"prompt_tokens": len(ids)} | ({"cached_tokens": reused} if self.says_cached else {})
        return 200, {"text": " ".join(outputs), "meta_info": meta}

    def _openai(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "toy"}]}
        if path != "/v1/completions" or body.get("model") != "toy":
            return 404, {"detail": "Not Found"}
        assert body["temperature"] == 0
        prompt = body["prompt"]
        ids = encode(prompt) if isinstance(prompt, str) else prompt
        salted = self.salts and bool(body.get("cache_salt"))
        outputs, reused = self.model.complete(ids, body["max_tokens"], salted=salted)
        usage: dict[str, Any] = {"prompt_tokens": len(ids)}
        if self.says_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": reused}
        return 200, {"choices": [{"index": 0, "text": " ".join(outputs)}], "usage": usage}


def encode(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def hash_word(word: str) -> int:
    """A token id for any word of any text."""
    return zlib.crc32(word.encode()) % len(WORDS)


@contextmanager
def serve(served: Served) -> Iterator[Served]:
    """Serve on a free port of this machine for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # the library's name
            self._answer({})

        def do_POST(self) -> None:  # the library's name
            length = int(self.headers["Content-Length"])
            self._answer(json.loads(self.rfile.read(length)))

        def _answer(self, body: dict[str, Any]) -> None:
            served.asked[self.path] += 1
            served.headers.append(self.headers.get("Authorization"))
            trouble = served.trouble(self.path, served.asked[self.path])
            if trouble == "hang":
                served.stopping.wait(30)
                self.close_connection = True
                return
            if trouble == "drop":
                self.close_connection = True
                self.connection.close()
                return
            status, reply = served.reply(self.path, body)
            data = json.dumps(reply).encode()
            if trouble == "500":
                status, data = 500, b"CUDA out of memory"
            elif trouble == "400":
                status, data = 400, b'{"error": {"message": "bad request"}}'
            elif trouble == "nonsense":
                data = b'{"hello": "world"}'
            elif trouble == "no JSON":
                data = b"<html>It works!</html>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing: tests read stderr."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that give up are part of the tests."""

    server = Quiet(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield served
    finally:
        served.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """A port where nothing listens."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    port: int = server.server_address[1]
    server.server_close()
    return port
