"""The reference engine's tree: cached prefixes, a page each, with the locks of that page.

Locks and tombstones change by the rules of `kvproof.model.tree`, which are those that the proofs
quantify over (theorems P1 to P3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvproof.model.page_pools import PagePools
from kvproof.model.policy import Fault
from kvproof.model.tree import (
    Locks,
    buried,
    locked,
    may_bury,
    may_evict,
    recovered,
    unlocked,
    window_released,
)
from kvproof.spec.indices import Page
from kvproof.spec.radix import (
    Prefix,
    cached_pages,
    evictable,
    inserted,
    locked_from,
    page_prefixes,
    recovered_page,
    recovers,
    window_match,
)

UNLOCKED = Locks(full=0, swa=0, tombstone=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """What one request's lock covers: the path of ``tokens``, the window from ``window_from`` on.

    ``window_from`` is None where the window's lock was given up.
    """

    tokens: Prefix
    window_from: int | None


@dataclass(slots=True)
class PageTree:
    """Prefixes in the order in which they were cached, oldest first."""

    pools: PagePools
    page_size: int
    window: int
    faults: frozenset[Fault]
    pages: dict[Prefix, Page] = field(default_factory=dict)
    locks: dict[Prefix, Locks] = field(default_factory=dict)

    def clear(self) -> None:
        """Nothing is cached."""
        self.pages.clear()
        self.locks.clear()

    def match(self, key: Sequence[int]) -> list[Page]:
        """Pages of the longest prefix that a request with this key may reuse (RADIX-2, RADIX-3)."""
        path = cached_pages(self.pages, key, self.page_size)
        if "match over tombstones" in self.faults:
            return path
        prefixes = page_prefixes(key, self.page_size)[: len(path)]
        live = [not self.locks[prefix].tombstone for prefix in prefixes]
        return path[: window_match(live, self.page_size, self.window)]

    # Locks

    def lock(self, key: Sequence[int], length: int) -> Lock:
        """Lock the first ``length`` tokens of a key: the path, and its last window (RADIX-6)."""
        start = locked_from(length, self.window, self.page_size)
        if "lock pins the prefix" in self.faults:
            start = 0
            while any(self.locks[p].tombstone for p in self._on(tuple(key[:length]), start)):
                start += self.page_size
        lock = Lock(tokens=tuple(key[:length]), window_from=start)
        for prefix in page_prefixes(lock.tokens, self.page_size):
            self.locks[prefix] = locked(
                self.locks[prefix], on_path=True, in_window=self._covers(lock, prefix)
            )
        if "split drops a lock" in self.faults and length:
            self._split(lock.tokens)
        return lock

    def unlock(self, lock: Lock) -> None:
        """Undo exactly what `lock` did, less what was given up since."""
        for prefix in page_prefixes(lock.tokens, self.page_size):
            self.locks[prefix] = unlocked(
                self.locks[prefix], on_path=True, in_window=self._covers(lock, prefix)
            )

    def release_window(self, lock: Lock) -> Lock:
        """Give up a lock's window, not its path."""
        for prefix in page_prefixes(lock.tokens, self.page_size):
            self.locks[prefix] = window_released(
                self.locks[prefix], in_window=self._covers(lock, prefix)
            )
        if "window released twice" in self.faults:
            return lock
        return Lock(tokens=lock.tokens, window_from=None)

    def _covers(self, lock: Lock, prefix: Prefix) -> bool:
        return lock.window_from is not None and len(prefix) > lock.window_from

    def _on(self, tokens: Prefix, start: int) -> Iterator[Prefix]:
        return (p for p in page_prefixes(tokens, self.page_size) if len(p) > start)

    def _split(self, prefix: Prefix) -> None:
        """Fault: the page before the place where a locked run of pages is cut loses a lock."""
        longer = (p for p in self.pages if len(p) > len(prefix) and p[: len(prefix)] == prefix)
        if any(self.locks[p].full for p in longer) and self.locks[prefix].swa > 1:
            self.locks[prefix] = window_released(self.locks[prefix], in_window=True)

    # Insert

    def insert(self, key: Sequence[int], offered: Sequence[Page], owned_from: int) -> None:
        """Cache a key with a request's pages; what the tree does not take is free.

        Of a prefix that is cached the offered page goes back (RADIX-4), unless the cached one is a
        tombstone and the offered one is live: then the two are made one (RADIX-10, RADIX-11).

        Args:
            key: whole pages of tokens.
            offered: a page for each page of the key.
            owned_from: tokens in front that are the tree's already.
        """
        for prefix, page in zip(page_prefixes(key, self.page_size), offered, strict=False):
            if len(prefix) <= owned_from or prefix not in self.pages:
                continue
            locks = self.locks[prefix]
            if self.pages[prefix] != page and recovers(locks.tombstone, self.pools.is_live(page)):
                self._recover(prefix, page)
        before = self.pages
        self.pages, refused = inserted(self.pages, key, offered, self.page_size)
        for prefix in self.pages.keys() - before.keys():
            live = self.pools.is_live(self.pages[prefix])
            live = live or "cursor left out of insert" in self.faults
            self.locks[prefix] = Locks(full=0, swa=0, tombstone=not live)
        if "share duplicate pages" not in self.faults:
            self.pools.take_back(refused)

    def _recover(self, prefix: Prefix, offered: Page) -> None:
        """A tombstone takes a request's live half; the page that loses goes back."""
        cached, locks = self.pages[prefix], self.locks[prefix]
        held = not may_evict(locks) and "recover under a lock" not in self.faults
        kept = recovered_page(held, cached, offered)
        if kept == cached:
            self.pools.hand_over(cached, of=offered)
        else:
            self.pages[prefix] = offered
            self.pools.take_back([cached])
        self.locks[prefix] = recovered(locks)

    # Eviction

    def evictable_full(self) -> int:
        """Pages that the tree can give back to the full pool."""
        return sum(may_evict(locks) for locks in self.locks.values())

    def evictable_swa(self) -> int:
        """Pages that it can give back to the SWA pool."""
        return sum(may_bury(locks) and not locks.tombstone for locks in self.locks.values())

    def evict(self, pages: int) -> None:
        """Give back leaves that nobody reads, oldest first (RADIX-5)."""
        for _ in range(pages):
            leaf = next((p for p in evictable(self.pages, ()) if may_evict(self.locks[p])), None)
            if leaf is None:
                return
            self.pools.take_back([self.pages.pop(leaf)])
            del self.locks[leaf]

    def bury(self, pages: int) -> None:
        """Give back SWA halves whose window nobody reads, oldest first, the full pages stay."""
        for prefix, locks in list(self.locks.items()):
            if pages <= 0:
                return
            if locks.tombstone:
                continue
            if "bury under a lock" in self.faults:
                after = Locks(full=locks.full, swa=locks.swa, tombstone=True)
            else:
                after = buried(locks)
            if after.tombstone:
                self.pools.take_swa_back(
                    [self.pages[prefix]], keep_entry="entry kept at burial" in self.faults
                )
                self.locks[prefix] = after
                pages -= 1
