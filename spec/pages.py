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


def new_pages(allocated: int, end: int, page_size: int) -> int:
    """PAGE-5. Tokens in whole pages that a request takes from each pool to hold ``end`` tokens.

    An extend fills the last page first; a decode takes a page only when it steps into one. Both
    pools lend as many, or neither lends any (theorem P7). Source: ``get_num_new_pages``,
    ``alloc_extend``, ``alloc_decode``.

    pre: 0 <= allocated <= end and page_size >= 1
    """
    return page_ceil(end, page_size) - page_ceil(allocated, page_size)


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
