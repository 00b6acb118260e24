"""RING-1 to RING-6 against a ring that is really written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import Position, RingRow, Slot
from kvproof.spec.ring import (
    can_restart,
    is_padding_row,
    newest_position,
    ring_row,
    ring_stride,
    same_ring_row,
)

positions = st.integers(0, 400).map(Position)
slots = st.integers(0, 20).map(Slot)
strides = st.integers(1, 40)


@pytest.mark.parametrize(
    ("window", "draft_tokens", "stride"), [(128, 1, 128), (128, 2, 129), (128, 4, 131), (1, 1, 1)]
)
def test_ring_1_stride_has_a_spare_row_for_each_further_draft(
    window: int, draft_tokens: int, stride: int
) -> None:
    assert ring_stride(window, draft_tokens) == stride


@pytest.mark.parametrize(
    ("slot", "position", "stride", "row"),
    [(0, 0, 128, 0), (2, 130, 128, 258), (1, 131, 131, 131), (3, 130, 131, 523), (5, 7, 1, 5)],
)
def test_ring_2_row_by_hand(slot: int, position: int, stride: int, row: int) -> None:
    assert ring_row(Slot(slot), Position(position), stride) == row


@given(slot=slots, first=positions, stride=strides)
def test_ring_2_as_many_positions_as_rows_fill_the_slot(
    slot: Slot, first: Position, stride: int
) -> None:
    rows = {ring_row(slot, Position(first + step), stride) for step in range(stride)}
    assert rows == set(range(slot * stride, (slot + 1) * stride))
    assert ring_row(slot, Position(first + stride), stride) == ring_row(slot, first, stride)


@given(one=slots, other=slots, at=positions, beside=positions, stride=strides)
def test_ring_2_slots_are_disjoint(
    one: Slot, other: Slot, at: Position, beside: Position, stride: int
) -> None:
    same_row = ring_row(one, at, stride) == ring_row(other, beside, stride)
    assert not same_row or one == other


@given(slot=slots, one=positions, other=positions, stride=strides)
def test_ring_3_same_row(slot: Slot, one: Position, other: Position, stride: int) -> None:
    same = ring_row(slot, one, stride) == ring_row(slot, other, stride)
    assert same_ring_row(one, other, stride) == same


@given(slot=slots, position=positions, stride=strides)
def test_ring_4_padding_rows_are_those_of_slot_0(
    slot: Slot, position: Position, stride: int
) -> None:
    assert is_padding_row(ring_row(slot, position, stride), stride) == (slot == 0)


def test_ring_4_edges() -> None:
    assert [is_padding_row(RingRow(row), 4) for row in (0, 3, 4)] == [True, True, False]


@given(data=st.data(), end=positions, stride=strides)
def test_ring_5_newest_position_is_what_the_row_holds(
    data: st.DataObject, end: Position, stride: int
) -> None:
    offset = data.draw(st.integers(0, stride - 1))
    held = {position % stride: position for position in range(end)}
    newest = newest_position(offset, end, stride)
    assert newest == held[offset] if offset in held else newest < 0


@given(data=st.data(), window=st.integers(1, 12), spare=st.integers(0, 6))
def test_ring_6_restart_is_possible_exactly_while_the_window_survives(
    data: st.DataObject, window: int, spare: int
) -> None:
    stride = window + spare
    end = data.draw(st.integers(0, 4 * stride))
    restart = data.draw(st.integers(0, end))
    held = {position % stride: position for position in range(end)}
    needed = range(max(0, restart - window + 1), restart)
    survived = all(held[position % stride] == position for position in needed)
    assert can_restart(Position(end), Position(restart), window, stride) == survived


def test_ring_6_a_rewind_takes_the_spare_rows_and_one_more() -> None:
    for back, possible in ((0, True), (3, True), (4, False)):
        assert can_restart(Position(50), Position(50 - back), 8, 10) == possible
