"""Exact tests for small counts, in a few lines of integer arithmetic.

Sources: R. A. Fisher, The Design of Experiments (1935), chapter 2, for the test of a 2 x 2 table;
S. Holm, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6 (1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import comb


def fisher_greater(off: int, total: int, floor_off: int, floor_total: int) -> float:
    """One-sided p-value: so many off of ``total`` or more, if rows and floor are alike.

    The counts of both together are given; the chance that the row gets at least its share of what
    is off is a hypergeometric tail.

    Args:
        off: answers outside the majority in the row.
        total: answers of the row.
        floor_off: the same of the floor.
        floor_total: answers of the floor.

    Raises:
        ValueError: a count is negative or larger than its total.
    """
    if not (0 <= off <= total and 0 <= floor_off <= floor_total):
        raise ValueError(f"no counts: {off} of {total} and {floor_off} of {floor_total}")
    all_off = off + floor_off
    ways = comb(total + floor_total, all_off)
    tail = sum(
        comb(total, k) * comb(floor_total, all_off - k) for k in range(off, min(total, all_off) + 1)
    )
    return float(Fraction(tail, ways))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for being several, in their order (Holm's step-down procedure)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def least_excess(
    total: int, floor_off: int, floor_total: int, *, alpha: float, rows: int
) -> int | None:
    """Fewest answers off that a row needs to exceed the floor, the strictest of ``rows`` tests.

    None if not even a row in which all are off would.
    """
    for off in range(total + 1):
        if fisher_greater(off, total, floor_off, floor_total) * rows <= alpha:
            return off
    return None
