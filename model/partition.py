"""PARTITION: every page and every slot is in exactly one place, and the sizes add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kvproof.model.facts import Pools
from kvproof.model.scenario import Geometry
from kvproof.model.verdict import Cause
from kvproof.spec.indices import FullLoc
from kvproof.spec.pages import is_page_congruent, page_of


def partition_breaks(pools: Pools, geometry: Geometry) -> Iterator[tuple[Cause, str]]:
    """Each way in which a snapshot is no partition, with a sentence."""
    yield from _page_breaks(pools, geometry)
    yield from _slot_breaks(pools, geometry)
    yield from _size_breaks(pools, geometry)


def _page_breaks(pools: Pools, geometry: Geometry) -> Iterator[tuple[Cause, str]]:
    size = geometry.page_size
    owners: dict[int, list[str]] = {page: [] for page in range(1, geometry.pool_tokens // size + 1)}

    def own(page: int, owner: str) -> None:
        owners.setdefault(page, []).append(owner)

    for page, count in Counter(pools.free).items():
        own(page, "the free list")
        if count > 1:
            yield "double-free", f"page {page} stands {count} times in the free list"
    starts: list[int] = []
    in_tree: set[int] = set()
    for number, node in enumerate(pools.nodes):
        start = 0 if node.parent < 0 else starts[node.parent] + len(pools.nodes[node.parent].locs)
        starts.append(start)
        yield from _misaligned(node.locs, start, size, f"node {number}")
        pages = dict.fromkeys(page_of(FullLoc(loc), size) for loc in node.locs)
        in_tree.update(pages)
        for page in pages:
            own(page, f"tree node {number}")
    for holding in pools.holdings:
        yield from _misaligned(holding.locs, 0, size, f"request {holding.request}")
        for loc in holding.locs[: holding.protected_len : size]:
            page = page_of(FullLoc(loc), size)
            if page not in in_tree:
                yield (
                    "leak",
                    f"request {holding.request} reads page {page} as the tree's, "
                    "but no node holds it",
                )
        private = holding.locs[holding.protected_len :]
        for page in dict.fromkeys(page_of(FullLoc(loc), size) for loc in private):
            own(page, f"request {holding.request}")
    last = geometry.pool_tokens // size
    for page, names in sorted(owners.items()):
        if not 1 <= page <= last:
            yield "shared", f"page {page} is reserved or outside the pool, owned by {names[0]}"
        elif not names:
            yield "leak", f"page {page} is in no free list, no tree node and no request"
        elif len(names) > 1:
            yield "shared", f"page {page} has {len(names)} owners: {', '.join(names)}"


def _misaligned(
    locs: tuple[int, ...], start: int, page_size: int, owner: str
) -> Iterator[tuple[Cause, str]]:
    for position, loc in enumerate(locs, start):
        follows = position == start or position % page_size == 0 or (
            loc == locs[position - start - 1] + 1
        )  # fmt: skip
        if not follows or not is_page_congruent(position, FullLoc(loc), page_size):
            yield "misaligned", f"{owner} keeps position {position} at location {loc}"
            return


def _slot_breaks(pools: Pools, geometry: Geometry) -> Iterator[tuple[Cause, str]]:
    free = Counter(pools.free_slots)
    for slot, count in free.items():
        if count > 1:
            yield "double-free", f"slot {slot} stands {count} times in the free list"
    held = {holding.slot: holding.request for holding in pools.holdings}
    for slot, request in held.items():
        if slot in free:
            yield "shared", f"slot {slot} is free and held by request {request}"
    missing = set(range(1, geometry.slots + 1)) - set(free) - set(held)
    for slot in sorted(missing):
        yield "leak", f"slot {slot} is neither free nor held by a request"


def _size_breaks(pools: Pools, geometry: Geometry) -> Iterator[tuple[Cause, str]]:
    evictable = sum(len(node.locs) for node in pools.nodes if not node.full_lock)
    protected = sum(len(node.locs) for node in pools.nodes if node.full_lock)
    found = {
        "available": len(pools.free) * geometry.page_size,
        "evictable": evictable,
        "protected": protected,
    }
    for name, tokens in found.items():
        if name in pools.counters and pools.counters[name] != tokens:
            yield (
                "sizes",
                f"the engine counts {pools.counters[name]} {name} tokens, "
                f"its objects hold {tokens}",
            )
