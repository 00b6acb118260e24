"""CURRENT: the SWA locations that a forward uses are the map's, now, for its own locations.

Fed with the facts of a log (`model.facts`), it follows each request's locations, the map and the
one forward that is planned, and judges every store and every read. It does not know how an engine
plans: a translation may be made when it likes and kept where it likes, as long as what is used is
what the map says at that moment (TRANSLATE-1 to -4).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvproof.model.facts import Changed, Consumed, Mapped, Planned, Released, Share
from kvproof.model.findings import Break
from kvproof.model.forwards import ForwardMode
from kvproof.model.scenario import BadFileError, Geometry
from kvproof.model.verdict import Cause
from kvproof.model.witness import Witness
from kvproof.spec.indices import PADDING_SLOT, Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.translate import RESERVED_LOC


class Row(NamedTuple):
    """One token of a forward; a padded row has no request and the reserved location."""

    request: str | None
    position: int
    loc: int
    slot: int = PADDING_SLOT


PADDED = Row(None, 0, RESERVED_LOC)


@dataclass(slots=True)
class _Forward:
    mode: ForwardMode
    shares: tuple[Share, ...]
    step: int
    in_graph: bool
    graph: bool
    changes: list[tuple[str, int]] = field(default_factory=list)

    def rows(self, draft_step: int) -> list[Row]:
        """Tokens that the forward, or this step of a multi-step draft, writes."""
        drafts = self.mode == "draft"
        return [
            Row(share.request, share.start + index, loc, share.slot)
            for share in self.shares
            for index, loc in enumerate(share.locs)
            if not drafts or index == draft_step
        ]

    def window_ends(self, draft_step: int) -> list[tuple[str, int]]:
        """Each request, and the position before which its window in the pool ends.

        A decode has stored its own key before it reads; the others have their new keys beside.
        """
        own = {"decode": 1, "draft": draft_step + 1}.get(self.mode, 0)
        return [(share.request, share.start + own) for share in self.shares]

    @property
    def was_changed(self) -> bool:
        """Whether the side condition of theorem T3 is broken."""
        return any(how != "padded" for how, _ in self.changes)


@dataclass(slots=True)
class Current:
    """Feed it a log's facts in order; each gives the breaks that it shows.

    Attributes:
        witnesses: how often each interesting state was reached; counted into.
    """

    geometry: Geometry
    witnesses: dict[Witness, int] = field(default_factory=Counter)
    ring_stride: int = 1
    _entries: tuple[int, ...] = ()
    _locs: dict[str, dict[int, int]] = field(default_factory=dict)
    _forward: _Forward | None = None
    _stored: frozenset[int] = frozenset()  # SWA locations that the forward before this one wrote
    _storing: set[int] = field(default_factory=set)
    _largest_replay: int = 0

    def mapped(self, fact: Mapped) -> None:
        """The map changed."""
        if any(
            loc < len(self._entries) and self._entries[loc] and not fact.entries[loc]
            for locs in self._locs.values()
            for loc in locs.values()
        ):
            self.witnesses["page freed behind a window"] += 1
        self._entries = fact.entries

    def planned(self, fact: Planned, step: int) -> None:
        """A forward was planned."""
        self._forward = _Forward(fact.mode, fact.shares, step, fact.in_graph, fact.graph)
        self._stored, self._storing = frozenset(self._storing), set()
        self._learn(fact.shares)
        if self.geometry.swa_pool_tokens < self.geometry.pool_tokens:
            self.witnesses["small SWA pool"] += 1
        if fact.graph:
            if len(fact.shares) < self._largest_replay:
                self.witnesses["replay after a larger batch"] += 1
            self._largest_replay = len(fact.shares)
        if fact.mode == "draft":
            self.witnesses["multi-step draft"] += 1

    def changed(self, fact: Changed, step: int) -> None:
        """The planned forward was changed."""
        if self._forward is None:
            raise BadFileError(f"step {step + 1}: a forward is changed, and none is planned")
        self._forward.changes.append((fact.how, step))
        if fact.shares:
            self._forward.shares = fact.shares
            self._learn(fact.shares)
        if fact.how == "rebound":
            self.witnesses["rebound to as many"] += 1
        elif fact.how == "remapped":
            self.witnesses["remapped after the plan"] += 1

    def released(self, fact: Released) -> None:
        """A request gave its locations back."""
        self._locs.pop(fact.request, None)

    def consumed(self, fact: Consumed) -> Iterator[Break]:
        """Judge one use."""
        if fact.dtype not in fact.takes:
            yield (
                "wrong-dtype",
                f"the {fact.use} of the {fact.mode} forward is given {fact.dtype} locations; it "
                f"takes {' or '.join(fact.takes)}{_at(fact)}",
            )
        forward = None if fact.mode == "idle" else self._forward
        if fact.mode != "idle" and forward is None:
            raise BadFileError("a forward uses locations, and none is planned")
        if fact.use == "store":
            rows = forward.rows(fact.step) if forward else []
            rows += [PADDED] * (len(fact.locs) - len(rows))
            self._witness_store(fact, forward)
            yield from self._own(fact, rows)
        else:
            windows = [
                [Row(request, at, self._loc(request, at)) for at in self._window(end)]
                for request, end in (forward.window_ends(fact.step) if forward else ())
            ]
            if fact.indices is not None:
                yield from self._sizes(fact, windows, forward)
            rows = [row for window in windows for row in window]
            rows += [PADDED] * (sum(fact.counts) - len(rows))
        if any(row is PADDED for row in rows):
            self.witnesses["padded row translated"] += 1
        yield from self._judge(fact, rows, forward)
        if fact.use == "store" and fact.indices is not None:
            self._storing.update(fact.indices)

    # Judging

    def _own(self, fact: Consumed, rows: Sequence[Row]) -> Iterator[Break]:
        """The forward's locations, as it holds them, are those that it was lent."""
        if fact.locs != tuple(row.loc for row in rows):
            yield (
                "foreign",
                f"the {fact.mode} forward holds the locations {list(fact.locs)}; it was lent "
                f"{[row.loc for row in rows]}{_at(fact)}",
            )

    def _sizes(
        self, fact: Consumed, windows: Sequence[Sequence[Row]], forward: _Forward | None
    ) -> Iterator[Break]:
        due = [len(window) for window in windows]
        if list(fact.counts[: len(due)]) != due:
            changed = forward is not None and forward.was_changed
            yield (
                "changed-after-plan" if changed else "wrong-length",
                f"the windows of the {fact.mode} forward have {list(fact.counts)} locations; "
                f"{due} are due{_at(fact)}",
            )

    def _judge(
        self, fact: Consumed, rows: Sequence[Row], forward: _Forward | None
    ) -> Iterator[Break]:
        if fact.indices is None:
            # Nothing is missing where there is nothing to name.
            if any(row.request for row in rows):
                yield (
                    "missing",
                    f"the {fact.use} of the {fact.mode} forward is given no locations of the SWA "
                    f"pool{_graph(forward)}{_at(fact)}",
                )
            return
        changed = forward is not None and forward.was_changed
        if len(fact.indices) != len(rows):
            yield (
                "changed-after-plan" if changed else "wrong-length",
                f"the {fact.use} of the {fact.mode} forward has {len(rows)} rows and is given "
                f"{len(fact.indices)} locations{_at(fact)}",
            )
        own = [(r.loc, found) for r, found in zip(rows, fact.indices, strict=False) if r.request]
        # Full locations, unless they are by chance what other tokens of the forward map to.
        untranslated = (
            not fact.ring
            and all(loc == found for loc, found in own)
            and not all(found in self._entries_of(forward) for _, found in own)
        )
        for row, found in zip(rows, fact.indices, strict=False):
            due = self._due(fact, row)
            if found != due:
                yield (
                    self._cause(row, found, forward, untranslated=untranslated),
                    self._sentence(fact, row, found, due, forward),
                )

    def _cause(
        self, row: Row, found: int, forward: _Forward | None, *, untranslated: bool
    ) -> Cause:
        if forward is not None and forward.was_changed:
            return "changed-after-plan"
        if row.request is None:
            return "padding"
        if untranslated:
            return "untranslated"
        return "stale" if found in self._stored else "foreign"

    def _sentence(
        self, fact: Consumed, row: Row, found: int, due: int, forward: _Forward | None
    ) -> str:
        verb = "goes to" if fact.use == "store" else "reads"
        who = (
            f"position {row.position} of request {row.request} (location {row.loc})"
            if row.request is not None
            else f"a padded row (location {row.loc})"
        )
        words = f"in the {fact.mode} forward{_graph(forward)} {who} {verb} SWA location {found}"
        if fact.ring:
            words = words.replace("SWA location", "ring row") + f"; the rule gives {due}"
        else:
            words += f"{self._holder(found)}; the map says {due}{self._holder(due)}"
        if forward is not None and forward.changes:
            changes = ", ".join(f"{how} in step {step + 1}" for how, step in forward.changes)
            words += f". Planned in step {forward.step + 1}, {changes}"
        return words + _at(fact)

    def _due(self, fact: Consumed, row: Row) -> int:
        if fact.ring:
            return ring_row(Slot(row.slot), Position(row.position), self.ring_stride)
        return self._entry(row.loc) if row.request is not None else RESERVED_LOC

    def _holder(self, found: int) -> str:
        if found == RESERVED_LOC:
            return " (reserved)"
        for request, locs in self._locs.items():
            for position, loc in locs.items():
                if self._entry(loc) == found:
                    return f" (position {position} of request {request})"
        return " (nobody's)"

    # Following

    def _learn(self, shares: Sequence[Share]) -> None:
        for share in shares:
            known = self._locs.setdefault(share.request, {})
            known |= {share.start + index: loc for index, loc in enumerate(share.locs)}

    def _window(self, end: int) -> range:
        return range(max(0, end - self.geometry.window), end)

    def _loc(self, request: str, position: int) -> int:
        try:
            return self._locs[request][position]
        except KeyError:
            raise BadFileError(
                f"position {position} of request {request} is read and was never lent a location"
            ) from None

    def _entries_of(self, forward: _Forward | None) -> set[int]:
        """Where the forward's own tokens go, those of other draft steps too."""
        shares = forward.shares if forward is not None else ()
        return {self._entry(loc) for share in shares for loc in share.locs}

    def _entry(self, loc: int) -> int:
        if loc >= len(self._entries):
            raise BadFileError(f"the map has no entry for location {loc}")
        return self._entries[loc]

    def _witness_store(self, fact: Consumed, forward: _Forward | None) -> None:
        if fact.cached is None:
            return
        if fact.cached:
            self.witnesses["plan taken"] += 1
        elif forward is None:
            self.witnesses["translated at use: idle"] += 1
        elif not forward.in_graph:
            self.witnesses["translated at use: no plan"] += 1
        elif any(how == "padded" for how, _ in forward.changes):
            self.witnesses["translated at use: other length"] += 1


def _graph(forward: _Forward | None) -> str:
    return " (a graph's replay)" if forward is not None and forward.graph else ""


def _at(fact: Consumed) -> str:
    return f"; at {fact.where}" if fact.where else ""
