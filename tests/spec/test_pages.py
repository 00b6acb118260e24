"""PAGE-1 to PAGE-5."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import FullLoc
from kvproof.spec.pages import is_page_congruent, new_pages, page_ceil, page_floor, page_of

tokens = st.integers(0, 500)
page_sizes = st.integers(1, 64)


@given(tokens=tokens, page_size=page_sizes)
def test_page_1_and_2_round_to_the_nearest_multiples(tokens: int, page_size: int) -> None:
    multiples = range(0, tokens + page_size + 1, page_size)
    assert page_floor(tokens, page_size) == max(m for m in multiples if m <= tokens)
    assert page_ceil(tokens, page_size) == min(m for m in multiples if m >= tokens)


def test_page_1_and_2_by_hand() -> None:
    assert [page_floor(n, 4) for n in (0, 3, 4, 5)] == [0, 0, 4, 4]
    assert [page_ceil(n, 4) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]


@given(page=tokens, page_size=page_sizes, data=st.data())
def test_page_3_inverts_the_page_layout(page: int, page_size: int, data: st.DataObject) -> None:
    offset = data.draw(st.integers(0, page_size - 1))
    assert page_of(FullLoc(page * page_size + offset), page_size) == page


@given(position=tokens, loc=tokens, page_size=page_sizes)
def test_page_4_same_place_in_the_page(position: int, loc: int, page_size: int) -> None:
    same = position % page_size == loc % page_size
    assert is_page_congruent(position, FullLoc(loc), page_size) == same


@given(allocated=tokens, more=st.integers(0, 70), page_size=page_sizes)
def test_page_5_takes_a_page_for_each_first_token(
    allocated: int, more: int, page_size: int
) -> None:
    firsts = [at for at in range(allocated, allocated + more) if at % page_size == 0]
    assert new_pages(allocated, allocated + more, page_size) == len(firsts) * page_size
