"""SGLang 0.5.23: `UnifiedRadixCache` over its Rust tree core; all KV state of a request in `kv`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache.allocator.swa import is_swa_req_ring
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish

from kvproof.fuzz.drivers.base import ReleaseEngine
from kvproof.fuzz.drivers.rust_tree import RustTreeReader
from kvproof.model.player import Chunk
from kvproof.model.scenario import Geometry

_SWA_TOKENS_PAGE_1 = 1 << 12


class Engine(ReleaseEngine):
    """Adapter of the 0.5.23 family."""

    def __init__(self, *, geometry: Geometry, construction: str, backend: str) -> None:
        super().__init__(geometry=geometry, construction=construction, backend=backend)
        self._reader = RustTreeReader(self.tree.tree_core)
        self._token_at: dict[int, int] = {}

    @property
    def swa_tokens(self) -> int:
        """Tokens of the SWA pool.

        With pages of one token the allocator takes SWA locations that a ring never gives back.
        The backend of this release demands pages of 256 tokens, so a server cannot run dry of
        them; here the pool is made too large to.
        """
        if self.geometry.page_size == 1:
            return max(self.geometry.pool_tokens, _SWA_TOKENS_PAGE_1)
        return super().swa_tokens

    def _publish_to_process(self, server_args: Any) -> None:
        publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0))
        # One rank: the groups exist, and nobody else is in them.
        alone = SimpleNamespace(cpu_group=None, world_size=1, rank_in_group=0)
        get_parallel().override_permanently(
            tp_group=alone, attn_tp_group=alone, attn_cp_group=alone, pp_group=alone
        )

    def _tombstones_gate(self) -> bool:
        # build_kv_cache tells the tree the same with swa_gates_prefix_match.
        return not is_swa_req_ring(self.allocator)

    def _classes(self) -> dict[str, Any]:
        return super()._classes() | {"tree core": self.tree.tree_core}

    def _allocator_arguments(self) -> dict[str, Any]:
        return super()._allocator_arguments() | {"req_to_token_pool": self.requests}

    def _slot(self, req: Any) -> int | None:
        return req.kv.req_pool_idx if req.kv.holds_kv else None

    def _matched_len(self, req: Any) -> int:
        return req.prefix_len  # type: ignore[no-any-return]

    def _extend_end(self, req: Any) -> int:
        return req.extend_end  # type: ignore[no-any-return]

    def _protected_len(self, req: Any) -> int:
        return req.kv.cache_protected_len  # type: ignore[no-any-return]

    def _allocated_len(self, req: Any) -> int:
        return req.kv.kv_allocated_len  # type: ignore[no-any-return]

    def _publish(self, req: Any, *, chunked: bool) -> None:  # one way for both
        checkpoint_kv_cache(req, self.tree)

    def _release(self, req: Any, *, insert: bool) -> None:
        release_kv_cache(req, self.tree, checkpoint=insert)

    def _release_for_retract(self, index: int, remaining: int) -> None:
        self.running.release_req(index, remaining)

    def _launch(self, req: Any) -> Chunk:
        chunk = super()._launch(req)
        tokens = req.full_untruncated_fill_ids[chunk.start : chunk.end]
        self._token_at.update(zip(self.batch.out_cache_loc.tolist(), tokens, strict=True))
        return chunk

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests; see the base class."""
        step = super().decode(draft_tokens)
        for req, loc in zip(self.running.reqs, self.running.out_cache_loc.tolist(), strict=True):
            self._token_at[loc] = req.output_ids[-1]
        return step

    def flush(self) -> None:
        """Clear the cache."""
        super().flush()
        self._reader = RustTreeReader(self.tree.tree_core)

    def _nodes(self) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        return self._reader.nodes(self._token_at)
