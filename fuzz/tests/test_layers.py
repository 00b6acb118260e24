"""Floats, taint and payloads of random scenarios through a stack of layers; the theorems' bounds.

By the rules many scenarios are quick; on the real kernels there are a few short hits.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, example, given, seed, settings

from kvproof.fuzz.drivers.wire import Layering
from kvproof.fuzz.strategies import likely_scenarios
from kvproof.fuzz.sweep import Point, points
from kvproof.fuzz.targets import Target
from kvproof.kernels.backends import KernelBackend
from kvproof.model.facts import EngineError
from kvproof.model.layers import Stack
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    Verify,
)

RATIOS = (0, 2, 1)
EXAMPLES = 12

LENT_AT_ONCE = Scenario(
    geometry=Geometry(window=2, page_size=4, slots=1, pool_tokens=64, draft_tokens=2),
    operations=(
        Submit(request="A", prompt=(Piece("A", 9),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 7),)), Prefill(request="B"), Verify(accepted=1),
    ),
)  # fmt: skip
"""0.5.23 evicts A's second page as B comes in, and lends it to B."""


def test_taint_says_what_the_floats_say(target: Target) -> None:
    """Of every state and every compressed row that a query saw, in random scenarios."""
    if not target.has_ring:
        pytest.skip(f"{target.name} has no ring")
    # Overlapped steps do not go through the layers.
    sizes = replace(target.sizes, page_sizes=(2, 4), pool_tokens=(64, 40, 32), overlaps=(0,))
    stack = Stack(ratios=RATIOS)
    seen = {"compared": 0, "departed": 0}
    with target.process(layering=Layering(ratios=RATIOS)) as process:

        @seed(0)
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None,
                phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(likely_scenarios(sizes))
        @example(LENT_AT_ONCE)
        def agree(scenario: Scenario) -> None:
            facts = process.play(scenario, timeout=120, backend="rules")
            assert not isinstance(facts[-1], EngineError), facts[-1]
            monitor = check(facts, stack=stack)
            found = monitor.violations.get(("EXACT", "oracles-differ"))
            assert found is None, found
            assert monitor.layers is not None
            seen["compared"] += monitor.layers.compared
            seen["departed"] += len(monitor.layers.departures())

        agree()
    assert seen["compared"] > 300, "hardly anything was compared"
    assert seen["departed"], "no request departed from its cold run"


@pytest.mark.parametrize(("ratios", "window", "page_size"), [((0, 0), 2, 2), ((0, 2), 2, 2)])
def test_the_smallest_exact_tail_is_the_theorems(
    ratios: tuple[int, ...], window: int, page_size: int, release: Target, backend: KernelBackend
) -> None:
    """X3 on the real kernels; X4 where layer 2 has compressed rows. More: kvproof layers."""
    if not release.has_ring:
        pytest.skip(f"{release.name} has no ring")
    [point] = points(
        [release], stacks=[ratios], sizes=[(window, page_size)], heads=2, dim=32, seed=0,
        backend=backend, confirm=False,
    )  # fmt: skip
    bound = len(ratios) * (window - 1) + 1
    assert point.exact_from == (None if any(ratios[1:]) else bound)
    assert point.as_expected, point
    assert point.states > 2 * bound
    assert point.noise == 0


def test_a_point_that_is_not_the_theorems_says_so() -> None:
    point = Point(
        target="t", backend="b", ratios=(0, 0), window=3, page_size=1, heads=2, dim=32,
        seed=0, matched_len=3, bound=5,
        longest=8, exact_from=5, exact_below=(), confirmed={4: False, 5: True}, states=1,
        disagree=False, noise=0.0, seconds=0.0, machine="m",
    )  # fmt: skip
    assert point.as_expected
    for change in (
        {"exact_from": 4}, {"exact_from": None}, {"exact_below": (2,)}, {"disagree": True},
        {"confirmed": {4: True}}, {"ratios": (0, 2)},
    ):  # fmt: skip
        assert not Point(**{**_fields(point), **change}).as_expected, change
    # Rows of eight tokens are not there yet in tails from the bound to seven.
    late = Point(**{**_fields(point), "ratios": (0, 8), "exact_from": None, "exact_below": (5, 7)})
    assert late.as_expected


def _fields(point: Point) -> dict[str, object]:
    return {name: getattr(point, name) for name in point.__struct_fields__}
