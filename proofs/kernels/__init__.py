"""K1 to K28: what the real kernels of a release do, proved from their own code for all inputs.

The rules that a kernel is held against are the specification's functions, called on Z3 terms. What
the host guarantees of a kernel's inputs are the assumptions of `base`; nothing else is assumed but
the ranges of types. That no computation leaves its type is K10; the others are about numbers.
"""

from __future__ import annotations

from kvproof.proofs.kernels.across import agreement, padding
from kvproof.proofs.kernels.allocation import allocate_decode, allocate_extend
from kvproof.proofs.kernels.attention import fused_decode, prefill_attention, split_decode
from kvproof.proofs.kernels.base import ASSUMPTIONS, Code
from kvproof.proofs.kernels.decode import compressed_tail, decode
from kvproof.proofs.kernels.masked import masked_lanes
from kvproof.proofs.kernels.pending import pending_keys
from kvproof.proofs.kernels.prefill import lengths, prefill
from kvproof.proofs.kernels.rejected import rejected_states
from kvproof.proofs.kernels.request_window import request_window
from kvproof.proofs.kernels.rows import (
    extend_locations,
    index_lists,
    last_location,
    write_rows,
)
from kvproof.proofs.kernels.scatter import scatter, scatter_by_location, two_pools
from kvproof.proofs.kernels.stores import indexer_store, paged_store
from kvproof.proofs.kernels.verify import verify
from kvproof.proofs.kernels.widths import width
from kvproof.proofs.kernels.window_pages import clear_window_pages, window_ids
from kvproof.proofs.theorem import Theorem

__all__ = ["ASSUMPTIONS", "Code", "theorems"]

_EVERY = (
    scatter, decode, agreement, lengths, prefill, compressed_tail, verify, scatter_by_location,
    padding, allocate_extend, allocate_decode, last_location, write_rows, index_lists,
    extend_locations, clear_window_pages, paged_store, indexer_store, fused_decode,
    split_decode, prefill_attention, two_pools, window_ids, masked_lanes,
    pending_keys, rejected_states, request_window, width,
)  # fmt: skip


def theorems(code: Code) -> tuple[Theorem, ...]:
    """All kernel theorems that a release has the kernels for."""
    return tuple(theorem for build in _EVERY if (theorem := build(code)) is not None)
