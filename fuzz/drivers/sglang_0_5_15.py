"""SGLang 0.5.15: `SWARadixCache`, request state on `Req` itself, no cap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from sglang.srt.mem_cache.common import maybe_cache_unfinished_req, release_kv_cache

from kvproof.fuzz.drivers.base import ReleaseEngine


class Engine(ReleaseEngine):
    """Adapter of the 0.5.15 family."""

    def _builder_arguments(self) -> dict[str, Any]:
        group = SimpleNamespace(cpu_group=None)
        return super()._builder_arguments() | {
            "attn_tp_cpu_group": None,
            "tp_cpu_group": None,
            "attn_cp_cpu_group": None,
            "ps": SimpleNamespace(pp_rank=0, pp_size=1, tp_size=1, tp_rank=0),
            "tp_group": group,
            "pp_group": group,
        }

    def _slot(self, req: Any) -> int | None:
        return req.req_pool_idx  # type: ignore[no-any-return]

    def _matched_len(self, req: Any) -> int:
        return len(req.prefix_indices)

    def _extend_end(self, req: Any) -> int:
        return req.extend_range.end  # type: ignore[no-any-return]

    def _protected_len(self, req: Any) -> int:
        return req.cache_protected_len  # type: ignore[no-any-return]

    def _allocated_len(self, req: Any) -> int:
        return req.kv_allocated_len  # type: ignore[no-any-return]

    def _publish(self, req: Any, *, chunked: bool) -> None:
        if chunked:
            maybe_cache_unfinished_req(req, self.tree, chunked=True)
        else:
            maybe_cache_unfinished_req(req, self.tree)

    def _release(self, req: Any, *, insert: bool) -> None:
        release_kv_cache(req, self.tree, is_insert=insert)

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
