"""SGLang 0.5.21: `UnifiedRadixCache` over its Rust tree core; `SWARadixCache` is gone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish

from kvproof.fuzz.drivers import sglang_0_5_20
from kvproof.fuzz.drivers.rust_tree import RustTreeReader
from kvproof.fuzz.drivers.tree import SeenLock, SeenTree, walk
from kvproof.model.facts import Locks


class Engine(sglang_0_5_20.Engine):
    """Adapter of the 0.5.21 family."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._reader = self._make_reader()
        # What was computed at each location: the token, and the one after it.
        self._computed: dict[int, tuple[int, int]] = {}

    def _make_reader(self) -> RustTreeReader | None:
        """What finds the nodes of the Rust core; the Python core can be walked."""
        core = self._core
        if core is None or isinstance(core, UnifiedTreeCore):
            return None
        return RustTreeReader(
            core,
            bigram=self._bigram_keys(),
            slides=self.choice.slides,
            has_swa_pool=self.has_swa_pool,
        )

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

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Publish a chunk whose forward ran; see the base class."""
        start, end = int(self.batch.prefix_lens[0]), int(self.batch.seq_lens_cpu[0])
        filled = self.held[request].full_untruncated_fill_ids[start : end + 1]
        self._note(self.batch.out_cache_loc.tolist(), [*filled, token] if last else filled)
        super().prefilled(request, last=last, token=token)

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Append the sampled tokens."""
        locs = self.running.out_cache_loc.view(len(self.running.reqs), -1)
        for req, own in zip(self.running.reqs, locs.tolist(), strict=True):
            run = tokens[req.rid]
            self._note(own[: len(run)], [req.output_ids[-1], *run])
        super().decoded(tokens)

    def _note(self, locs: Sequence[int], tokens: Sequence[int]) -> None:
        self._computed.update(zip(locs, pairwise(tokens), strict=True))

    def flush(self) -> None:
        """Clear the cache."""
        super().flush()
        self._reader = self._make_reader()

    def _seen_tree(self) -> SeenTree:
        if self._reader is None:
            return walk(self._core.root_node, self._look_at_components())
        return self._reader.tree(self._computed)

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
