"""SGLang 0.5.22 and 0.5.23: a request is checkpointed, running or finished, in one way."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache import common

from kvproof.fuzz.drivers import sglang_0_5_21
from kvproof.fuzz.drivers.sglang_0_5_13 import handle
from kvproof.fuzz.drivers.tree import SeenLock


class Engine(sglang_0_5_21.Engine):
    """Adapter of the families 0.5.22 and 0.5.23."""

    def _publish(self, req: Any, *, chunked: bool) -> None:  # one way for both
        common.checkpoint_kv_cache(req, self.tree)

    def _held_lock(self, req: Any) -> SeenLock | None:
        lock = req.lock
        if lock is None:
            return None
        return SeenLock(
            node=handle(lock.node),
            has_swa=not lock.swa_released,
            boundary=self._boundary(lock.receipt),
        )

    def _release(self, req: Any, *, insert: bool) -> None:
        common.release_kv_cache(req, self.tree, checkpoint=insert)
