"""The sliding window: which keys a query reads, which a launch writes, in which order.

Intervals are half open, ``[start, end)``, in positions.

Source: ``_v4_paged_decode_indices_kernel``, ``_build_prefill_indices_kernel``,
``_swa_scatter_kernel`` and their callers in ``deepseek_v4_backend_hip_radix.py`` (0.5.15, 0.5.16,
0.5.23).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvproof.spec.indices import Position
from kvproof.spec.terms import maximum

Order: TypeAlias = Literal["read, then write", "write, then read"]

PREFILL_ORDER: Order = "read, then write"
"""WINDOW-5. A prefill reads the ring before its own chunk is scattered."""

DECODE_ORDER: Order = "write, then read"
"""WINDOW-6. A decode scatters its own key before it reads its window."""

VERIFY_ORDER: dict[str, Order] = {
    "0.5.15": "read, then write",
    "0.5.16": "read, then write",
    "0.5.23": "write, then read",
}
"""WINDOW-7. A verify took the prefill path up to 0.5.17, and the decode path from 0.5.18 on."""


def window_start(position: Position, window: int) -> Position:
    """WINDOW-1. First position that the query at ``position`` sees.

    pre: position >= 0 and window >= 1
    post: 0 <= __return__ <= position
    post: position - __return__ < window
    """
    return Position(maximum(position - window + 1, 0))


def decode_reads(position: Position, window: int) -> tuple[Position, Position]:
    """WINDOW-2. Positions that a decode or verify query reads from the ring.

    pre: position >= 0 and window >= 1
    post: 1 <= __return__[1] - __return__[0] <= window
    """
    return window_start(position, window), Position(position + 1)


def prefill_ring_reads(
    position: Position, chunk_start: Position, window: int
) -> tuple[Position, Position]:
    """WINDOW-3. Positions that a prefill query reads from the ring: those before its chunk.

    The rest of its window, ``[max(window_start, chunk_start), position]``, comes from the chunk's
    own tensor. Empty (start >= end) if the window lies within the chunk.

    pre: 0 <= chunk_start <= position and window >= 1
    post: __return__[1] - __return__[0] < window
    """
    return window_start(position, window), chunk_start


def scatter_keeps(position: Position, final_position: Position, window: int) -> bool:
    """WINDOW-4. Whether a launch writes the key at ``position`` when its last is the final one.

    Older keys of the chunk are left out, so that no launch writes a row twice.

    pre: 0 <= position <= final_position and window >= 1
    """
    return position > final_position - window


def floored_ring_reads(
    position: Position, chunk_start: Position, matched_len: int, window: int
) -> tuple[Position, Position]:
    """WINDOW-8. Prefill reads of a builder that leaves out what lies below the match.

    No release does so. It would make the output independent of the slot's previous occupant, not
    exact: the keys left out are missing.

    pre: 0 <= matched_len <= chunk_start <= position and window >= 1
    """
    start, end = prefill_ring_reads(position, chunk_start, window)
    return Position(maximum(start, matched_len)), end
