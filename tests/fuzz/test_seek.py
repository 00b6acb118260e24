"""A search ends where it finds, and draws nothing that shows nothing."""

from __future__ import annotations

from kvproof.fuzz.seek import seek
from kvproof.fuzz.strategies import scenarios
from kvproof.model.scenario import Prefill, Scenario


def test_a_search_ends_at_the_play_that_shows_what_is_sought() -> None:
    played: list[Scenario] = []

    def third(scenario: Scenario) -> bool:
        played.append(scenario)
        return len(played) == 3

    run = seek(third, scenarios(), shrink=False)
    assert run.scenario == played[-1]
    assert run.sequences == len(played) == 3
    assert run.operations == sum(len(scenario.operations) for scenario in played)


def test_a_search_that_finds_nothing_says_so_and_plays_no_scenario_without_a_prefill() -> None:
    played: list[Scenario] = []

    def never(scenario: Scenario) -> bool:
        played.append(scenario)
        return False

    run = seek(never, scenarios(), sequences=60)
    assert run.scenario is None
    assert run.sequences == len(played) == 60
    for scenario in played:
        assert any(isinstance(operation, Prefill) for operation in scenario.operations)
