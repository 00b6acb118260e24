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
from typing import Any, TypeAlias

import torch

from kvproof.kernels.family import Family
from kvproof.spec.window import Order

_COMPRESSED_WIDTH = 64
"""Columns of a decode's compressed page table; the backend pads it to this many."""


Numbers: TypeAlias = Sequence[int] | torch.Tensor
"""One number a token or query; a tensor that lies on the ring's device is not copied."""


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
        slots: Numbers,
        positions: Numbers,
        final_positions: Numbers,
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
        return _segments(*self.decode_index(ring, slots=slots, positions=positions))

    def decode_index(
        self, ring: Ring, *, slots: Numbers, positions: Numbers
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as the kernel gives it: rows of all queries, and where each query's start."""
        count = len(positions)
        places = _int64(positions, ring).to(torch.int32)
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
        return indices, starts

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
        return _segments(
            *self.prefill_index(
                ring,
                slots=slots,
                positions=positions,
                chunk_starts=chunk_starts,
                first_rows=first_rows,
            )
        )

    def prefill_index(
        self,
        ring: Ring,
        *,
        slots: Numbers,
        positions: Numbers,
        chunk_starts: Numbers,
        first_rows: Numbers,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same as the kernel gives it: rows of all queries, and where each query's start."""
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
        return indices, starts


def _int64(values: Numbers, ring: Ring) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=ring.rows.device)


def _segments(indices: torch.Tensor, starts: torch.Tensor) -> list[list[int]]:
    flat: list[int] = indices.tolist()
    edges: list[int] = starts.tolist()
    return [flat[start:end] for start, end in pairwise(edges)]
