"""TRANSLATE-1 to TRANSLATE-7 against tables and numpy's own reinterpretation."""

from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import FullLoc, Page, SwaLoc
from kvproof.spec.pages import is_page_congruent
from kvproof.spec.translate import (
    RESERVED_LOC,
    double_word,
    low_word,
    replayed_loc,
    reuses_plan,
    swa_loc,
    written_to,
)

locs = st.integers(0, 2**31 - 1)


def test_translate_1_is_the_padding_pages_entry() -> None:
    assert RESERVED_LOC == 0
    assert swa_loc(FullLoc(7), Page(0), 4) == RESERVED_LOC


@given(loc=st.integers(0, 999), swa_page=st.integers(1, 99), page_size=st.integers(1, 16))
def test_translate_2_keeps_the_place(loc: int, swa_page: int, page_size: int) -> None:
    found = swa_loc(FullLoc(loc), Page(swa_page), page_size)
    assert found // page_size == swa_page
    assert is_page_congruent(loc, FullLoc(found), page_size)


def test_translate_3_and_4_choose_between_plan_and_map() -> None:
    for planned, idle, planned_len, loc_len in product(
        (True, False), (True, False), (0, 2), (2, 3)
    ):
        current = planned and not idle and planned_len == loc_len
        assert reuses_plan(planned, idle, planned_len, loc_len) == current
        goes = written_to(
            planned=planned, idle=idle, planned_len=planned_len, loc_len=loc_len,
            planned_loc=SwaLoc(5), now=SwaLoc(9),
        )  # fmt: skip
        assert goes == (5 if current else 9)


@given(entries=st.lists(locs, min_size=1, max_size=6))
def test_translate_5_is_an_int64_buffer_read_as_int32(entries: list[int]) -> None:
    halves = np.array(entries, dtype="<i8").view("<i4").tolist()
    assert halves[::2] == [low_word(value) for value in entries]
    assert halves[1::2] == [0] * len(entries)


@given(pairs=st.lists(st.tuples(locs, locs), min_size=1, max_size=5))
def test_translate_6_is_an_int32_buffer_read_as_int64(pairs: list[tuple[int, int]]) -> None:
    whole = np.array(pairs, dtype="<i4").reshape(-1).view("<i8").tolist()
    assert whole == [double_word(low, high) for low, high in pairs]


@given(buffer=st.lists(locs, min_size=1, max_size=6), live=st.lists(locs, max_size=6))
def test_translate_7_is_a_copy_and_a_fill(buffer: list[int], live: list[int]) -> None:
    tokens = min(len(live), len(buffer))
    due = np.array(buffer)
    due[:tokens], due[tokens:] = live[:tokens], RESERVED_LOC
    given = [*live[:tokens], *buffer[tokens:]]
    assert due.tolist() == [replayed_loc(at, tokens, SwaLoc(loc)) for at, loc in enumerate(given)]
