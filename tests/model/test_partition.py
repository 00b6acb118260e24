"""PARTITION on snapshots made by hand: one break each, and none where there is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.model.facts import Holding, Node, Pools
from kvproof.model.judges.partition import _page_breaks, _pages_in_place, partition_breaks
from kvproof.model.scenario import Geometry
from kvproof.model.verdict import Cause

SIZES = Geometry(window=4, page_size=4, slots=3, pool_tokens=24)

# Pages 1 and 2 in the tree, 2 behind 1; A reads both and keeps page 3 for itself; 4 to 6 are free.
SOUND = Pools(
    free=(4, 5, 6),
    free_slots=(3, 1),
    nodes=(
        Node(parent=-1, tokens=(10, 11, 12, 13), locs=(4, 5, 6, 7), full_lock=1),
        Node(parent=0, tokens=(14, 15, 16, 17), locs=(8, 9, 10, 11), full_lock=1),
    ),
    holdings=(Holding(request="A", slot=2, protected_len=8, locs=tuple(range(4, 14))),),
    counters={"available": 12, "evictable": 0, "protected": 8},
)


def causes(**changes: Any) -> list[Cause]:
    pools = msgspec.structs.replace(SOUND, **changes)
    return [cause for cause, _ in partition_breaks(pools, SIZES)]


def sentences(**changes: Any) -> list[str]:
    pools = msgspec.structs.replace(SOUND, **changes)
    return [sentence for _, sentence in partition_breaks(pools, SIZES)]


def holding(*locs: int, protected_len: int = 8, slot: int = 2) -> dict[str, Any]:
    return {"holdings": (Holding(request="A", slot=slot, protected_len=protected_len, locs=locs),)}


def test_sound_snapshot_breaks_nothing() -> None:
    assert causes() == []


def test_each_page_of_the_pool_must_have_an_owner() -> None:
    for page in (4, 5, 6):
        kept = tuple(free for free in SOUND.free if free != page)
        assert sentences(free=kept, counters={}) == [
            f"page {page} is in no free list, no tree node and no request"
        ]
    alone = {"nodes": (), "holdings": (), "free_slots": (1, 2, 3), "counters": {}}
    assert sentences(**alone, free=(2, 3, 4, 5, 6)) == [
        "page 1 is in no free list, no tree node and no request"
    ]
    assert causes(**alone, free=(1, 2, 3, 4, 5, 6)) == []


@pytest.mark.parametrize("page", [0, 7])
def test_pages_outside_the_pool_belong_to_nobody(page: int) -> None:
    assert sentences(free=(*SOUND.free, page), counters={}) == [
        f"page {page} is reserved or outside the pool, owned by the free list"
    ]


@pytest.mark.parametrize(
    ("page", "owner"), [(1, "tree node 0"), (2, "tree node 1"), (3, "request A")]
)
def test_a_page_that_is_free_and_owned_is_shared(page: int, owner: str) -> None:
    assert sentences(free=(*SOUND.free, page), counters={}) == [
        f"page {page} has 2 owners: the free list, {owner}"
    ]


def test_a_page_freed_twice() -> None:
    assert sentences(free=(4, 5, 6, 5), counters={}) == ["page 5 stands 2 times in the free list"]


def test_each_slot_must_be_free_or_held() -> None:
    for slot, others in ((1, (3,)), (3, (1,))):
        assert sentences(free_slots=others) == [
            f"slot {slot} is neither free nor held by a request"
        ]
    assert sentences(holdings=(), free=(3, 4, 5, 6), counters={}) == [
        "slot 2 is neither free nor held by a request"
    ]
    assert sentences(free_slots=(3, 1, 2)) == ["slot 2 is free and held by request A"]
    assert sentences(free_slots=(3, 1, 3)) == ["slot 3 stands 2 times in the free list"]


def test_a_page_read_as_the_trees_must_be_in_the_tree() -> None:
    """It is free, so it has an owner: only the reader is wrong."""
    assert sentences(nodes=SOUND.nodes[:1], free=(2, 4, 5, 6), counters={}) == [
        "request A reads page 2 as the tree's, but no node holds it"
    ]


@pytest.mark.parametrize(
    ("locs", "position"),
    [
        ((4, 5, 6, 7, 8, 9, 10, 11, 13, 14), 8),  # one place too far, in itself consecutive
        ((4, 5, 6, 7, 8, 9, 10, 11, 12, 14), 9),  # a place left out
        ((4, 5, 6, 7, 8, 9, 10, 11, 12, 12), 9),  # a place twice
        ((5, 6, 7, 8, 9, 10, 11, 12, 13, 14), 0),  # all shifted
        ((4, 5, 6, 7, 8, 9, 10, 7, 12, 13), 7),  # the right place in another page
    ],
)
def test_a_token_that_is_not_at_its_place(locs: tuple[int, ...], position: int) -> None:
    found = [text for text in sentences(**holding(*locs)) if "position" in text]
    assert found == [f"request A keeps position {position} at location {locs[position]}"]


def test_pages_need_not_follow_one_another() -> None:
    assert causes(**holding(4, 5, 6, 7, 8, 9, 10, 11, 24, 25), free=(3, 4, 5)) == []


def test_a_node_is_placed_after_all_its_parents() -> None:
    """Nodes that split a page: two owners of it, and every token at its place."""
    nodes = (
        Node(parent=-1, tokens=(10, 11), locs=(4, 5), full_lock=1),
        Node(parent=0, tokens=(12, 13, 14), locs=(6, 7, 8), full_lock=1),
        Node(parent=1, tokens=(15, 16, 17), locs=(9, 10, 11), full_lock=1),
    )
    assert sentences(nodes=nodes) == [
        "page 1 has 2 owners: tree node 0, tree node 1",
        "page 2 has 2 owners: tree node 1, tree node 2",
    ]
    misplaced = (*nodes[:2], Node(parent=0, tokens=(15, 16, 17), locs=(9, 10, 11), full_lock=1))
    assert "node 2 keeps position 2 at location 9" in sentences(nodes=misplaced)


@pytest.mark.parametrize(
    ("name", "tokens"), [("available", 12), ("evictable", 0), ("protected", 8)]
)
def test_each_counter_is_compared_with_the_objects(name: str, tokens: int) -> None:
    assert sentences(counters={name: tokens}) == []
    assert sentences(counters={name: tokens + 1}) == [
        f"the engine counts {tokens + 1} {name} tokens, its objects hold {tokens}"
    ]


def test_what_no_one_locks_is_evictable() -> None:
    nodes = (SOUND.nodes[0], msgspec.structs.replace(SOUND.nodes[1], full_lock=0))
    counters = {"available": 12, "evictable": 4, "protected": 4}
    assert causes(nodes=nodes, counters=counters) == []


PAGES = st.lists(st.integers(0, 4), max_size=4, unique=True)


def in_pages(pages: list[int], *, size: int, cut: int, moved: int) -> tuple[int, ...]:
    locs = [page * size + place for page in pages for place in range(size)]
    locs = locs[: len(locs) - cut]
    return tuple(loc + (at == moved) for at, loc in enumerate(locs))


@given(
    size=st.integers(1, 3), free=PAGES, node=PAGES, held=PAGES, protected=st.integers(0, 6),
    cut=st.integers(0, 2), moved=st.integers(-20, 12),
)  # fmt: skip
def test_what_is_taken_for_sound_at_a_glance_is_sound(
    size: int, free: list[int], node: list[int], held: list[int], protected: int, cut: int,
    moved: int,
) -> None:  # fmt: skip
    locs = in_pages(node, size=size, cut=0, moved=-1)
    pools = Pools(
        free=tuple(free),
        free_slots=(),
        nodes=(Node(parent=-1, tokens=locs, locs=locs),) if locs else (),
        holdings=(
            Holding(
                request="A", slot=1, protected_len=protected,
                locs=in_pages(held, size=size, cut=cut, moved=moved),
            ),
        ),
        counters={},
    )  # fmt: skip
    geometry = Geometry(window=1, page_size=size, slots=1, pool_tokens=3 * size)
    if _pages_in_place(pools, geometry):
        assert list(_page_breaks(pools, geometry)) == []
