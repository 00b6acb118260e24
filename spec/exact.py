"""Exactness through layers: how far a stale window reaches up a stack of sliding-window layers.

A key at a layer depends on its token's state below, and that state on the window of the layer
before. So a window of stale keys in front of the tail spoils ``window - 1`` more positions a layer.

Source: DeepSeek-V4's stack in SGLang; PR #30339's cap is the case of one layer.
"""

from __future__ import annotations

from kvproof.spec.pages import page_floor


def next_frontier(frontier: int, window: int) -> int:
    """EXACT-1. First exact position above a layer, of the one below it.

    A query is exact if its whole window is: the oldest key that it sees stands ``window - 1`` back.

    pre: frontier >= 0 and window >= 1
    post: __return__ >= frontier
    """
    return frontier + window - 1


def exact_frontier(matched_len: int, layers: int, window: int) -> int:
    """EXACT-2. First position whose state after ``layers`` layers is that of a cold run.

    pre: matched_len >= 1 and layers >= 0 and window >= 1
    post: __return__ >= matched_len
    """
    return matched_len + layers * (window - 1)


def exact_logits_tail(layers: int, window: int) -> int:
    """EXACT-3. Shortest tail with which the logits of the last prompt token are exact.

    pre: layers >= 0 and window >= 1
    post: __return__ >= 1
    """
    return layers * (window - 1) + 1


def exact_decode_tail(layers: int, window: int) -> int:
    """EXACT-4. Shortest tail with which every later decode is exact; also what a rebuild replays.

    pre: layers >= 0 and window >= 1
    post: __return__ >= 0
    """
    return layers * (window - 1)


def compressed_end(position: int, ratio: int) -> int:
    """EXACT-5. End of the positions whose compressed rows the query at ``position`` sees.

    A row stands for ``ratio`` tokens and is there once they are.

    pre: position >= 0 and ratio >= 1
    post: position + 1 - ratio < __return__ <= position + 1
    """
    return page_floor(position + 1, ratio)
