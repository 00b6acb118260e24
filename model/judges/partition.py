"""PARTITION: every page of both pools and every slot is in one place, and the sizes add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from kvproof.model.facts import Pools
from kvproof.model.findings import Break
from kvproof.model.judges.swa_map import SwaView
from kvproof.model.scenario import Geometry
from kvproof.spec.indices import FullLoc
from kvproof.spec.pages import is_page_congruent, page_of


def partition_breaks(pools: Pools, geometry: Geometry) -> Iterator[Break]:
    """Each way in which a snapshot is no partition, with a sentence."""
    if not _pages_in_place(pools, geometry):
        yield from _page_breaks(pools, geometry)
    yield from _slot_breaks(pools, geometry)
    yield from _size_breaks(pools, geometry)


def swa_partition_breaks(view: SwaView, tokens: int) -> Iterator[Break]:
    """The same for the SWA pool of ``tokens`` tokens, whose pages are owned through the map."""
    to, size, last = view.to, view.page_size, tokens // view.page_size
    free = view.swa.free
    owned = [to[page] for page in (*view.live_pages(), *view.private_pages()) if page in to]
    everywhere = {*free, *owned}
    # As many as there are, and no two the same: then each is in one place.
    if not (len(free) + len(owned) == len(everywhere) == last == max(everywhere)):
        yield from _swa_owner_breaks(view, last)
    live = [node for node in view.pools.nodes if not node.tombstone]
    protected = sum(len(node.locs) for node in live if node.swa_lock)
    yield from _counter_breaks(
        view.swa.counters,
        {
            "available": len(free) * size,
            "evictable": sum(len(node.locs) for node in live) - protected,
            "protected": protected,
        },
        "SWA tokens",
    )


def _swa_owner_breaks(view: SwaView, last: int) -> Iterator[Break]:
    owners: dict[int, list[str]] = {page: [] for page in range(1, last + 1)}
    for page, count in Counter(view.swa.free).items():
        owners.setdefault(page, []).append("the free list")
        if count > 1:
            yield "double-free", f"SWA page {page} stands {count} times in the free list"
    held = [(f"tree node {number}", pages) for number, pages in view.live.items()]
    held += [(f"request {request}", [*pages]) for request, pages in view.private.items()]
    for owner, pages in held:
        for page in pages:
            if page in view.to:
                owners.setdefault(view.to[page], []).append(f"{owner} (for page {page})")
    mapped = {lent: page for page, lent in view.to.items()}
    for page, names in sorted(owners.items()):
        if not 1 <= page <= last:
            yield "shared", f"SWA page {page} is reserved or outside the pool, owned by {names[0]}"
        elif len(names) > 1:
            yield "shared", f"SWA page {page} has {len(names)} owners: {', '.join(names)}"
        elif not names:
            yield (
                "leak",
                f"SWA page {page} is in no free list, no tree node and no request"
                + (f"; page {mapped[page]} still maps there" if page in mapped else ""),
            )


def _pages_in_place(pools: Pools, geometry: Geometry) -> bool:
    """Whether `_page_breaks` would find nothing, by sets: almost every snapshot is sound."""
    size, last = geometry.page_size, geometry.pool_tokens // geometry.page_size
    # Nodes of whole pages each are whole pages one after the other.
    in_tree = _whole_pages([loc for node in pools.nodes for loc in node.locs], size)
    if in_tree is None or any(len(node.locs) % size for node in pools.nodes):
        return False
    cached = set(in_tree)
    owned = [*pools.free, *in_tree]
    for holding in pools.holdings:
        pages = _whole_pages(holding.locs, size)
        if pages is None or holding.protected_len % size:
            return False
        protected = holding.protected_len // size
        if not cached.issuperset(pages[:protected]):
            return False
        owned += pages[protected:]
    everywhere = set(owned)
    return len(owned) == len(everywhere) == last and (
        not last or (min(everywhere) == 1 and max(everywhere) == last)
    )


def _whole_pages(locs: Sequence[int], size: int) -> list[int] | None:
    """Pages that locations fill one after the other, the last perhaps in part; None if not so."""
    if size == 1:
        return [*locs]
    pages = [loc // size for loc in locs[::size]]
    filled = [loc for page in pages for loc in range(page * size, page * size + size)]
    return pages if [*locs] == filled[: len(locs)] else None


def _page_breaks(pools: Pools, geometry: Geometry) -> Iterator[Break]:
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


def _misaligned(locs: tuple[int, ...], start: int, page_size: int, owner: str) -> Iterator[Break]:
    for position, loc in enumerate(locs, start):
        follows = position == start or position % page_size == 0 or (
            loc == locs[position - start - 1] + 1
        )  # fmt: skip
        if not follows or not is_page_congruent(position, FullLoc(loc), page_size):
            yield "misaligned", f"{owner} keeps position {position} at location {loc}"
            return


def _slot_breaks(pools: Pools, geometry: Geometry) -> Iterator[Break]:
    slots = [*pools.free_slots, *[holding.slot for holding in pools.holdings]]
    if sorted(slots) == [*range(1, geometry.slots + 1)]:
        return  # each slot once: as in almost every snapshot
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


def _size_breaks(pools: Pools, geometry: Geometry) -> Iterator[Break]:
    evictable = sum([len(node.locs) for node in pools.nodes if not node.full_lock])
    protected = sum([len(node.locs) for node in pools.nodes if node.full_lock])
    found = {
        "available": len(pools.free) * geometry.page_size,
        "evictable": evictable,
        "protected": protected,
    }
    yield from _counter_breaks(pools.counters, found, "tokens")


def _counter_breaks(counters: dict[str, int], found: dict[str, int], unit: str) -> Iterator[Break]:
    for name, tokens in found.items():
        if name in counters and counters[name] != tokens:
            yield (
                "sizes",
                f"the engine counts {counters[name]} {name} {unit}, its objects hold {tokens}",
            )
