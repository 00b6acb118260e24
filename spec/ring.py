"""Ring addressing: where a token's sliding-window key lives.

Source: PR #30339; ``_swa_scatter_kernel`` (0.5.15, 0.5.16: ``unified_kv_kernels/runtime.py``;
0.5.23: ``kernels/ops/kvcache/dsv4_unified_kv_store.py``).
"""

from __future__ import annotations

from kvproof.spec.indices import PADDING_SLOT, Position, RingRow, Slot
from kvproof.spec.terms import maximum
from kvproof.spec.window import window_start


def ring_stride(window: int, draft_tokens: int) -> int:
    """RING-1. Rows per slot: the window, and one row more for each further draft token.

    Source: ``DeepSeekV4TokenToKVPool.__init__``, ``swa_ring_size`` (0.5.15, 0.5.16),
    ``swa_req_ring_size`` (0.5.23).

    pre: window >= 1 and draft_tokens >= 1
    post: __return__ >= window
    """
    return window + maximum(draft_tokens - 1, 0)


def ring_row(slot: Slot, position: Position, stride: int) -> RingRow:
    """RING-2. Row of the key at ``position`` of the request in ``slot``.

    pre: slot >= 0 and position >= 0 and stride >= 1
    post: slot * stride <= __return__ < (slot + 1) * stride
    """
    return RingRow(slot * stride + position % stride)


def same_ring_row(one: Position, other: Position, stride: int) -> bool:
    """RING-3. Two positions of one slot share a row when they differ by a multiple of the stride.

    pre: one >= 0 and other >= 0 and stride >= 1
    post: __return__ == (ring_row(0, one, stride) == ring_row(0, other, stride))
    """
    return (one - other) % stride == 0


def is_padding_row(row: RingRow, stride: int) -> bool:
    """RING-4. Whether a row belongs to the padding slot, where padded batch rows may write.

    pre: row >= 0 and stride >= 1
    """
    return (row >= PADDING_SLOT * stride) & (row < (PADDING_SLOT + 1) * stride)


def newest_position(offset: int, end: Position, stride: int) -> Position:
    """RING-5. Newest position below ``end`` whose key lies ``offset`` rows into its slot.

    Negative if no position below ``end`` has that offset.

    pre: 0 <= offset < stride and end >= 0
    post: __return__ < end and (__return__ - offset) % stride == 0
    post: __return__ + stride >= end
    """
    return Position(end - 1 - (end - 1 - offset) % stride)


def can_restart(end: Position, restart: Position, window: int, stride: int) -> bool:
    """RING-6. Whether a ring written up to ``end`` still holds the window of ``restart``.

    True exactly if the keys that a query at ``restart`` needs besides its own survived what was
    written after them. Far enough from position 0, a rewind may go back by the rows that the stride
    has to spare and one more: ``end - restart <= stride - window + 1``.

    pre: 0 <= restart <= end and window >= 1 and stride >= window
    """
    start = window_start(restart, window)
    return (end - start <= stride) | (start == restart)
