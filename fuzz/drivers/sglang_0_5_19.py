"""SGLang 0.5.19: all KV state of a request in `Req.kv`."""

from __future__ import annotations

from typing import Any

from kvproof.fuzz.drivers import sglang_0_5_16


class Engine(sglang_0_5_16.Engine):
    """Adapter of the 0.5.19 family."""

    def _slot(self, req: Any) -> int | None:
        return req.kv.req_pool_idx if req.kv.holds_kv else None

    def _protected_len(self, req: Any) -> int:
        return req.kv.cache_protected_len  # type: ignore[no-any-return]

    def _release_for_retract(self, index: int, remaining: int) -> None:
        self.running.release_req(index, remaining)
