"""The player of operations on forwards: what each means, written once.

The counterpart of `model.player` for the operations of `model.forwards`. A target supplies a
`ForwardEngine`: the real backends, pools and allocators of a release, or the reference engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvproof.model.facts import (
    Changed,
    Consumed,
    Ended,
    Fact,
    Mapped,
    Planned,
    Released,
    Share,
    Skipped,
    Started,
    Step,
)
from kvproof.model.forwards import (
    ForwardMode,
    Idle,
    Layer,
    Pad,
    Plan,
    Rebind,
    Release,
    Remap,
    Replay,
    Slide,
)
from kvproof.model.player import RefusedError
from kvproof.model.scenario import Geometry, Operation, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokens:
    """One request's share of a forward: ``count`` tokens at positions from ``start`` on."""

    request: str
    slot: int
    start: int
    count: int


class ForwardEngine(Protocol):
    """Pools, map, backend and graphs of a target.

    Slots are 1 to ``geometry.slots``; slot 0 is the padding's. Methods raise RefusedError if there
    is no room, before they change anything.
    """

    def started(self) -> Started:
        """Describe the target."""

    def entries(self) -> tuple[int, ...]:
        """The full-to-SWA map, an entry a location."""

    def lend(self, tokens: Sequence[Tokens]) -> tuple[tuple[int, ...], ...]:
        """Lend locations for the tokens, each request's own, and note them in its slot's row."""

    def plan(self, mode: ForwardMode, tokens: Sequence[Tokens], *, in_graph: bool) -> None:
        """Make a forward of locations just lent, and let the backend plan it."""

    def pad(self, rows: int) -> None:
        """Append rows of the reserved location to the planned forward's batch."""

    def rebind(self, tokens: Sequence[Tokens]) -> None:
        """Give the planned forward the locations just lent instead of its own."""

    def remap(self) -> None:
        """Map the SWA pages of the planned forward's locations anew."""

    def layer(self) -> Iterable[Consumed]:
        """Run one sliding-window layer of the planned forward."""

    def replay(self, mode: ForwardMode, tokens: Sequence[Tokens]) -> Iterable[Consumed]:
        """Run the mode's graph, captured before, for locations just lent."""

    def idle(self, rows: int) -> Iterable[Consumed]:
        """Run one sliding-window layer on padded rows alone."""

    def free_swa(self, slot: int, start: int, end: int) -> None:
        """Give back the SWA pages of positions ``[start, end)`` of a slot; page aligned."""

    def free(self, slot: int, end: int) -> None:
        """Give back all locations of a slot's ``end`` tokens."""


@dataclass(slots=True)
class _Request:
    slot: int
    length: int = 0
    slid: int = 0  # tokens whose SWA pages were given back


