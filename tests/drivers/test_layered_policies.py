"""The cache policies on a release's own caches: floats and taint say the same of each."""

from __future__ import annotations

import pytest

from kvproof.fuzz.drivers.wire import Backend, Layering
from kvproof.fuzz.sweep import hit
from kvproof.model.facts import Admitted, Compared, EngineError
from kvproof.model.layers import Stack
from kvproof.model.monitor import check
from kvproof.model.policies import (
    FLOORED_READS,
    LAYERED_CAP,
    NO_CAP,
    POLICIES,
    REBUILD,
    RELEASE_CAP,
    CachePolicy,
)
from kvproof.model.scenario import Decode, Scenario

from .conftest import Start

WINDOW, PAGE, TAIL = 3, 8, 3
RATIOS = (2, 2)

EXPECTED = {NO_CAP: (8, True), RELEASE_CAP: (8, True), FLOORED_READS: (8, True),
            LAYERED_CAP: (0, False), REBUILD: (8, False)}  # fmt: skip
"""Tokens that a hit reuses, and whether it departs from a cold run. A cap of 5 leaves no page."""


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_policy_on_a_release(policy: CachePolicy, start: Start) -> None:
    """On the release of the bug, which has no cap of its own."""
    matched, departs, _ = played(policy, start, "rules")
    assert (matched, departs) == EXPECTED[policy]


@pytest.mark.parametrize("policy", [FLOORED_READS, REBUILD], ids=lambda policy: policy.name)
def test_what_a_prefill_reads_is_changed_on_the_kernels_too(
    policy: CachePolicy, start: Start
) -> None:
    assert played(policy, start, "interpreter") == played(policy, start, "rules")


def played(
    policy: CachePolicy, start: Start, backend: Backend
) -> tuple[int, bool, list[list[bool]]]:
    """What C reuses, whether anything of it departs, and which states do, by layer."""
    process = start(
        "0.5.15",
        layering=Layering(ratios=RATIOS, reading=policy.reading),
        held_back=policy.held_back(len(RATIOS), WINDOW),
    )
    scenario = hit(window=WINDOW, page_size=PAGE, tail=TAIL, slots=3)
    scenario = Scenario(
        geometry=scenario.geometry, operations=(*scenario.operations, Decode(), Decode())
    )
    facts = process.play(scenario, timeout=120, backend=backend)
    assert not isinstance(facts[-1], EngineError), facts[-1]
    monitor = check(facts, stack=Stack(ratios=RATIOS, reading=policy.reading))
    assert ("EXACT", "oracles-differ") not in monitor.violations, monitor.violations
    [matched] = [f.matched_len for f in facts if isinstance(f, Admitted) and f.request == "C"]
    [found] = [f for f in facts if isinstance(f, Compared) and f.request == "C"]
    states = [[error > 0 for error in errors] for errors in (*found.states, *found.rows)]
    return matched, any(map(any, states)), states
