"""A release's own functions, asked one question: what T2 to T4 and P5 are played on.

``python -m kvproof.proofs.asked`` runs in an engine's process (`kernels.engines.environment`): one
question as JSON a line in, the answer a line out. The functions are the release's own; the objects
around them hold only what those functions read.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from types import MethodType, SimpleNamespace
from typing import IO, Any, Literal, TypeAlias

import msgspec

from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.store import Engine
from kvproof.spec.cursor import cursor, cursor_margin
from kvproof.spec.pages import page_floor

_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend_hip_radix"


class Store(msgspec.Struct, frozen=True, kw_only=True, tag="store"):
    """Where does a forward that was planned store? Asks ``get_swa_out_cache_loc``.

    Attributes:
        planned_locs: ``out_cache_loc`` when the forward was planned; empty without a plan.
        planned_map: full-to-SWA map then, an entry a location.
        locs: ``out_cache_loc`` at the store.
        map: the map at the store.
        idle: the forward is idle.
    """

    planned_locs: tuple[int, ...]
    planned_map: tuple[int, ...]
    locs: tuple[int, ...]
    map: tuple[int, ...]
    idle: bool = False

    @property
    def due(self) -> tuple[int, ...]:
        """CURRENT: what the resolver has to give."""
        return tuple(self.map[loc] for loc in self.locs)


class Eviction(msgspec.Struct, frozen=True, kw_only=True, tag="eviction"):
    """Up to where is a request's sliding window given back? Asks ``free_swa_out_of_window_slots``.

    Attributes:
        evicted: the cursor before, in tokens.
        protected: tokens that belong to the tree.
        computed_len: the request's length.
    """

    evicted: int
    protected: int
    computed_len: int
    window: int
    page_size: int

    @property
    def due(self) -> tuple[int, ...]:
        """CURSOR-2 with the margin of CURSOR-1."""
        margin = cursor_margin(self.window, self.page_size)
        return (cursor(self.evicted, self.protected, self.computed_len, margin, self.page_size),)


class Tail(msgspec.Struct, frozen=True, kw_only=True, tag="tail"):
    """How much of a prompt's sliding window is sent? Asks ``_swa_tail_len`` of a decode server.

    Attributes:
        seq_len: tokens of the prompt.
        window: the release's ``sliding_window_size``.
    """

    seq_len: int
    window: int
    page_size: int

    @property
    def due(self) -> tuple[int, ...]:
        """A window below the boundary at which the prompt's bigrams are inserted, and the rest."""
        boundary = page_floor(self.seq_len - 1, self.page_size)
        first = page_floor(max(0, boundary - self.window), self.page_size)
        return (self.seq_len - first,)


class Split(msgspec.Struct, frozen=True, kw_only=True, tag="split"):
    """What of a lock on a window's host half is left on both parts of a split node?

    Asks ``SWAComponent.redistribute_on_node_split``. The node has two tokens, is locked once, and
    the lock ends at it.
    """

    @property
    def due(self) -> tuple[int, ...]:
        """Locks on the part before the split and on that behind it, and whether it ends before."""
        return (1, 1, 1)


class Unfinished(msgspec.Struct, frozen=True, kw_only=True, tag="unfinished"):
    """What of a window is live after an insert of an unfinished request?

    Asks ``cache_unfinished_req``.

    Attributes:
        tree: the class.
        computed_len: the request's length.
        evicted: its cursor; the SWA half of what lies before was given back.
    """

    tree: Literal["SWARadixCache", "UnifiedRadixCache"]
    window: int
    computed_len: int
    evicted: int

    @property
    def due(self) -> tuple[int, ...]:
        """Tokens that the tree says have an SWA half, and those that have."""
        return (self.computed_len - self.evicted,) * 2


class Relocked(msgspec.Struct, frozen=True, kw_only=True, tag="relocked"):
    """How many lock a window, once one of two who do gave its lock up and was inserted again?

    Asks ``dec_swa_lock_only`` and ``cache_unfinished_req`` of ``UnifiedRadixCache``.
    """

    window: int

    @property
    def due(self) -> tuple[int, ...]:
        """The other one's lock, and the one that the insert takes."""
        return (2,)


