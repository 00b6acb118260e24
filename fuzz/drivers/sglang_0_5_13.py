"""SGLang 0.5.13 to 0.5.15: `SWARadixCache`, request state on `Req` itself, no cap.

0.5.13 has no unified_kv: its sliding window lives in pages of its own, not in rings.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from sglang.srt.mem_cache import common

from kvproof.fuzz.drivers.base import ReleaseEngine
from kvproof.fuzz.drivers.tree import (
    Look,
    SeenLock,
    SeenTree,
    look_at_components,
    look_at_full_component,
    look_at_full_node,
    look_at_swa_node,
    walk,
)
from kvproof.kernels.engines.shims import engine_family


class Engine(ReleaseEngine):
    """Adapter of the families 0.5.13 and 0.5.14."""

    def _slot(self, req: Any) -> int | None:
        return req.req_pool_idx  # type: ignore[no-any-return]

    def _protected_len(self, req: Any) -> int:
        return req.cache_protected_len  # type: ignore[no-any-return]

    def _allocated_len(self, req: Any) -> int:
        return req.kv_allocated_len  # type: ignore[no-any-return]

    def _publish(self, req: Any, *, chunked: bool) -> None:
        if chunked:
            common.maybe_cache_unfinished_req(req, self.tree, chunked=True)
        else:
            common.maybe_cache_unfinished_req(req, self.tree)

    def _release(self, req: Any, *, insert: bool) -> None:
        common.release_kv_cache(req, self.tree, is_insert=insert)

    def _release_for_retract(self, index: int, remaining: int) -> None:
        self.running.release_req(index, remaining, self.server_args)

    def _seen_tree(self) -> SeenTree:
        if hasattr(self.tree, "tree_components"):
            return walk(self.tree.root_node, self._look_at_components())
        slides = self.choice.slides
        return walk(self.tree.root_node, look_at_swa_node if slides else look_at_full_node)

    def _look_at_components(self) -> Look:
        if self.choice.slides:
            return look_at_components(self._component, has_swa_pool=self.has_swa_pool)
        return look_at_full_component(self._component)

    @cached_property
    def _component(self) -> Any:
        return engine_family().part("component type")

    def _held_lock(self, req: Any) -> SeenLock | None:
        if req.last_node is None:
            return None
        return SeenLock(
            node=handle(req.last_node),
            has_swa=not req.swa_prefix_lock_released,
            boundary=self._boundary(self._receipt(req)),
        )

    def _receipt(self, req: Any) -> Any:
        """Where a request keeps what it needs to give its locks back."""
        return req

    def _boundary(self, receipt: Any) -> object:
        """Mark of the node where a lock on a window ends."""
        return receipt.swa_uuid_for_lock

    def _swa_evicted_len(self, req: Any) -> int:
        return req.swa_evicted_seqlen  # type: ignore[no-any-return]


def handle(node: Any) -> int:
    """Number of a node; from 0.5.17 on `UnifiedRadixCache` gives requests nothing else."""
    return node if isinstance(node, int) else node.id
