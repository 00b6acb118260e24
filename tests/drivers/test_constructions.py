"""What each construction of the releases is, and what cannot be put together on a CPU."""

from __future__ import annotations

from itertools import chain

import pytest
from msgspec.structs import replace

from kvproof.fuzz.constructions import (
    BY_FAMILY,
    CONSTRUCTIONS,
    EARLY_RELEASE,
    PAGED_UNCHUNKED,
    no_overlap,
)
from kvproof.kernels.catalogue import FAMILIES
from kvproof.model.facts import Admitted, Ended, EngineError, Holding, Pools, Skipped, Started
from kvproof.model.monitor import check, statuses
from kvproof.model.scenario import (
    Decode,
    Evict,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
)

SIZES = Geometry(window=4, page_size=2, slots=2, pool_tokens=64, swa_tokens=32)

LIFE = Scenario(
    geometry=SIZES,
    operations=(
        Submit(request="A", prompt=(Piece("A", 15),)), Prefill(request="A", tokens=8),
        Prefill(request="A"), *[Decode()] * 7,
        Submit(request="B", prompt=(Piece("A", 14), Piece("B", 19))), Prefill(request="B"),
        Decode(), Finish(request="A"), Evict(tokens=0, swa_tokens=6), Retract(request="B"),
        Prefill(request="B"), *[Decode()] * 6, Finish(request="B"), Evict(tokens=4),
    ),
)  # fmt: skip
"""A decodes past its window; B reuses A's prefix, is retracted, and comes back."""

TREES = {
    ("0.5.15", "paged-swa"): "SWARadixCache",
    ("0.5.15", "paged-swa-unified"): "UnifiedRadixCache",
    ("0.5.15", "paged-swa-early-release"): "SWARadixCache",
    ("0.5.15", "paged-swa-chunk"): "SWAChunkCache",
    ("0.5.15", "chunk"): "SWAChunkCache",
    ("0.5.15", "paged"): "RadixCache",
    ("0.5.16", "paged-swa"): "UnifiedRadixCache",
    ("0.5.16", "paged-swa-SWARadixCache"): "SWARadixCache",
    ("0.5.16", "paged-swa-early-release"): "UnifiedRadixCache",
    ("0.5.16", "paged-swa-chunk"): "SWAChunkCache",
    ("0.5.16", "chunk"): "SWAChunkCache",
    ("0.5.23", "paged-swa"): "UnifiedRadixCache",
    ("0.5.23", "paged-swa-python"): "UnifiedRadixCache",
    ("0.5.23", "paged-swa-early-release"): "UnifiedRadixCache",
    ("0.5.23", "paged-swa-chunk"): "UnifiedRadixCache",
    ("0.5.23", "chunk"): "UnifiedRadixCache",
    ("0.5.23", "paged"): "UnifiedRadixCache",
}


def test_every_family_has_constructions():
    assert {family.name for family in FAMILIES} == BY_FAMILY.keys()
    assert {name for names in BY_FAMILY.values() for name in names} == CONSTRUCTIONS.keys()


@pytest.mark.parametrize("target", TREES, ids=":".join)
def test_a_life_on_each_construction(start, target):
    release, name = target
    log = start(release, construction=name).play(LIFE, timeout=60, backend="none")
    started = log[0]
    assert isinstance(started, Started)
    assert isinstance(log[-1], Ended), log[-1]
    assert not [fact for fact in log if isinstance(fact, Skipped)]
    assert started.classes["tree"].endswith(f".{TREES[target]}")
    choice = CONSTRUCTIONS[name]
    has_swa = choice.paged and choice.slides
    assert started.classes["kv pool"].endswith(".SWAKVPool") == has_swa
    matched = [fact.matched_len for fact in log if isinstance(fact, Admitted)]
    assert (max(matched) > 0) == choice.reuses
    snapshots = [fact for fact in log if isinstance(fact, Pools)]
    assert all((pools.swa is not None) == has_swa for pools in snapshots)
    if has_swa:
        assert_the_pool_is_told(snapshots, reuses=choice.reuses)
    assert not {
        broken: found.sentence for broken, found in check(log).violations.items()
        if choice.paged or broken[0] not in {"FRESH-PREFILL", "USEFUL"}
    }  # fmt: skip


def assert_the_pool_is_told(snapshots, *, reuses):
    first = snapshots[0].swa
    assert len(first.free) == SIZES.swa_tokens // SIZES.page_size
    assert first.full_to_swa == ()
    assert any(pools.swa.full_to_swa for pools in snapshots)
    held: list[Holding] = [holding for pools in snapshots for holding in pools.holdings]
    assert max(holding.swa_evicted_len for holding in held) > 0
    nodes = [node for pools in snapshots for node in pools.nodes]
    assert bool(nodes) == reuses
    if reuses:
        assert any(node.tombstone for node in nodes)
        assert any(node.full_lock for node in nodes)
        assert any(holding.locked is not None for holding in held)


