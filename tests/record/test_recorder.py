"""The recorder against the driver: two witnesses of the same real objects must say the same."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import arbitrary_scenarios, likely_scenarios
from kvproof.model.facts import Gap, Pools
from kvproof.model.monitor import check

from .normal import as_recorded, steps
from .worker import KEY

TARGETS = [
    ("0.5.15", "registry"),
    ("0.5.16", "registry"),
    ("0.5.16", "SWARadixCache"),
    ("0.5.23", "registry"),
]


@pytest.mark.parametrize("target", TARGETS)
@settings(
    max_examples=60, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), derandomize=True,
)  # fmt: skip
@given(data=st.data())
def test_recorder_and_driver_say_the_same(record, target, data):
    scenario = data.draw(likely_scenarios() | arbitrary_scenarios())
    driven, recorded = record(*target).play(scenario)
    expected = as_recorded(driven, KEY)
    if not recorded:
        assert steps(expected) == []
        return
    assert not any(isinstance(fact, Gap) for fact in recorded)
    assert type(recorded[-1]) is type(expected[-1])
    assert steps(recorded) == steps(expected)
    ours = check(recorded)
    theirs = check([fact for fact in expected if not isinstance(fact, Pools)])
    assert ours.counts == theirs.counts
