"""Translation: an index into the full pool becomes one into the sliding-window pool.

It is done once a forward, and what was translated then is used at the store.

Source: PR #27091; ``get_swa_out_cache_loc`` (0.5.15: ``deepseek_v4_backend_hip_radix.py``),
``SWATokenToKVPoolAllocator`` (all).
"""

from __future__ import annotations

from kvproof.spec.indices import FullLoc, Page, SwaLoc
from kvproof.spec.terms import select

RESERVED_LOC = SwaLoc(0)
"""TRANSLATE-1. What an unmapped full location is translated to: the padding page's entry."""

WORD = 2**32
"""Values of one 32-bit word."""


def swa_loc(loc: FullLoc, swa_page: Page, page_size: int) -> SwaLoc:
    """TRANSLATE-2. Entry of the map for a location whose page has the sliding-window page given.

    Page 0 stands for none: freed, or a tombstone.

    pre: loc >= 0 and swa_page >= 0 and page_size >= 1
    post: swa_page == 0 or (__return__ - loc) % page_size == 0
    """
    return SwaLoc(select(swa_page == 0, RESERVED_LOC, swa_page * page_size + loc % page_size))


def reuses_plan(planned: bool, idle: bool, planned_len: int, loc_len: int) -> bool:
    """TRANSLATE-3. Whether a store takes the translation made when the forward was planned.

    An idle forward never does, nor one whose batch has another length by now.
    """
    return select(planned, select(idle, False, planned_len == loc_len), False)


def written_to(
    *, planned: bool, idle: bool, planned_len: int, loc_len: int, planned_loc: SwaLoc, now: SwaLoc
) -> SwaLoc:
    """TRANSLATE-4. Where one token of a store goes: the planned location, or the map's by now."""
    return select(reuses_plan(planned, idle, planned_len, loc_len), planned_loc, now)


def low_word(value: int) -> int:
    """TRANSLATE-5. What an int64 entry gives where it is read as int32, at its even index.

    Little endian: index ``2 * i`` is the low word of entry ``i``, index ``2 * i + 1`` the high
    one, which is 0 for every location of a pool (they are below ``2**31``).

    pre: 0 <= value < 2**63
    post: 0 <= __return__ < 2**32
    """
    return value % WORD


def double_word(low: int, high: int) -> int:
    """TRANSLATE-6. A 64-bit entry read from two 32-bit ones: an int32 buffer read as int64.

    pre: 0 <= low < 2**32 and 0 <= high < 2**31
    """
    return low + high * WORD


def replayed_loc(at: int, tokens: int, loc: SwaLoc) -> SwaLoc:
    """TRANSLATE-7. What entry ``at`` of a captured graph's buffer has to hold for so many tokens.

    ``loc`` is the location of the token there. Behind the last token it is RESERVED_LOC, whatever
    an earlier replay of more tokens left.

    pre: at >= 0 and tokens >= 0 and loc >= 0
    post: __return__ == (loc if at < tokens else 0)
    """
    return SwaLoc(select(at < tokens, loc, RESERVED_LOC))
