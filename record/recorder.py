"""Turns what a scheduler does into a log of facts. It knows no engine: `hooks` reads the objects.

The order of the facts is the order in which the scheduler prepares its launches, which is the order
in which the device runs them. Facts of a request that a launch is prepared for are given once the
launch is prepared, and its tokens count as computed from then on.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Answered,
    Ended,
    EngineError,
    Fact,
    Freed,
    Gap,
    Mode,
    Pool,
    Ran,
    Released,
    Span,
    Started,
    Step,
    Translated,
)
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Operation,
    Prefill,
    Retract,
    Submit,
)
from kvproof.record.names import PrefixNames, unanswered

Ending: TypeAlias = Literal["finish", "abort", "retract"]

_ENDINGS: dict[Ending, Callable[[str], Operation]] = {
    "finish": lambda request: Finish(request=request),
    "abort": lambda request: Abort(request=request),
    "retract": lambda request: Retract(request=request),
}


class CannotFollowError(Exception):
    """The server does what the recorder has no facts for; a log of it would be wrong."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One request of the log.

    Attributes:
        name: what the log calls it; not the server's own id, which a client may have chosen.
        holds_slot: between its admission and its release.
        leaving: its release has begun.
    """

    name: str
    names: PrefixNames
    holds_slot: bool = False
    leaving: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Extend:
    """One request's share of a prefill launch: queries at ``[start, end)`` of ``total`` tokens."""

    request: Tracked
    start: int
    end: int
    total: int


@dataclass(slots=True)
class Recorder:
    """Gives the facts of one log.

    Attributes:
        put: takes each fact.
        started: the log's first fact; without a ring no launches are told.
        key: secret of the log's names.
    """

    put: Callable[[Fact], None]
    started: Started
    key: bytes
    _steps: int = field(default=0, init=False)
    _requests: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Begin the log."""
        self.put(self.started)

    def submit(self, tokens: array[int], *, realm: bytes = b"") -> Tracked:
        """A request is seen for the first time, with its prompt."""
        self._requests += 1
        name = f"r{self._requests}"
        names = PrefixNames(self.started.geometry.page_size, self.key, realm)
        self._step(Submit(request=name, prompt=unanswered(names.pieces(tokens), name)))
        return Tracked(name, names)

    def begin_prefill(self, launch: Sequence[Extend]) -> None:
        """A prefill launch is going to be prepared."""
        self._begin_extend(launch[0])

    def _begin_extend(self, extend: Extend) -> None:
        tokens = extend.end - extend.start
        self._step(Prefill(request=extend.request.name, tokens=tokens))

    def end_prefill(self, launch: Sequence[Extend], slots: Sequence[int]) -> None:
        """A prefill launch is prepared: each request has its slot."""
        for number, (extend, slot) in enumerate(zip(launch, slots, strict=True)):
            if number:
                self._begin_extend(extend)
            request = extend.request
            if not request.holds_slot:
                request.holds_slot = True
                self.put(
                    Admitted(
                        request=request.name,
                        slot=slot,
                        prompt_len=extend.total,
                        matched_len=extend.start,
                    )
                )
            self._ran(request, "prefill", slot, extend.start, extend.end)
            self._advanced(request, extend.end, prefilling=extend.end < extend.total)

    def begin_decode(self) -> None:
        """A decode launch is going to be prepared."""
        self._step(Decode())

    def end_decode(self, launch: Sequence[tuple[Tracked, int, int]]) -> None:
        """A decode launch is prepared: each request with its slot and its query's position."""
        for request, slot, position in launch:
            self._ran(request, "decode", slot, position, position + 1)
        for request, _, position in launch:
            self._advanced(request, position + 1)

    def begin_release(self, request: Tracked, ending: Ending, tokens: array[int]) -> None:
        """A request is going to give its slot back; ``tokens`` are prompt and answer."""
        request.leaving = True
        self._step(_ENDINGS[ending](request.name))
        if ending != "retract":
            self.put(Answered(request=request.name, tokens=request.names.pieces(tokens)))

    def released(self, request: Tracked, slot: int) -> None:
        """A request gave its slot back."""
        request.holds_slot = request.leaving = False
        self.put(Released(request=request.name, slot=slot))

    def evict(self, tokens: int) -> None:
        """The tree is asked to give tokens back."""
        self._step(Evict(tokens=tokens))

    def flush(self) -> None:
        """The cache is cleared."""
        self._step(Flush())

    def allocated(self, pool: Pool, locs: tuple[Span, ...]) -> None:
        """An allocator lent locations."""
        self.put(Allocated(pool=pool, locs=locs))

    def freed(self, pool: Pool, locs: tuple[Span, ...]) -> None:
        """An allocator took locations back."""
        self.put(Freed(pool=pool, locs=locs))

    def translated(self, full: tuple[Span, ...], swa: tuple[Span, ...]) -> None:
        """Locations were translated."""
        self.put(Translated(full=full, swa=swa))

    def gap(self, reason: str) -> None:
        """Facts are missing here."""
        self.put(Gap(reason=reason))

    def engine_failed(self, error: BaseException) -> EngineError:
        """The log's last fact where the engine raised.

        Its message stays out: it may hold what a client sent.
        """
        return EngineError(cause="raised", message=type(error).__name__)

    def ended(self) -> Ended:
        """The log's last fact."""
        return Ended(steps=self._steps)

    def _step(self, operation: Operation) -> None:
        self.put(Step(index=self._steps, operation=operation))
        self._steps += 1

    def _ran(self, request: Tracked, mode: Mode, slot: int, start: int, end: int) -> None:
        if self.started.ring_stride is not None:
            self.put(Ran(request=request.name, mode=mode, slot=slot, start=start, end=end))

    def _advanced(self, request: Tracked, computed_len: int, *, prefilling: bool = False) -> None:
        self.put(Advanced(request=request.name, computed_len=computed_len, prefilling=prefilling))
