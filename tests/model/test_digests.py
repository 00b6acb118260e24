"""Digests against taint: where no taint reaches an output, it is that of a cold run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.model.digests import outputs_of
from kvproof.model.facts import Fact
from kvproof.model.layers import Stack, judge
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Decode, Flush, Scenario, Submit
from kvproof.proofs.scenarios import hit
from kvproof.spec.exact import exact_decode_tail, exact_logits_tail


def played(scenario: Scenario, policy: Policy) -> list[Fact]:
    return list(reference_player(scenario.geometry, policy).play(scenario))


def outputs(log: list[Fact], stack: Stack, request: str) -> list[bytes]:
    return next(found for name, found in outputs_of(log, stack) if name == request)


def cold(scenario: Scenario) -> Scenario:
    """The same with the cache cleared before the last request."""
    at = max(i for i, op in enumerate(scenario.operations) if isinstance(op, Submit))
    operations = (*scenario.operations[:at], Flush(), *scenario.operations[at:])
    return Scenario(geometry=scenario.geometry, operations=operations)


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 3), window=st.integers(1, 4), page=st.sampled_from([2, 4]),
    pages=st.integers(1, 4), tail=st.integers(1, 12), held_back=st.integers(0, 4),
    ratio=st.sampled_from([0, 2]),
)  # fmt: skip
def test_where_taint_says_clean_the_digest_is_that_of_a_cold_run(
    *, layers: int, window: int, page: int, pages: int, tail: int, held_back: int, ratio: int
) -> None:
    stack = Stack(ratios=(ratio,) * layers)
    scenario = hit(
        window=window, page_size=page, matched_len=pages * page, tail=tail,
        then=(Decode(), Decode()), slots=1,
    )  # fmt: skip
    policy = Policy(reprefill_tail=held_back)
    log = played(scenario, policy)
    same = outputs(log, stack, "C") == outputs(played(cold(scenario), policy), stack, "C")
    exact = not any(broken.invariant == "EXACT" for broken in judge(log, stack).broken)
    assert same == exact


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("window", [2, 3, 4])
def test_digests_find_the_bounds_of_x3(layers: int, window: int) -> None:
    stack = Stack.of(layers=layers)
    for tail in range(1, exact_logits_tail(layers, window) + 2):
        scenario = hit(window=window, page_size=1, matched_len=6, tail=tail, then=(Decode(),))
        policy = Policy(reprefill_tail=0)
        found = outputs(played(scenario, policy), stack, "C")
        right = outputs(played(cold(scenario), policy), stack, "C")
        assert (found[0] == right[0]) == (tail >= exact_logits_tail(layers, window))
        assert (found[1] == right[1]) == (tail >= exact_decode_tail(layers, window))


def test_floored_reads_do_not_depend_on_the_past_and_are_not_exact() -> None:
    scenario = hit(window=4, page_size=1, matched_len=6, tail=5, then=(Decode(),))
    stack = Stack.of(layers=3, reading="floored reads")
    policy = Policy(reprefill_tail=0, floored_reads=True)
    log = played(scenario, policy)
    assert outputs(log, stack, "C") != outputs(played(cold(scenario), policy), stack, "C")
