"""Long histories on one engine: what they are made of, what they cost, and how one shrinks."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

from kvproof.fuzz.profiles import PROFILES, Profile
from kvproof.fuzz.strategies import KINDS, NAMES, histories, scenarios, swarms
from kvproof.model.facts import Ended
from kvproof.model.monitor import Monitor, check
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Decode, Evict, Scenario, Submit, requests_of
from kvproof.triage.slices import slices

from .conftest import UNCAPPED, FakeProcess, campaign, verdicts

LENGTH = 1000
HISTORY = Profile(sequences=8, kernel_share=4, history=200)


def draw_histories(number: int, length: int = LENGTH) -> list[Scenario]:
    drawn: list[Scenario] = []

    @seed(0)
    @settings(
        max_examples=number, phases=(Phase.generate,), database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(histories(operations=length))
    def keep(scenario: Scenario) -> None:
        drawn.append(scenario)

    keep()
    return drawn


def test_a_history_has_as_many_operations_as_asked_for_and_few_names() -> None:
    for history in draw_histories(3):
        assert len(history.operations) == LENGTH
        assert set(requests_of(history.operations)) <= set(NAMES)
        texts = {p.text for op in history.operations if isinstance(op, Submit) for p in op.prompt}
        assert texts <= set(NAMES)


def test_histories_mostly_find_something_to_do_and_end() -> None:
    skipped = steps = 0
    for history in draw_histories(3):
        log = list(reference_player(history.geometry).play(history))
        assert log[-1] == Ended(steps=LENGTH)
        monitor = check(log)
        skipped += monitor.skipped
        steps += monitor.steps
    assert skipped < steps / 3


def test_what_the_monitor_keeps_does_not_grow_with_a_history() -> None:
    """Only so does an operation cost as much at the end as at the beginning."""
    for history in draw_histories(2, 2500):
        monitor = Monitor()
        for number, fact in enumerate(reference_player(history.geometry).play(history)):
            monitor.feed(fact)
            if number and number % 4000 == 0:
                assert len(monitor.ghost.tenants) < 3000
                assert len(monitor.texts) <= len(NAMES)
                assert len(monitor.leases) <= history.geometry.slots


def test_a_failure_in_a_history_becomes_a_handful_of_operations() -> None:
    process = FakeProcess(rules=UNCAPPED)
    result = campaign(process, profile=HISTORY, parts=slices).run()
    assert verdicts(result)["FRESH-DECODE"] == "violated"
    for finding in result.findings:
        assert len(finding.scenario.operations) <= 12
        assert finding.confirmed
        assert finding.deterministic
    assert result.operations == HISTORY.sequences * HISTORY.history


def test_the_profile_of_histories_has_thousands_of_operations() -> None:
    assert PROFILES["history"].history >= 2000


def swarm_of(scenario: Scenario) -> frozenset[type]:
    return frozenset(type(operation) for operation in scenario.operations)


def test_swarms_differ_and_can_do_something() -> None:
    drawn: list[frozenset[str]] = []

    @seed(0)
    @settings(max_examples=200, phases=(Phase.generate,), database=None)
    @given(swarms())
    def keep(swarm: frozenset[str]) -> None:
        drawn.append(swarm)

    keep()
    assert len(set(drawn)) > 50
    for swarm in drawn:
        assert swarm <= set(KINDS)
        assert "arrive" in swarm
        assert swarm & {"finish", "come back", "abort"}


def test_some_scenarios_have_no_eviction_and_some_no_decode() -> None:
    drawn: list[Scenario] = []

    @seed(0)
    @settings(
        max_examples=300, phases=(Phase.generate,), database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(scenarios())
    def keep(scenario: Scenario) -> None:
        drawn.append(scenario)

    keep()
    long = [scenario for scenario in drawn if len(scenario.operations) > 8]
    for kind in (Evict, Decode):
        having = sum(kind in swarm_of(scenario) for scenario in long)
        assert 0 < having < len(long)
