"""A search for a scenario, as a campaign would draw it, without shrinking."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, find, settings

from kvproof.fuzz.strategies import Sizes, likely_scenarios
from kvproof.model.monitor import Monitor, check
from kvproof.model.policy import Policy
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario


def run(scenario: Scenario, policy: Policy) -> Monitor:
    """Play on the reference engine and judge."""
    return check(reference_player(scenario.geometry, policy).play(scenario))


def search(sizes: Sizes, condition: Callable[[Scenario], bool]) -> Scenario:
    """A scenario that meets the condition; raises NoSuchExample if none comes up."""
    return find(
        likely_scenarios(sizes),
        condition,
        settings=settings(
            max_examples=2000,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
