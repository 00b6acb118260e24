"""Known defects on the installed releases: each scenario breaks what it says, where it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvproof.fuzz.targets import Target
from kvproof.triage.find_again import Finder
from kvproof.triage.known_defects import ByScenario, load_defects

SCENARIOS = [
    (defect.name, number, way)
    for defect in load_defects()
    for number, way in enumerate(defect.found)
    if isinstance(way, ByScenario)
]


@pytest.fixture(scope="module")
def finder() -> Iterator[Finder]:
    """One engine's process at a time."""
    finder = Finder()
    yield finder
    finder.close()


def test_scenarios_that_name_a_release_break_and_hold_there_as_they_say(
    release: Target, finder: Finder
) -> None:
    version = release.engine.version
    asked = 0
    for name, number, way in SCENARIOS:
        for target in (*way.targets, *way.clean):
            if target.partition(":")[0] != version:
                continue
            outcome = (
                finder.on_target(way, target)
                if target in way.targets
                else finder.clean_on(way, target)
            )
            assert outcome.state == "found", f"{name}, way {number + 1}, on {target}: {outcome}"
            asked += 1
    if not asked:
        pytest.skip(f"no scenario names {version}")
