"""SGLang 0.5.20: SWA capacity is counted in rings, and `UnifiedRadixCache` caps the match too."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.allocator.swa import is_swa_req_ring

from kvproof.fuzz.drivers import sglang_0_5_19


class Engine(sglang_0_5_19.Engine):
    """Adapter of the 0.5.20 family."""

    def _count_forward(self, batch: Any) -> None:
        """Have all locations of the SWA pool free for the next forward, where rings stand for it.

        With pages of one token the allocator takes SWA locations that a ring never gives back, and
        nobody reads. The backend demands pages of 256 tokens, with which it takes none: no server
        runs dry of them, so neither does this.
        """
        super()._count_forward(batch)
        if self.unified and self.geometry.page_size == 1:
            self.allocator.swa_attn_allocator.clear()

    @property
    def compressed_tokens(self) -> int:
        """At least 4: the pool counts pages of index keys, one key for 4 tokens, unasked."""
        return 4 * self.geometry.page_size

    def _tombstones_gate(self) -> bool:
        # The match asks the same; in 0.5.23 build_kv_cache does, and tells the tree.
        return bool(self.choice.tree) or not is_swa_req_ring(self.allocator)

    def _receipt(self, req: Any) -> Any:
        return req.lock_receipt
