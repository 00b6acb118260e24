"""Scenarios of forwards: they are valid, they reach what matters, they vary along the axes."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import get_args

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from kvproof.fuzz.forward_story import spell_fact
from kvproof.fuzz.forward_strategies import forward_scenarios
from kvproof.fuzz.story import tell
from kvproof.model.facts import Changed, Consumed, Planned
from kvproof.model.forward_reference import forward_player
from kvproof.model.forwards import ForwardOperation, Layer, Plan, Rebind, Remap
from kvproof.model.monitor import check
from kvproof.model.scenario import Geometry, Scenario
from kvproof.model.witness import required_of

SEQUENCES = 120


@cache
def draw(*, any_caller: bool) -> list[Scenario]:
    drawn: list[Scenario] = []

    @seed(0)
    @settings(max_examples=SEQUENCES, database=None, deadline=None, phases=(Phase.generate,),
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(forward_scenarios(any_caller=any_caller))
    def keep(scenario: Scenario) -> None:
        drawn.append(scenario)

    keep()
    return drawn


@pytest.mark.parametrize("construction", ["triton", "dsv4", "dsv4-any"])
def test_the_smoke_profile_reaches_every_witness(construction: str) -> None:
    reached: Counter[str] = Counter()
    skipped = steps = 0
    for scenario in draw(any_caller=construction == "dsv4-any"):
        monitor = check(forward_player(scenario.geometry).play(scenario))
        reached.update(monitor.witnesses)
        skipped, steps = skipped + monitor.skipped, steps + monitor.steps
    assert [name for name in required_of(construction) if not reached[name]] == []
    assert skipped < steps / 2


def test_every_kind_of_operation_occurs() -> None:
    kinds = {type(op) for scenario in draw(any_caller=True) for op in scenario.operations}
    assert kinds == set(get_args(ForwardOperation))
    callers = {type(op) for scenario in draw(any_caller=False) for op in scenario.operations}
    assert kinds - callers == {Rebind, Remap}


def test_the_axes_vary() -> None:
    drawn = [scenario.geometry for scenario in draw(any_caller=False)]
    pages = {(g.page_size > g.window) - (g.page_size < g.window) for g in drawn}
    assert pages == {-1, 0, 1}
    assert {g.swa_pool_tokens < g.pool_tokens for g in drawn} == {True, False}
    assert {g.draft_tokens > 1 for g in drawn} == {True, False}


def test_a_scenario_holds_up_whatever_is_dropped() -> None:
    for scenario in draw(any_caller=True)[:20]:
        for index in range(len(scenario.operations)):
            operations = scenario.operations[:index] + scenario.operations[index + 1 :]
            fewer = Scenario(geometry=scenario.geometry, operations=operations)
            assert check(forward_player(fewer.geometry).play(fewer)).ended


# Stories


def test_every_fact_is_spelled() -> None:
    for scenario in draw(any_caller=True)[:40]:
        for fact in forward_player(scenario.geometry).play(scenario):
            if isinstance(fact, Planned | Changed | Consumed):
                assert spell_fact(fact)


def test_a_story_tells_sizes_operations_and_the_reason() -> None:
    sizes = Geometry(window=4, page_size=2, slots=1, pool_tokens=32, swa_tokens=16)
    operations = (Plan(mode="extend", requests=("A",), tokens=2), Rebind(), Layer())
    scenario = Scenario(geometry=sizes, operations=operations)
    log = list(forward_player(sizes).play(scenario))
    [violation] = check(log).violations.values()
    story = tell(violation, log)
    assert "CURRENT is broken on model" in story
    assert "pool_tokens 32, swa_tokens 16, draft_tokens 1" in story
    assert "plan extend A, 2 tokens each" in story
    assert "ring_stride" not in story
    assert "<- breaks here" in story