@pytest.mark.parametrize("name", ["chunk", "paged-swa-chunk"])
@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_without_a_tree_the_cap_is_a_strict_no_op(start, release, name):
    log = start(release, construction=name).play(LIFE, timeout=60, backend="none")
    assert [fact.matched_len for fact in log if isinstance(fact, Admitted)] == [0, 0, 0]
    assert all(fact.nodes == () for fact in log if isinstance(fact, Pools))


@pytest.mark.parametrize("release", ["0.5.12", "0.5.15", "0.5.23"])
def test_a_prefill_after_a_decode_that_was_refused(start, release):
    """What the step before sampled is still with the batch that the prefill joins."""
    scenario = Scenario(
        geometry=Geometry(window=3, page_size=1, slots=2, pool_tokens=32, swa_tokens=16),
        operations=(
            Submit(request="A", prompt=(Piece("A", 8),)), Prefill(request="A"),
            Submit(request="B", prompt=(Piece("A", 5), Piece("B", 6))), Prefill(request="B"),
            *[Decode()] * 12, Finish(request="B"), Evict(tokens=32, swa_tokens=16),
            Submit(request="C", prompt=(Piece("C", 2),)), Prefill(request="C"), Decode(),
        ),
    )  # fmt: skip
    log = start(release, construction="paged-swa").play(scenario, timeout=60, backend="none")
    assert any(isinstance(fact, Skipped) and fact.no_memory for fact in log)
    assert isinstance(log[-1], Ended), log[-1]


@pytest.mark.parametrize("release", ["0.5.20", "0.5.21"])
def test_radix_off_without_a_chunk_size_raises_in_these(start, release):
    log = start(release, construction=PAGED_UNCHUNKED).play(LIFE, timeout=60, backend="none")
    assert isinstance(log[-1], EngineError)
    assert "dec_lock_ref() missing 1 required positional argument: 'params'" in log[-1].message
    assert log[-1].message.endswith("in _lock_node")


@pytest.mark.parametrize(
    ("release", "ends"), [("0.5.21", False), ("0.5.22", True), ("0.5.23", False)]
)
def test_a_finish_behind_a_prefix_whose_window_was_given_up(start, release, ends):
    """docs/findings/a-finish-after-an-early-release.md."""
    scenario = Scenario(
        geometry=Geometry(window=1, page_size=4, slots=1, pool_tokens=64, swa_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 8),)), Prefill(request="A"), Decode(), Decode(),
            Evict(tokens=0, swa_tokens=64), Finish(request="A"),
        ),
    )  # fmt: skip
    log = start(release, construction=EARLY_RELEASE).play(scenario, timeout=60, backend="none")
    assert isinstance(log[-1], EngineError) == ends
    if ends:
        assert "AssertionError: req.kv.cache_protected_len=8, len(new_indices)=0" in log[-1].message
        assert log[-1].message.endswith("in checkpoint_into_tree")


@pytest.mark.parametrize(("release", "name"), [("0.5.16", "chunk"), ("0.5.23", "chunk")])
def test_a_ring_does_not_run_dry_of_locations_that_it_never_gives_back(start, release, name):
    """From 0.5.20 on the allocator takes some of an SWA pool with pages of one token."""
    geometry = Geometry(window=3, page_size=1, slots=1, pool_tokens=128)
    lives = [
        (Submit(request="A", prompt=(Piece("A", 100),)), Prefill(request="A"), Finish(request="A"))
    ] * 50
    scenario = Scenario(geometry=geometry, operations=tuple(chain.from_iterable(lives)))
    log = start(release, construction=name).play(scenario, timeout=60, backend="rules")
    assert isinstance(log[-1], Ended), log[-1]
    assert sum(isinstance(fact, Admitted) for fact in log) == len(lives)


@pytest.mark.parametrize("target", [("0.5.12", "paged-swa"), ("0.5.23", "paged-swa-hicache")])
def test_overlap_that_nothing_plays_is_refused_with_the_reason(start, target):
    release, name = target
    scenario = replace(LIFE, geometry=replace(LIFE.geometry, overlap=1))
    log = start(release, construction=name).play(scenario, timeout=60, backend="none")
    reasons = {fact.reason for fact in log if isinstance(fact, Skipped)}
    assert reasons == {no_overlap(release, name)}
    assert isinstance(log[-1], Ended)
    assert statuses(check(log))["IN-FLIGHT"] == "unknown"


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_steps_of_a_paged_pool_overlap(start, release):
    geometry = replace(LIFE.geometry, overlap=1)
    # A finish is known of a step later, so B needs room of its own.
    log = start(release, construction="paged-swa").play(
        replace(LIFE, geometry=geometry), timeout=60, backend="none"
    )
    monitor = check(log)
    assert isinstance(log[-1], Ended), log[-1]
    assert monitor.witnesses["step in flight"] > 0
    assert {name: found.sentence for name, found in monitor.violations.items()} == {}
    words = statuses(monitor)
    assert {words[name] for name in ("WINDOW", "MAP", "CURSOR", "IN-FLIGHT")} == {"holds"}
