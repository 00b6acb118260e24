"""Two streams: the host schedules a step while the device runs the one before.

The device runs steps in the order of their launches, so what two of them do to the same page or
ring row is ordered (STREAM-1): a page may be given back and lent again while a step that reads it
is in flight, for only a later step will write it. What the host itself writes is not ordered: an
entry of the page table that it rewrites (STREAM-2) may be read by the step in flight before or
after. And what it gives back of a request that goes on, it gives back before it knows how much the
steps in flight add (STREAM-3).

Source: ``Scheduler.event_loop_overlap`` (0.5.12 to 0.5.23); SGLang #18803, vLLM #47728.
"""

from __future__ import annotations

from kvproof.spec.indices import Position
from kvproof.spec.pages import page_floor
from kvproof.spec.terms import select
from kvproof.spec.window import window_start


def sees(launch: int, written_by: int) -> bool:
    """STREAM-1. A step sees its own writes and those of steps launched before it, no others.

    pre: launch >= 1 and written_by >= 1
    """
    return written_by <= launch


def may_rewrite(*, dropped: bool, writes_by_table: bool, same_key: bool) -> bool:
    """STREAM-2. Whether the host may write a table entry that a step in flight uses.

    A step looks up what it reads, at any time until it completes. So the new location must hold the
    same key, unless nobody takes the result of that lane. Where the step also looks up where it
    writes (a draft extend), no rewrite is harmless, dropped or not: the key would go there.
    """
    return select(writes_by_table, False, select(dropped, True, same_key))


def released_len(processed_len: int, window: int, page_size: int) -> int:
    """STREAM-3. Leading tokens whose pages a window gives back: by the processed length.

    The query after it, at ``processed_len``, is the first of a step in flight, or of the next one
    if all drafts in flight are rejected but those that were counted.

    pre: processed_len >= 0 and window >= 1 and page_size >= 1
    post: 0 <= __return__ <= processed_len
    """
    return page_floor(window_start(Position(processed_len), window), page_size)


def scheduled_len(processed_len: int, draft_tokens: int, in_flight: int) -> int:
    """STREAM-4. The length that a request has if every token of its steps in flight is kept.

    pre: processed_len >= 0 and draft_tokens >= 1 and in_flight >= 0
    post: __return__ >= processed_len
    """
    return processed_len + draft_tokens * in_flight
