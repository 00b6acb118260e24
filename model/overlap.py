"""The player with overlap scheduling: two streams, the host's and the device's.

The device runs steps in the order in which they were launched. The host launches step t, and then
takes the result of step t-1: only now does it know what t-1 sampled, publish what it computed and
give back what ended with it, while t is in flight (``Scheduler.event_loop_overlap``). So one
operation that launches is one round of that loop, and `Complete` a round that launches nothing.

What follows, as in the loop:

- A request that has ended is decoded once more: the host learns of its end after the next launch.
- An abort of a running request takes effect with its next result. A request in the middle of its
  prefill is torn down at once, its chunk in flight.
- A retraction belongs to the round that decodes the others. What the request's step in flight
  sampled is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvproof.model.facts import Completed, Fact, Launched, Mode, Released, Rewritten, TableLane
from kvproof.model.player import (
    Engine,
    Lane,
    OutOfTurnError,
    Player,
    RefusedError,
    Request,
    advanced,
)
from kvproof.model.scenario import (
    Abort,
    Complete,
    Decode,
    Finish,
    Flush,
    Operation,
    Retract,
    Verify,
)


class OverlapEngine(Engine, Protocol):
    """An engine whose results are taken later.

    `admit`, `extend` and `decode` launch; `prefilled` and `decoded` take the oldest result, and
    leave out requests that do not hold memory any more.
    """

    def table(self, slot: int, start: int, end: int) -> Sequence[int]:
        """The page table now: full-pool locations of positions ``[start, end)`` of a slot."""

    def first_read(self, position: int) -> int:
        """First position that a query reads by the page table; 0 unless all layers slide."""

    def writes_by_table(self, mode: Mode) -> bool:
        """Whether a step looks its write locations up while it runs."""

    def relayed(self, tokens: Mapping[str, Sequence[int]]) -> None:
        """What the newest step sampled, by request: the device has it, the host not yet."""

    def ends(self, request: str, *, aborted: bool) -> None:
        """The next result that is taken of this request ends it, and releases it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A launch whose result was not taken.

    ``last`` ends a prefill; ``accepted`` is what each request keeps of a decode or verify.
    """

    number: int
    mode: Mode
    lanes: tuple[Lane, ...]
    table: tuple[TableLane, ...]
    accepted: Mapping[str, int]
    last: bool


@dataclass  # without slots: `super()` finds no class that they made anew
class OverlapPlayer(Player):
    """Plays a scenario with ``overlap 1``. Make a new one for each scenario."""

    engine: OverlapEngine
    in_flight: deque[_Step] = field(default_factory=deque)
    launches: int = 0
    # Number of the step that ends a request, and whether that is an abort, which the engine knows.
    _ends: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def _play(self, operation: Operation) -> Iterator[Fact]:
        match operation:
            case Complete():
                if not self.in_flight:
                    raise OutOfTurnError("nothing is in flight")
                yield from self._take()
            case Flush() if self.in_flight:
                raise OutOfTurnError("the cache is cleared only while nothing is in flight")
            case _:
                yield from super()._play(operation)

    # A round of the loop: launch, then take the result before

    def _prefilled(self, lane: Lane, *, last: bool) -> Iterator[Fact]:
        yield from self._launched("prefill", [lane], accepted={}, last=last)
        yield advanced(lane, lane.end, prefilling=not last)
        yield from self._take_previous()

    def _decoded(self, lanes: Sequence[Lane], accepted: Mapping[str, int]) -> Iterator[Fact]:
        mode: Mode = "verify" if lanes[0].end - lanes[0].start > 1 else "decode"
        yield from self._launched(mode, lanes, accepted=accepted, last=False)
        yield from self._advance(lanes, accepted)
        yield from self._take_previous()

    def _launched(
        self, mode: Mode, lanes: Sequence[Lane], *, accepted: Mapping[str, int], last: bool
    ) -> Iterator[Fact]:
        self.launches += 1
        step = _Step(
            number=self.launches,
            mode=mode,
            lanes=tuple(lanes),
            table=tuple(self._table_lane(lane, mode) for lane in lanes),
            accepted=accepted,
            last=last,
        )
        yield Launched(launch=step.number, mode=mode, lanes=step.table)
        self.engine.relayed(self._sampled_by(step))
        self.in_flight.append(step)

    def _sampled_by(self, step: _Step) -> dict[str, Sequence[int]]:
        if step.mode != "prefill":
            return self._sampled(step.lanes, step.accepted)
        # A prefill samples the token after its end, as a decode of the position before would.
        ends = [replace(lane, start=lane.end - 1) for lane in step.lanes]
        kept = {lane.request: 1 for lane in ends if lane.request is not None}
        return self._sampled(ends, kept) if step.last else {}

    def _table_lane(self, lane: Lane, mode: Mode) -> TableLane:
        assert lane.request is not None
        first = self.engine.first_read(lane.start)
        return TableLane(
            request=lane.request,
            slot=lane.slot,
            first=first,
            start=lane.start,
            end=lane.end,
            locs=tuple(self.engine.table(lane.slot, first, lane.end)),
            writes_by_table=self.engine.writes_by_table(mode),
        )

    def _take_previous(self) -> Iterator[Fact]:
        if len(self.in_flight) > 1:
            yield from self._take()

    def _take(self) -> Iterator[Fact]:
        """The host takes the oldest result."""
        step = self.in_flight.popleft()
        yield Completed(launch=step.number, rewritten=tuple(self._rewritten(step)))
        kept = [lane for lane in step.lanes if self._holds(lane)]
        ended: list[tuple[str, Request]] = []
        for lane in kept:
            assert lane.request is not None
            number, aborted = self._ends.get(lane.request, (0, False))
            if number == step.number:
                if not aborted:
                    self.engine.ends(lane.request, aborted=False)
                ended.append((lane.request, self.requests[lane.request]))
        if step.mode != "prefill":
            self._take_decode(kept, step.accepted)
        elif kept:
            self._take_prefill(kept[0], last=step.last)
        else:
            [lane] = step.lanes
            assert lane.request is not None
            self.engine.prefilled(lane.request, last=step.last, token=0)
        for name, request in ended:
            del self._ends[name]
            yield from self._release(name, request)

    def _rewritten(self, step: _Step) -> Iterator[Rewritten]:
        for index, lane in enumerate(step.table):
            now = self.engine.table(lane.slot, lane.first, lane.end)
            changed = [at for at, (old, new) in enumerate(zip(lane.locs, now, strict=True))
                       if old != new]  # fmt: skip
            if changed:
                yield Rewritten(
                    lane=index,
                    position=lane.first + changed[0],
                    locs=tuple(now[changed[0] : changed[-1] + 1]),
                )

    def _holds(self, lane: Lane) -> bool:
        """Whether a launch's request still has the memory that it had then."""
        request = self.requests.get(lane.request) if lane.request is not None else None
        return (
            request is not None
            and request.occupancy == lane.occupancy
            and request.state != "waiting"
        )

    # Ends

    def _steps_of(self, request: Request) -> list[int]:
        return [
            step.number
            for step in self.in_flight
            if any(lane.occupancy == request.occupancy for lane in step.lanes)
        ]

    def _finish(self, operation: Finish) -> Iterator[Fact]:
        """What the request's newest step samples ends it."""
        request = self._alive(operation.request, "running")
        if steps := self._steps_of(request):
            request.state, self._ends[operation.request] = "ending", (steps[-1], False)
        else:
            yield from super()._finish(operation)

    def _abort(self, operation: Abort) -> Iterator[Fact]:
        request = self._alive(operation.request, "waiting", "prefilling", "running", "ending")
        steps = self._steps_of(request)
        if request.state in {"running", "ending"} and steps:
            self.engine.ends(operation.request, aborted=True)
            request.state, self._ends[operation.request] = "ending", (steps[0], True)
        else:
            yield from super()._abort(operation)

    def _retract(self, operation: Retract) -> Iterator[Fact]:
        request = self._alive(operation.request, "running", "ending")
        self.engine.retract(operation.request)
        self._ends.pop(operation.request, None)
        yield Released(request=operation.request, slot=request.slot)
        request.total = request.known
        request.computed, request.state = 0, "waiting"
        try:
            yield from self._step()
        except RefusedError:  # nothing else runs, or the others have no room either
            while self.in_flight:
                yield from self._take()

    def _step(self) -> Iterator[Fact]:
        """A step of all that runs; of a draft the first token alone is kept."""
        if self.draft_tokens > 1:
            yield from self._verify(Verify(accepted=1))
        else:
            yield from self._decode(Decode())
