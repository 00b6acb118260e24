"""Admission, chunks and slots: the order in which a request meets its memory.

Source: ``PrefillAdder``, ``ScheduleBatch``, ``ReqToTokenPool`` (0.5.15, 0.5.16, 0.5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from kvproof.spec.indices import PADDING_SLOT, Occupancy, Position, Slot
from kvproof.spec.pages import page_floor
from kvproof.spec.terms import minimum, select

SlotOrder: TypeAlias = Literal["first in, first out", "last in, first out"]

SLOT_ORDER: dict[str, SlotOrder] = {
    "0.5.15": "first in, first out",
    "0.5.16": "first in, first out",
    "0.5.23": "last in, first out",
}
"""SLOT-2. Which free slot a release lends next (``ReqToTokenPool.alloc``)."""


def chunk_end(start: Position, prompt_len: int, budget: int, page_size: int) -> Position:
    """CHUNK-1. End of the chunk at ``start``: all that is left, or the budget in whole pages.

    Equal to ``start`` if the budget is smaller than a page: then nothing can be launched.

    pre: 0 <= start <= prompt_len and budget >= 0 and page_size >= 1
    post: start <= __return__ <= prompt_len
    post: __return__ - start <= budget
    """
    left = prompt_len - start
    return Position(start + select(left <= budget, left, page_floor(budget, page_size)))


def committed_len(verify_start: Position, accepted: int, draft_tokens: int) -> int:
    """VERIFY-1. Tokens that a request keeps after a verify step; the rest are rejected.

    pre: verify_start >= 0 and 1 <= accepted <= draft_tokens
    post: verify_start < __return__ <= verify_start + draft_tokens
    """
    return verify_start + minimum(accepted, draft_tokens)


def publishable_len(computed_len: int, page_size: int) -> int:
    """PUBLISH-1. Tokens that a request may insert into the tree: computed ones, whole pages.

    pre: computed_len >= 0 and page_size >= 1
    post: 0 <= __return__ <= computed_len
    """
    return page_floor(computed_len, page_size)


def next_slot(free: Sequence[Slot], order: SlotOrder) -> Slot:
    """SLOT-3. Slot that is lent next; never the padding slot.

    pre: len(free) > 0 and all(slot > 0 for slot in free)
    post: __return__ in free
    """
    slot = free[0] if order == "first in, first out" else free[-1]
    assert slot != PADDING_SLOT, "slot 0 is never lent"
    return slot


def next_occupancy(newest: Occupancy) -> Occupancy:
    """SLOT-4. Every lease of a slot is a new occupancy; no number is used twice.

    pre: newest >= 0
    post: __return__ > newest
    """
    return Occupancy(newest + 1)
