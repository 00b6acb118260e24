"""Radix prefix reuse: what the tree may answer, page by page.

The specification of a radix tree is a set of page-aligned prefixes, each with its page. How an
engine cuts prefixes into nodes is its own affair.

Source: ``SWARadixCache`` and ``UnifiedRadixCache``, ``match_prefix``, ``insert``, ``evict``
(0.5.15, 0.5.16, 0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from kvproof.spec.indices import Page
from kvproof.spec.pages import page_floor

Prefix: TypeAlias = tuple[int, ...]
Pages: TypeAlias = Mapping[Prefix, Page]
"""Cached page-aligned prefixes; the page of a prefix holds its last ``page_size`` tokens."""


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
    best, since_tombstone, tombstone_seen = 0, 0, False
    for index, alive in enumerate(live):
        since_tombstone = since_tombstone + page_size if alive else 0
        tombstone_seen = tombstone_seen or not alive
        if alive and (not tombstone_seen or since_tombstone >= window):
            best = index + 1
    return best


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
        if after.setdefault(prefix, page) != page:
            refused.append(page)
    return after, refused


def evictable(pages: Pages, locked: Iterable[Prefix]) -> list[Prefix]:
    """RADIX-5. Prefixes that may go next: no longer prefix is cached, and no reader locks one.

    A lock on a prefix locks every shorter one.
    """
    held = {prefix[:end] for prefix in locked for end in range(len(prefix) + 1)}
    extended = {prefix[:end] for prefix in pages for end in range(len(prefix))}
    return [prefix for prefix in pages if prefix not in held and prefix not in extended]
