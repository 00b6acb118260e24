"""Ghost state: who wrote each ring row. No engine keeps it; the monitor does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kvproof.model.scenario import Prompt, same_prefix
from kvproof.model.verdict import Cause, Lease, RingCell, Writer
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """Provenance of one row. ``rejected`` marks a draft token that verification threw away."""

    occupancy: int
    position: int
    step: int
    rejected: bool = False


@dataclass(slots=True)
class Ghost:
    """Rows with their provenance, and the leases by occupancy number."""

    stride: int
    rows: dict[int, Written] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    prompts: dict[int, Prompt] = field(default_factory=dict)
    last_in_slot: dict[int, int] = field(default_factory=dict)
    previous_in_slot: dict[int, int] = field(default_factory=dict)

    def lease(self, lease: Lease, prompt: Prompt) -> None:
        """Begin an occupancy."""
        self.leases[lease.occupancy] = lease
        self.prompts[lease.occupancy] = prompt
        if lease.slot in self.last_in_slot:
            self.previous_in_slot[lease.occupancy] = self.last_in_slot[lease.slot]
        self.last_in_slot[lease.slot] = lease.occupancy

    def reject_from(self, lease: Lease, computed_len: int) -> None:
        """Mark the lease's rows at and past ``computed_len`` as rejected drafts."""
        for offset in range(self.stride):
            row = lease.slot * self.stride + offset
            written = self.rows.get(row)
            if (
                written is not None
                and written.occupancy == lease.occupancy
                and written.position >= computed_len
            ):
                self.rows[row] = replace(written, rejected=True)

    def stale_cause(self, lease: Lease, stands_for: int, row: int) -> Cause | None:
        """Why a row is not the reader's own key at ``stands_for``; None if it is."""
        written = self.rows.get(row)
        if written is None:
            return "never-written"
        if written.occupancy == lease.occupancy:
            if written.position != stands_for:
                return "own-other-position"
            return "rejected-draft" if written.rejected else None
        theirs = self.prompts.get(written.occupancy)
        if (
            theirs is not None
            and written.position == stands_for
            and same_prefix(theirs, self.prompts[lease.occupancy], stands_for + 1)
        ):
            return "same-content"
        return "other-request"

    def writer(self, row: int) -> Writer | None:
        """Writer of a row, named."""
        written = self.rows.get(row)
        if written is None:
            return None
        lease = self.leases.get(written.occupancy)
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
