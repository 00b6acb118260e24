"""The reference engine: right policies hold in every scenario, wrong ones are found in some."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.model.facts import Ended, Skipped
from kvproof.model.monitor import check
from kvproof.model.policy import Policy, RingFault
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import Invariant
from kvproof.spec.schedule import SlotOrder
from kvproof.spec.window import Order

from .conftest import run, search

# No more drafts than the window has positions: a verify on the prefill path needs that, see
# test_fresh.py.
SIZES = Sizes(draft_tokens=(1, 2))
DRAFTING = Sizes(windows=(4, 3, 5), draft_tokens=(2, 3))
SCENARIOS = likely_scenarios(SIZES) | likely_scenarios(DRAFTING) | arbitrary_scenarios(DRAFTING)

SLOT_ORDERS: tuple[SlotOrder, ...] = ("first in, first out", "last in, first out")
VERIFY_ORDERS: tuple[Order, ...] = ("write, then read", "read, then write")

HOLD: set[Invariant] = {"FRESH-DECODE", "PARTITION", "PADDING", "USEFUL", "REFINES"}


def broken(scenario: Scenario, policy: Policy) -> set[Invariant]:
    return {invariant for invariant, _ in run(scenario, policy).violations}


@settings(max_examples=350, deadline=None)
@given(
    scenario=SCENARIOS,
    slot_order=st.sampled_from(SLOT_ORDERS),
    verify_order=st.sampled_from(VERIFY_ORDERS),
)
def test_right_policies_break_nothing_but_x1(
    scenario: Scenario, slot_order: SlotOrder, verify_order: Order
) -> None:
    policy = Policy(slot_order=slot_order, verify_order=verify_order)
    monitor = run(scenario, policy)
    assert monitor.ended
    assert {invariant for invariant, _ in monitor.violations} & HOLD == set()
    if not monitor.witnesses["prefix hit"]:
        assert not monitor.violations, "a prefill is stale after a hit only"


@settings(max_examples=60, deadline=None)
@given(scenario=SCENARIOS)
def test_a_cap_of_a_window_less_one_is_enough_for_decodes(scenario: Scenario) -> None:
    """C3: the first weaker cap that is not enough is found below."""
    policy = Policy(reprefill_tail=scenario.geometry.window - 1)
    assert broken(scenario, policy) & HOLD == set()


@settings(max_examples=60, deadline=None)
@given(scenario=SCENARIOS)
def test_after_the_last_request_everything_is_free_or_evictable(scenario: Scenario) -> None:
    """P3."""
    player = reference_player(scenario.geometry)
    for _ in player.play(scenario):
        pass
    engine = player.engine
    for name, request in player.requests.items():
        (engine.drop if request.state == "waiting" else engine.abort)(name)
    engine.evict(scenario.geometry.pool_tokens)
    pools = engine.pools()
    assert pools.nodes == ()
    assert pools.holdings == ()
    assert pools.counters["available"] == scenario.geometry.pool_tokens
    assert sorted(pools.free_slots) == list(range(1, scenario.geometry.slots + 1))


# Wrong policies

WRONG: dict[str, Any] = {
    "no cap": lambda _: {"reprefill_tail": 0},
    "one token": lambda _: {"reprefill_tail": 1},
    "window less two": lambda window: {"reprefill_tail": window - 2},
    "stride one short": lambda window: {"stride": window - 1},
    "decode reads before it writes": lambda _: {"decode_order": "read, then write"},
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_policy_is_found(name: str) -> None:
    def is_broken(scenario: Scenario) -> bool:
        return "FRESH-DECODE" in broken(scenario, Policy(**WRONG[name](scenario.geometry.window)))

    search(Sizes(windows=(4, 5, 6)), is_broken)


@pytest.mark.parametrize(
    ("order", "stride"),
    [("write, then read", lambda w, d: w + d - 2), ("read, then write", lambda w, d: w + d - 3)],
)
def test_verify_with_a_short_stride_is_found(order: Order, stride: Any) -> None:
    """R6 and R7."""

    def is_broken(scenario: Scenario) -> bool:
        sizes = scenario.geometry
        short = stride(sizes.window, sizes.draft_tokens)
        return "FRESH-DECODE" in broken(scenario, Policy(verify_order=order, stride=short))

    search(Sizes(windows=(4, 5), draft_tokens=(3, 4)), is_broken)


BELONGS: dict[RingFault, Invariant] = {
    "lend padding slot": "PADDING",
    "leak on abort": "PARTITION",
    "double free on finish": "PARTITION",
    "share duplicate pages": "PARTITION",
    "never reuse": "USEFUL",
    "match beyond tree": "REFINES",
    "miscount": "PARTITION",
    "pad into last slot": "PADDING",
    "slot lent twice": "PARTITION",
}


@pytest.mark.parametrize("fault", BELONGS)
def test_fault_is_found_by_the_invariant_that_it_belongs_to(fault: RingFault) -> None:
    policy = Policy(faults=frozenset({fault}))
    search(Sizes(), lambda scenario: BELONGS[fault] in broken(scenario, policy))


# The property tests above are not vacuous


def test_likely_scenarios_reach_what_they_are_for() -> None:
    played = {"steps": 0, "skipped": 0}
    witnesses: set[str] = set()

    @settings(max_examples=150, derandomize=True, database=None, deadline=None)
    @given(scenario=likely_scenarios(SIZES))
    def play(scenario: Scenario) -> None:
        log = list(reference_player(scenario.geometry).play(scenario))
        assert isinstance(log[-1], Ended)
        played["steps"] += log[-1].steps
        played["skipped"] += sum(isinstance(fact, Skipped) for fact in log)
        witnesses.update(check(log).witnesses)

    play()
    assert played["skipped"] < played["steps"] / 4
    assert {"cap bound", "foreign row in window", "chunk boundary in window", "page evicted",
            "ring wrapped", "padded row"} <= witnesses  # fmt: skip
