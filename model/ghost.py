"""Ghost state: who wrote each ring row. No engine keeps it; the monitor does.

The rows are the meaning, by slot (`SlotRows`). Beside them each slot has an `Own`, an interval of
positions that are known to lie in their rows as the tenant's own keys, so that a read that falls
within it needs no look at a row. It claims no more than the rows say, and it is given up as soon as
something writes the slot against the rules.

What can no longer be named by any verdict is forgotten (`Ghost.forget`): the state grows with the
rows and the live requests, not with the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kvproof.model.scenario import Prompt, agreed_len
from kvproof.model.slot_rows import Found, SlotRows, Written
from kvproof.model.verdict import Cause, Lease, RingCell, Writer
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row


@dataclass(kw_only=True, slots=True)
class Tenant:
    """An occupancy, what it came with, and the occupancy of its slot before it (0: none)."""

    lease: Lease
    prompt: Prompt
    previous: int


Stale: TypeAlias = tuple[int, int, Cause]
"""Positions ``[start, end)`` whose rows are all not the reader's own, for one cause."""


@dataclass(kw_only=True, slots=True)
class Own:
    """What is known of a slot that its newest tenant wrote by the rules, and nobody else.

    Attributes:
        start: from here to ``end`` (exclusive) every position's row holds the tenant's own key.
        end: no row of the tenant's at or past it is left that is not marked rejected.
        below: what is stale from ``below_from`` to ``start``, once somebody asked; else None.
    """

    occupancy: int
    start: int = 0
    end: int = 0
    below: list[Stale] | None = None
    below_from: int = 0


