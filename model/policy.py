"""Policies of the reference engine: what the releases do differently, and faults to seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvproof.spec.cursor import cursor_margin
from kvproof.spec.schedule import SlotOrder
from kvproof.spec.window import DECODE_ORDER, PREFILL_ORDER, Order

Margin: TypeAlias = Literal["window and a page", "window or a page", "whole pages"]
"""What the cursor keeps: in releases up to 0.5.14, up to 0.5.22, and from 0.5.23 on (CURSOR-1)."""

RingFault: TypeAlias = Literal[
    "lend padding slot", "leak on abort", "double free on finish", "share duplicate pages",
    "never reuse", "match beyond tree", "miscount", "pad into last slot", "slot lent twice",
]  # fmt: skip

SwaFault: TypeAlias = Literal[
    "one pool alone", "two pages on one", "entry kept at burial", "reserved page freed",
    "SWA half freed twice", "recover under a lock", "cursor left out of insert",
    "cursor past the window", "cursor back to zero", "cursor never moves", "keep behind the cursor",
    "split drops a lock", "lock kept on abort", "window released twice", "window released early",
    "lock pins the prefix", "bury under a lock", "match over tombstones", "refuse before evicting",
    "plan cached as computed", "SWA miscount", "forget a token's entry",
    "cursor counts tokens, not entries",
]  # fmt: skip

StreamFault: TypeAlias = Literal[
    "abort frees at once", "draft extend reads the table", "window by scheduled length",
]  # fmt: skip
"""Faults of an engine that launches a step before it has taken the result of the one before."""

Fault: TypeAlias = RingFault | SwaFault | StreamFault

SWA_FAULTS: dict[SwaFault, tuple[str, str]] = {
    "one pool alone": ("#23174", "a page is lent for which the SWA pool had no room"),
    "two pages on one": ("#35501", "two full pages are mapped to one SWA page"),
    "entry kept at burial": ("#27586", "a tombstone's entry stays and names a page that is free"),
    "reserved page freed": ("#38519", "an unmapped page is freed with its entry, the reserved one"),
    "SWA half freed twice": ("vLLM #42571", "an SWA page stands twice in what a request returns"),
    "recover under a lock": ("#29352", "a recovered node's full page is taken from its reader"),
    "cursor left out of insert": ("#29350", "what the cursor has freed is inserted as live"),
    "cursor past the window": ("#22900", "the cursor counts draft tokens that were rejected"),
    "cursor back to zero": ("bytedance #661", "the cursor starts again and frees what it freed"),
    "cursor never moves": ("#33404, #34924", "a condition that never comes true frees nothing"),
    "keep behind the cursor": ("", "the cursor moves and the pages are not given back"),
    "split drops a lock": ("#24153, #38138", "a node is split under a lock, which it loses"),
    "lock kept on abort": ("", "a request leaves and its lock stays"),
    "window released twice": ("#28161", "the flag of an early release is lost on the way"),
    "window released early": ("", "the window's lock is given up while it is still read"),
    "lock pins the prefix": ("#27210", "a lock on a window covers the whole prefix"),
    "bury under a lock": ("", "a locked window is evicted"),
    "match over tombstones": ("#29349", "a match ends behind a tombstone in its window"),
    "refuse before evicting": ("#28246, #29662, #40309", "refused, or retracted, before evicting"),
    "plan cached as computed": ("#24275", "a chunk's plan is published as if it had been computed"),
    "SWA miscount": ("#35270", "the engine counts evictable pages twice"),
    "cursor counts tokens, not entries": ("#40681", "the cursor is a token ahead of bigram keys"),
    "forget a token's entry": ("#38187", "page ids go through a token map: an entry is lost"),
}
"""Faults of an engine with a paged SWA pool: report that has it (``#`` alone is SGLang), words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What the releases do differently, and the faults that tests seed.

    Attributes:
        reprefill_tail: tokens that the cap holds back; None for the window, or for nothing where
            the window lives in pages.
        replayed: tokens of the match that are computed again all the same: a rebuild.
        floored_reads: prefill leaves ring rows below the match out.
        stride: rows per slot; None for what the specification asks for.
        paged_swa: the window lives in pages of an SWA pool, not in rings.
        margin: what the cursor keeps.
        slides_before_insert: the cursor moves before a prefill is published too, not only at
            decode steps.
        bigram_keys: keys are pairs of neighbouring tokens, as with EAGLE.
        early_release: the lock on a window is given up once the request has decoded past it.
        window_pages: all layers slide, so pages behind the window are given back, and there is no
            tree to share them. Needs overlap.
    """

    reprefill_tail: int | None = None
    replayed: int = 0
    floored_reads: bool = False
    stride: int | None = None
    slot_order: SlotOrder = "first in, first out"
    verify_order: Order = "write, then read"
    prefill_order: Order = PREFILL_ORDER
    decode_order: Order = DECODE_ORDER
    paged_swa: bool = False
    margin: Margin = "whole pages"
    slides_before_insert: bool = False
    early_release: bool = False
    bigram_keys: bool = False
    window_pages: bool = False
    faults: frozenset[Fault] = frozenset()


def margin_of(kind: Margin, window: int, page_size: int) -> int:
    """Tokens that the cursor keeps behind a request's end."""
    return {
        "window and a page": window + page_size,
        "window or a page": max(window, page_size),
        "whole pages": cursor_margin(window, page_size),
    }[kind]


VARIANTS: dict[str, Policy] = {
    "0.5.12 to 0.5.14": Policy(paged_swa=True, margin="window and a page"),
    "0.5.15 to 0.5.17": Policy(paged_swa=True, margin="window or a page"),
    "0.5.18 to 0.5.22": Policy(
        paged_swa=True, margin="window or a page", slot_order="last in, first out",
        slides_before_insert=True,
    ),
    "0.5.23": Policy(
        paged_swa=True, margin="whole pages", slot_order="last in, first out",
        slides_before_insert=True,
    ),
}  # fmt: skip
"""What the releases do with a paged SWA pool, side by side, each by its defaults."""
