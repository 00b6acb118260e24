"""Exact tests against numbers from the literature and against enumeration."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.determinism.statistics import fisher_greater, holm, least_excess


def test_the_lady_tasting_tea() -> None:
    """Fisher's own example: 4 cups each, all right 1/70, three or more right 17/70."""
    assert fisher_greater(4, 4, 0, 4) == pytest.approx(1 / 70)
    assert fisher_greater(3, 4, 1, 4) == pytest.approx(17 / 70)


@given(total=st.integers(1, 6), floor=st.integers(1, 6), data=st.data())
def test_fisher_is_the_share_of_arrangements(total: int, floor: int, data: st.DataObject) -> None:
    off = data.draw(st.integers(0, total))
    floor_off = data.draw(st.integers(0, floor))
    arrangements = list(combinations(range(total + floor), off + floor_off))
    extreme = sum(sum(place < total for place in places) >= off for places in arrangements)
    assert fisher_greater(off, total, floor_off, floor) == pytest.approx(
        extreme / len(arrangements)
    )


def test_counts_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="no counts"):
        fisher_greater(5, 4, 0, 4)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_between_no_correction_and_bonferroni(p_values: list[float]) -> None:
    for raw, adjusted in zip(p_values, holm(p_values), strict=True):
        assert raw <= adjusted <= min(1.0, len(p_values) * raw) or adjusted == max(holm(p_values))


@given(total=st.integers(1, 64), floor_off=st.integers(0, 20), rows=st.integers(1, 7))
def test_least_excess_is_the_first_that_exceeds(total: int, floor_off: int, rows: int) -> None:
    least = least_excess(total, floor_off, 128, alpha=0.01, rows=rows)
    if least is None:
        assert fisher_greater(total, total, floor_off, 128) * rows > 0.01
    else:
        assert fisher_greater(least, total, floor_off, 128) * rows <= 0.01
        assert least == 0 or fisher_greater(least - 1, total, floor_off, 128) * rows > 0.01
