"""Transition rules of one page: owners, locks, tombstone, and its entry of the full-to-SWA map.

As with ring rows, operations change pages one by one, so one arbitrary page stands for all of them
and the rules work on integers and on Z3 terms alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvproof.spec.terms import select


@dataclass(frozen=True, kw_only=True, slots=True)
class Owners:
    """How often a page stands in each place; PARTITION says that the sum is one."""

    free: int
    tree: int
    private: int


def allocated(page: Owners) -> Owners:
    """A request takes a page from the free list."""
    return replace(page, free=page.free - 1, private=page.private + 1)


def published(page: Owners, *, duplicate: bool) -> Owners:
    """A request offers a page to the tree, which frees it if it has that prefix already."""
    return Owners(
        free=page.free + select(duplicate, 1, 0),
        tree=page.tree + select(duplicate, 0, 1),
        private=page.private - 1,
    )


def discarded(page: Owners) -> Owners:
    """A request gives a page of its own back: a partial page, a rejected draft's, an abort's."""
    return replace(page, free=page.free + 1, private=page.private - 1)


def evicted(page: Owners) -> Owners:
    """The tree gives a page back."""
    return replace(page, free=page.free + 1, tree=page.tree - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Locks:
    """Lock counts of a cached page, and whether its sliding-window half is gone."""

    full: int
    swa: int
    tombstone: bool


def locked(page: Locks, *, on_path: bool, in_window: bool) -> Locks:
    """A reader locks a match: its path in the full pool, its last window in the other."""
    return replace(
        page, full=page.full + select(on_path, 1, 0), swa=page.swa + select(in_window, 1, 0)
    )


def unlocked(page: Locks, *, on_path: bool, in_window: bool) -> Locks:
    """A release undoes exactly its own acquire: what that lock covered then."""
    return replace(
        page, full=page.full - select(on_path, 1, 0), swa=page.swa - select(in_window, 1, 0)
    )


def window_released(page: Locks, *, in_window: bool) -> Locks:
    """A reader that has decoded past its window gives up the window, not the path."""
    return replace(page, swa=page.swa - select(in_window, 1, 0))


def may_bury(page: Locks) -> bool:
    """Whether the sliding-window half may be released while the full page stays."""
    return page.swa == 0


def may_evict(page: Locks) -> bool:
    """Whether the page may leave the tree."""
    return page.full == 0


def buried(page: Locks) -> Locks:
    """The sliding-window half is released: the page becomes a tombstone."""
    return replace(page, tombstone=select(may_bury(page), True, page.tombstone))


def recovered(page: Locks) -> Locks:
    """An insert brings a sliding-window half for a tombstone."""
    return replace(page, tombstone=False)


def granted(need_full: int, free_full: int, need_swa: int, free_swa: int) -> bool:
    """Whether an allocation is served: both pools have enough, or neither is touched."""
    return (need_full <= free_full) & (need_swa <= free_swa)


def allocated_pair(need_full: int, free_full: int, need_swa: int, free_swa: int) -> tuple[int, int]:
    """What is left of both pools after an allocation."""
    served = granted(need_full, free_full, need_swa, free_swa)
    return (
        free_full - select(served, need_full, 0),
        free_swa - select(served, need_swa, 0),
    )


def mapped_page(watched: int, swa_page: int, *, page: int, to: int) -> int:
    """The map's sliding-window page of a watched page after ``page`` was mapped to ``to``."""
    return select(watched == page, to, swa_page)


def swa_page_free(watched: int, free: bool, *, lent: int, returned: int) -> bool:
    """Whether a watched SWA page is free after one was lent and one returned (0: none)."""
    return select(watched == lent, False, select(watched == returned, True, free))
