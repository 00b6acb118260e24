"""SGLang 0.5.21: `UnifiedRadixCache` over its Rust tree core; `SWARadixCache` is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish

from kvproof.fuzz.drivers import sglang_0_5_20
from kvproof.fuzz.drivers.rust_tree import RustTreeReader
from kvproof.model.player import Chunk
from kvproof.model.scenario import Geometry


class Engine(sglang_0_5_20.Engine):
    """Adapter of the 0.5.21 family."""

    constructions: ClassVar[tuple[str, ...]] = ("registry",)

    def __init__(self, *, geometry: Geometry, construction: str, backend: str) -> None:
        super().__init__(geometry=geometry, construction=construction, backend=backend)
        self._reader = RustTreeReader(self.tree.tree_core)
        self._token_at: dict[int, int] = {}

    def _publish_to_process(self, server_args: Any) -> None:
        publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0))
        # One rank: the groups exist, and nobody else is in them.
        alone = SimpleNamespace(cpu_group=None, world_size=1, rank_in_group=0)
        get_parallel().override_permanently(
            tp_group=alone, attn_tp_group=alone, attn_cp_group=alone, pp_group=alone
        )

    def _classes(self) -> dict[str, Any]:
        return super()._classes() | {"tree core": self.tree.tree_core}

    def _launch(self, req: Any) -> Chunk:
        chunk = super()._launch(req)
        tokens = req.full_untruncated_fill_ids[chunk.start : chunk.end]
        self._token_at.update(zip(self.batch.out_cache_loc.tolist(), tokens, strict=True))
        return chunk

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests; see the base class."""
        step = super().decode(draft_tokens)
        for req, loc in zip(self.running.reqs, self.running.out_cache_loc.tolist(), strict=True):
            self._token_at[loc] = self._input_token(req)
        return step

    def flush(self) -> None:
        """Clear the cache."""
        super().flush()
        self._reader = RustTreeReader(self.tree.tree_core)

    def _nodes(self) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        return self._reader.nodes(self._token_at)
