"""Radix prefix reuse: what the tree may answer, page by page.

The specification of a radix tree is a set of page-aligned prefixes, each with its page. How an
engine cuts prefixes into nodes is its own affair.

Source: ``SWARadixCache`` and ``UnifiedRadixCache``, ``match_prefix``, ``insert``, ``evict``
(0.5.15, 0.5.16, 0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kvproof.spec.indices import Page
from kvproof.spec.pages import page_ceil, page_floor
from kvproof.spec.terms import maximum, select

Prefix: TypeAlias = tuple[int, ...]
Pages: TypeAlias = Mapping[Prefix, Page]
"""Cached page-aligned prefixes; the page of a prefix holds its last ``page_size`` tokens."""


_PAIR_BITS = 64


def key_entries(tokens: Sequence[int], *, bigram: bool) -> Sequence[int]:
    """RADIX-9. Entries of a key: its tokens, or with bigram keys (EAGLE) each pair of neighbours.

    A pair is one integer, so that a prefix of entries is a prefix like any other. The location of
    an entry is that of its first token.

    Source: ``RadixKey`` with ``is_bigram``.
    """
    if not bigram:
        return tokens
    return [tokens[at - 1] << _PAIR_BITS | tokens[at] for at in range(1, len(tokens))]


def tokens_of(entries: Sequence[int], *, bigram: bool) -> list[int]:
    """RADIX-12. Tokens of a run of entries: those that `key_entries` made it of.

    pre: all(0 <= entry < 2**63 for entry in entries)
    """
    if not bigram or not entries:
        return list(entries)
    last = entries[-1] % (1 << _PAIR_BITS)
    return [entry >> _PAIR_BITS for entry in entries] + [last]


def page_prefixes(tokens: Sequence[int], page_size: int) -> list[Prefix]:
    """RADIX-1. Page-aligned prefixes of a key, shortest first; a partial last page is no prefix.

    pre: page_size >= 1
    post: len(__return__) == len(tokens) // page_size
    """
    ends = range(page_size, page_floor(len(tokens), page_size) + 1, page_size)
    return [tuple(tokens[:end]) for end in ends]


def cached_pages(pages: Pages, tokens: Sequence[int], page_size: int) -> list[Page]:
    """RADIX-2. Pages of the longest cached prefix of a key."""
    found = []
    for prefix in page_prefixes(tokens, page_size):
        if prefix not in pages:
            break
        found.append(pages[prefix])
    return found


class MatchRun(NamedTuple):
    """A match on its way down a path of cached pages.

    Attributes:
        pages: pages seen.
        best: pages of the longest match that may be returned so far.
        since_tombstone: tokens whose sliding-window half is live since the last tombstone.
        tombstone_seen: whether there was one.
    """

    pages: int
    best: int
    since_tombstone: int
    tombstone_seen: bool


ROOT = MatchRun(pages=0, best=0, since_tombstone=0, tombstone_seen=False)
"""A match starts at the root with nothing seen."""


def extend_match(run: MatchRun, live: bool, page_size: int, window: int) -> MatchRun:
    """RADIX-8. One more page: a match may end behind it if no tombstone is within a window of it.

    pre: page_size >= 1 and window >= 1
    post: __return__.best in (run.best, run.pages + 1)
    """
    pages = run.pages + 1
    since = select(live, run.since_tombstone + page_size, 0)
    seen = select(live, run.tombstone_seen, True)
    may_end = select(live, select(seen, since >= window, True), False)
    return MatchRun(
        pages=pages,
        best=select(may_end, pages, run.best),
        since_tombstone=since,
        tombstone_seen=seen,
    )


def window_match(live: Sequence[bool], page_size: int, window: int) -> int:
    """RADIX-3. Pages of the longest match whose last window has no tombstone.

    A match may end behind a tombstone only if the live pages since then span a window; a path
    without tombstones matches whole.

    Args:
        live: for each cached page of the path, whether its sliding-window half is still there.
        page_size: tokens per page.
        window: positions that a query sees.

    pre: page_size >= 1 and window >= 1
    post: 0 <= __return__ <= len(live)
    post: not all(live) or __return__ == len(live)
    """
    run = ROOT
    for alive in live:
        run = extend_match(run, alive, page_size, window)
    return run.best


def locked_from(matched_len: int, window: int, page_size: int) -> int:
    """RADIX-6. First token whose sliding-window half a reader of a match locks: a window in pages.

    Source: ``inc_lock_ref`` (0.5.15, 0.5.16), ``TreeLock`` (0.5.23).

    pre: matched_len >= 0 and window >= 1 and page_size >= 1 and matched_len % page_size == 0
    post: 0 <= __return__ <= matched_len
    """
    return maximum(0, matched_len - page_ceil(window, page_size))


def kept_page(cached: bool, cached_page: Page, offered: Page) -> Page:
    """RADIX-7. Page that a prefix has after an insert: the cached one if there is one."""
    return select(cached, cached_page, offered)


def inserted(
    pages: Pages, tokens: Sequence[int], offered: Sequence[Page], page_size: int
) -> tuple[dict[Prefix, Page], list[Page]]:
    """RADIX-4. The tree after an insert, and the offered pages that it did not take.

    A prefix that is cached already keeps its page; the page offered for it goes back to its owner,
    who frees it unless it is that very page.

    pre: page_size >= 1 and len(offered) >= len(tokens) // page_size
    """
    after = dict(pages)
    refused = []
    for prefix, page in zip(page_prefixes(tokens, page_size), offered, strict=False):
        after[prefix] = kept_page(prefix in pages, after.get(prefix, page), page)
        if after[prefix] != page:
            refused.append(page)
    return after, refused


def recovers(tombstone: bool, offered_live: bool) -> bool:
    """RADIX-10. Whether an insert brings a cached prefix its sliding-window half back.

    Source: ``_insert_helper`` (branches 1 to 3), ``UnifiedRadixCache`` (SWA component).
    """
    return select(tombstone, offered_live, False)


def recovered_page(locked: bool, cached_page: Page, offered: Page) -> Page:
    """RADIX-11. Page of a recovered prefix: the offered one, unless a reader holds the cached one.

    A reader's full page is not taken from under it: it stays, and takes over the sliding-window
    half of the offered page. Source: ``_recover_tombstone_keeping_locked_full`` (0.5.15); releases
    before replace the page in any case.
    """
    return select(locked, cached_page, offered)


def evictable(pages: Pages, locked: Iterable[Prefix]) -> list[Prefix]:
    """RADIX-5. Prefixes that may go next: no longer prefix is cached, and no reader locks one.

    A lock on a prefix locks every shorter one.
    """
    held = {prefix[:end] for prefix in locked for end in range(len(prefix) + 1)}
    extended = {prefix[:end] for prefix in pages for end in range(len(prefix))}
    return [prefix for prefix in pages if prefix not in held and prefix not in extended]
