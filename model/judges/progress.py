"""PROGRESS: what is refused for memory could not have been served, and no forward is empty.

Scope. A refusal is judged where the target says that it is for memory alone (`Skipped.no_memory`)
and snapshots tell both pools. A decode needs exactly the pages that its requests step into, a
verify those of `DRAFTS_AHEAD` drafts. A prefill is allowed more: schedulers keep reserves, so it is
judged only if its whole rest, `RESERVE_PAGES` pages and a window fit. What is reclaimable is what
the tree may evict, and, told apart, SWA pages that no window reaches any more: ``hoarded`` are a
request's own behind its cursor's margin, ``pinned`` cached ones that are locked though no lock may
cover them (RADIX-6: a window in pages). The last is judged where all locks are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from kvproof.model.facts import Advanced, Locks, Pools
from kvproof.model.findings import Break
from kvproof.model.scenario import Decode, Geometry, Prefill, Verify
from kvproof.model.verdict import Cause, Lease
from kvproof.spec.cursor import cursor_margin
from kvproof.spec.pages import page_ceil, page_floor
from kvproof.spec.radix import locked_from

RESERVE_PAGES = 2
"""Pages that a scheduler may want beyond a prefill's own: the next token's, and one of rounding."""

DRAFTS_AHEAD = 2
"""Drafts that room is kept for: that of a step, and one more, since results lag behind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Pages of one pool: free ones, what the tree may evict, what no window reaches any more.

    Attributes:
        hoarded: pages of the last kind that requests own.
        pinned: pages of that kind that the tree owns.
    """

    free: int
    evictable: int
    hoarded: int = 0
    pinned: int = 0

    def serves(self, pages: int, *, hoarded: bool = False, pinned: bool = False) -> bool:
        """Whether so many could have been lent, with or without what no window reaches."""
        more = hoarded * self.hoarded + pinned * self.pinned
        return pages <= self.free + self.evictable + more

    def __str__(self) -> str:
        """As a sentence goes on after the pool's name."""
        kinds = ((self.hoarded, "its requests'"), (self.pinned, "cached"))
        out = " and ".join(f"{pages} {whose}" for pages, whose in kinds if pages)
        return f"{self.free} and {self.evictable}" + (out and f", and {out} that no window reaches")


def refusal_breaks(
    operation: object,
    pools: Pools,
    geometry: Geometry,
    *,
    computed: Mapping[str, int],
    processed: Mapping[str, int],
    prefilling: Set[str],
    prompt_len: int,
    locks: Locks,
) -> Iterator[Break]:
    """Whether an operation was refused for memory that there is.

    Args:
        operation: that was refused.
        pools: the snapshot before it, which is the one after it too.
        geometry: sizes.
        computed: computed length of each request that holds memory.
        processed: what the host knows of that: steps in flight still read from there (STREAM-3).
        prefilling: those of them that do not decode yet.
        prompt_len: of the request that a prefill names.
        locks: what the snapshot tells of them.
    """
    need = _need(operation, pools, geometry, computed, prefilling, prompt_len)
    if not need or pools.swa is None:
        return
    full, swa = _full_room(pools, geometry), _swa_room(pools, geometry, processed)
    what = f"{type(operation).__name__.lower()} of {need} pages"
    if not full.serves(need):
        return
    for cause, hoarded, pinned in _CHARGES:
        if pinned and locks == "untold":
            continue
        if swa.serves(need, hoarded=hoarded, pinned=pinned):
            yield (
                cause,
                f"a {what} was refused for memory: the full pool has {full.free} free pages and "
                f"{full.evictable} to evict, the SWA pool {swa}",
            )
            return


def advance_breaks(fact: Advanced, lease: Lease, before: int) -> Iterator[Break]:
    """Whether a forward of a request computed nothing."""
    if fact.computed_len <= before:
        yield (
            "empty-step",
            f"a forward of request {fact.request} in slot {lease.slot} left its computed "
            f"length at {fact.computed_len}, from {before}",
        )


_CHARGES: tuple[tuple[Cause, bool, bool], ...] = (
    ("refused", False, False),
    ("hoarded", True, False),
    ("pinned", False, True),
    ("pinned", True, True),
)
"""Each weaker than those before it: what is to blame, and whether pages of each kind count."""


def _need(
    operation: object,
    pools: Pools,
    geometry: Geometry,
    computed: Mapping[str, int],
    prefilling: Set[str],
    prompt_len: int,
) -> int:
    """Pages that an operation takes from each pool at most; 0 for one that is not judged."""
    size = geometry.page_size
    if isinstance(operation, Decode | Verify):
        step = 1 if isinstance(operation, Decode) else DRAFTS_AHEAD * geometry.draft_tokens
        return sum(
            max(0, page_ceil(computed[h.request] + step, size) - page_ceil(len(h.locs), size))
            // size
            for h in pools.holdings
            if h.request in computed and h.request not in prefilling
        )
    if isinstance(operation, Prefill):
        rest = prompt_len - computed.get(operation.request, 0)
        return (
            page_ceil(rest, size) // size + RESERVE_PAGES + page_ceil(geometry.window, size) // size
        )
    return 0


def _full_room(pools: Pools, geometry: Geometry) -> Room:
    evictable = sum(len(node.locs) for node in pools.nodes if not node.full_lock)
    return Room(free=len(pools.free), evictable=evictable // geometry.page_size)


def _swa_room(pools: Pools, geometry: Geometry, processed: Mapping[str, int]) -> Room:
    assert pools.swa is not None
    size = geometry.page_size
    # The widest margin of any release is a page more than the rule's.
    margin = cursor_margin(geometry.window, size) + size
    reached: set[int] = set()
    hoarded = 0
    for holding in pools.holdings:
        first = max(0, processed.get(holding.request, 0) - margin) // size * size
        protected = holding.protected_len
        own = max(protected, holding.swa_evicted_len)
        hoarded += max(0, min(first, len(holding.locs)) - own) // size
        # A lock keeps its window for as long as it is held (theorem P2).
        first = min(first, locked_from(page_floor(protected, size), geometry.window, size))
        reached.update(holding.locs[first:protected:size])
    live = [node for node in pools.nodes if not node.tombstone]
    evictable = sum(len(node.locs) for node in live if not node.swa_lock)
    pinned = sum(loc not in reached for node in live if node.swa_lock for loc in node.locs[::size])
    return Room(
        free=len(pools.swa.free), evictable=evictable // size, hoarded=hoarded, pinned=pinned
    )
