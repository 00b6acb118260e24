"""MAP: the full-to-SWA map of a snapshot, page by page, beside what is held.

One reading of a snapshot serves MAP, the SWA half of PARTITION and CURSOR. Each is judged by sets
first; only what does not fit is looked at by name, so a sound snapshot costs a pass over its pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kvproof.model.facts import Holding, Pools, SwaPool
from kvproof.model.findings import Break


@dataclass(slots=True)
class SwaView:
    """What a snapshot says of the SWA pool, in pages.

    Attributes:
        page_size: tokens per page, of both pools.
        pools: the snapshot.
        swa: its SWA pool.
        to: SWA page by mapped full page.
        parts: offsets ``(first, past the last)`` of a full page that is mapped in part; by page.
        crooked: breaks of the map alone, found while it was read.
        live: full pages of nodes with a sliding-window half, by number of the node.
        private: full pages that a request holds at or past its cursor, by name of the request;
            behind each page how many of its tokens are allocated.
        behind: full pages of its own that a request has given the SWA half back of.
    """

    page_size: int
    pools: Pools
    swa: SwaPool
    to: dict[int, int] = field(default_factory=dict)
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    crooked: list[Break] = field(default_factory=list)
    live: dict[int, list[int]] = field(default_factory=dict)
    private: dict[str, dict[int, int]] = field(default_factory=dict)
    behind: dict[str, list[int]] = field(default_factory=dict)

    def live_pages(self) -> Iterator[int]:
        """Full pages whose SWA half the tree owns."""
        return (page for pages in self.live.values() for page in pages)

    def private_pages(self) -> Iterator[int]:
        """Full pages whose SWA half a request owns."""
        return (page for pages in self.private.values() for page in pages)


def view_of(pools: Pools, page_size: int) -> SwaView | None:
    """Read a snapshot; None if it does not tell of an SWA pool."""
    if pools.swa is None:
        return None
    view = SwaView(page_size=page_size, pools=pools, swa=pools.swa)
    _read_map(view, pools.swa)
    for number, node in enumerate(pools.nodes):
        if not node.tombstone:
            view.live[number] = [loc // page_size for loc in node.locs[::page_size]]
    for holding in pools.holdings:
        _read_holding(view, holding)
    return view


def _read_map(view: SwaView, swa: SwaPool) -> None:
    size, to = view.page_size, view.to
    if size == 1:
        for full, at, tokens in swa.full_to_swa:
            to.update(zip(range(full, full + tokens), range(at, at + tokens), strict=True))
        return
    for full, at, tokens in swa.full_to_swa:
        if (at - full) % size:
            view.crooked.append(
                ("misaligned", f"location {full} maps to {at}: another place in its page")
            )
            continue
        end, page = full + tokens, full // size
        for mapped in range(page, (end - 1) // size + 1):
            lent = at // size + mapped - page
            first, last = max(full - mapped * size, 0), min(end - mapped * size, size)
            if mapped in to:
                if to[mapped] != lent:
                    view.crooked.append(
                        ("torn", f"page {mapped} maps to SWA pages {to[mapped]} and {lent}")
                    )
                else:
                    view.crooked.append(
                        ("torn", f"page {mapped} is mapped with a gap before place {first}")
                    )
                # A page is written from its start: what is left of an earlier tenant comes behind,
                # and says nothing of who owns the SWA page that it names.
                continue
            to[mapped] = lent
            if first or last < size:
                view.parts[mapped] = (first, last)


def _read_holding(view: SwaView, holding: Holding) -> None:
    size, allocated = view.page_size, len(holding.locs)
    cursor = min(max(holding.protected_len, holding.swa_evicted_len), allocated)
    start = cursor - cursor % size
    pages = {
        holding.locs[at] // size: min(size, allocated - at) for at in range(start, allocated, size)
    }
    view.private[holding.request] = pages
    first = holding.protected_len
    if first < start:
        view.behind[holding.request] = [loc // size for loc in holding.locs[first:start:size]]


def map_breaks(view: SwaView) -> Iterator[Break]:
    """Each way in which the map is not what MAP asks for."""
    yield from view.crooked
    to, size = view.to, view.page_size
    if len(set(to.values())) < len(to):
        yield from _shared(view)
    if 0 in to or 0 in to.values():
        yield from _reserved(view)
    kept = set(view.live_pages()).union(view.private_pages())
    if not kept <= to.keys():
        yield from _lost(view)
    stale = to.keys() - kept
    if stale:
        yield from _stale(view, stale)
    free = set(view.swa.free)
    if not free.isdisjoint(to.values()):
        for page, lent in sorted(to.items()):
            if lent in free:
                yield "mapped-free", f"page {page} maps to SWA page {lent}, which is free"
    if view.parts:
        yield from _parts(view)
    for number, node in enumerate(view.pools.nodes):
        if node.swa_locs and node.swa_locs != entries(view, node.locs):
            yield (
                "disagrees",
                f"node {number} keeps SWA locations {_few(node.swa_locs)} for its locations "
                f"{_few(node.locs)}, the map says {_few(entries(view, node.locs))} "
                f"(pages of {size})",
            )


def entries(view: SwaView, locs: Iterable[int]) -> tuple[int, ...]:
    """Entries of the map; 0 where there is none, as far as whole pages tell."""
    size, to = view.page_size, view.to
    if size == 1:
        return tuple([to.get(loc, 0) for loc in locs])
    return tuple([to[loc // size] * size + loc % size if loc // size in to else 0 for loc in locs])


def _shared(view: SwaView) -> Iterator[Break]:
    by_lent: dict[int, list[int]] = {}
    for page, lent in view.to.items():
        by_lent.setdefault(lent, []).append(page)
    for lent, pages in sorted(by_lent.items()):
        if len(pages) > 1:
            yield "not-injective", f"pages {_list(sorted(pages))} map to SWA page {lent}"


def _reserved(view: SwaView) -> Iterator[Break]:
    """A run of the map names no reserved page: neither from it nor to it."""
    for page, lent in view.to.items():
        if page < 1 or lent < 1:
            yield "reserved", f"page {page} maps to SWA page {lent}; page 0 is reserved"


def _lost(view: SwaView) -> Iterator[Break]:
    for number, pages in view.live.items():
        gone = [page for page in pages if page not in view.to]
        if gone:
            yield (
                "unmapped",
                f"node {number} is no tombstone, and its pages {_list(gone)} map to none",
            )
    for request, held in view.private.items():
        gone = [page for page in held if page not in view.to]
        if gone:
            yield (
                "unmapped",
                f"request {request} has not given the SWA half of its pages {_list(gone)} back, "
                "and they map to none",
            )


def _stale(view: SwaView, stale: set[int]) -> Iterator[Break]:
    behind = {page for pages in view.behind.values() for page in pages}  # CURSOR speaks of those
    tombstones = {
        loc // view.page_size: number
        for number, node in enumerate(view.pools.nodes)
        if node.tombstone
        for loc in node.locs[:: view.page_size]
    }
    free = set(view.pools.free)
    for page in sorted(stale - behind):
        where = (
            "is free"
            if page in free
            else f"is in node {tombstones[page]}, a tombstone"
            if page in tombstones
            else "is held by nobody"
        )
        yield "stale-entry", f"page {page} {where} and still maps to SWA page {view.to[page]}"


def _parts(view: SwaView) -> Iterator[Break]:
    """A page is mapped whole; of a request's last page, what is allocated."""
    size = view.page_size
    for number, pages in view.live.items():
        for page in pages:
            if page in view.parts:
                yield "torn", _torn(f"page {page} of node {number}", *view.parts[page], size)
    for request, held in view.private.items():
        for page, tokens in held.items():
            first, last = view.parts.get(page, (0, size))
            if first or last < tokens:
                yield "torn", _torn(f"page {page} of request {request}", first, last, tokens)


def _torn(what: str, first: int, last: int, tokens: int) -> str:
    return f"{what} is mapped at places {first} to {last - 1} of {tokens} alone"


def _list(pages: Iterable[int]) -> str:
    return ", ".join(map(str, pages))


def _few(locs: tuple[int, ...]) -> str:
    return f"[{_list(locs[:8])}{', ...' if len(locs) > 8 else ''}]"
