"""Scenarios are valid, varied, and reach what a run must have reached."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.profiles import PROFILES
from kvproof.fuzz.strategies import (
    NAMES,
    Sizes,
    arbitrary_scenarios,
    likely_scenarios,
    scenarios,
)
from kvproof.model.facts import Ended
from kvproof.model.monitor import check
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    CacheOperation,
    Decode,
    Scenario,
    Verify,
    decode_scenario,
    encode_scenario,
    requests_of,
)
from kvproof.model.witness import CAP_WITNESS, WITNESSES, Witness

from .conftest import UNCAPPED

BOTH = {"likely": likely_scenarios, "arbitrary": arbitrary_scenarios}
SPECULATIVE = Sizes(draft_tokens=(2, 3), overlaps=(0, 1))


def draw(strategy: SearchStrategy[Scenario], number: int) -> list[Scenario]:
    """The first scenarios that a campaign with seed 0 would draw."""
    drawn: list[Scenario] = []

    @seed(0)
    @settings(
        max_examples=number, phases=(Phase.generate,), database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def keep(scenario: Scenario) -> None:
        drawn.append(scenario)

    keep()
    return drawn


@pytest.fixture(scope="module", params=BOTH)
def drawn(request: pytest.FixtureRequest) -> list[Scenario]:
    return draw(BOTH[request.param](), 150)


def test_every_kind_of_operation_occurs() -> None:
    kinds = Counter(type(operation) for s in draw(scenarios(), 400) for operation in s.operations)
    assert set(kinds) == set(get_args(CacheOperation))


def test_likely_scenarios_verify_where_there_is_speculation() -> None:
    operations = [op for s in draw(likely_scenarios(SPECULATIVE), 60) for op in s.operations]
    assert any(isinstance(operation, Verify) for operation in operations)
    assert {type(op) for op in operations} == set(get_args(CacheOperation)) - {Decode}


def test_sizes_lie_below_at_and_above_one_another() -> None:
    drawn = draw(likely_scenarios(), 200)
    orders = {(s.geometry.page_size > s.geometry.window) - (s.geometry.page_size <
              s.geometry.window) for s in drawn}  # fmt: skip
    assert orders == {-1, 0, 1}
    assert any(s.geometry.window % s.geometry.page_size not in {0, s.geometry.page_size - 1}
               for s in drawn)  # fmt: skip
    assert {s.geometry.slots for s in drawn} == set(Sizes().slots)


@pytest.mark.parametrize("policy", [UNCAPPED, Policy()], ids=["uncapped", "capped"])
def test_likely_scenarios_reach_every_witness_within_the_smoke_profile(policy: Policy) -> None:
    reached: Counter[Witness] = Counter()
    for scenario in draw(likely_scenarios(), PROFILES["smoke"].sequences):
        reached.update(check(reference_player(scenario.geometry, policy).play(scenario)).witnesses)
    required = [*WITNESSES, *([CAP_WITNESS] if policy.reprefill_tail is None else [])]
    assert [witness for witness in required if not reached[witness]] == []


def test_likely_scenarios_mostly_find_something_to_do() -> None:
    monitors = [check(reference_player(s.geometry).play(s)) for s in draw(likely_scenarios(), 100)]
    steps = sum(monitor.steps for monitor in monitors)
    assert steps > 100 * 8
    assert sum(monitor.skipped for monitor in monitors) < 0.2 * steps


def test_every_scenario_comes_back_from_its_file(drawn: list[Scenario]) -> None:
    for scenario in drawn:
        assert decode_scenario(encode_scenario(scenario)) == scenario


def test_every_scenario_plays_whatever_operation_is_dropped(drawn: list[Scenario]) -> None:
    for scenario in drawn:
        operations = scenario.operations
        for gone in range(len(operations) + 1):  # the last time none is
            kept = operations[:gone] + operations[gone + 1 :]
            [*_, last] = reference_player(scenario.geometry, UNCAPPED).play(
                Scenario(geometry=scenario.geometry, operations=kept)
            )
            assert last == Ended(steps=len(kept))


def test_likely_requests_have_names_of_their_own(drawn: list[Scenario]) -> None:
    for scenario in drawn:
        assert set(requests_of(scenario.operations)) <= set(NAMES)


def test_a_seed_gives_the_same_scenarios() -> None:
    assert draw(scenarios(), 30) == draw(scenarios(), 30)
