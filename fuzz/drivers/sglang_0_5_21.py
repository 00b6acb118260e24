"""SGLang 0.5.21: `UnifiedRadixCache` over its Rust tree core; `SWARadixCache` is gone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish

from kvproof.fuzz.drivers import sglang_0_5_20
from kvproof.fuzz.drivers.rust_tree import RustTreeReader
from kvproof.fuzz.drivers.tree import SeenLock, SeenNode, look_at_components, walk
from kvproof.model.facts import Locks
from kvproof.model.player import Chunk
from kvproof.model.scenario import Geometry


class Engine(sglang_0_5_20.Engine):
    """Adapter of the 0.5.21 family."""

    def __init__(self, *, geometry: Geometry, construction: str, backend: str) -> None:
        super().__init__(geometry=geometry, construction=construction, backend=backend)
        self._reader = self._make_reader()
        self._token_at: dict[int, int] = {}

    def _make_reader(self) -> RustTreeReader | None:
        """What finds the nodes of the Rust core; the Python core can be walked."""
        core = self._core
        return None if core is None or isinstance(core, UnifiedTreeCore) else RustTreeReader(core)

    @property
    def _core(self) -> Any:
        """The tree's core; None where there is no tree."""
        return getattr(self.tree, "tree_core", None)

    def _publish_to_process(self, server_args: Any) -> None:
        publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0))
        # One rank: the groups exist, and nobody else is in them.
        alone = SimpleNamespace(cpu_group=None, world_size=1, rank_in_group=0)
        get_parallel().override_permanently(
            tp_group=alone, attn_tp_group=alone, attn_cp_group=alone, pp_group=alone
        )

    def _classes(self) -> dict[str, Any]:
        core = self._core
        return super()._classes() | ({} if core is None else {"tree core": core})

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
        self._reader = self._make_reader()

    def _nodes(self) -> Iterator[SeenNode]:
        if self._reader is None:
            return walk(self._core.root_node, look_at_components(self._component))
        return self._reader.nodes(self._token_at)

    def _lock(self, req: Any) -> SeenLock | None:
        lock = super()._lock(req)
        if lock is None or self._reader is None:
            return lock
        # Where the lock ends is marked inside the Rust core, which does not tell.
        return SeenLock(node=lock.node, has_swa=False, boundary=None)

    def _locks(self) -> Locks:
        return super()._locks() if self._reader is None else "seen"

    def _boundary(self, receipt: Any) -> object:
        return receipt.component_lock_uuids.get(self._component.SWA)

    def _swa_evicted_len(self, req: Any) -> int:
        return req.kv.get_evicted_seqlen(self._component.SWA)  # type: ignore[no-any-return]
