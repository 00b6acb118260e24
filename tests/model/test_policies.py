"""What the policies cost is the rules' own arithmetic; what they keep is judged run by run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.model.policies import (
    FLOORED_READS,
    LAYERED_CAP,
    NO_CAP,
    POLICIES,
    REBUILD,
    RELEASE_CAP,
    CachePolicy,
    Sizes,
)
from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.policies import THEOREMS, Asked, judged, small_of
from kvproof.spec.cap import decodes_fresh, reprefill_bound
from kvproof.spec.exact import exact_logits_tail

RATIOS = (4, 128)

sizes = st.builds(
    Sizes,
    window=st.integers(1, 40),
    page_size=st.integers(1, 30),
    layers=st.integers(1, 6),
    bigram=st.booleans(),
)


@given(sizes=sizes, pages=st.integers(0, 40), new=st.integers(1, 90))
def test_a_hit_is_whole_pages_and_no_longer_than_without_a_policy(
    sizes: Sizes, pages: int, new: int
) -> None:
    cached = pages * sizes.page_size
    for policy in POLICIES:
        hit = policy.hit(sizes, prompt_len=cached + new, cached_len=cached)
        assert hit.matched % sizes.page_size == 0
        assert 0 <= hit.matched <= hit.uncapped <= cached
        assert hit.recomputed == cached + new - hit.matched >= new
        assert hit.again == hit.uncapped - hit.matched
        assert 0 <= hit.kept <= 1


@given(sizes=sizes)
def test_the_most_that_the_cap_computes_is_the_bound_of_useful(sizes: Sizes) -> None:
    least, most = RELEASE_CAP.range(sizes)
    bound = reprefill_bound(1, 0, sizes.window, sizes.page_size, bigram=sizes.bigram)
    assert most == bound
    assert most - least == sizes.page_size - 1


def test_the_releases_sizes_are_those_of_the_theorems() -> None:
    """X5's 22 and 31 pages; X3's tails."""
    for layers, pages, tail in ((43, 22, 5462), (61, 31, 7748)):
        sizes = Sizes(window=128, page_size=256, layers=layers)
        hit = REBUILD.hit(sizes, prompt_len=2**17 + 1, cached_len=2**17)
        assert hit.again == pages * 256
        assert LAYERED_CAP.range(sizes)[0] == tail


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("window", "page"), [(1, 1), (2, 1), (3, 4), (5, 2), (4, 4)])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_verdicts_of_runs_agree_with_the_rules(
    policy: CachePolicy, window: int, page: int, layers: int
) -> None:
    """Two derivations that share no code: the shortest tail a policy leaves, and taint in runs."""
    sizes = Sizes(window=window, page_size=page, layers=layers)
    small = small_of(sizes, ratios=())
    verdicts = judged(policy, small)
    least, _ = policy.range(small.sizes)
    assert verdicts["FRESH-DECODE"].runs > 0
    fresh = decodes_fresh(1, least, small.sizes.window)
    assert (verdicts["FRESH-DECODE"].status == "holds") == fresh
    exact = least >= exact_logits_tail(small.sizes.layers, small.sizes.window)
    assert (verdicts["EXACT"].status == "holds") == exact


def statuses(policy: CachePolicy, *, ratios: tuple[int, ...]) -> dict[Asked, str]:
    small = small_of(Sizes(window=128, page_size=256, layers=61), ratios=ratios)
    return {name: verdict.status for name, verdict in judged(policy, small).items()}


def test_only_a_rebuild_is_exact_and_pure_in_a_hybrid_stack() -> None:
    for policy in POLICIES:
        found = statuses(policy, ratios=RATIOS)
        assert (found["EXACT"] == "holds") == (policy is REBUILD)
        assert (found["PURE"] == "holds") == (policy is REBUILD)


def test_floored_reads_are_deterministic_and_not_exact() -> None:
    found = statuses(FLOORED_READS, ratios=RATIOS)
    assert found["NON-INTERFERENCE"] == found["FRESH-PREFILL"] == "holds"
    assert found["EXACT"] == "violated"


def test_a_verdict_that_breaks_has_a_scenario_and_says_how() -> None:
    small = small_of(Sizes(window=128, page_size=256, layers=61), ratios=RATIOS)
    for verdict in judged(NO_CAP, small).values():
        assert verdict.status == "violated"
        assert verdict.says
        assert verdict.scenario is not None


def test_the_small_model_keeps_what_decides() -> None:
    hybrid = small_of(Sizes(window=128, page_size=256, layers=61), ratios=RATIOS)
    assert hybrid.sizes.page_size >= hybrid.sizes.window
    assert hybrid.ratio is not None
    assert hybrid.ratio <= exact_logits_tail(hybrid.sizes.layers, hybrid.sizes.window)
    # X4's condition: rows so long that none of the tail is complete.
    long_rows = small_of(Sizes(window=2, page_size=64, layers=2), ratios=(64,))
    assert long_rows.ratio is not None
    assert long_rows.ratio > exact_logits_tail(long_rows.sizes.layers, long_rows.sizes.window)
    assert long_rows.sizes.page_size % long_rows.ratio == 0


def test_the_theorems_that_are_named_exist() -> None:
    known = {theorem.identifier for theorem in CATALOGUE}
    named = {name for row in THEOREMS.values() for names in row.values() for name in names}
    assert named <= known
    assert set(THEOREMS) == {policy.name for policy in POLICIES}
