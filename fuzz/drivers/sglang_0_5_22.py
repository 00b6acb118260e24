"""SGLang 0.5.22 and 0.5.23: a request is checkpointed, running or finished, in one way."""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache import common

from kvproof.fuzz.drivers import sglang_0_5_21


class Engine(sglang_0_5_21.Engine):
    """Adapter of the families 0.5.22 and 0.5.23."""

    def _publish(self, req: Any, *, chunked: bool) -> None:  # one way for both
        common.checkpoint_kv_cache(req, self.tree)

    def _release(self, req: Any, *, insert: bool) -> None:
        common.release_kv_cache(req, self.tree, checkpoint=insert)
