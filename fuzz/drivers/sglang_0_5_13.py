"""SGLang 0.5.13 to 0.5.15: `SWARadixCache`, request state on `Req` itself, no cap.

0.5.13 has no unified_kv: its sliding window lives in pages of its own, not in rings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sglang.srt.mem_cache import common

from kvproof.fuzz.drivers.base import ReleaseEngine


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

    def _nodes(self) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        stack = [(-1, child) for child in self.tree.root_node.children.values()]
        index = 0
        while stack:
            parent, node = stack.pop()
            yield (
                parent, node.key.token_ids, node.value,
                node.full_lock_ref, node.swa_lock_ref, node.swa_tombstone,
            )  # fmt: skip
            stack.extend((index, child) for child in node.children.values())
            index += 1
