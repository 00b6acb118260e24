"""The scheduler cap: how much of a cached prefix a request may reuse.

A ring is not in the tree. A request that reuses a prefix reads, in its window, rows that it has
not written. The cap holds the last window back from the match, so that it is prefilled again.

Source: PR #30339; ``Req.init_next_round_input`` and ``match_prefix_for_req`` (0.5.16),
``mem_cache.common._req_radix_key`` (0.5.23), ``Req._compute_max_prefix_len`` (all).
"""

from __future__ import annotations

from kvproof.spec.pages import page_floor
from kvproof.spec.terms import maximum, minimum


def computed_limit(prompt_len: int) -> int:
    """CAP-1. At least the last prompt token is computed: its logits give the first answer token.

    pre: prompt_len >= 1
    post: 0 <= __return__ < prompt_len
    """
    return prompt_len - 1


def match_limit(prompt_len: int, reprefill_tail: int) -> int:
    """CAP-2. Longest prefix that may be matched when ``reprefill_tail`` tokens are held back.

    pre: prompt_len >= 1 and reprefill_tail >= 0
    post: 0 <= __return__ < prompt_len
    post: __return__ <= maximum(0, prompt_len - reprefill_tail)
    """
    return minimum(computed_limit(prompt_len), maximum(0, prompt_len - reprefill_tail))


def capped_match(cached_len: int, prompt_len: int, reprefill_tail: int, page_size: int) -> int:
    """CAP-3. Length that a request reuses of a cached prefix of ``cached_len`` tokens.

    pre: cached_len >= 0 and prompt_len >= 1 and reprefill_tail >= 0 and page_size >= 1
    post: 0 <= __return__ <= cached_len
    post: __return__ % page_size == 0
    post: __return__ == 0 or prompt_len - __return__ >= reprefill_tail
    """
    return page_floor(minimum(cached_len, match_limit(prompt_len, reprefill_tail)), page_size)


def decodes_fresh(matched_len: int, tail: int, window: int) -> bool:
    """CAP-4. Whether every decode of a request reads only rows that it wrote itself.

    The first decode query stands at ``matched_len + tail`` and looks back ``window - 1`` positions.

    pre: matched_len >= 0 and tail >= 1 and window >= 1
    """
    return (matched_len == 0) | (tail >= window - 1)


def first_token_fresh(matched_len: int, tail: int, window: int) -> bool:
    """CAP-5. Whether the last prefill query, which gives the first token, sees only its own keys.

    It stands one position before the first decode query, so it needs one token more of tail.

    pre: matched_len >= 0 and tail >= 1 and window >= 1
    """
    return (matched_len == 0) | (tail >= window)


def reprefill_bound(
    prompt_len: int, cached_len: int, window: int, page_size: int, *, bigram: bool = False
) -> int:
    """CAP-6. Most tokens that a request with a cached prefix may have to prefill (USEFUL).

    What is not cached, or the window rounded up to a page; a bigram key (EAGLE) is one entry
    shorter than its tokens and costs one token more. Independent of the prefix length.

    pre: prompt_len >= 1 and 0 <= cached_len <= prompt_len and window >= 1 and page_size >= 1
    post: __return__ >= prompt_len - cached_len
    """
    return maximum(prompt_len - cached_len, window + page_size - 1 + (1 if bigram else 0))


def capped_bigram_match(
    cached_len: int, prompt_len: int, reprefill_tail: int, page_size: int
) -> int:
    """CAP-7. What `capped_match` is with bigram keys (EAGLE): a key has one entry less than tokens.

    Source: ``RadixKey.__len__`` with ``is_bigram`` and ``limit``.

    pre: cached_len >= 0 and prompt_len >= 1 and reprefill_tail >= 0 and page_size >= 1
    post: 0 <= __return__ <= cached_len
    post: __return__ <= capped_match(cached_len, prompt_len, reprefill_tail, page_size)
    """
    entries = maximum(0, match_limit(prompt_len, reprefill_tail) - 1)
    return page_floor(minimum(cached_len, entries), page_size)


def rebuild_tail(match_len: int, prompt_len: int, replayed: int) -> int:
    """CAP-8. What a rebuild holds back: all that is new, and the tokens that it replays before it.

    A rebuild reads the compressed rows of the whole match and recomputes the sliding-window keys of
    its last ``replayed`` tokens. No release does so.

    Args:
        match_len: what may be matched without any of that.
        prompt_len: tokens of the prompt.
        replayed: tokens of the match that are computed again; see `exact.exact_decode_tail`.

    pre: 0 <= match_len <= prompt_len and replayed >= 0
    post: __return__ >= replayed
    """
    return prompt_len - match_len + replayed
