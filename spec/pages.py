"""Page alignment: prefixes are reused in whole pages.

Source: ``RadixKey.page_aligned`` and ``PagedTokenToKVPoolAllocator`` (all releases).
"""

from __future__ import annotations

from kvproof.spec.indices import FullLoc, Page


def page_floor(tokens: int, page_size: int) -> int:
    """PAGE-1. Largest multiple of the page size that is not above ``tokens``.

    pre: tokens >= 0 and page_size >= 1
    post: __return__ % page_size == 0
    post: 0 <= tokens - __return__ < page_size
    """
    return tokens - tokens % page_size


def page_ceil(tokens: int, page_size: int) -> int:
    """PAGE-2. Smallest multiple of the page size that is not below ``tokens``.

    pre: tokens >= 0 and page_size >= 1
    post: __return__ % page_size == 0
    post: 0 <= __return__ - tokens < page_size
    """
    return page_floor(tokens + page_size - 1, page_size)


def page_of(loc: FullLoc, page_size: int) -> Page:
    """PAGE-3. Page of a token location; concrete integers only.

    pre: loc >= 0 and page_size >= 1
    post: __return__ * page_size <= loc < (__return__ + 1) * page_size
    """
    return Page(loc // page_size)


def is_page_congruent(position: int, loc: FullLoc, page_size: int) -> bool:
    """PAGE-4. A token's place in its page is its position's: ``loc = position (mod page_size)``.

    pre: position >= 0 and loc >= 0 and page_size >= 1
    """
    return (loc - position) % page_size == 0