class Group(msgspec.Struct, frozen=True, kw_only=True, tag="group"):
    """Which keys go into a compressed key of Qwen's sparse attention (QSA), if a verify ends it?

    Asks ``QSAIndexer.update_key_state_and_compress`` with the plan of ``QwenSparseAttnBackend``:
    the tokens before the verify are decoded one by one, then it writes all of its own.

    Attributes:
        ratio: tokens of a group, and rows of a request in the ring of keys that wait for theirs.
        first: position of the verify's first token.
        drafts: its tokens.
        replayed: by the kernel that plans the replay of a CUDA graph.
    """

    ratio: int
    first: int
    drafts: int
    replayed: bool = False

    @property
    def due(self) -> tuple[int, ...]:
        """Positions of the first group that the verify ends."""
        start = page_floor(self.first, self.ratio)
        return tuple(range(start, start + self.ratio))


Question: TypeAlias = Store | Eviction | Tail | Split | Unfinished | Relocked | Group


class AskedProcess:
    """One engine's functions, in a process of their own."""

    def __init__(self, engine: Engine, environment: Mapping[str, str] | None = None) -> None:
        """Start it; ``environment`` is what an operator sets besides."""
        self._process = subprocess.Popen(
            engine_command(__name__),
            env={**engine_env(engine), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, question: Question) -> tuple[int, ...] | str:
        """The release's answer, or why it gave none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return "the engine's process ended"
        line = self._process.stdout.readline()
        if not line:
            return "the engine's process ended"
        return msgspec.json.decode(line, type=tuple[int, ...] | str)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def stored(store: Store) -> tuple[int, ...]:
    """What this process's engine gives for a store."""
    import torch  # noqa: PLC0415  # the shims come before it

    backend: Any = importlib.import_module(_BACKEND)
    pool = SimpleNamespace(
        full_to_swa_index_mapping=torch.tensor(store.planned_map), request_window=None
    )
    pool.translate_loc_from_full_to_swa = MethodType(
        backend.DeepSeekV4TokenToKVPool.translate_loc_from_full_to_swa, pool
    )
    planned = None
    if store.planned_locs:
        locs = torch.tensor(store.planned_locs)
        planned = pool.translate_loc_from_full_to_swa(locs).to(torch.int32)
    holder = SimpleNamespace(
        token_to_kv_pool=pool,
        forward_metadata=SimpleNamespace(
            core_attn_metadata=SimpleNamespace(swa_out_cache_loc=planned)
        ),
    )
    pool.full_to_swa_index_mapping = torch.tensor(store.map)
    mode = backend.ForwardMode.IDLE if store.idle else backend.ForwardMode.DECODE
    forward = SimpleNamespace(forward_mode=mode, out_cache_loc=torch.tensor(store.locs))
    found = backend.DeepseekV4HipRadixBackend.get_swa_out_cache_loc(holder, forward)
    return tuple(found.tolist())


class _Held(SimpleNamespace):
    """A request's memory under every name that a release has for it."""

    swa_evicted_seqlen: int
    cache_protected_len: int
    req_pool_idx = 0
    holds_kv = True

    @property
    def kv(self) -> _Held:
        return self

    def get_evicted_seqlen(self, _component: object) -> int:
        return self.swa_evicted_seqlen

    def set_evicted_seqlen(self, _component: object, evicted: int) -> None:
        self.swa_evicted_seqlen = evicted

    def swa_dead_lo(self, _page_size: int) -> int:
        return self.cache_protected_len


def evicted(eviction: Eviction) -> tuple[int, ...]:
    """Where this process's engine puts the cursor."""
    import torch  # noqa: PLC0415  # the shims come before it

    common: Any = importlib.import_module("sglang.srt.mem_cache.common")
    held = _Held(swa_evicted_seqlen=eviction.evicted, cache_protected_len=eviction.protected)

    def freed(*_slots: object, **_start: object) -> None:
        pass  # what is freed follows from where the cursor goes

    common.free_swa_out_of_window_slots(
        held,
        eviction.computed_len,
        sliding_window_size=eviction.window,
        page_size=eviction.page_size,
        req_to_token_pool=SimpleNamespace(
            req_to_token=torch.zeros(1, eviction.computed_len, dtype=torch.int32)
        ),
        token_to_kv_pool_allocator=SimpleNamespace(free_swa=freed, free_swa_segment=freed),
    )
    return (held.swa_evicted_seqlen,)


def tail(tail: Tail) -> tuple[int, ...]:
    """What this process's engine sends, with a radix cache on the decode server."""
    decode: Any = importlib.import_module("sglang.srt.disaggregation.decode")
    decode.get_disagg = lambda: SimpleNamespace(disaggregation_decode_enable_radix_cache=True)
    queue = SimpleNamespace(
        _uses_swa_tail_prealloc=lambda: True,
        scheduler=SimpleNamespace(sliding_window_size=tail.window),
        token_to_kv_pool_allocator=SimpleNamespace(page_size=tail.page_size),
    )
    return (decode.DecodePreallocQueue._swa_tail_len(queue, tail.seq_len),)


class _NoList:
    """A list of least recently used nodes that has none and keeps none."""

    def in_list(self, _node: object) -> bool:
        return False

    def insert_mru(self, _node: object) -> None:
        pass


def host_locks() -> tuple[int, ...]:
    """What this process's engine makes of a host lock at a split."""
    import torch  # noqa: PLC0415  # the shims come before it

    module: Any = _first_module(
        "unified_cache_components.swa_component",
        "unified_cache.components.swa_component",
        "unified_cache.components.swa",
    )
    base: Any = importlib.import_module(module.TreeComponent.__module__)
    kind = module.SWAComponent.component_type

    def node(tokens: int) -> Any:
        return SimpleNamespace(key=[0] * tokens, component_data={kind: base.ComponentData()})

    prefix, rest = node(1), node(1)
    data = rest.component_data[kind]
    data.host_value, data.host_lock_ref = torch.arange(2), 1
    data.metadata["host_uuid"] = 1
    lists = SimpleNamespace(host_lru_lists={kind: _NoList()})
    component = SimpleNamespace(component_type=kind, cache=lists, tree_core=lists)
    module.SWAComponent.redistribute_on_node_split(component, prefix, rest)
    parts = [part.component_data[kind] for part in (prefix, rest)]
    return (
        *(part.host_lock_ref for part in parts),
        int(parts[0].metadata.get("host_uuid") is not None),
    )


def _first_module(*names: str) -> Any:
    """The first module of ``mem_cache`` that this release has under one of these names."""
    for name in names:
        place = f"sglang.srt.mem_cache.{name}"
        with contextlib.suppress(ModuleNotFoundError):
            return importlib.import_module(place)
    raise ModuleNotFoundError(f"none of {', '.join(names)}")


def _answer(question: Question) -> tuple[int, ...]:
    match question:
        case Store():
            return stored(question)
        case Eviction():
            return evicted(question)
        case Tail():
            return tail(question)
        case Split():
            return host_locks()
        case Unfinished() | Relocked():
            return _of_a_tree(question)
        case Group():
            from kvproof.proofs import asked_rings  # noqa: PLC0415  # torch: after the shims

            return asked_rings.grouped(
                ratio=question.ratio,
                first=question.first,
                drafts=question.drafts,
                replayed=question.replayed,
            )


def _of_a_tree(question: Unfinished | Relocked) -> tuple[int, ...]:
    from kvproof.proofs import asked_trees  # noqa: PLC0415  # it imports torch: after the shims

    if isinstance(question, Relocked):
        return asked_trees.locks_after_insert(window=question.window)
    return asked_trees.live_after_insert(
        question.tree,
        window=question.window,
        computed_len=question.computed_len,
        evicted=question.evicted,
    )


def _serve(lines: IO[bytes], out: IO[bytes]) -> None:
    for line in lines:
        try:
            answer: tuple[int, ...] | str = _answer(msgspec.json.decode(line, type=Question))
        except Exception as error:  # whatever the engine raises is an observation
            answer = f"{type(error).__name__}: {error}"
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()


if __name__ == "__main__":
    from kvproof.kernels.engines import shims

    # The engine prints; what it prints must not end up between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        shims.install(rocm_gate=True)
        _serve(sys.stdin.buffer, wire)
