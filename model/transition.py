"""Transition rules of one ring row: what each operation does to it, as its slot's occupant sees it.

A launch changes each row of a ring on its own, so one arbitrary row stands for all of them. The
rules work on integers and on Z3 terms alike: the proofs quantify over the row, its request, every
size and every order of operations, and a test compares the same rules with the monitor's ghost
state row by row while scenarios are played.

A row is *watched* by its offset in the slot, ``0 <= offset < stride``. Operations of other slots
do not touch it (theorem R1), so they do not occur here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvproof.spec.indices import Position
from kvproof.spec.ring import newest_position
from kvproof.spec.schedule import committed_len
from kvproof.spec.terms import select
from kvproof.spec.window import (
    DECODE_ORDER,
    PREFILL_ORDER,
    Order,
    decode_reads,
    prefill_ring_reads,
    scatter_keeps,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """Sizes of a ring, and the orders in which launches read and write it."""

    window: int
    stride: int
    draft_tokens: int
    verify_order: Order
    prefill_order: Order = PREFILL_ORDER
    decode_order: Order = DECODE_ORDER


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One ring row.

    Attributes:
        own: written by the slot's present occupant.
        position: position whose key it holds.
        committed: not a draft token that verification threw away.
    """

    own: bool
    position: int
    committed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A request in its slot, and one row of that slot.

    Attributes:
        matched: tokens reused of a cached prefix.
        computed: tokens whose keys are committed, the reused ones included.
        prefilling: no decode or verify has run yet; no prefill follows one.
        offset: the watched row's place in the slot.
    """

    matched: int
    computed: int
    prefilling: bool
    offset: int
    cell: Cell


def is_fresh(cell: Cell, stands_for: int) -> bool:
    """FRESH. Whether a row is the occupant's own committed key at the position it stands for."""
    return (cell.position == stands_for) & cell.own & cell.committed


def admitted(found: Cell, *, offset: int, matched: int) -> Seat:
    """A request gets the slot: whatever the row holds is not its own."""
    return Seat(
        matched=matched, computed=matched, prefilling=True, offset=offset,
        cell=replace(found, own=False),
    )  # fmt: skip


def scattered(seat: Seat, ring: Ring, end: int, *, filtered: bool) -> Cell:
    """The row after a launch wrote the keys of ``[computed, end)``.

    Args:
        seat: before the launch.
        ring: sizes.
        end: first position that the launch does not write.
        filtered: leave out the keys before the last window (WINDOW-4); a decode does not.
    """
    newest = newest_position(seat.offset, Position(end), ring.stride)
    writes = newest >= seat.computed
    if filtered:
        writes = writes & scatter_keeps(newest, Position(end - 1), ring.window)
    cell = seat.cell
    return Cell(
        own=select(writes, True, cell.own),
        position=select(writes, newest, cell.position),
        committed=select(writes, True, cell.committed),
    )


def advanced(seat: Seat, cell: Cell, computed: int, *, prefilling: bool) -> Seat:
    """The request's computed length moves: its rows at and past it are rejected drafts."""
    kept = select(cell.position < computed, cell.committed, False)
    return replace(
        seat, computed=computed, prefilling=prefilling, cell=replace(cell, committed=kept)
    )


def cell_at_read(order: Order, before: Cell, after: Cell) -> Cell:
    """ORDER. The row that a launch's queries find."""
    return before if order == "read, then write" else after


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One forward as the watched row sees it.

    Attributes:
        found: the row at the moment at which the launch reads.
        after: the request when the launch is over.
    """

    found: Cell
    after: Seat


def prefilled(seat: Seat, ring: Ring, end: int) -> Launch:
    """A prefill chunk ``[computed, end)`` of a request that is prefilling."""
    written = scattered(seat, ring, end, filtered=True)
    return Launch(
        found=cell_at_read(ring.prefill_order, seat.cell, written),
        after=advanced(seat, written, end, prefilling=True),
    )


def decoded(seat: Seat, ring: Ring) -> Launch:
    """A decode step."""
    end = seat.computed + 1
    written = scattered(seat, ring, end, filtered=False)
    return Launch(
        found=cell_at_read(ring.decode_order, seat.cell, written),
        after=advanced(seat, written, end, prefilling=False),
    )


def verified(seat: Seat, ring: Ring, accepted: int) -> Launch:
    """A verify step of ``draft_tokens`` tokens, ``accepted`` of them kept."""
    reads_first = ring.verify_order == "read, then write"
    written = scattered(seat, ring, seat.computed + ring.draft_tokens, filtered=reads_first)
    computed = committed_len(Position(seat.computed), accepted, ring.draft_tokens)
    return Launch(
        found=cell_at_read(ring.verify_order, seat.cell, written),
        after=advanced(seat, written, computed, prefilling=False),
    )


def prefill_span(seat: Seat, ring: Ring, query: int) -> tuple[Position, Position]:
    """Positions that the query at ``query`` of the next chunk reads from the ring."""
    return prefill_ring_reads(Position(query), Position(seat.computed), ring.window)


def decode_span(seat: Seat, ring: Ring) -> tuple[Position, Position]:
    """Positions that the next decode query reads from the ring."""
    return decode_reads(Position(seat.computed), ring.window)


def verify_span(seat: Seat, ring: Ring, query: int) -> tuple[Position, Position]:
    """Positions that the query at ``query`` of the next verify reads from the ring."""
    if ring.verify_order == "read, then write":
        return prefill_ring_reads(Position(query), Position(seat.computed), ring.window)
    return decode_reads(Position(query), ring.window)
