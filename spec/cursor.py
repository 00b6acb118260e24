"""The sliding-window eviction cursor: what a running request gives back of its own pages.

Source: ``free_swa_out_of_window_slots`` (``mem_cache/common.py``; 0.5.15, 0.5.16, 0.5.23).
"""

from __future__ import annotations

from kvproof.spec.pages import page_ceil, page_floor
from kvproof.spec.terms import maximum


def cursor_margin(window: int, page_size: int) -> int:
    """CURSOR-1. Tokens kept behind a request's end: a window, in whole pages.

    0.5.15 and 0.5.16 keep ``max(window, page_size)``, which is less if the window is no multiple
    of the page size; 0.5.23 rounds up.

    pre: window >= 1 and page_size >= 1
    post: __return__ >= window and __return__ >= page_size
    """
    return page_ceil(maximum(window, page_size), page_size)


def window_left(computed_len: int, protected: int, window: int) -> bool:
    """CURSOR-3. Whether no query of a request will see the tree's part of its prefix any more.

    Then its lock on the window may be given up early, the one on the path not (RADIX-6).
    Source: ``SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW``, ``dec_swa_lock_only``.

    pre: computed_len >= 0 and protected >= 0 and window >= 1
    """
    return maximum(computed_len - window + 1, 0) >= protected


def cursor(evicted: int, protected: int, computed_len: int, margin: int, page_size: int) -> int:
    """CURSOR-2. Up to where the sliding-window halves of a request's pages are given back.

    Never back, never into what the tree protects, and whole pages only.

    pre: evicted >= 0 and protected >= 0 and computed_len >= 0 and margin >= 1 and page_size >= 1
    pre: evicted % page_size == 0 and protected % page_size == 0
    post: __return__ % page_size == 0
    post: __return__ >= evicted and __return__ >= protected
    """
    return page_floor(maximum(maximum(evicted, protected), computed_len - margin), page_size)
