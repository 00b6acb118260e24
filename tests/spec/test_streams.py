"""STREAM-1 to STREAM-4: what is ordered between a step in flight and the host, and what is not."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import Position
from kvproof.spec.streams import may_rewrite, released_len, scheduled_len, sees
from kvproof.spec.window import window_start

lengths = st.integers(0, 300)
launches = st.integers(1, 50)


@given(launch=launches, earlier=launches)
def test_stream_1_is_the_order_of_launches(launch: int, earlier: int) -> None:
    assert sees(launch, launch)
    assert sees(launch, earlier) or sees(earlier, launch)
    assert not (sees(launch, earlier) and sees(earlier, launch)) or launch == earlier


def test_stream_2_allows_what_no_step_can_tell() -> None:
    allowed = {
        (dropped, by_table, same_key)
        for dropped, by_table, same_key in product((False, True), repeat=3)
        if may_rewrite(dropped=dropped, writes_by_table=by_table, same_key=same_key)
    }
    assert allowed == {(True, False, False), (True, False, True), (False, False, True)}


@given(processed=lengths, window=st.integers(1, 40), page_size=st.integers(1, 16))
def test_stream_3_keeps_the_window_of_the_next_query(
    processed: int, window: int, page_size: int
) -> None:
    released = released_len(processed, window, page_size)
    first_read = window_start(Position(processed), window)
    assert released % page_size == 0
    assert released <= first_read < released + page_size


@given(processed=lengths, drafts=st.integers(1, 8), in_flight=st.integers(0, 3))
def test_stream_4_is_too_long_by_the_drafts_that_are_rejected(
    processed: int, drafts: int, in_flight: int
) -> None:
    scheduled = scheduled_len(processed, drafts, in_flight)
    assert scheduled - processed == drafts * in_flight
    assert released_len(scheduled, 4, 1) >= released_len(processed, 4, 1)
