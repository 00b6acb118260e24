"""A recorder's log without a server: a busy run as a scenario, and a played log as recorded.

Tests and benchmarks of triage take their logs from here. What a recorder sees is less than what a
driver reports: launches without rows, no snapshots, page names instead of texts.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Answered,
    Ended,
    EngineError,
    Fact,
    Mode,
    Ran,
    Released,
    Skipped,
    Started,
    Step,
)
from kvproof.model.scenario import (
    Abort,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    Verify,
    prompt_len,
    text_at,
)

BUSY = Geometry(window=16, page_size=8, slots=64, pool_tokens=2**13)
"""Sizes of a busy run that a driver plays in a minute."""


@dataclass(slots=True)
class _Served:
    """A request of a busy run: how many tokens it has, and how many it is going to have."""

    name: str
    prompt: Prompt
    length: int
    end: int


@dataclass(slots=True)
class _Server:
    """Continuous batching: admit while there are slots, decode all, finish what is complete."""

    geometry: Geometry
    random: random.Random
    operations: list[Operation] = field(default_factory=list)
    running: list[_Served] = field(default_factory=list)
    finished: list[_Served] = field(default_factory=list)
    held: int = 0

    def serve(self, name: str, prompt: Prompt, answer: int) -> None:
        """Submit a request and prefill it as soon as there is room, in chunks if it is long."""
        total, size = prompt_len(prompt), self.geometry.page_size
        while self.running and (
            len(self.running) == self.geometry.slots
            or self.held + total + answer + size > self.geometry.pool_tokens // 2
        ):
            self.step()
        self.operations.append(Submit(request=name, prompt=prompt))
        if self.random.random() < 0.2 and total > 2 * size:
            self.operations.append(Prefill(request=name, tokens=size))
        self.operations.append(Prefill(request=name))
        self.running.append(_Served(name, prompt, total, total + answer))
        self.held += total + answer + size
        if self.random.random() < 0.5:
            self.step()

    def step(self) -> None:
        """Decode once; finish or, now and then, abort what has its answer."""
        self.operations.append(Decode())
        for request in self.running:
            request.length += 1
        for request in [each for each in self.running if each.length >= each.end]:
            self.running.remove(request)
            self.held -= request.end + self.geometry.page_size
            if self.random.random() < 0.03:
                self.operations.append(Abort(request=request.name))
            else:
                self.operations.append(Finish(request=request.name))
                self.finished.append(request)


def busy_run(
    *, requests: int, seed: int = 0, geometry: Geometry = BUSY, answer: int = 20
) -> Scenario:
    """A server's run with shared prefixes and chat turns, and one stale decode without a cap.

    All prompts have a tail of a window or more behind what they may reuse, so that every decode is
    fresh even where nothing is held back; except for one near the end, which adds a single token to
    a prefix that everybody knows.

    Args:
        requests: how many are served.
        seed: what the run is drawn from.
        geometry: its sizes.
        answer: mean tokens of an answer.
    """
    rng = random.Random(seed)
    server = _Server(geometry, rng)
    window, size = geometry.window, geometry.page_size
    prefixes = {f"system{number}": size * rng.randint(1, 4) for number in range(6)}
    odd_one = requests * 9 // 10
    for number in range(requests):
        name = f"r{number}"
        tail = window + rng.randint(0, window)
        text, shared = rng.choice(list(prefixes.items()))
        prompt: Prompt = (Piece(text, shared), Piece(name, shared + tail))
        recent = server.finished[-20:]
        if number == odd_one:
            prompt = (Piece(text, shared), Piece(name, shared + 1))
        elif recent and rng.random() < 0.3:
            turn = rng.choice(recent)
            if turn.length < 8 * window:
                prompt = (
                    *turn.prompt[:-1],
                    Piece(turn.prompt[-1].text, turn.length),
                    Piece(name, turn.length + tail),
                )
        server.serve(name, prompt, rng.randint(2, 2 * answer))
    while server.running:
        server.step()
    return Scenario(geometry=geometry, operations=tuple(server.operations))


@dataclass(slots=True)
class _Recorded:
    """A live request as a recorder knows it."""

    prompt: Prompt
    computed: int = 0
    length: int = 0
    slot: int = 0


def as_recorded(log: Iterable[Fact]) -> Iterator[Fact]:
    """What a recorder would have written where a driver or the model wrote ``log``."""
    recorder = _Recorder()
    step: list[Fact] = []
    for fact in log:
        match fact:
            case Started():
                recorder.geometry = fact.geometry
                recorder.ahead = int(fact.bigram_keys)
                yield replace(fact, backend="rules")
            case Step() | Ended() | EngineError():
                yield from recorder.step(step)
                step = [fact]
            case _:
                step.append(fact)
    if step and not isinstance(step[0], Step):
        yield step[0]


@dataclass(slots=True)
class _Recorder:
    geometry: Geometry | None = None
    ahead: int = 0
    requests: dict[str, _Recorded] = field(default_factory=dict)

    def step(self, facts: list[Fact]) -> Iterator[Fact]:
        """One operation; nothing of one that did nothing, since a server does not do that."""
        if not facts or not isinstance(facts[0], Step):
            return
        if any(isinstance(fact, Skipped) for fact in facts):
            return
        step = facts[0]
        operation = step.operation
        if isinstance(operation, Submit):
            self.requests[operation.request] = _Recorded(
                operation.prompt, length=prompt_len(operation.prompt)
            )
            named = (
                *self._named(operation.prompt, prompt_len(operation.prompt)),
                Piece(f"answer of {operation.request}", prompt_len(operation.prompt)),
            )
            yield replace(step, operation=replace(operation, prompt=named))
            return
        admitted = {fact.request: fact for fact in facts if isinstance(fact, Admitted)}
        for name, fact in admitted.items():
            request = self.requests[name]
            request.computed, request.slot = fact.matched_len, fact.slot
        advanced = [fact for fact in facts if isinstance(fact, Advanced)]
        if isinstance(operation, Prefill):
            request = self.requests[operation.request]
            [after] = advanced
            chunk = after.computed_len - request.computed
            step = replace(step, operation=replace(operation, tokens=chunk))
        yield step
        yield from admitted.values()
        yield from self._ran(operation, advanced)
        yield from advanced
        for name in (f.request for f in facts if isinstance(f, Released)):
            request = self.requests[name]
            yield Answered(request=name, tokens=self._named(request.prompt, request.length))
            if isinstance(operation, Finish | Abort):
                del self.requests[name]
            yield Released(request=name, slot=request.slot)

    def _ran(self, operation: Operation, advanced: list[Advanced]) -> Iterator[Fact]:
        assert self.geometry is not None
        for after in advanced:
            request = self.requests[after.request]
            start, end = request.computed, after.computed_len
            if isinstance(operation, Verify):
                yield Ran(request=after.request, mode="verify", slot=request.slot,
                          start=start, end=start + self.geometry.draft_tokens)  # fmt: skip
            else:
                mode: Mode = "prefill" if isinstance(operation, Prefill) else "decode"
                yield Ran(request=after.request, mode=mode, slot=request.slot, start=start, end=end)
            request.computed = end
            if not after.prefilling:
                request.length = end + 1  # the sampled token is not computed yet
        if isinstance(operation, Decode):
            padding = Ran(request=None, mode="decode", slot=0, start=0, end=1)
            yield from [padding] * operation.pad

    def _named(self, prompt: Prompt, length: int) -> Prompt:
        """Pages by the hash of all tokens up to their end, and so what is left below a page."""
        assert self.geometry is not None
        digest, pieces = hashlib.sha256(), []
        for position in range(length):
            digest.update(f"{text_at(prompt, position)}\0{position}\0".encode())
            is_page = (position + 1 - self.ahead) % self.geometry.page_size == 0
            if (is_page and position >= self.ahead) or position + 1 == length:
                pieces.append(Piece(digest.hexdigest()[:16], position + 1))
        return tuple(pieces)
