"""EXACT, PURE and non-interference of a log, through a stack of layers.

A log says which ring rows each query read and wrote, once for all layers, since every layer has the
same index plan. This module carries *taint* through the layers along those reads: a state is
inexact if anything that it was computed from is not what a run with an empty cache computes, and
foreign if it depends on what another request left in the ring. It sees facts only, so it judges the
reference engine and a real release alike; the layers themselves are modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Ended,
    Fact,
    Pools,
    Read,
    Released,
    Started,
    Step,
    Wrote,
)
from kvproof.spec.exact import compressed_end
from kvproof.spec.indices import FullLoc, Page, Position
from kvproof.spec.pages import page_of
from kvproof.spec.window import window_start

Reading: TypeAlias = Literal["cap", "floored reads", "rebuild"]
"""What a release may do about a reused prefix beyond capping it.

``floored reads`` leaves ring rows below the match out. ``rebuild`` keeps the compressed rows that
the tree has, and recomputes sliding-window keys only.
"""

Found: TypeAlias = Literal["own", "nothing", "stale"]
"""What a query found in a ring row: the request's own key, none since it left it out, another."""

Judged: TypeAlias = Literal["EXACT", "PURE", "NON-INTERFERENCE"]

CLEAN, INEXACT, FOREIGN = 0, 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A stack of sliding-window layers.

    Attributes:
        layers: how many.
        compressed: layers, from 1, that also write and read compressed rows.
        ratio: tokens per compressed row; divides the page size.
    """

    layers: int
    compressed: frozenset[int] = frozenset()
    ratio: int = 1
    reading: Reading = "cap"


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """One broken invariant: where, and in a sentence."""

    invariant: Judged
    step: int
    sentence: str


@dataclass(slots=True)
class _Run:
    """A request: taint of its states, ``states[layer][position]``, layer 0 being the embeddings."""

    name: str
    occupancy: int
    slot: int
    prompt_len: int
    matched: int
    computed: int
    states: list[dict[int, int]]
    ring_reads: dict[int, list[tuple[int, Found]]] = field(default_factory=dict)
    chunk: tuple[int, int] | None = None


@dataclass(slots=True)
class Layers:
    """Feed it a log's facts; it collects what breaks."""

    stack: Stack
    broken: list[Broken] = field(default_factory=list)
    window: int = 1
    page_size: int = 1
    _step: int = -1
    _occupancies: int = 0
    _ring: dict[int, tuple[int, int]] = field(default_factory=dict)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _pages: dict[Page, list[int]] = field(default_factory=dict)
    _makers: dict[Page, tuple[str, int]] = field(default_factory=dict)
    _pools: Pools | None = None
    _published: set[Page] = field(default_factory=set)

    def feed(self, fact: Fact) -> None:
        """Take in the next fact."""
        match fact:
            case Started():
                self.window = fact.geometry.window
                self.page_size = fact.geometry.page_size
            case Step():
                self._settle()
                self._step = fact.index
            case Admitted():
                self._admit(fact)
            case Wrote():
                run = self._runs.get(fact.request or "")
                for position, row in zip(fact.positions, fact.rows, strict=True):
                    self._ring[row] = (run.occupancy if run else 0, position)
            case Read():
                self._read(fact)
            case Advanced():
                if fact.request in self._runs:
                    run = self._runs[fact.request]
                    run.chunk = (run.computed, fact.computed_len)
            case Pools():
                self._snapshot(fact)
            case Released():
                self._settle()
                self._runs.pop(fact.request, None)
            case Ended():
                self._settle()
            case _:
                pass  # other facts carry no state

    def _admit(self, fact: Admitted) -> None:
        self._occupancies += 1
        self._runs[fact.request] = _Run(
            name=fact.request, occupancy=self._occupancies, slot=fact.slot,
            prompt_len=fact.prompt_len, matched=fact.matched_len, computed=fact.matched_len,
            states=[{} for _ in range(self.stack.layers + 1)],
        )  # fmt: skip

    def _read(self, fact: Read) -> None:
        run = self._runs.get(fact.request or "")
        if run is not None:
            floored = self.stack.reading == "floored reads" and fact.mode == "prefill"
            run.ring_reads[fact.position] = [
                (position, self._found(run, position, row, left_out=floored))
                for position, row in enumerate(fact.rows, fact.first)
            ]

    def _found(self, run: _Run, position: int, row: int, *, left_out: bool) -> Found:
        if left_out and position < run.matched:
            return "nothing"
        return "own" if self._ring.get(row) == (run.occupancy, position) else "stale"

    def _settle(self, pools: Pools | None = None) -> None:
        """Compute the states of what was launched in this step, now that the pools are known."""
        for run in self._runs.values():
            if run.chunk is None:
                continue
            start, end = run.chunk
            inherited = self._inherited(run, pools or self._pools)
            for query in sorted({*range(start, end), *run.ring_reads}):
                self._compute(run, query, inherited)
            self._judge(run, end - 1)
            run.computed, run.chunk, run.ring_reads = end, None, {}

    def _inherited(self, run: _Run, pools: Pools | None) -> list[list[int]]:
        """Taint of the compressed rows that come from the tree: a list a page, an entry a layer."""
        locs: Sequence[int] = ()
        for holding in pools.holdings if pools else ():
            if holding.request == run.name:
                locs = holding.locs
        pages = [page_of(FullLoc(loc), self.page_size) for loc in locs[:: self.page_size]]
        reused = run.matched // self.page_size
        if self.stack.reading == "rebuild":
            # What the tree holds is not rewritten: those pages were known before this launch.
            while reused < len(pages) and pages[reused] in self._published:
                reused += 1
        return [self._pages.get(page, [CLEAN] * self.stack.layers) for page in pages[:reused]]

    def _compute(self, run: _Run, query: int, inherited: list[list[int]]) -> None:
        ring = run.ring_reads.get(query, [])
        from_ring = {position for position, _ in ring}
        run.states[0][query] = CLEAN
        for layer in range(1, self.stack.layers + 1):
            below = run.states[layer - 1]
            taint = below[query]
            for position, found in ring:
                taint |= {
                    "own": below.get(position, INEXACT), "nothing": INEXACT,
                    "stale": INEXACT | FOREIGN,
                }[found]  # fmt: skip
            for position in range(window_start(Position(query), self.window), query):
                if position not in from_ring:
                    taint |= below.get(position, INEXACT)
            if layer in self.stack.compressed:
                taint |= self._compressed_taint(run, layer, query, inherited)
            run.states[layer][query] = taint

    def _compressed_taint(
        self, run: _Run, layer: int, query: int, inherited: list[list[int]]
    ) -> int:
        complete = compressed_end(query, self.stack.ratio)
        from_tree = len(inherited) * self.page_size
        taint = CLEAN
        for page in inherited[: -(-complete // self.page_size)]:
            taint |= page[layer - 1]
        for position in range(from_tree, complete):
            taint |= run.states[layer - 1].get(position, CLEAN)
        return taint

    def _judge(self, run: _Run, last: int) -> None:
        taint = run.states[self.stack.layers][last]
        what = "logits of the last prompt token" if last == run.prompt_len - 1 else "output"
        if taint & INEXACT:
            self._break(
                "EXACT",
                f"the {what} of request {run.name} at position {last} differ from a cold run's: "
                f"{run.matched} tokens were reused, {last + 1 - run.matched} were computed since",
            )
        if taint & FOREIGN:
            self._break(
                "NON-INTERFERENCE",
                f"the {what} of request {run.name} at position {last} depend on what an earlier "
                f"occupant left in slot {run.slot}",
            )

    def _snapshot(self, pools: Pools) -> None:
        self._settle(pools)
        in_tree = {
            page_of(FullLoc(loc), self.page_size)
            for node in pools.nodes for loc in node.locs[:: self.page_size]
        }  # fmt: skip
        for page in self._published - in_tree:
            self._pages.pop(page, None)
            self._makers.pop(page, None)
        for holding in pools.holdings:
            if holding.request in self._runs:
                self._record(self._runs[holding.request], holding.locs)
        for page in sorted(in_tree - self._published):
            if any(self._pages.get(page, ())):
                maker, slot = self._makers[page]
                self._break(
                    "PURE",
                    f"request {maker} in slot {slot} published page {page}, whose compressed rows "
                    "depend on more than its tokens",
                )
        self._published, self._pools = in_tree, pools

    def _record(self, run: _Run, locs: Sequence[int]) -> None:
        """Taint of the pages that a request computed itself, as far as it has come."""
        size = self.page_size
        for start in range(0, len(locs), size):
            page = page_of(FullLoc(locs[start]), size)
            if start < run.matched or page in self._published:
                continue
            self._makers[page] = (run.name, run.slot)
            self._pages[page] = [
                self._row_taint(run, layer, start, start + size)
                for layer in range(1, self.stack.layers + 1)
            ]

    def _row_taint(self, run: _Run, layer: int, start: int, end: int) -> int:
        if layer not in self.stack.compressed:
            return CLEAN
        taint = CLEAN
        for position in range(start, end):
            taint |= run.states[layer - 1].get(position, CLEAN)
        return taint

    def _break(self, invariant: Judged, sentence: str) -> None:
        self.broken.append(Broken(invariant=invariant, step=self._step, sentence=sentence))

    def inherits_tainted_page(self) -> Iterator[str]:
        """Requests that reuse a tainted page which another slot's request published."""
        for run in self._runs.values():
            for page in self._reused_pages(run):
                if any(self._pages.get(page, ())) and self._makers[page][1] != run.slot:
                    yield (
                        f"request {run.name} in slot {run.slot} reuses page {page} of request "
                        f"{self._makers[page][0]}"
                    )

    def _reused_pages(self, run: _Run) -> list[Page]:
        for holding in self._pools.holdings if self._pools else ():
            if holding.request == run.name:
                return [
                    page_of(FullLoc(loc), self.page_size)
                    for loc in holding.locs[: run.matched : self.page_size]
                ]
        return []


def judge(log: Iterable[Fact], stack: Stack) -> Layers:
    """Layers of a whole log."""
    layers = Layers(stack)
    for fact in log:
        layers.feed(fact)
    return layers


def first_break(log: Iterable[Fact], stack: Stack, invariant: str) -> str | None:
    """First sentence about an invariant in a log; None if it holds."""
    for broken in judge(log, stack).broken:
        if broken.invariant == invariant:
            return broken.sentence
    return None
