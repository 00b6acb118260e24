"""SGLang 0.5.12: no tree registry yet; the scheduler makes `SWARadixCache` itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache

from kvproof.fuzz.drivers import sglang_0_5_13


class Engine(sglang_0_5_13.Engine):
    """Adapter of the 0.5.12 family."""

    def _make_tree(self) -> Any:
        # Scheduler.init_cache_with_memory_pool, for a model with a sliding window
        return SWARadixCache(
            params=CacheInitParams(
                disable=False,
                req_to_token_pool=self.requests,
                token_to_kv_pool_allocator=self.allocator,
                page_size=self.geometry.page_size,
                chunked_prefill_size=self.server_args.chunked_prefill_size,
                sliding_window_size=self.geometry.window,
            )
        )

    def _token_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return list(tokens)

    def _count_middle_chunk(self, req: Any, by: int) -> None:
        req.is_chunked += by

    def _update_finish_state(self, req: Any) -> None:
        req.check_finished(0)

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests; see the base class."""
        # Scheduler.run_batch leaves the sampled tokens with the batch.
        self.running.output_ids = torch.tensor(
            [self._input_token(req) for req in self.running.reqs]
        )
        return super().decode(draft_tokens)
