"""The player: plays a scenario on an engine and reports facts.

What an operation means is written once, here. A target supplies two parts: an `Engine` (slots,
pools, tree, scheduling: the real objects of a release, or the reference engine) and a `Forward`
(which ring rows a step reads and writes: the real kernels, or the specification's rules).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Complained,
    Ended,
    Fact,
    Mode,
    Pools,
    Read,
    Released,
    Skipped,
    Started,
    Step,
    Windowed,
    Wrote,
)
from kvproof.model.scenario import (
    Abort,
    Complete,
    Decode,
    Evict,
    Finish,
    Flush,
    Operation,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
    Verify,
    number_texts,
    prompt_len,
    token_ids,
)
from kvproof.spec.indices import Position
from kvproof.spec.window import window_start


class RefusedError(Exception):
    """The engine has no room for an operation, or no way to run it; it changed nothing."""


class OutOfTurnError(RefusedError):
    """A scheduler would not begin the operation as things stand; the engine was not asked."""


class NoMemoryError(RefusedError):
    """The engine says that its pools have too little memory for an operation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """One prefill step ``[start, end)`` of a request in ``slot``; ``last`` ends its prefill."""

    slot: int
    start: int
    end: int
    last: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One request's share of a forward: queries at ``[start, end)`` of ``slot``.

    ``request`` is None and ``slot`` is 0 for a padded row; ``occupancy`` counts the log's
    admissions from 1 (0 for padding). ``tokens`` are those at the positions; a draft that will be
    rejected is none of its text.
    """

    request: str | None
    slot: int
    occupancy: int
    start: int
    end: int
    tokens: Sequence[int] = ()


class Engine(Protocol):
    """Slots, pools, tree and scheduler of a target. Methods raise RefusedError if out of room."""

    def started(self) -> Started:
        """Describe the target."""

    def submit(self, request: str, tokens: Sequence[int]) -> None:
        """Queue a request with its prompt's token ids."""

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Match, lock and allocate a waiting request's first chunk; also its matched length."""

    def extend(self, request: str, budget: int | None) -> Chunk:
        """Allocate the next chunk of a request that is being prefilled."""

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Publish a chunk whose forward ran; after the last one ``token`` was sampled."""

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests: (request, slot, first position) each."""

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Keep the sampled ``tokens`` of each request of the step; what else it wrote is void."""

    def finish(self, request: str) -> None:
        """End a running request and publish what it computed."""

    def abort(self, request: str) -> None:
        """Cancel a request that holds memory."""

    def drop(self, request: str) -> None:
        """Cancel a request that waits."""

    def retract(self, request: str) -> None:
        """Take a running request's memory away and queue it again."""

    def evict(self, tokens: int, swa_tokens: int) -> None:
        """Ask the tree to give back ``tokens`` tokens, and ``swa_tokens`` of the SWA pool."""

    def flush(self) -> None:
        """Clear the cache; no request holds memory."""

    def pools(self) -> Pools:
        """Snapshot of pools and tree."""

    def complaint(self) -> str:
        """What the engine's own check of its tree finds wrong; empty for nothing."""

    def swa_locs(self, slot: int, start: int, end: int) -> Sequence[int] | None:
        """SWA locations of a slot's positions ``[start, end)`` by the map as it is now.

        0 where there is none; None as a whole where the window does not live in an SWA pool.
        """


