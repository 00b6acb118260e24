"""SGLang 0.5.12: no tree registry yet; the scheduler makes `SWARadixCache` itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.chunk_cache import SWAChunkCache
from sglang.srt.mem_cache.hiradix_cache import HiRadixCache
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache
from sglang.srt.mem_cache.unified_cache_components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from kvproof.fuzz.drivers import sglang_0_5_13


class Engine(sglang_0_5_13.Engine):
    """Adapter of the 0.5.12 family."""

    def _make_tree(self) -> Any:
        # Scheduler.init_cache_with_memory_pool
        params = CacheInitParams(
            disable=not self.choice.reuses,
            req_to_token_pool=self.requests,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.geometry.page_size,
            chunked_prefill_size=self.server_args.chunked_prefill_size,
            sliding_window_size=self.geometry.window if self.choice.slides else None,
            is_eagle=self.algorithm.is_eagle(),
        )
        if self.choice.has_host_pool:
            return HiRadixCache(params=params, server_args=self.server_args)
        if not self.choice.slides:
            return RadixCache(params)
        if not self.choice.reuses:
            return SWAChunkCache(params)
        if envs.SGLANG_ENABLE_UNIFIED_RADIX_TREE.get():
            params.tree_components = (ComponentType.FULL, ComponentType.SWA)
            return UnifiedRadixCache(params=params)
        return SWARadixCache(params=params)

    def _token_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return list(tokens)

    def _count_middle_chunk(self, req: Any, by: int) -> None:
        req.is_chunked += by

    def _update_finish_state(self, req: Any) -> None:
        req.check_finished(0)

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Publish a chunk whose forward ran; see the base class."""
        # Scheduler.run_batch leaves what was sampled with the batch, for the next decode.
        self.batch.output_ids = torch.tensor([token])
        super().prefilled(request, last=last, token=token)

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Append the sampled tokens; see the base class."""
        super().decoded(tokens)
        self.running.output_ids = torch.tensor([req.output_ids[-1] for req in self.running.reqs])
