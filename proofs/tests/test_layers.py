"""The layered model: brute force over logs against the closed forms."""

from __future__ import annotations

import pytest

from kvproof.model.layers import Stack, judge
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Decode, Operation
from kvproof.proofs.scenarios import hit
from kvproof.spec.exact import exact_decode_tail, exact_logits_tail


def broken(
    *, window: int, tail: int, stack: Stack, page_size: int = 1, matched: int = 3,
    then: tuple[Operation, ...] = (), held: int = 0,
) -> list[tuple[str, int]]:  # fmt: skip
    scenario = hit(window=window, page_size=page_size, matched_len=matched, tail=tail, then=then)
    player = reference_player(scenario.geometry, Policy(reprefill_tail=held))
    return [(b.invariant, b.step) for b in judge(player.play(scenario), stack).broken]


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_logits_are_exact_from_the_stated_tail_on(layers: int, window: int) -> None:
    need = exact_logits_tail(layers, window)
    for tail in range(1, need + 3):
        found = broken(window=window, tail=tail, stack=Stack.of(layers=layers))
        exact = not any(invariant == "EXACT" for invariant, _ in found)
        assert exact == (tail >= need), (layers, window, tail)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 3, 4])
def test_decodes_are_exact_from_one_token_less(layers: int, window: int) -> None:
    need = exact_decode_tail(layers, window)
    for tail in range(1, need + 3):
        found = broken(
            window=window, tail=tail, stack=Stack.of(layers=layers), then=(Decode(), Decode())
        )
        exact = not any(invariant == "EXACT" and step > 7 for invariant, step in found)
        assert exact == (tail >= need), (layers, window, tail)


@pytest.mark.parametrize("tail", [1, 2, 5, 12, 20])
def test_compressed_rows_never_heal(tail: int) -> None:
    stack = Stack.of(layers=3, compressed=frozenset({2}))
    found = broken(window=3, tail=tail, stack=stack)
    assert any(invariant == "EXACT" for invariant, _ in found)


def test_floored_reads_are_deterministic_and_not_exact() -> None:
    stack = Stack.of(layers=2, reading="floored reads")
    found = broken(window=3, tail=3, stack=stack)
    assert {invariant for invariant, _ in found} == {"EXACT"}
    capped = broken(window=3, tail=3, stack=Stack.of(layers=2))
    assert {invariant for invariant, _ in capped} == {"EXACT", "NON-INTERFERENCE"}


def test_a_cold_run_is_exact_and_pure() -> None:
    scenario = hit(window=3, page_size=2, matched_len=4, tail=3, then=(Decode(), Decode()))
    player = reference_player(scenario.geometry, Policy(reprefill_tail=10_000))
    stack = Stack.of(layers=3, compressed=frozenset({1, 2, 3}), ratio=2)
    assert judge(player.play(scenario), stack).broken == []
