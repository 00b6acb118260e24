"""CURSOR-1 to CURSOR-3 against what the tree can match afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.cursor import cursor, cursor_margin, window_left
from kvproof.spec.indices import Position
from kvproof.spec.pages import page_floor
from kvproof.spec.radix import window_match
from kvproof.spec.window import decode_reads

sizes = st.integers(1, 12)


def matched_after(*, length: int, margin: int, window: int, page_size: int) -> tuple[int, int]:
    """Pages that the tree matches of a finished request, and how many it holds."""
    gone = cursor(0, 0, length, margin, page_size) // page_size
    pages = page_floor(length, page_size) // page_size
    return window_match([False] * gone + [True] * (pages - gone), page_size, window), pages


@given(window=sizes, page_size=sizes, length=st.integers(0, 60))
def test_cursor_1_leaves_a_window_to_match(window: int, page_size: int, length: int) -> None:
    margin = cursor_margin(window, page_size)
    matched, pages = matched_after(length=length, margin=margin, window=window, page_size=page_size)
    assert matched == pages


def test_cursor_1_is_more_than_0_5_15_keeps() -> None:
    assert cursor_margin(3, 2) == 4
    assert matched_after(length=5, margin=4, window=3, page_size=2) == (2, 2)
    assert matched_after(length=5, margin=3, window=3, page_size=2) == (0, 2)


@given(
    evicted=st.integers(0, 9), protected=st.integers(0, 9), length=st.integers(0, 60),
    margin=sizes, page_size=sizes,
)  # fmt: skip
def test_cursor_2_is_the_last_page_start_that_is_allowed(
    evicted: int, protected: int, length: int, margin: int, page_size: int
) -> None:
    before, tree = evicted * page_size, protected * page_size
    starts = [
        start
        for start in range(0, 200, page_size)
        if start <= max(before, tree) or start <= length - margin
    ]
    assert cursor(before, tree, length, margin, page_size) == starts[-1]


@given(length=st.integers(0, 60), protected=st.integers(0, 60), window=sizes)
def test_cursor_3_is_whether_no_later_query_sees_the_prefix(
    length: int, protected: int, window: int
) -> None:
    later = [decode_reads(Position(query), window)[0] for query in range(length, length + 30)]
    assert window_left(length, protected, window) == all(first >= protected for first in later)
