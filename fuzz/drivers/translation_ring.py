"""The other resolver of DeepSeek-V4's backend: `get_unified_swa_loc`, which names ring rows.

With unified_kv the SWA pool is a ring a slot, and where a key goes follows from slot and position.
The backend caches the rows of a decode on its metadata (`_attach_unified_kv_decode_streams`, run
here with the release's own index kernels) and the resolver takes them by the same check of the
length; each step of a multi-step draft names its rows anew. A prefill's rows are named by the store
kernel, not by the resolver: the kernels' drivers judge those. Graphs are not replayed.
"""

from __future__ import annotations

from typing import Any

import torch

from kvproof.fuzz.drivers import translation_dsv4
from kvproof.fuzz.drivers.pool import window_layer_pool
from kvproof.fuzz.drivers.translation import watch_return
from kvproof.model import forwards
from kvproof.model.player import RefusedError

_RESOLVER = "get_unified_swa_loc"


class Engine(translation_dsv4.Engine):
    """Adapter of `get_unified_swa_loc`."""

    names_rows = True

    def _make_pool(self) -> Any:
        return window_layer_pool(
            self.geometry,
            swa_tokens=self.geometry.swa_pool_tokens,
            unified=True,
            device=self.device,
        )

    def _swa_available(self) -> int:
        # What the allocator counts may be the rings of free slots; it still takes SWA pages.
        return int(self.allocator.swa_attn_allocator.available_size())

    def pad(self, rows: int) -> None:
        """Drafts are not padded here: their positions go on from step to step, unpadded."""
        if self.mode == "draft":
            raise RefusedError("the steps of a draft are not padded here")
        super().pad(rows)

    def _attach(self, backend: Any, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Cache a decode's rows, and its window's index streams, on the metadata."""
        rows = positions.shape[0]
        none = torch.zeros(rows, dtype=torch.int32, device=self.device)
        core = backend.forward_metadata.core_attn_metadata
        core.positions_casual = positions
        core.swa_topk_lengths = (positions + 1).clamp(max=self.geometry.window).to(torch.int32)
        core.c128_topk_lengths_raw = core.c4_sparse_topk_lengths_raw = none
        core.c128_page_indices = core.c4_sparse_page_indices = none[:, None]
        backend._attach_unified_kv_decode_streams(core, slots)

    def _plan(self, batch: Any, *, in_graph: bool) -> None:
        for backend in self._use(self.mode):
            backend.forward_metadata = translation_dsv4.blank_metadata()
            if self.mode in ("decode", "draft"):
                self._attach(backend, batch.positions.clone(), batch.req_pool_indices)

    def _run(self, mode: forwards.ForwardMode, batch: Any) -> None:
        if mode not in ("decode", "draft"):
            raise RefusedError("the store kernel names the ring rows of this forward")
        super()._run(mode, batch)

    def replay(self, mode: Any, tokens: Any) -> Any:
        """Not played: the graph's metadata is built by kernels, and the stand-in records none."""
        raise RefusedError("the graph stand-in records torch operators, not the index kernels")

    def _resolve(self, backend: Any, batch: Any) -> tuple[torch.Tensor, bool, str]:
        found, where = watch_return(_RESOLVER, lambda: getattr(backend, _RESOLVER)(batch))
        core = getattr(backend.forward_metadata, "core_attn_metadata", None)
        unified = getattr(core, "unified", None)
        return found, unified is not None and found is unified.swa_loc, where
