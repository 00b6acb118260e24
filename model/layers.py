"""EXACT, PURE and non-interference of a log, through a stack of layers.

A log says which ring rows each query read and wrote, once for all layers, since every layer has the
same index plan. This module carries *taint* through the layers along those reads: a state is
inexact if anything that it was computed from is not what a run with an empty cache computes, and
foreign if it depends on what another request left in the ring. It sees facts only, so it judges the
reference engine and a real release alike; the layers themselves are modelled. Where a log has
`Compared` facts, real layers were run on the real kernels, and both must say the same of every
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Compared,
    Ended,
    Fact,
    Pools,
    Read,
    Released,
    Skipped,
    Started,
    Step,
    Stored,
    Wrote,
)
from kvproof.model.scenario import Prompt, Submit, same_prefix
from kvproof.model.verdict import Departure, ExactnessCause, ExactnessInvariant
from kvproof.spec.exact import compressed_end, exact_decode_tail
from kvproof.spec.indices import FullLoc, Page, Position
from kvproof.spec.pages import page_of
from kvproof.spec.window import window_start

Reading: TypeAlias = Literal["cap", "floored reads", "rebuild"]
"""What a release may do about a reused prefix beyond capping it.

``floored reads`` leaves ring rows below the match out. ``rebuild`` keeps the compressed rows that
the tree has, and recomputes sliding-window keys only.
"""

CLEAN, INEXACT, FOREIGN = 0, 1, 2

_RING, _ROW, _PAGE = 4, 8, 16
"""How inexactness came: through the window alone, a compressed row of its own, one of the tree."""

_CAUSES: tuple[tuple[int, ExactnessCause], ...] = (
    (_RING, "stale-window"), (_ROW, "compressed-row"), (_PAGE, "inherited-page"),
)  # fmt: skip

MOST_DEPARTURES = 1000
"""Occupancies of a log that are described one by one; the rest are counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """A stack of sliding-window layers.

    Attributes:
        ratios: one a layer: tokens of a compressed row that the layer also writes and reads, 0 for
            a layer without. Each divides the page size.
    """

    ratios: tuple[int, ...]
    reading: Reading = "cap"

    @classmethod
    def of(
        cls,
        *,
        layers: int,
        compressed: Iterable[int] = (),
        ratio: int = 1,
        reading: Reading = "cap",
    ) -> Stack:
        """``layers`` layers, of which ``compressed``, from 1, have rows of ``ratio`` tokens."""
        chosen = frozenset(compressed)
        ratios = tuple(ratio if layer in chosen else 0 for layer in range(1, layers + 1))
        return cls(ratios=ratios, reading=reading)

    @classmethod
    def repeating(cls, *, layers: int, ratios: Sequence[int]) -> Stack:
        """``layers`` layers that take their ratios from a pattern, again and again."""
        return cls(ratios=tuple(ratios[layer % len(ratios)] for layer in range(layers)))

    @property
    def layers(self) -> int:
        """How many."""
        return len(self.ratios)

    def misfit(self, page_size: int) -> int | None:
        """A ratio whose rows do not fill a page of so many tokens; None if all do."""
        return next((ratio for ratio in self.ratios if ratio and page_size % ratio), None)

    def numbered(self) -> Iterator[tuple[int, int]]:
        """Each layer, from 1, with its ratio."""
        return enumerate(self.ratios, 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """One broken invariant: where, why, and in a sentence."""

    invariant: ExactnessInvariant
    cause: ExactnessCause
    step: int
    sentence: str
    departure: Departure | None = None


@dataclass(frozen=True, slots=True)
class _Key:
    """Whose key a query found in a ring row: a run's, for a position; None if it was left out."""

    writer: _Run | None
    position: int
    own: bool


@dataclass(slots=True)
class _Run:
    """An occupancy: taint of its states, ``states[layer][position]``; layer 0 are embeddings.

    Attributes:
        rows: taint of the compressed rows that its last query saw, by layer.
        tainted: inexact states, by layer.
        first: layer and position of the first one.
        pages: tainted pages that it published.
        heirs: requests that reused one of them.
        replays: its first launch computed the end of what it reuses again, for the rings' sake.
    """

    name: str
    prompt: Prompt
    occupancy: int
    slot: int
    prompt_len: int
    matched: int
    computed: int
    states: list[dict[int, int]]
    rows: list[list[int]]
    tainted: list[int]
    first: tuple[int, int] | None = None
    is_noted: bool = False
    last: int = 0
    pages: int = 0
    heirs: list[str] = field(default_factory=list)
    ring_reads: dict[int, list[tuple[int, _Key]]] = field(default_factory=dict)
    chunk: tuple[int, int] | None = None
    replays: bool = False
    stored: tuple[int, Sequence[int]] = (0, ())

    def departure(self) -> Departure | None:
        """What is known of how it departs from a cold run; None if it does not."""
        if self.first is None:
            return None
        return Departure(
            request=self.name,
            occupancy=self.occupancy,
            slot=self.slot,
            matched_len=self.matched,
            layer=self.first[0],
            position=self.first[1],
            last=self.last,
            states=tuple(self.tainted[1:]),
            pages=self.pages,
            heirs=tuple(self.heirs),
        )


@dataclass(frozen=True, slots=True)
class _Made:
    """A page's compressed rows: who computed them, and their taint by layer."""

    maker: _Run
    rows: list[list[int]]

    @property
    def taint(self) -> int:
        """Of all its rows."""
        return _union(taint for rows in self.rows for taint in rows)


@dataclass(slots=True)
class Layers:
    """Feed it a log's facts; it collects what breaks.

    Attributes:
        broken: what broke and was not taken yet; see `take`.
        outputs: outputs that were judged, which is how often EXACT was put to the test.
        published: pages that were judged.
        compared: states whose taint was held against a float comparison.
        departed: occupancies that depart from a cold run.
    """

    stack: Stack
    broken: list[Broken] = field(default_factory=list)
    window: int = 1
    page_size: int = 1
    outputs: int = 0
    published: int = 0
    compared: int = 0
    departed: list[_Run] = field(default_factory=list)
    more_departed: int = 0
    _step: int = -1
    _occupancies: int = 0
    _prompts: dict[str, Prompt] = field(default_factory=dict)
    _submitted: tuple[str, Prompt | None] | None = None
    _ring: dict[int, tuple[_Run | None, int]] = field(default_factory=dict)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _pages: dict[Page, _Made] = field(default_factory=dict)
    _pools: Pools | None = None
    _in_tree: set[Page] = field(default_factory=set)
    _lent_again: set[Page] = field(default_factory=set)

    def feed(self, fact: Fact) -> None:
        """Take in the next fact."""
        match fact:
            case Started():
                self.window = fact.geometry.window
                self.page_size = fact.geometry.page_size
            case Step():
                self._begin(fact)
            case Skipped():
                self._skipped()
            case Admitted():
                self._admit(fact)
            case Wrote():
                run = self._runs.get(fact.request or "")
                if run is not None and min(fact.positions, default=run.matched) < run.matched:
                    run.replays = True
                for position, row in zip(fact.positions, fact.rows, strict=True):
                    self._ring[row] = (run, position)
            case Read():
                self._read(fact)
            case Advanced():
                if fact.request in self._runs:
                    run = self._runs[fact.request]
                    run.chunk = (run.computed, fact.computed_len)
            case Pools():
                self._snapshot(fact)
            case Stored():
                if fact.request in self._runs:
                    self._runs[fact.request].stored = (fact.start, fact.locs)
            case Compared():
                self._settle()
                self._hold_against(fact)
            case Released():
                self._settle()
                self._runs.pop(fact.request, None)
            case Ended():
                self._settle()
            case _:
                pass  # other facts carry no state

    def take(self) -> list[Broken]:
        """What broke since the last time."""
        taken, self.broken = self.broken, []
        return taken

    def departures(self) -> tuple[Departure, ...]:
        """How occupancies depart from a cold run, in their order."""
        found = (run.departure() for run in self.departed)
        return tuple(one for one in found if one is not None)

    def _begin(self, fact: Step) -> None:
        self._settle()
        self._step = fact.index
        self._submitted = None
        if isinstance(fact.operation, Submit):
            name = fact.operation.request
            self._submitted = (name, self._prompts.get(name))
            self._prompts[name] = fact.operation.prompt

    def _skipped(self) -> None:
        if self._submitted is not None:
            # The name is taken: its request keeps the prompt that it came with.
            name, former = self._submitted
            if former is None:
                del self._prompts[name]
            else:
                self._prompts[name] = former

    def _admit(self, fact: Admitted) -> None:
        self._occupancies += 1
        layers = range(self.stack.layers + 1)
        self._runs[fact.request] = _Run(
            name=fact.request, prompt=self._prompts.get(fact.request, ()),
            occupancy=self._occupancies, slot=fact.slot,
            prompt_len=fact.prompt_len, matched=fact.matched_len, computed=fact.matched_len,
            states=[{} for _ in layers], rows=[[] for _ in layers], tainted=[0 for _ in layers],
        )  # fmt: skip

    def _read(self, fact: Read) -> None:
        run = self._runs.get(fact.request or "")
        if run is not None:
            floored = self.stack.reading == "floored reads" and fact.mode == "prefill"
            run.ring_reads[fact.position] = [
                (position, self._found(run, position, row, left_out=floored))
                for position, row in enumerate(fact.rows, fact.first)
            ]

    def _found(self, run: _Run, position: int, row: int, *, left_out: bool) -> _Key:
        if left_out and position < run.matched:
            return _Key(writer=None, position=position, own=True)
        writer, held = self._ring.get(row, (None, -1))
        return _Key(writer=writer, position=held, own=writer is run and held == position)

    def _settle(self, pools: Pools | None = None) -> None:
        """Compute the states of what was launched in this step, now that the pools are known."""
        for run in self._runs.values():
            if run.chunk is None:
                continue
            start, end = run.chunk
            pages, from_pages = self._page_table(run, start, pools)
            first = start
            if run.replays and start == run.matched:
                reach = exact_decode_tail(self.stack.layers, self.window)
                first = max(0, start - reach)
            for query in sorted({*range(first, end), *run.ring_reads}):
                self._compute(run, query, end, pages, from_pages)
            self._note(run)
            self._judge(run, end - 1)
            # A draft's rejected tokens are none of the request's: whoever reads them later is off.
            for states in run.states:
                for rejected in [at for at in states if at >= end]:
                    del states[rejected]
            run.computed, run.chunk, run.ring_reads = end, None, {}
            self._store(run)

    def _store(self, run: _Run) -> None:
        """The pages of a launch are its run's, whatever they held at the last snapshot."""
        start, locs = run.stored
        pages = {
            page_of(FullLoc(loc), self.page_size): position // self.page_size * self.page_size
            for position, loc in enumerate(locs, start)
        }
        for page, first in pages.items():
            self._make(run, page, first)
        self._lent_again |= pages.keys()
        run.stored = (0, ())

    def _note(self, run: _Run) -> None:
        if run.first is None or run.is_noted:
            return
        run.is_noted = True
        if len(self.departed) < MOST_DEPARTURES:
            self.departed.append(run)
        else:
            self.more_departed += 1

    def _page_table(self, run: _Run, start: int, pools: Pools | None) -> tuple[list[Page], int]:
        """Pages of a run at its launch, and the end of the positions whose rows lie there.

        Rows past that end are made in this launch, or, without snapshots, by the run at any time.
        A run that computed again what the tree has is given the tree's pages when it publishes:
        its next launch reads those. The first launch's pages are known from the snapshot after it,
        as far as they were reused.
        """
        held = self._locs(run, self._pools) if start > run.matched else ()
        end = start if held else run.matched
        locs = held or self._locs(run, pools or self._pools)
        pages = [page_of(FullLoc(loc), self.page_size) for loc in locs[:: self.page_size]]
        if self.stack.reading == "rebuild":
            # What the tree holds is not rewritten: those pages were known before this launch.
            reused = end // self.page_size
            while reused < len(pages) and pages[reused] in self._in_tree:
                reused += 1
            end = max(end, reused * self.page_size)
        return pages, min(end, len(locs))

    def _locs(self, run: _Run, pools: Pools | None) -> Sequence[int]:
        for holding in pools.holdings if pools else ():
            if holding.request == run.name and holding.slot == run.slot:
                return holding.locs
        return ()

    def _compute(self, run: _Run, query: int, end: int, pages: list[Page], from_pages: int) -> None:
        """States of a query; those from ``end`` on are of rejected tokens, and count nowhere."""
        ring = run.ring_reads.get(query, [])
        from_ring = {position for position, _ in ring}
        run.states[0][query] = CLEAN
        for layer, ratio in self.stack.numbered():
            below = run.states[layer - 1]
            taint = below[query]
            for position, key in ring:
                taint |= self._key_taint(run, layer, position, key)
            for position in range(window_start(Position(query), self.window), query):
                if position not in from_ring:
                    taint |= below.get(position, INEXACT | _RING)
            if ratio:
                run.rows[layer] = [
                    self._seen_row(run, layer, row * ratio, ratio, pages, from_pages)
                    for row in range(compressed_end(query, ratio) // ratio)
                ]
                taint |= _union(run.rows[layer])
            if taint & INEXACT and query < end:
                run.tainted[layer] += 1
                run.last = max(run.last, query)
                if run.first is None or (layer, query) < run.first:
                    run.first = (layer, query)
            run.states[layer][query] = taint

    def _key_taint(self, run: _Run, layer: int, position: int, key: _Key) -> int:
        if key.own:
            if key.writer is None:  # left out
                return INEXACT | _RING
            return run.states[layer - 1].get(position, INEXACT | _RING)
        writer = key.writer
        if (
            writer is None
            or key.position != position
            or position >= writer.computed
            or not same_prefix(writer.prompt, run.prompt, position + 1)
        ):
            return INEXACT | _RING | (CLEAN if writer is run else FOREIGN)
        # By luck it is the key of the same token after the same ones: as exact as it was there.
        taint = writer.states[layer - 1].get(position, INEXACT)
        return FOREIGN | (INEXACT | _RING if taint & INEXACT else CLEAN)

    def _seen_row(
        self, run: _Run, layer: int, start: int, ratio: int, pages: list[Page], from_pages: int
    ) -> int:
        """Taint of the compressed row of positions from ``start`` on that a query finds."""
        if start + ratio > from_pages:
            return self._made_row(run, layer, start, ratio)
        made = self._pages.get(pages[start // self.page_size])
        rows = made.rows[layer - 1] if made else []
        row = start % self.page_size // ratio
        taint = rows[row] if row < len(rows) else CLEAN
        return taint if made and made.maker is run else _through(taint, _PAGE)

    def _made_row(self, run: _Run, layer: int, start: int, ratio: int) -> int:
        """The same of one that a run made of its own states."""
        below = run.states[layer - 1]
        return _through(
            _union(below.get(position, CLEAN) for position in range(start, start + ratio)), _ROW
        )

    def _judge(self, run: _Run, last: int) -> None:
        taint = run.states[self.stack.layers][last]
        what = "logits of the last prompt token" if last == run.prompt_len - 1 else "output"
        self.outputs += 1
        if taint & INEXACT:
            departure = run.departure()
            assert departure is not None
            self._break(
                "EXACT",
                _cause(taint),
                f"the {what} of request {run.name} at position {last} differ from a cold run's: "
                f"{run.matched} tokens were reused, {last + 1 - run.matched} were computed since; "
                f"it departs first at layer {departure.layer}, position {departure.position}",
                departure,
            )
        if taint & FOREIGN:
            self._break(
                "NON-INTERFERENCE",
                _cause(taint),
                f"the {what} of request {run.name} at position {last} depend on what an earlier "
                f"occupant left in slot {run.slot}",
                run.departure(),
            )

    def _snapshot(self, pools: Pools) -> None:
        self._settle(pools)
        in_tree = {
            page_of(FullLoc(loc), self.page_size)
            for node in pools.nodes for loc in node.locs[:: self.page_size]
        }  # fmt: skip
        # One operation may evict a page and lend it: then it is not the tree's any more.
        stayed = self._in_tree - self._lent_again
        for page in stayed - in_tree:
            self._pages.pop(page, None)
        for holding in pools.holdings:
            if holding.request in self._runs:
                self._record(self._runs[holding.request], holding.locs, stayed)
        for page in sorted(in_tree - stayed):
            self.published += 1
            made = self._pages.get(page)
            if made is not None and made.taint & INEXACT:
                made.maker.pages += 1
                self._break(
                    "PURE",
                    _cause(made.taint),
                    f"request {made.maker.name} in slot {made.maker.slot} published page {page}, "
                    "whose compressed rows depend on more than its tokens",
                    made.maker.departure(),
                )
        self._in_tree, self._pools = in_tree, pools
        self._lent_again.clear()
        for run in self._runs.values():
            self._note_heir(run)

    def _note_heir(self, run: _Run) -> None:
        """A request that reuses a tainted page is told of once, when it is first seen to."""
        for page in self._reused_pages(run):
            made = self._pages.get(page)
            if made is None or made.maker is run or not made.taint & INEXACT:
                continue
            if run.name not in made.maker.heirs:
                made.maker.heirs.append(run.name)
                self._break(
                    "PURE",
                    "inherited-page",
                    f"{self._inherits(run, page, made)}: it reads compressed rows that depend on "
                    "more than its tokens",
                    made.maker.departure(),
                )

    def _record(self, run: _Run, locs: Sequence[int], in_tree: Set[Page]) -> None:
        """Taint of the pages that a request computed itself, as far as it has come."""
        size = self.page_size
        for start in range(run.matched, len(locs), size):
            page = page_of(FullLoc(locs[start]), size)
            if page not in in_tree:
                self._make(run, page, start)

    def _make(self, run: _Run, page: Page, start: int) -> None:
        """A page whose positions from ``start`` on a run computed itself."""
        end = min(start + self.page_size, run.computed)
        self._pages[page] = _Made(
            run,
            [
                [
                    self._made_row(run, layer, at, ratio)
                    for at in range(start, end - ratio + 1, ratio)
                ]
                if ratio
                else []
                for layer, ratio in self.stack.numbered()
            ],
        )

    def _hold_against(self, fact: Compared) -> None:
        """Both must say the same of every state and row: whether it is a cold run's."""
        run = self._runs.get(fact.request)
        if run is None or len(fact.states) != self.stack.layers:
            return
        for layer, (errors, row_errors) in enumerate(zip(fact.states, fact.rows, strict=True), 1):
            for position, error in enumerate(errors, fact.start):
                taint = run.states[layer].get(position, CLEAN)
                self._same(fact, layer, f"the state at position {position}", taint, error)
            for row, (taint, error) in enumerate(zip(run.rows[layer], row_errors, strict=False)):
                self._same(fact, layer, f"compressed row {row}", taint, error)

    def _same(self, fact: Compared, layer: int, what: str, taint: int, error: float) -> None:
        self.compared += 1
        if bool(taint & INEXACT) != (error > fact.noise):
            self._break(
                "EXACT",
                "oracles-differ",
                f"{what} of request {fact.request} at layer {layer} is off by {error:g} on the "
                f"real kernels (noise {fact.noise:g}), taint says that it "
                f"{'must differ' if taint & INEXACT else 'is exact'}: kvproof's model is wrong",
            )

    def _break(
        self,
        invariant: ExactnessInvariant,
        cause: ExactnessCause,
        sentence: str,
        departure: Departure | None = None,
    ) -> None:
        self.broken.append(
            Broken(
                invariant=invariant, cause=cause, step=self._step, sentence=sentence,
                departure=departure,
            )
        )  # fmt: skip

    def inherits_tainted_page(self) -> Iterator[str]:
        """Requests that reuse a tainted page which another slot's request published."""
        for run in self._runs.values():
            for page in self._reused_pages(run):
                made = self._pages.get(page)
                if made and made.taint & INEXACT and made.maker.slot != run.slot:
                    yield self._inherits(run, page, made)

    def _inherits(self, run: _Run, page: Page, made: _Made) -> str:
        return (
            f"request {run.name} in slot {run.slot} reuses page {page} of request "
            f"{made.maker.name}, computed in slot {made.maker.slot}"
        )

    def _reused_pages(self, run: _Run) -> list[Page]:
        locs = self._locs(run, self._pools)[: run.matched]
        return [page_of(FullLoc(loc), self.page_size) for loc in locs[:: self.page_size]]


def _union(taints: Iterable[int]) -> int:
    found = CLEAN
    for taint in taints:
        found |= taint
    return found


def _through(taint: int, way: int) -> int:
    """Taint after it has passed a compressed row: how it came before does not matter."""
    kept = taint & (INEXACT | FOREIGN)
    return kept | way if kept & INEXACT else kept


def _cause(taint: int) -> ExactnessCause:
    """The first way that still leads there: a longer tail closes the window's, not the others."""
    return next((cause for way, cause in _CAUSES if taint & way), "stale-window")


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
