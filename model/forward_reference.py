"""The reference engine for forwards: pools, a map, a backend that plans, graphs, in plain Python.

It translates once a forward, as the releases do, reuses the plan by the rule of the specification
(TRANSLATE-3) and fills a graph's buffer by it (TRANSLATE-7). A `Departure` says where it departs
from what is right: each one is a defect that some engine had, and a mutant that CURRENT kills.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproof.model.facts import Consumed, Started
from kvproof.model.forward_player import ForwardPlayer, Tokens
from kvproof.model.forwards import ForwardMode
from kvproof.model.player import RefusedError
from kvproof.model.scenario import Geometry
from kvproof.spec.indices import FullLoc, Page, SwaLoc
from kvproof.spec.pages import page_ceil, page_of
from kvproof.spec.translate import RESERVED_LOC, low_word, replayed_loc, reuses_plan, swa_loc

Departure: TypeAlias = Literal[
    "none",
    "plan of another length taken",
    "plan taken when idle",
    "graph buffer not refreshed",
    "graph tail kept",
    "draft step takes the first columns",
    "window of a draft extend not translated",
    "no window for a draft extend's graph",
    "int64 read as int32",
    "int64 handed on",
    "translated twice",
    "rows in another order",
]

DEPARTURES: dict[Departure, str] = {
    "none": "as specified",
    "plan of another length taken": "a store takes the plan whatever the batch's length by now",
    "plan taken when idle": "an idle forward takes what the forward before it left",
    "graph buffer not refreshed": "a replay stores where the replay before it did (#25889)",
    "graph tail kept": "padded rows keep the last replay's locations (#24743)",
    "draft step takes the first columns": "every draft step stores at the window's first entries",
    "window of a draft extend not translated": "full locations are read in the SWA pool (#29858)",
    "no window for a draft extend's graph": "the graph has no window index buffer (#29858)",
    "int64 read as int32": "a kernel reads the buffer's words as they lie (#11452)",
    "int64 handed on": "the plan is not converted to what the kernel takes",
    "translated twice": "a translated location is taken for a full one (#38187)",
    "rows in another order": "the plan holds the requests' tokens in another order",
}
"""What each departure is, and the report it is known from."""


@dataclass(slots=True)
class _Pool:
    free: list[int]

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        return taken


@dataclass(slots=True)
class _Plan:
    """What the backend cached for a forward; ``None`` where it planned outside the graph alone."""

    mode: ForwardMode
    tokens: tuple[Tokens, ...]
    locs: list[int]
    swa: list[int] | None
    window: list[list[int]]
    padding: int = 0


@dataclass(slots=True)
class ReferenceForwards:
    """`kvproof.model.forward_player.ForwardEngine`, in the model."""

    geometry: Geometry
    departure: Departure = "none"
    _pages: dict[int, int] = field(default_factory=dict)
    _rows: dict[int, dict[int, int]] = field(default_factory=dict)
    _planned: _Plan | None = None
    _buffers: dict[ForwardMode, list[int]] = field(default_factory=dict)
    _full: _Pool = field(init=False)
    _swa: _Pool = field(init=False)

    def __post_init__(self) -> None:
        """Fill the free lists; page 0 of either pool is the padding's."""
        page = self.geometry.page_size
        self._full = _Pool(list(range(1, self.geometry.pool_tokens // page + 1)))
        # Page 1 is lent to nobody, so that no location's entry is the location itself.
        self._swa = _Pool(list(range(2, self.geometry.swa_pool_tokens // page + 1)))

    def started(self) -> Started:
        """Describe the target."""
        return Started(
            target="model",
            backend="rules",
            geometry=self.geometry,
            ring_stride=None,
            reprefill_tail=0,
            family="translation",
        )

    # Pools

    def entries(self) -> tuple[int, ...]:
        """The map, an entry a location."""
        size = self.geometry.pool_tokens + self.geometry.page_size
        return tuple(self._entry(loc) for loc in range(size))

    def _entry(self, loc: int) -> int:
        page = self.geometry.page_size
        swa_page = Page(self._pages.get(page_of(FullLoc(loc), page), 0))
        return swa_loc(FullLoc(loc), swa_page, page)

    def lend(self, tokens: Sequence[Tokens]) -> tuple[tuple[int, ...], ...]:
        """Lend whole pages, the rest of a request's last page first."""
        page = self.geometry.page_size
        need = [
            (page_ceil(t.start + t.count, page) - page_ceil(t.start, page)) // page for t in tokens
        ]
        if sum(need) > min(len(self._full.free), len(self._swa.free)):
            raise RefusedError("a pool has too few free pages")
        lent = []
        for share, count in zip(tokens, need, strict=True):
            row = self._rows.setdefault(share.slot, {})
            new = self._full.take(count)
            self._pages |= dict(zip(new, self._swa.take(count), strict=True))
            first = page_ceil(share.start, page)
            for position in range(share.start, share.start + share.count):
                row[position] = (
                    new[(position - first) // page] * page + position % page
                    if position >= first
                    else row[share.start - 1] + position - share.start + 1
                )
            lent.append(tuple(row[p] for p in range(share.start, share.start + share.count)))
        return tuple(lent)

    def free_swa(self, slot: int, start: int, end: int) -> None:
        """Give back SWA pages; their full pages map to the reserved entry from now on."""
        for at in range(start, end, self.geometry.page_size):
            self._swa.free.append(self._pages.pop(self._page(slot, at)))

    def free(self, slot: int, end: int) -> None:
        """Give back all pages of a slot, and the SWA pages that are left."""
        for at in range(0, end, self.geometry.page_size):
            page = self._page(slot, at)
            self._full.free.append(page)
            if page in self._pages:
                self._swa.free.append(self._pages.pop(page))
        self._rows.pop(slot, None)

    def _page(self, slot: int, position: int) -> int:
        return page_of(FullLoc(self._rows[slot][position]), self.geometry.page_size)

    # Forwards

    def plan(self, mode: ForwardMode, tokens: Sequence[Tokens], *, in_graph: bool) -> None:
        """Translate the forward's locations and windows."""
        locs = self._locs(tokens)
        self._planned = _Plan(
            mode=mode,
            tokens=tuple(tokens),
            locs=locs,
            swa=self._translate(locs) if in_graph else None,
            window=[self._window(mode, tokens, step) for step in range(self._steps(mode))],
        )

    def _translate(self, locs: Sequence[int]) -> list[int]:
        swa = [self._entry(loc) for loc in locs]
        if self.departure == "translated twice":
            swa = [self._entry(loc) for loc in swa]
        if self.departure == "rows in another order":
            swa.reverse()
        return swa

    def pad(self, rows: int) -> None:
        """Append rows of the reserved location."""
        self._now.locs += [RESERVED_LOC] * rows
        self._now.padding += rows

    def rebind(self, tokens: Sequence[Tokens]) -> None:
        """Give the forward other locations; what was planned stays."""
        self._now.tokens = tuple(tokens)
        self._now.locs = self._locs(tokens) + [RESERVED_LOC] * self._now.padding

    def remap(self) -> None:
        """Map the forward's pages anew; what was planned stays."""
        page = self.geometry.page_size
        pages = {page_of(FullLoc(loc), page) for loc in self._now.locs} - {0}
        if len(pages) > len(self._swa.free):
            raise RefusedError("the SWA pool has too few free pages")
        new = self._swa.take(len(pages))
        for full, swa in zip(sorted(pages), new, strict=True):
            if full in self._pages:
                self._swa.free.append(self._pages[full])
            self._pages[full] = swa

    def layer(self) -> list[Consumed]:
        """Store by the resolver's rule, read the planned windows."""
        planned = self._now
        facts = []
        for step in range(self._steps(planned.mode)):
            locs = self._columns(planned.mode, planned.tokens, planned.locs, step)
            kept = planned.swa
            if kept is not None:
                kept = self._columns(planned.mode, planned.tokens, kept, step)
                if self.departure == "draft step takes the first columns" and planned.swa:
                    kept = planned.swa[: len(locs)]
            swa, cached = self._resolve(kept, locs, idle=False)
            facts += [
                self._stored(planned.mode, step, locs, swa, cached),
                self._read(planned.mode, step, planned.tokens, planned.window[step]),
            ]
        return facts

    def idle(self, rows: int) -> list[Consumed]:
        """Store the reserved location; nothing is read."""
        locs: list[int] = [RESERVED_LOC] * rows
        kept = self._planned.swa if self._planned else None
        swa, cached = self._resolve(kept, locs, idle=True)
        return [self._stored("idle", 0, locs, swa, cached)]

    def replay(self, mode: ForwardMode, tokens: Sequence[Tokens]) -> list[Consumed]:
        """Refresh the captured buffer in place, its tail too, then store and read from it."""
        facts = []
        locs = self._locs(tokens)
        for step in range(self._steps(mode)):
            live = self._translate(self._columns(mode, tokens, locs, step))
            rows = self.geometry.slots * len(live) // len(tokens)
            first = mode not in self._buffers
            buffer = self._buffers.setdefault(mode, [RESERVED_LOC] * rows)
            padding = [RESERVED_LOC] * (rows - len(live))
            last = len(live) if self.departure == "graph tail kept" else rows
            if first or self.departure != "graph buffer not refreshed":
                buffer[:last] = [
                    replayed_loc(at, len(live), SwaLoc(loc))
                    for at, loc in enumerate([*live, *padding][:last])
                ]
            now = self._columns(mode, tokens, locs, step) + padding
            window: list[int] | None = self._window(mode, tokens, step)
            if mode == "draft_extend":
                if self.departure == "no window for a draft extend's graph":
                    window = None
                elif self.departure == "window of a draft extend not translated":
                    window = self._window(mode, tokens, step, translated=False)
            facts += [
                self._stored(mode, step, now, list(buffer), True),
                self._read(mode, step, tokens, window),
            ]
        return facts

    # Rules

    @property
    def _now(self) -> _Plan:
        assert self._planned is not None, "the player plans a forward first"
        return self._planned

    def _steps(self, mode: ForwardMode) -> int:
        return self.geometry.draft_tokens - 2 if mode == "draft" else 1

    def _locs(self, tokens: Sequence[Tokens]) -> list[int]:
        return [
            self._rows[share.slot][position]
            for share in tokens
            for position in range(share.start, share.start + share.count)
        ]

    def _columns(
        self, mode: ForwardMode, tokens: Sequence[Tokens], values: list[int], step: int
    ) -> list[int]:
        """One entry a request in a draft's step, and all of them otherwise."""
        if mode != "draft":
            return values
        width = self.geometry.draft_tokens - 1
        live = width * len(tokens)
        return values[step:live:width] + values[live:]

    def _resolve(
        self, kept: list[int] | None, locs: list[int], *, idle: bool
    ) -> tuple[list[int], bool]:
        other_length = self.departure == "plan of another length taken"
        takes = reuses_plan(
            planned=kept is not None,
            idle=idle and self.departure != "plan taken when idle",
            planned_len=len(locs) if other_length and kept else len(kept or ()),
            loc_len=len(locs),
        )
        if takes and kept is not None:
            return kept, True
        return self._translate(locs), False

    def _window(
        self, mode: ForwardMode, tokens: Sequence[Tokens], step: int, *, translated: bool = True
    ) -> list[int]:
        own = {"decode": 1, "draft": step + 1}.get(mode, 0)
        locs = [
            self._rows[share.slot][at]
            for share in tokens
            for end in (share.start + own,)
            for at in range(max(0, end - self.geometry.window), end)
        ]
        return [self._entry(loc) for loc in locs] if translated else locs

    def _stored(
        self, mode: ForwardMode | Literal["idle"], step: int, locs: list[int], swa: list[int],
        cached: bool,
    ) -> Consumed:  # fmt: skip
        if self.departure == "int64 read as int32":
            words = [word for value in swa for word in (low_word(value), 0)]
            swa = words[: len(swa)]
        wide = self.departure == "int64 handed on"
        return Consumed(
            use="store", mode=mode, step=step, locs=tuple(locs), indices=tuple(swa), cached=cached,
            dtype="int64" if wide else "int32", takes=("int32",),
        )  # fmt: skip

    def _read(
        self, mode: ForwardMode, step: int, tokens: Sequence[Tokens], window: list[int] | None
    ) -> Consumed:
        own = {"decode": 1, "draft": step + 1}.get(mode, 0)
        counts = tuple(min(share.start + own, self.geometry.window) for share in tokens)
        return Consumed(
            use="read", mode=mode, step=step, counts=counts,
            indices=None if window is None else tuple(window), dtype="int64",
            takes=("int32", "int64"),
        )  # fmt: skip


def forward_player(geometry: Geometry, departure: Departure = "none") -> ForwardPlayer:
    """A player of the reference engine."""
    return ForwardPlayer(ReferenceForwards(geometry, departure), geometry)
