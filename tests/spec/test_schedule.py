"""CHUNK-1, VERIFY-1, PUBLISH-1, SLOT-1 to SLOT-4."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import PADDING_SLOT, Occupancy, Position, Slot
from kvproof.spec.schedule import (
    SLOT_ORDER,
    SlotOrder,
    chunk_end,
    committed_len,
    next_occupancy,
    next_slot,
    publishable_len,
)

sizes = st.integers(0, 200)
page_sizes = st.integers(1, 20)


@given(start=sizes, left=sizes, budget=sizes, page=page_sizes)
def test_chunk_1_all_that_is_left_or_whole_pages(
    start: int, left: int, budget: int, page: int
) -> None:
    total = start + left
    whole_pages = [end for end in range(start, total, page) if end - start <= budget]
    expected = total if left <= budget else max(whole_pages)
    assert chunk_end(Position(start), total, budget, page) == expected


def test_chunk_1_by_hand() -> None:
    assert chunk_end(Position(4), 18, 7, 4) == 8
    assert chunk_end(Position(4), 18, 14, 4) == 18
    assert chunk_end(Position(4), 18, 13, 4) == 16
    assert chunk_end(Position(4), 18, 3, 4) == 4, "smaller than a page: nothing to launch"


@pytest.mark.parametrize(("accepted", "length"), [(1, 11), (3, 13), (4, 14)])
def test_verify_1_keeps_the_accepted_tokens(accepted: int, length: int) -> None:
    assert committed_len(Position(10), accepted, 4) == length


@given(computed=sizes, page=page_sizes)
def test_publish_1_computed_whole_pages(computed: int, page: int) -> None:
    whole = range(0, computed + 1, page)
    assert publishable_len(computed, page) == max(whole)


def test_slot_1_padding_slot() -> None:
    assert PADDING_SLOT == 0


@pytest.mark.parametrize(
    ("release", "order"),
    [
        ("0.5.15", "first in, first out"),
        ("0.5.16", "first in, first out"),
        ("0.5.23", "last in, first out"),
    ],
)
def test_slot_2_order_of_each_release(release: str, order: SlotOrder) -> None:
    assert SLOT_ORDER[release] == order


@given(free=st.lists(st.integers(1, 20).map(Slot), min_size=1, unique=True))
def test_slot_3_takes_the_end_that_the_order_names(free: list[Slot]) -> None:
    assert next_slot(free, "first in, first out") == free[0]
    assert next_slot(free, "last in, first out") == free[-1]


def test_slot_3_refuses_the_padding_slot() -> None:
    with pytest.raises(AssertionError, match="slot 0 is never lent"):
        next_slot([PADDING_SLOT, Slot(1)], "first in, first out")


@given(leases=st.integers(1, 50))
def test_slot_4_no_occupancy_number_twice(leases: int) -> None:
    numbers = [Occupancy(0)]
    for _ in range(leases):
        numbers.append(next_occupancy(numbers[-1]))
    assert numbers == sorted(set(numbers))
    assert numbers[1] == 1
