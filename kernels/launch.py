"""Launches the real ring kernels of a release through the release's own Python wrappers.

Runs in the engine's process. What the release's attention backend
(``layers/attention/deepseek_v4_backend_hip_radix.py``) passes is passed here, with its dtypes:
slots and positions of a scatter and of a prefill are int64, positions and lengths of a decode's
index streams int32, and a sliding-window layer has no compressed pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from kvproof.kernels.catalogue import Family
from kvproof.spec.window import Order

_COMPRESSED_WIDTH = 64
"""Columns of a decode's compressed page table; the backend pads it to this many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ring:
    """The ring of one layer, as the release's own pool object gives it.

    Attributes:
        rows: ``[rows, head_dim]``, bf16; a slot's rows are at ``slot * stride``.
        window: positions that a query sees.
        stride: rows per slot.
        pages: rows of the ring; compressed pages come after it.
    """

    rows: torch.Tensor
    window: int
    stride: int
    pages: int

    @classmethod
    def of_pool(cls, pool: Any, layer: int = 0) -> Ring:
        """The ring of a DeepSeekV4TokenToKVPool in unified_kv mode."""
        return cls(
            rows=pool.get_unified_kv(layer),
            window=pool.unified_swa_window,
            stride=pool.unified_swa_ring_size,
            pages=pool.unified_swa_pages,
        )

    def on(self, device: str) -> Ring:
        """The same ring with its rows on a device; itself if they are there."""
        return replace(self, rows=self.rows.to(device))


@dataclass(frozen=True, kw_only=True, slots=True)
class RingKernels:
    """The three launches that move ring rows, and the order of a verify step."""

    store: Callable[..., None]
    decode_streams: Callable[..., tuple[torch.Tensor, ...]]
    prefill_indices: Callable[..., tuple[torch.Tensor, ...]]
    verify_order: Order

    @classmethod
    def of_family(cls, family: Family) -> RingKernels:
        """Import the wrappers of this process's engine."""
        return cls(
            store=family.launcher("scatter"),
            decode_streams=family.launcher("decode streams"),
            prefill_indices=family.launcher("prefill indices"),
            verify_order=family.verify_order,
        )

    def scatter(
        self,
        ring: Ring,
        kv: torch.Tensor,
        *,
        slots: Sequence[int],
        positions: Sequence[int],
        final_positions: Sequence[int],
    ) -> None:
        """Write each token's row of ``kv`` to the ring.

        Args:
            ring: written in place.
            kv: ``[tokens, head_dim]``, the ring's dtype.
            slots: request slot of each token.
            positions: position of each token.
            final_positions: last position of each token's request in this launch.
        """
        self.store(
            kv=kv,
            state_slot=_int64(slots, ring),
            positions=_int64(positions, ring),
            unified_kv=ring.rows,
            win=ring.window,
            ring_stride=ring.stride,
            final_pos=_int64(final_positions, ring),
        )

    def decode_rows(
        self, ring: Ring, *, slots: Sequence[int], positions: Sequence[int]
    ) -> list[list[int]]:
        """Ring rows that each decode query reads, in the kernel's order."""
        count = len(positions)
        places = torch.tensor(positions, dtype=torch.int32, device=ring.rows.device)
        none = torch.zeros_like(places)
        indices, starts, *_ = self.decode_streams(
            state_slot=_int64(slots, ring),
            positions=places,
            swa_len=torch.clamp(places + 1, max=ring.window),
            hca_len=none,
            csa_len=none,
            hca_page_indices=places.new_full((count, _COMPRESSED_WIDTH), -1),
            csa_width=0,
            win=ring.window,
            ring_stride=ring.stride,
            swa_pages=ring.pages,
        )
        return _segments(indices, starts)

    def prefill_rows(
        self,
        ring: Ring,
        *,
        slots: Sequence[int],
        positions: Sequence[int],
        chunk_starts: Sequence[int],
        first_rows: Sequence[int],
    ) -> list[list[int]]:
        """Ring rows that each prefill query reads; what it reads of its own chunk is left out.

        Args:
            ring: the layer's ring.
            slots: request slot of each query.
            positions: position of each query.
            chunk_starts: where the chunk of each query's request starts.
            first_rows: row, in the chunk's own KV, of the first token of each query's request.
        """
        indices, starts, *_ = self.prefill_indices(
            compress_ratio=0,
            state_slot=_int64(slots, ring),
            positions=_int64(positions, ring),
            chunk_start=_int64(chunk_starts, ring),
            cu_q=_int64(first_rows, ring),
            win=ring.window,
            ring_stride=ring.stride,
            swa_pages=ring.pages,
            c128_page_indices=None,
            c4_sparse_page_indices=None,
        )
        return _segments(indices, starts)


def _int64(values: Sequence[int], ring: Ring) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=ring.rows.device)


def _segments(indices: torch.Tensor, starts: torch.Tensor) -> list[list[int]]:
    flat: list[int] = indices.tolist()
    edges: list[int] = starts.tolist()
    return [flat[start:end] for start, end in pairwise(edges)]
