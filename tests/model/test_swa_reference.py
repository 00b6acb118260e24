"""The reference engine's SWA pool: right variants hold everywhere, faults are found somewhere."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.model.facts import Admitted
from kvproof.model.monitor import check
from kvproof.model.policy import SWA_FAULTS, VARIANTS, Policy, SwaFault
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Evict, Finish, Geometry, Piece, Prefill, Scenario, Submit
from kvproof.model.verdict import Cause, Invariant
from kvproof.model.witness import SWA_WITNESSES
from kvproof.mutants.model import model_mutants

from .conftest import run, search

SMALL = Sizes(swa_shares=(2, 1, 4))
DRAFTING = Sizes(swa_shares=(2, 1), draft_tokens=(3, 2))
SCENARIOS = likely_scenarios(SMALL) | likely_scenarios(DRAFTING) | arbitrary_scenarios(DRAFTING)

TOO_LITTLE = "0.5.18 to 0.5.22"
"""Its margin can be less than a window of whole pages, and it moves before inserts (P5)."""

RIGHT = {name: policy for name, policy in VARIANTS.items() if name != TOO_LITTLE} | {
    "early release": Policy(paged_swa=True, early_release=True),
    "bigram keys": Policy(paged_swa=True, bigram_keys=True, slides_before_insert=True),
}


@settings(max_examples=200, deadline=None)
@given(scenario=SCENARIOS, name=st.sampled_from(sorted(RIGHT)))
def test_right_variants_break_nothing(scenario: Scenario, name: str) -> None:
    monitor = run(scenario, RIGHT[name])
    assert monitor.ended
    assert dict(monitor.violations) == {}


def test_what_only_a_match_of_the_whole_prompt_could_give_is_no_loss() -> None:
    """USEFUL. Four tokens are cached, but before the second page there is a tombstone."""
    scenario = Scenario(
        geometry=Geometry(window=1, page_size=2, slots=2, pool_tokens=64, swa_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 2),)), Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("A", 4),)), Prefill(request="B"),
            Evict(tokens=0, swa_tokens=1),
            Submit(request="C", prompt=(Piece("A", 4),)), Prefill(request="C"),
        ),
    )  # fmt: skip
    log = list(reference_player(scenario.geometry, Policy(paged_swa=True)).play(scenario))
    matches = [fact.matched_len for fact in log if isinstance(fact, Admitted)]
    assert matches == [0, 2, 0]
    assert dict(check(log).violations) == {}


@settings(max_examples=60, deadline=None)
@given(scenario=likely_scenarios(Sizes(swa_shares=(2, 1), page_holds_window=True)))
def test_the_short_margin_is_enough_where_a_page_holds_a_window(scenario: Scenario) -> None:
    assert dict(run(scenario, VARIANTS[TOO_LITTLE]).violations) == {}


def test_the_short_margin_is_too_short_elsewhere() -> None:
    """P5: the match after the insert is shorter than what was inserted."""

    def is_broken(scenario: Scenario) -> bool:
        return ("PARTITION", "shared") in run(scenario, VARIANTS[TOO_LITTLE]).violations

    geometry = search(SMALL, is_broken).geometry
    assert geometry.page_size < geometry.window


@settings(max_examples=60, deadline=None)
@given(scenario=likely_scenarios(SMALL))
def test_after_the_last_request_both_pools_can_be_emptied(scenario: Scenario) -> None:
    """P3 for the SWA pool."""
    player = reference_player(scenario.geometry, VARIANTS["0.5.23"])
    for _ in player.play(scenario):
        pass
    engine = player.engine
    for name, request in player.requests.items():
        (engine.drop if request.state == "waiting" else engine.abort)(name)
    engine.evict(0, scenario.geometry.swa_pool_tokens)
    buried = engine.pools()
    assert all(node.tombstone and not node.full_lock for node in buried.nodes)
    engine.evict(scenario.geometry.pool_tokens, 0)
    empty = engine.pools()
    assert (empty.nodes, empty.holdings) == ((), ())
    assert empty.counters["available"] == scenario.geometry.pool_tokens
    for pools in (buried, empty):
        assert pools.swa is not None
        assert pools.swa.full_to_swa == ()
        assert pools.swa.counters["available"] == scenario.geometry.swa_pool_tokens


FOUND_BY: dict[SwaFault, tuple[Invariant, Cause]] = {
    "one pool alone": ("MAP", "unmapped"),
    "two pages on one": ("MAP", "not-injective"),
    "entry kept at burial": ("MAP", "stale-entry"),
    "reserved page freed": ("PARTITION", "shared"),
    "SWA half freed twice": ("PARTITION", "double-free"),
    "recover under a lock": ("PARTITION", "leak"),
    "cursor left out of insert": ("MAP", "unmapped"),
    "cursor past the window": ("WINDOW", "unmapped"),
    "cursor back to zero": ("CURSOR", "went-back"),
    "cursor never moves": ("PROGRESS", "hoarded"),
    "keep behind the cursor": ("CURSOR", "not-given-back"),
    "split drops a lock": ("LOCK", "swa-lock-count"),
    "lock kept on abort": ("LOCK", "lock-count"),
    "window released twice": ("LOCK", "swa-lock-count"),
    "window released early": ("LOCK", "window-unlocked"),
    "lock pins the prefix": ("PROGRESS", "pinned"),
    "bury under a lock": ("LOCK", "tombstone-locked"),
    "match over tombstones": ("REFINES", "match"),
    "refuse before evicting": ("PROGRESS", "refused"),
    "plan cached as computed": ("REFINES", "uncomputed"),
    "SWA miscount": ("PARTITION", "sizes"),
    "forget a token's entry": ("MAP", "torn"),
    "cursor counts tokens, not entries": ("PARTITION", "shared"),
}
"""The checklist of known defects: what notices each."""

MUTANTS = {mutant.name: mutant for mutant in model_mutants()}


@pytest.mark.parametrize("fault", get_args(SwaFault))
def test_fault_is_found_by_the_invariant_that_it_belongs_to(fault: SwaFault) -> None:
    mutant = MUTANTS[fault]
    policy = mutant.faulty
    assert policy is not None
    search(mutant.sizes, lambda scenario: FOUND_BY[fault] in run(scenario, policy).violations)


def test_every_fault_says_what_it_is() -> None:
    assert set(SWA_FAULTS) == set(get_args(SwaFault)) == set(FOUND_BY)


@pytest.mark.parametrize("witness", sorted(SWA_WITNESSES.keys() - {"node split under a lock"}))
def test_witness_is_reached(witness: Any) -> None:
    """A node of the reference engine is a page, so none is split: see test_swa_verdicts.py."""
    policy = RIGHT["early release"]
    search(SMALL, lambda scenario: run(scenario, policy).witnesses[witness] > 0)