@dataclass(slots=True)
class ForwardPlayer:
    """Plays one scenario on one engine. Make a new one for each scenario."""

    engine: ForwardEngine
    geometry: Geometry
    requests: dict[str, _Request] = field(default_factory=dict)
    planned: tuple[ForwardMode, tuple[Tokens, ...]] | None = None

    def play(self, scenario: Scenario) -> Iterator[Fact]:
        """Yield the facts of the scenario as they happen."""
        yield self.engine.started()
        entries: tuple[int, ...] = ()
        for index, operation in enumerate(scenario.operations):
            yield Step(index=index, operation=operation)
            if entries != (now := self.engine.entries()):
                entries = now
                yield Mapped(entries=entries)
            try:
                for fact in self._play(operation):
                    # What an operation does to the map comes before what it uses.
                    if entries != (now := self.engine.entries()):
                        entries = now
                        yield Mapped(entries=entries)
                    yield fact
            except RefusedError as refusal:
                yield Skipped(reason=str(refusal))
        yield Ended(steps=len(scenario.operations))

    def _play(self, operation: Operation) -> Iterator[Fact]:
        match operation:
            case Plan():
                yield from self._plan(operation)
            case Pad(rows=rows):
                self._current()
                self.engine.pad(rows)
                yield Changed(how="padded", rows=rows)
            case Rebind():
                yield from self._rebind()
            case Remap():
                self._current()
                self.engine.remap()
                yield Changed(how="remapped")
            case Layer():
                self._current()
                yield from self.engine.layer()
            case Replay(mode=mode):
                tokens = self._tokens(mode, operation.requests)
                yield self._lent(mode, tokens, graph=True)
                # One stream: a graph's replay takes the place of a forward that did not run.
                self.planned = None
                yield from self.engine.replay(mode, tokens)
            case Idle(rows=rows):
                if not rows:
                    raise RefusedError("there are no rows")
                self.planned = None
                yield from self.engine.idle(rows)
            case Slide(request=name):
                self._slide(self._alive(name))
            case Release(request=name):
                request = self._alive(name)
                if self.planned and any(t.slot == request.slot for t in self.planned[1]):
                    raise RefusedError(f"the planned forward writes for request {name}")
                self.engine.free(request.slot, request.length)
                del self.requests[name]
                yield Released(request=name, slot=request.slot)
            case _:
                raise RefusedError("this target plays forwards alone")

    def _current(self) -> tuple[ForwardMode, tuple[Tokens, ...]]:
        if self.planned is None:
            raise RefusedError("no forward is planned")
        return self.planned

    def _alive(self, name: str) -> _Request:
        if name not in self.requests:
            raise RefusedError(f"there is no request {name}")
        return self.requests[name]

    def _plan(self, operation: Plan) -> Iterator[Fact]:
        mode = operation.mode
        names = dict.fromkeys(operation.requests)
        if mode == "extend":
            if not operation.tokens:
                raise RefusedError("there are no tokens")
            free = set(range(1, self.geometry.slots + 1)) - {
                request.slot for request in self.requests.values()
            }
            new = [name for name in names if name not in self.requests][: len(free)]
            # They come to be with their first locations: a refused forward leaves nobody behind.
            started = {name: _Request(slot) for name, slot in zip(new, sorted(free), strict=False)}
        else:
            started = {}
        tokens = self._tokens(mode, tuple(names), operation.tokens, started)
        fact = self._lent(mode, tokens, in_graph=operation.in_graph, started=started)
        self.planned = (mode, tokens)
        self.engine.plan(mode, tokens, in_graph=operation.in_graph)
        yield fact

    def _tokens(
        self,
        mode: ForwardMode,
        names: Sequence[str],
        count: int = 1,
        started: dict[str, _Request] | None = None,
    ) -> tuple[Tokens, ...]:
        drafts = self.geometry.draft_tokens
        counts: dict[ForwardMode, int] = {
            "extend": count, "decode": 1, "verify": drafts, "draft_extend": drafts,
            "draft": drafts - 1,
        }  # fmt: skip
        # A draft of n steps has n - 1 forwards: the first token comes from the forward before.
        if drafts < {"extend": 1, "decode": 1, "draft": 3}.get(mode, 2):
            raise RefusedError(f"the geometry has too few draft tokens for a {mode}")
        known = self.requests | (started or {})
        tokens = tuple(
            Tokens(
                request=name, slot=known[name].slot, start=known[name].length, count=counts[mode]
            )
            for name in dict.fromkeys(names)
            if name in known
        )
        if not tokens:
            raise RefusedError("none of the requests is alive")
        return tokens

    def _lent(
        self,
        mode: ForwardMode,
        tokens: Sequence[Tokens],
        *,
        in_graph: bool = True,
        graph: bool = False,
        started: dict[str, _Request] | None = None,
    ) -> Planned:
        shares = self._shares(tokens, self.engine.lend(tokens), started or {})
        return Planned(mode=mode, shares=shares, in_graph=in_graph, graph=graph)

    def _shares(
        self,
        tokens: Sequence[Tokens],
        locs: Sequence[tuple[int, ...]],
        started: dict[str, _Request],
    ) -> tuple[Share, ...]:
        self.requests |= started
        for share in tokens:
            self.requests[share.request].length += share.count
        return tuple(
            Share(request=share.request, slot=share.slot, start=share.start, locs=lent)
            for share, lent in zip(tokens, locs, strict=True)
        )

    def _rebind(self) -> Iterator[Fact]:
        mode, before = self._current()
        tokens = tuple(
            Tokens(
                request=share.request, slot=share.slot,
                start=self.requests[share.request].length, count=share.count,
            )
            for share in before
        )  # fmt: skip
        shares = self._shares(tokens, self.engine.lend(tokens), {})
        self.planned = (mode, tokens)
        self.engine.rebind(tokens)
        yield Changed(how="rebound", shares=shares)

    def _slide(self, request: _Request) -> None:
        page = self.geometry.page_size
        planned = self.planned[1] if self.planned else ()
        length = min(
            (share.start for share in planned if share.slot == request.slot),
            default=request.length,
        )
        # As far as no window of a later query reaches, in whole pages.
        end = max(0, length - self.geometry.window) // page * page
        if end <= request.slid:
            raise RefusedError("every SWA page of the request may still be read")
        self.engine.free_swa(request.slot, request.slid, end)
        request.slid = end
