"""WINDOW-1 to WINDOW-7 against the definition of a sliding window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import (
    DECODE_ORDER,
    PREFILL_ORDER,
    VERIFY_ORDER,
    decode_reads,
    floored_ring_reads,
    prefill_ring_reads,
    scatter_keeps,
    window_start,
)

positions = st.integers(0, 300).map(Position)
windows = st.integers(1, 40)


def visible(position: int, window: int) -> set[int]:
    """Causal and less than a window away: the definition."""
    return {key for key in range(position + 1) if position - key < window}


@given(position=positions, window=windows)
def test_window_1_starts_at_the_oldest_visible_key(position: Position, window: int) -> None:
    assert window_start(position, window) == min(visible(position, window))


@given(position=positions, window=windows)
def test_window_2_decode_reads_all_visible_keys(position: Position, window: int) -> None:
    assert set(range(*decode_reads(position, window))) == visible(position, window)


def test_window_2_by_hand() -> None:
    assert decode_reads(Position(2), 4) == (0, 3)
    assert decode_reads(Position(3), 4) == (0, 4)
    assert decode_reads(Position(4), 4) == (1, 5)


@given(data=st.data(), position=positions, window=windows)
def test_window_3_prefill_reads_the_visible_keys_before_its_chunk(
    data: st.DataObject, position: Position, window: int
) -> None:
    chunk_start = Position(data.draw(st.integers(0, position)))
    ring = set(range(*prefill_ring_reads(position, chunk_start, window)))
    assert ring == {key for key in visible(position, window) if key < chunk_start}


@given(data=st.data(), start=positions, length=st.integers(1, 100), window=windows)
def test_window_4_scatter_keeps_what_the_next_query_may_read(
    data: st.DataObject, start: Position, length: int, window: int
) -> None:
    end = start + length
    kept = [p for p in range(start, end) if scatter_keeps(Position(p), Position(end - 1), window)]
    assert kept == list(range(max(start, end - window), end))
    stride = window + data.draw(st.integers(0, 4))
    rows = [ring_row(Slot(1), Position(p), stride) for p in kept]
    assert len(set(rows)) == len(rows), "one launch writes no row twice"
    needed = {key for key in visible(end, window) if start <= key < end}
    assert needed <= set(kept)


def test_window_4_edge() -> None:
    assert not scatter_keeps(Position(6), Position(10), 4)
    assert scatter_keeps(Position(7), Position(10), 4)


def test_window_5_and_6_orders() -> None:
    assert PREFILL_ORDER == "read, then write"
    assert DECODE_ORDER == "write, then read"


@pytest.mark.parametrize(
    ("release", "order"),
    [
        ("0.5.15", "read, then write"),
        ("0.5.16", "read, then write"),
        ("0.5.23", "write, then read"),
    ],
)
def test_window_7_verify_changed_its_order(release: str, order: str) -> None:
    assert VERIFY_ORDER[release] == order


@given(matched=st.integers(0, 30), more=st.integers(0, 30), window=st.integers(1, 12))
def test_window_8_leaves_out_what_lies_below_the_match(
    matched: int, more: int, window: int
) -> None:
    chunk = Position(matched + more // 2)
    query = Position(matched + more)
    kept = [at for at in range(*prefill_ring_reads(query, chunk, window)) if at >= matched]
    assert list(range(*floored_ring_reads(query, chunk, matched, window))) == kept