@dataclass(slots=True)
class Ghost:
    """Rows with their provenance, and the tenants by occupancy number."""

    stride: int
    slots: dict[int, SlotRows] = field(default_factory=dict)
    tenants: dict[int, Tenant] = field(default_factory=dict)
    last_in_slot: dict[int, int] = field(default_factory=dict)
    _own: dict[int, Own] = field(default_factory=dict)

    def lease(self, lease: Lease, prompt: Prompt) -> None:
        """Begin an occupancy."""
        self.tenants[lease.occupancy] = Tenant(
            lease=lease, prompt=prompt, previous=self.last_in_slot.get(lease.slot, 0)
        )
        self.last_in_slot[lease.slot] = lease.occupancy
        self._own[lease.slot] = Own(occupancy=lease.occupancy)

    def answered(self, lease: Lease, tokens: Prompt) -> None:
        """Say what a lease's tokens turned out to be: the next in its slot may continue them."""
        self.tenants[lease.occupancy].prompt = tokens
        for own in self._own.values():
            own.below = None  # rows of the lease may be right by luck now, in any slot

    def lease_of(self, occupancy: int) -> Lease | None:
        """An occupancy by its number; None if there was none, or nothing names it any more."""
        tenant = self.tenants.get(occupancy)
        return tenant.lease if tenant else None

    def previous(self, lease: Lease) -> Lease | None:
        """The slot's occupancy before this one."""
        tenant = self.tenants.get(lease.occupancy)
        return self.lease_of(tenant.previous) if tenant else None

    def forget(self, needed: Iterable[int]) -> None:
        """Drop the occupancies that nothing names: no row, no slot's last, none of ``needed``."""
        kept = {at for slot in self.slots.values() for at in slot.occupancies()}
        kept.update(self.last_in_slot.values(), needed)
        # Named as the slot's previous occupant, in the evidence of a stale read.
        kept.update([self.tenants[at].previous for at in kept if at in self.tenants])
        self.tenants = {at: tenant for at, tenant in self.tenants.items() if at in kept}

    # Rows

    def written(self, row: int) -> Written | None:
        """What a row holds; None where nobody wrote."""
        slot, offset = divmod(row, self.stride)
        return self._rows_of(slot).get(offset)

    def rows(self) -> dict[int, Written]:
        """What each row holds that somebody wrote: for tests and drawings."""
        return {
            slot * self.stride + offset: written
            for slot, rows in self.slots.items()
            for offset in range(self.stride)
            if (written := rows.get(offset)) is not None
        }

    def _rows_of(self, slot: int) -> SlotRows:
        return self.slots.get(slot) or SlotRows(self.stride)

    # Writes

    def _to_write(self, slot: int) -> SlotRows:
        rows = self.slots.get(slot)
        if rows is None:
            rows = self.slots[slot] = SlotRows(self.stride)
        return rows

    def write(self, lease: Lease | None, position: int, row: int, step: int) -> None:
        """A key went to a row, wherever that is; without a lease, a padded row's."""
        if lease is not None and row == ring_row(Slot(lease.slot), Position(position), self.stride):
            self.write_span(lease, position, position + 1, step)
            return
        slot, offset = divmod(row, self.stride)
        occupancy = lease.occupancy if lease else 0
        self._to_write(slot).put_odd(offset, Written(occupancy, position, step))
        self._own.pop(slot, None)

    def write_span(self, lease: Lease, start: int, end: int, step: int) -> None:
        """Keys at ``[start, end)`` went to the rows that the rules give, one after the other."""
        if start < end:
            self._to_write(lease.slot).put(lease.occupancy, start, end, step)
            self._extend(lease, start, end)

    def _extend(self, lease: Lease, start: int, end: int) -> None:
        own = self._own.get(lease.slot)
        if own is None:
            return
        if own.occupancy != lease.occupancy or start < own.start:
            del self._own[lease.slot]  # a slot with two tenants, or a step back: look at the rows
            return
        if start > own.end:  # a scatter leaves out what is older than a window
            own.start = start
            own.below = None
        if end > own.end:
            own.end = end
            if end - own.start > self.stride:  # a row holds its newest position
                own.start = end - self.stride
                own.below = None

    def reject_from(self, lease: Lease, computed_len: int) -> None:
        """Mark the lease's rows at and past ``computed_len`` as rejected drafts."""
        own = self._own.get(lease.slot)
        if own is not None and own.occupancy == lease.occupancy:
            if own.end <= computed_len:
                return
            own.below = None
            own.end = computed_len
            own.start = min(own.start, computed_len)
        self._rows_of(lease.slot).reject_from(lease.occupancy, computed_len)

    # Reads

    def stale(self, lease: Lease, start: int, end: int) -> Sequence[Stale]:
        """What a read of ``[start, end)`` by the rules finds that is not the lease's own, in order.

        Few reads look at rows: a slot's interval answers most, and what lies below it is kept until
        something may have changed it.
        """
        own = self._own.get(lease.slot)
        if own is None or own.occupancy != lease.occupancy or not own.start <= end <= own.end:
            return self._look(lease, start, end)
        if own.start <= start:
            return ()
        # Rows of what lies less than a stride before the end are as they were when somebody looked.
        if own.below is None or start < max(own.below_from, own.end - self.stride):
            own.below_from = start
            own.below = self._look(lease, start, own.start)
        return [
            (max(first, start), min(last, end), cause)
            for first, last, cause in own.below
            if first < end and start < last
        ]

    def _look(self, lease: Lease, start: int, end: int) -> list[Stale]:
        rows = self._rows_of(lease.slot)
        if rows.odd:
            base = lease.slot * self.stride
            each = (
                (at, at + 1, self.stale_cause(lease, at, base + at % self.stride))
                for at in range(start, end)
            )
            return _joined(each)
        causes: list[tuple[int, int, Cause | None]] = []
        at = start
        for found in rows.find(start, end):
            causes.append((at, found.start, "never-written"))
            causes += self._causes(lease, found)
            at = found.end
        causes.append((at, end, "never-written"))
        return _joined(causes)

    def _causes(self, lease: Lease, found: Found) -> Iterator[tuple[int, int, Cause | None]]:
        """`stale_cause` of neighbouring rows that hold keys of one run."""
        start, end, run = found.start, found.end, found.run
        if run.occupancy == lease.occupancy:
            of_another = found.laps != 0
            own: Cause | None = "rejected-draft" if run.rejected else None
            yield start, end, "own-other-position" if of_another else own
            return
        theirs = None if found.laps else self.tenants.get(run.occupancy)
        if theirs is not None:
            agreed = agreed_len(theirs.prompt, self.tenants[lease.occupancy].prompt)
            same = max(start, int(min(end, agreed)))
            yield start, same, "same-content"
            start = same
        yield start, end, "other-request"

    def stale_cause(self, lease: Lease, stands_for: int, row: int) -> Cause | None:
        """Why a row is not the reader's own key at ``stands_for``; None if it is."""
        written = self.written(row)
        if written is None:
            return "never-written"
        if written.occupancy == lease.occupancy:
            if written.position != stands_for:
                return "own-other-position"
            return "rejected-draft" if written.rejected else None
        if written.position == stands_for:
            theirs = self.tenants.get(written.occupancy)
            mine = self.tenants[lease.occupancy]
            if theirs is not None and agreed_len(theirs.prompt, mine.prompt) > stands_for:
                return "same-content"
        return "other-request"

    def writer(self, row: int) -> Writer | None:
        """Writer of a row, named."""
        written = self.written(row)
        if written is None:
            return None
        lease = self.lease_of(written.occupancy)
        return Writer(
            occupancy=written.occupancy,
            request=lease.request if lease else "padding",
            position=written.position,
            step=written.step,
        )

    def ring(self, lease: Lease, first: int, rows: tuple[int, ...]) -> tuple[RingCell, ...]:
        """The slot's rows, as a query of ``lease`` sees them that reads ``rows`` from ``first``."""
        # In a ring that is too small a row stands for two positions: the older one is overwritten.
        stands_for = {row: first + index for index, row in reversed([*enumerate(rows)])}
        start = ring_row(Slot(lease.slot), Position(0), self.stride)
        return tuple(
            RingCell(
                row=row,
                stands_for=stands_for.get(row),
                writer=self.writer(row),
                cause=self.stale_cause(lease, stands_for[row], row) if row in stands_for else None,
            )
            for row in range(start, start + self.stride)
        )

    def holds_foreign_row(self, lease: Lease, start: int, end: int) -> bool:
        """Whether a row for a position in ``[start, end)`` was last written by another occupant."""
        rows = self._rows_of(lease.slot)
        holders = {found.run.occupancy for found in rows.find(start, end)}
        for offset, held in rows.odd.items():
            if (offset - start) % self.stride < end - start:
                holders.add(held.occupancy)
        return bool(holders - {lease.occupancy})


def _joined(causes: Iterable[tuple[int, int, Cause | None]]) -> list[Stale]:
    """What is stale, neighbours of one cause together."""
    stale: list[Stale] = []
    for start, end, cause in causes:
        if cause is None or start >= end:
            continue
        if stale and stale[-1][1:] == (start, cause):
            stale[-1] = (stale[-1][0], end, cause)
        else:
            stale.append((start, end, cause))
    return stale
