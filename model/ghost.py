"""Ghost state: who wrote each ring row. No engine keeps it; the monitor does.

The rows are the meaning: one `Written` each. Beside them each slot has an `Own`, an interval of
positions that are known to lie in their rows as the tenant's own keys, so that a read that falls
within it needs no look at a row. It claims no more than the rows say, and it is given up as soon as
something writes the slot against the rules.

What can no longer be named by any verdict is forgotten (`Ghost.forget`): the state grows with the
rows and the live requests, not with the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from kvproof.model.scenario import Prompt, same_prefix
from kvproof.model.verdict import Cause, Lease, RingCell, Writer
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row


class Written(msgspec.Struct, frozen=True, gc=False):
    """Provenance of one row. ``rejected`` marks a draft token that verification threw away."""

    occupancy: int
    position: int
    step: int
    rejected: bool = False


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
        since: what the tenant wrote at or past it, it wrote without a gap.
        below: what is stale from ``below_from`` to ``start``, once somebody asked; else None.
    """

    occupancy: int
    start: int = 0
    end: int = 0
    since: int = 0
    below: list[Stale] | None = None
    below_from: int = 0


@dataclass(slots=True)
class Ghost:
    """Rows with their provenance, and the tenants by occupancy number."""

    stride: int
    rows: dict[int, Written] = field(default_factory=dict)
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
        kept = {written.occupancy for written in self.rows.values()}
        kept.update(self.last_in_slot.values(), needed)
        # Named as the slot's previous occupant, in the evidence of a stale read.
        kept.update([self.tenants[at].previous for at in kept if at in self.tenants])
        self.tenants = {at: tenant for at, tenant in self.tenants.items() if at in kept}

    # Writes

    def write(self, lease: Lease | None, position: int, row: int, step: int) -> None:
        """A key went to a row, wherever that is; without a lease, a padded row's."""
        occupancy = lease.occupancy if lease else 0
        self.rows[row] = Written(occupancy, position, step)
        if lease is not None and row == ring_row(Slot(lease.slot), Position(position), self.stride):
            self._extend(lease, position, position + 1)
        else:
            self._own.pop(row // self.stride, None)

    def write_span(self, lease: Lease, start: int, end: int, step: int) -> None:
        """Keys at ``[start, end)`` went to the rows that the rules give, one after the other."""
        rows, stride, occupancy = self.rows, self.stride, lease.occupancy
        base = lease.slot * stride
        # Of more than a stride only the last stride stays.
        for position in range(max(start, end - stride), end):
            rows[base + position % stride] = Written(occupancy, position, step)
        if start < end:
            self._extend(lease, start, end)

    def _extend(self, lease: Lease, start: int, end: int) -> None:
        own = self._own.get(lease.slot)
        if own is None:
            return
        if own.occupancy != lease.occupancy or start < own.start:
            del self._own[lease.slot]  # a slot with two tenants, or a step back: look at the rows
            return
        if start > own.end:  # a scatter leaves out what is older than a window
            own.start = own.since = start
            own.below = None
        if end > own.end:
            own.end = end
            if end - own.start > self.stride:  # a row holds its newest position
                own.start = end - self.stride
                own.below = None

    def reject_from(self, lease: Lease, computed_len: int) -> None:
        """Mark the lease's rows at and past ``computed_len`` as rejected drafts."""
        base = lease.slot * self.stride
        own = self._own.get(lease.slot)
        rows: Iterable[int] = range(base, base + self.stride)
        if own is not None and own.occupancy == lease.occupancy:
            if own.end <= computed_len:
                return
            if own.since <= computed_len:
                first = max(computed_len, own.end - self.stride)
                rows = [base + position % self.stride for position in range(first, own.end)]
            own.below = None
            own.end = computed_len
            own.start = min(own.start, computed_len)
            own.since = min(own.since, computed_len)
        for row in rows:
            written = self.rows.get(row)
            if (
                written is not None
                and written.occupancy == lease.occupancy
                and written.position >= computed_len
            ):
                self.rows[row] = Written(written.occupancy, written.position, written.step, True)

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
        found: list[Stale] = []
        base = lease.slot * self.stride
        for position in range(start, end):
            cause = self.stale_cause(lease, position, base + position % self.stride)
            if cause is None:
                continue
            if found and found[-1][1:] == (position, cause):
                found[-1] = (found[-1][0], position + 1, cause)
            else:
                found.append((position, position + 1, cause))
        return found

    def stale_cause(self, lease: Lease, stands_for: int, row: int) -> Cause | None:
        """Why a row is not the reader's own key at ``stands_for``; None if it is."""
        written = self.rows.get(row)
        if written is None:
            return "never-written"
        if written.occupancy == lease.occupancy:
            if written.position != stands_for:
                return "own-other-position"
            return "rejected-draft" if written.rejected else None
        if written.position == stands_for:
            theirs = self.tenants.get(written.occupancy)
            if theirs is not None and same_prefix(
                theirs.prompt, self.tenants[lease.occupancy].prompt, stands_for + 1
            ):
                return "same-content"
        return "other-request"

    def writer(self, row: int) -> Writer | None:
        """Writer of a row, named."""
        written = self.rows.get(row)
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
        for position in range(start, end):
            written = self.rows.get(ring_row(Slot(lease.slot), Position(position), self.stride))
            if written is not None and written.occupancy != lease.occupancy:
                return True
        return False
