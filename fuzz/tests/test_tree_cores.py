"""The Python and the Rust tree core of a release do the same with the same scenario."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, seed, settings

from kvproof.fuzz.compare import difference
from kvproof.fuzz.constructions import PAGED_PYTHON, PAGED_SWA, PYTHON_CORE, REGISTRY
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.strategies import scenarios
from kvproof.fuzz.targets import Target, targets_of
from kvproof.model.facts import Started
from kvproof.model.scenario import Scenario

CORES = [(REGISTRY, PYTHON_CORE), (PAGED_SWA, PAGED_PYTHON)]
SCENARIOS = 60


@pytest.fixture(params=CORES, ids=lambda cores: cores[0])
def cores(
    request: pytest.FixtureRequest, release: Target
) -> Iterator[tuple[Target, EngineProcess, EngineProcess]]:
    """The target over the Rust core, and processes with that core and with the Python core."""
    by_name = {target.construction: target for target in targets_of(release.engine)}
    rust, python = request.param
    if python not in by_name:
        pytest.skip("this release has no two tree cores to choose from")
    with by_name[rust].process() as one, by_name[python].process() as other:
        yield by_name[rust], one, other


def test_both_cores_do_the_same(cores: tuple[Target, EngineProcess, EngineProcess]) -> None:
    target, rust, python = cores
    classes: set[str] = set()

    @seed(0)
    @settings(
        max_examples=SCENARIOS, database=None, deadline=None, phases=(Phase.generate, Phase.shrink)
    )
    @given(scenarios(target.sizes))
    def compare(scenario: Scenario) -> None:
        logs = [core.play(scenario, timeout=60, backend="rules") for core in (rust, python)]
        for log in logs:
            assert isinstance(log[0], Started)
            classes.add(log[0].classes["tree core"])
        found = difference(*logs)
        assert found is None, found.sentence

    compare()
    assert len(classes) == 2, classes  # one of each, not one core twice
