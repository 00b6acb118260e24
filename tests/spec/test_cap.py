"""CAP-1 to CAP-8 against enumerated windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.cap import (
    capped_bigram_match,
    capped_match,
    computed_limit,
    decodes_fresh,
    first_token_fresh,
    match_limit,
    rebuild_tail,
    reprefill_bound,
)
from kvproof.spec.indices import Position
from kvproof.spec.pages import page_floor
from kvproof.spec.window import decode_reads

lengths = st.integers(1, 300)
windows = st.integers(1, 40)
page_sizes = st.integers(1, 20)


@given(prompt_len=lengths)
def test_cap_1_leaves_exactly_the_last_token(prompt_len: int) -> None:
    assert computed_limit(prompt_len) == prompt_len - 1


@pytest.mark.parametrize(
    ("prompt_len", "tail", "limit"),
    [(18, 4, 14), (18, 0, 17), (18, 1, 17), (18, 2, 16), (4, 4, 0), (3, 4, 0), (5, 4, 1)],
)
def test_cap_2_by_hand(prompt_len: int, tail: int, limit: int) -> None:
    assert match_limit(prompt_len, tail) == limit


@given(prompt_len=lengths, tail=st.integers(0, 60))
def test_cap_2_is_the_longest_allowed(prompt_len: int, tail: int) -> None:
    allowed = [m for m in range(prompt_len) if m == 0 or prompt_len - m >= max(1, tail)]
    assert match_limit(prompt_len, tail) == max(allowed)


@given(cached=st.integers(0, 300), prompt_len=lengths, tail=st.integers(0, 60), page=page_sizes)
def test_cap_3_is_the_longest_cached_and_aligned_match(
    cached: int, prompt_len: int, tail: int, page: int
) -> None:
    limit = match_limit(prompt_len, tail)
    allowed = [m for m in range(0, 301, page) if m <= cached and m <= limit]
    match = capped_match(cached, prompt_len, tail, page)
    assert match == max(allowed)
    assert capped_match(match, prompt_len, tail, page) == match, "capping twice is capping once"
    assert match <= capped_match(cached, prompt_len, 0, page)


@pytest.mark.parametrize(("page", "match"), [(1, 14), (4, 12), (8, 8), (16, 0)])
def test_cap_3_is_page_aligned(page: int, match: int) -> None:
    """The three-request scenario of PR #30339: 16 cached, two new tokens, window 4."""
    assert capped_match(16, 18, 4, page) == match


@given(matched=st.integers(0, 100), tail=st.integers(1, 60), window=windows)
def test_cap_4_and_5_say_whether_the_window_starts_in_the_tail(
    matched: int, tail: int, window: int
) -> None:
    def own(query: int) -> bool:
        return decode_reads(Position(query), window)[0] >= matched

    assert decodes_fresh(matched, tail, window) == own(matched + tail)
    assert first_token_fresh(matched, tail, window) == own(matched + tail - 1)


def test_cap_4_and_5_differ_by_one_token() -> None:
    assert [decodes_fresh(16, tail, 4) for tail in (2, 3)] == [False, True]
    assert [first_token_fresh(16, tail, 4) for tail in (3, 4)] == [False, True]


@given(cached=st.integers(0, 300), prompt_len=lengths, window=windows, page=page_sizes)
def test_cap_6_bounds_the_capped_tail(cached: int, prompt_len: int, window: int, page: int) -> None:
    """``cached`` is page aligned, as every match that a tree can give."""
    cached = page_floor(min(cached, prompt_len), page)
    tail = prompt_len - capped_match(cached, prompt_len, window, page)
    bound = reprefill_bound(prompt_len, cached, window, page)
    assert tail <= bound
    assert tail <= reprefill_bound(prompt_len, cached, window, page, bigram=True)
    assert bound <= max(prompt_len - cached, window + page - 1), "independent of the prefix"


@given(pages=st.integers(1, 20), window=windows, page=page_sizes)
def test_cap_6_is_tight(pages: int, window: int, page: int) -> None:
    prompt_len = pages * page + window + page - 1
    tail = prompt_len - capped_match((pages + 1) * page, prompt_len, window, page)
    assert tail == window + page - 1 == reprefill_bound(prompt_len, prompt_len, window, page)


@given(pages=st.integers(1, 20), window=windows, page=page_sizes)
def test_cap_6_bigram_keys_cost_one_token_more(pages: int, window: int, page: int) -> None:
    """A key of ``n - window`` tokens has one bigram less, and is floored after that."""
    prompt_len = pages * page + window + page
    matched = page_floor(match_limit(prompt_len, window) - 1, page)
    tail = prompt_len - matched
    assert tail == window + page
    assert tail == reprefill_bound(prompt_len, prompt_len, window, page, bigram=True)
    assert tail > reprefill_bound(prompt_len, prompt_len, window, page)


@given(cached=st.integers(0, 300), prompt_len=lengths, tail=st.integers(0, 60), page=page_sizes)
def test_cap_7_is_cap_3_on_a_key_of_one_entry_less(
    cached: int, prompt_len: int, tail: int, page: int
) -> None:
    entries = max(0, match_limit(prompt_len, tail) - 1)
    best = max(length for length in range(0, min(cached, entries) + 1, page))
    assert capped_bigram_match(cached, prompt_len, tail, page) == best


@given(pages=st.integers(0, 20), new=st.integers(1, 60), replayed=lengths, page=page_sizes)
def test_cap_8_replays_that_many_tokens_or_the_whole_match(
    pages: int, new: int, replayed: int, page: int
) -> None:
    match = pages * page
    start = capped_match(match, match + new, rebuild_tail(match, match + new, replayed), page)
    assert match - start >= min(match, replayed)
    assert match - start < replayed + page, "no page more than asked for"
