"""EXACT-1 to EXACT-5 against taint carried through every layer, position by position."""

from __future__ import annotations

import pytest

from kvproof.spec.exact import (
    compressed_end,
    exact_decode_tail,
    exact_frontier,
    exact_logits_tail,
    next_frontier,
)
from kvproof.spec.indices import Position
from kvproof.spec.window import decode_reads

CASES = [(layers, window) for layers in range(5) for window in range(1, 6)]
MATCHED = 3


def exact_from(layers: int, window: int, end: int = 60) -> int:
    """First position from which on all states above the layers are exact, by brute force."""
    exact = [position >= MATCHED for position in range(end)]
    for _ in range(layers):
        exact = [
            position >= MATCHED and all(exact[slice(*decode_reads(Position(position), window))])
            for position in range(end)
        ]
    return exact.index(True)


@pytest.mark.parametrize("window", range(1, 6))
def test_exact_1_is_one_layer(window: int) -> None:
    assert next_frontier(MATCHED, window) == exact_from(1, window)


@pytest.mark.parametrize(("layers", "window"), CASES)
def test_exact_2_is_a_stack_of_layers(layers: int, window: int) -> None:
    assert exact_frontier(MATCHED, layers, window) == exact_from(layers, window)


@pytest.mark.parametrize(("layers", "window"), CASES)
def test_exact_3_and_4_are_tails_up_to_the_frontier(layers: int, window: int) -> None:
    first = exact_from(layers, window)
    # The last prompt token stands at m + T - 1, the first decode at m + T.
    assert MATCHED + exact_logits_tail(layers, window) - 1 == first
    assert MATCHED + exact_decode_tail(layers, window) == first


def test_exact_4_for_deepseek_v4() -> None:
    assert exact_decode_tail(43, 128) == 5461
    assert exact_decode_tail(61, 128) == 7747


@pytest.mark.parametrize("ratio", [1, 2, 4, 5])
def test_exact_5_counts_complete_rows(ratio: int) -> None:
    for position in range(30):
        rows = [row for row in range(40) if (row + 1) * ratio <= position + 1]
        assert compressed_end(position, ratio) == len(rows) * ratio
