"""SGLang 0.5.20: SWA capacity is counted in rings, and `UnifiedRadixCache` caps the match too."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache.allocator.swa import is_swa_req_ring

from kvproof.fuzz.drivers import sglang_0_5_19

_SWA_TOKENS_PAGE_1 = 1 << 12


class Engine(sglang_0_5_19.Engine):
    """Adapter of the 0.5.20 family."""

    @property
    def swa_tokens(self) -> int:
        """Tokens of the SWA pool.

        With pages of one token the allocator takes SWA locations that a ring never gives back.
        The backend demands pages of 256 tokens, so a server cannot run dry of them; here the pool
        is made too large to in a scenario.
        """
        if self._loses_swa_locations:
            return max(self.geometry.pool_tokens, _SWA_TOKENS_PAGE_1)
        return super().swa_tokens

    @property
    def _loses_swa_locations(self) -> bool:
        return bool(self.unified) and self.geometry.page_size == 1

    def _count_forward(self, batch: Any) -> None:
        """Have locations for the next forward, where a history lost them; nobody reads those."""
        super()._count_forward(batch)
        if not self._loses_swa_locations:
            return
        swa = self.allocator.swa_attn_allocator
        if swa.available_size() < 2 * self.geometry.pool_tokens:
            swa.clear()

    @property
    def compressed_tokens(self) -> int:
        """At least 4: the pool counts pages of index keys, one key for 4 tokens, unasked."""
        return 4 * self.geometry.page_size

    def _tombstones_gate(self) -> bool:
        # The match asks the same; in 0.5.23 build_kv_cache does, and tells the tree.
        return bool(self.choice.tree) or not is_swa_req_ring(self.allocator)

    def _receipt(self, req: Any) -> Any:
        return req.lock_receipt