class Forward(Protocol):
    """Which rows a step reads and writes, in the order in which it does so."""

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One prefill launch."""

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One decode launch; every lane is one position long."""

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One verify launch; every lane is ``draft_tokens`` positions long."""


@dataclass(slots=True)
class Request:
    """What the player knows of a request that is alive.

    Attributes:
        total: tokens that its prefill has to compute.
        known: tokens that the host knows, sampled ones included.
        computed: tokens whose keys the device has, or will have once what is queued has run.
    """

    prompt: Prompt
    total: int
    known: int
    computed: int = 0
    slot: int = 0
    occupancy: int = 0
    state: str = "waiting"


@dataclass(slots=True)
class Player:
    """Plays one scenario on one engine. Make a new one for each scenario."""

    engine: Engine
    forward: Forward | None
    requests: dict[str, Request] = field(default_factory=dict)
    texts: dict[str, int] = field(default_factory=dict)
    occupancies: int = 0
    draft_tokens: int = 1
    window: int = 1
    snapshots: bool = True

    def play(self, scenario: Scenario) -> Iterator[Fact]:
        """Yield the facts of the scenario as they happen."""
        self.draft_tokens = scenario.geometry.draft_tokens
        self.window = scenario.geometry.window
        yield self.engine.started()
        before = self.engine.pools() if self.snapshots else None
        if before is not None:
            yield before
        for index, operation in enumerate(scenario.operations):
            yield Step(index=index, operation=operation)
            if isinstance(operation, Submit):
                number_texts(self.texts, operation.prompt)
            try:
                yield from self._play(operation)
            except OutOfTurnError as refusal:
                yield Skipped(reason=str(refusal))
                continue  # nothing in the engine can be otherwise
            except RefusedError as refusal:
                yield Skipped(reason=str(refusal), no_memory=isinstance(refusal, NoMemoryError))
            pools = self.engine.pools() if self.snapshots else None
            if pools is not None and pools != before:
                yield pools
                before = pools
            if complaint := self.engine.complaint():
                yield Complained(message=complaint)
        yield Ended(steps=len(scenario.operations))

    def _play(self, operation: Operation) -> Iterator[Fact]:
        match operation:
            case Submit():
                yield from self._submit(operation)
            case Prefill():
                yield from self._prefill(operation)
            case Decode():
                yield from self._decode(operation)
            case Verify():
                yield from self._verify(operation)
            case Finish():
                yield from self._finish(operation)
            case Abort():
                yield from self._abort(operation)
            case Retract():
                yield from self._retract(operation)
            case Evict():
                self.engine.evict(operation.tokens, operation.swa_tokens)
            case Flush():
                if any(r.state != "waiting" for r in self.requests.values()):
                    raise OutOfTurnError("the cache is cleared only while no request holds memory")
                self.engine.flush()
            case Complete():
                raise OutOfTurnError("nothing is in flight")

    def _alive(self, name: str, *states: str) -> Request:
        request = self.requests.get(name)
        if request is None:
            raise OutOfTurnError(f"there is no request {name}")
        if request.state not in states:
            raise OutOfTurnError(f"request {name} is {request.state}")
        return request

    def _submit(self, operation: Submit) -> Iterator[Fact]:
        if operation.request in self.requests:
            raise OutOfTurnError(f"request {operation.request} is alive")
        total = prompt_len(operation.prompt)
        if total < 1:
            raise OutOfTurnError("the prompt is empty")
        self.engine.submit(operation.request, token_ids(self.texts, operation.prompt, 0, total))
        self.requests[operation.request] = Request(operation.prompt, total, known=total)
        yield from ()

    def _prefill(self, operation: Prefill) -> Iterator[Fact]:
        name = operation.request
        request = self._alive(name, "waiting", "prefilling")
        if request.state == "waiting":
            # An engine has one chunked request at a time; it is continued before others start.
            for other, state in self.requests.items():
                if state.state == "prefilling":
                    raise OutOfTurnError(f"request {other} is in the middle of its prefill")
            chunk, matched = self.engine.admit(name, operation.tokens)
            self.occupancies += 1
            request.slot, request.occupancy = chunk.slot, self.occupancies
            request.computed = matched
            yield Admitted(
                request=name, slot=chunk.slot, prompt_len=request.total, matched_len=matched
            )
        else:
            chunk = self.engine.extend(name, operation.tokens)
        lane = Lane(
            request=name, slot=chunk.slot, occupancy=request.occupancy,
            start=chunk.start, end=chunk.end,
            tokens=token_ids(self.texts, request.prompt, chunk.start, chunk.end),
        )  # fmt: skip
        yield from self._windows("prefill", [lane])
        if self.forward is not None:
            yield from self.forward.prefill([lane])
        request.computed = chunk.end
        request.state = "running" if chunk.last else "prefilling"
        yield from self._prefilled(lane, last=chunk.last)

    def _prefilled(self, lane: Lane, *, last: bool) -> Iterator[Fact]:
        self._take_prefill(lane, last=last)
        yield advanced(lane, lane.end, prefilling=not last)

    def _take_prefill(self, lane: Lane, *, last: bool) -> None:
        """The host takes the result of a prefill."""
        assert lane.request is not None
        request = self.requests[lane.request]
        [token] = token_ids(self.texts, request.prompt, lane.end, lane.end + 1)
        self.engine.prefilled(lane.request, last=last, token=token)
        if last:
            request.known = lane.end + 1

    def _windows(self, mode: Mode, lanes: Sequence[Lane]) -> Iterator[Windowed]:
        """What the queries of a forward that is about to run find in the SWA pool."""
        for lane in lanes:
            assert lane.request is not None
            first = window_start(Position(lane.start), self.window)
            locs = self.engine.swa_locs(lane.slot, first, lane.end)
            if locs is not None:
                yield Windowed(
                    request=lane.request, mode=mode, slot=lane.slot,
                    start=lane.start, first=first, locs=tuple(locs),
                )  # fmt: skip

    def _accepted(self, operation: Decode | Verify, request: str) -> int:
        if isinstance(operation, Verify):
            return operation.accepted_of(request, self.draft_tokens)
        return 1

    def _lanes(self, operation: Decode | Verify) -> list[Lane]:
        draft_tokens = self.draft_tokens if isinstance(operation, Verify) else 1
        # One that ends with a step in flight runs on: the host does not know yet.
        if not any(request.state in {"running", "ending"} for request in self.requests.values()):
            if operation.pad and self.forward is not None:
                return []  # an idle rank runs the graph along with the others, all rows padded
            raise OutOfTurnError("no request is running")
        return [
            Lane(request=name, slot=slot, occupancy=self.requests[name].occupancy,
                 start=position, end=position + draft_tokens,
                 tokens=self._drafted(name, position, self._accepted(operation, name),
                                      draft_tokens))
            for name, slot, position in self.engine.decode(draft_tokens)
        ]  # fmt: skip

    def _drafted(self, name: str, start: int, accepted: int, drafted: int) -> list[int]:
        """Tokens of a step: what is accepted continues the request's text, the rest is of none."""
        right = token_ids(self.texts, self.requests[name].prompt, start, start + accepted)
        return [*right, *range(start + accepted, start + drafted)]

    def _kept(self, lanes: Sequence[Lane], operation: Decode | Verify) -> dict[str, int]:
        """How many of the tokens that a step writes each request keeps."""
        names = [lane.request for lane in lanes if lane.request is not None]
        return {name: self._accepted(operation, name) for name in names}

    def _decoded(self, lanes: Sequence[Lane], accepted: Mapping[str, int]) -> Iterator[Fact]:
        self._take_decode(lanes, accepted)
        yield from self._advance(lanes, accepted)

    def _advance(self, lanes: Sequence[Lane], accepted: Mapping[str, int]) -> Iterator[Fact]:
        for lane in lanes:
            assert lane.request is not None
            end = lane.start + accepted[lane.request]
            self.requests[lane.request].computed = end
            yield advanced(lane, end)

    def _take_decode(self, lanes: Sequence[Lane], accepted: Mapping[str, int]) -> None:
        """The host takes the result of a decode or verify."""
        tokens = self._sampled(lanes, accepted)
        self.engine.decoded(tokens)
        for lane in lanes:
            if lane.request in tokens:
                self.requests[lane.request].known = lane.start + accepted[lane.request] + 1

    def _sampled(
        self, lanes: Sequence[Lane], accepted: Mapping[str, int]
    ) -> dict[str, Sequence[int]]:
        return {
            lane.request: token_ids(
                self.texts,
                self.requests[lane.request].prompt,
                lane.start + 1,
                lane.start + 1 + accepted[lane.request],
            )
            for lane in lanes
            if lane.request in self.requests
        }

    def _decode(self, operation: Decode) -> Iterator[Fact]:
        lanes = self._lanes(operation)
        yield from self._windows("decode", lanes)
        if self.forward is not None:
            yield from self.forward.decode([*lanes, *self._padding(operation.pad, 1)])
        if lanes:
            yield from self._decoded(lanes, self._kept(lanes, operation))

    def _verify(self, operation: Verify) -> Iterator[Fact]:
        if self.draft_tokens < 2:
            raise OutOfTurnError("the geometry has no draft tokens")
        lanes = self._lanes(operation)
        yield from self._windows("verify", lanes)
        if self.forward is not None:
            padding = self._padding(operation.pad, self.draft_tokens)
            yield from self.forward.verify([*lanes, *padding])
        if lanes:
            yield from self._decoded(lanes, self._kept(lanes, operation))

    def _padding(self, rows: int, tokens: int) -> list[Lane]:
        lane = Lane(request=None, slot=0, occupancy=0, start=0, end=tokens, tokens=(0,) * tokens)
        return [lane] * rows

    def _finish(self, operation: Finish) -> Iterator[Fact]:
        request = self._alive(operation.request, "running")
        self.engine.finish(operation.request)
        yield from self._release(operation.request, request)

    def _retract(self, operation: Retract) -> Iterator[Fact]:
        request = self._alive(operation.request, "running")
        self.engine.retract(operation.request)
        yield Released(request=operation.request, slot=request.slot)
        request.total = request.known
        request.computed, request.state = 0, "waiting"

    def _abort(self, operation: Abort) -> Iterator[Fact]:
        request = self._alive(operation.request, "waiting", "prefilling", "running")
        if request.state == "waiting":
            self.engine.drop(operation.request)
            del self.requests[operation.request]
        else:
            self.engine.abort(operation.request)
            yield from self._release(operation.request, request)

    def _release(self, name: str, request: Request) -> Iterator[Fact]:
        del self.requests[name]
        yield Released(request=name, slot=request.slot)


def advanced(lane: Lane, computed_len: int, *, prefilling: bool = False) -> Advanced:
    """The fact that a lane's request has so many tokens computed."""
    assert lane.request is not None, "a padded row is no request"
    return Advanced(request=lane.request, computed_len=computed_len, prefilling=prefilling)
