"""SGLang 0.5.16: `UnifiedRadixCache` by its registry's choice; `SWARadixCache` is still there.

The release caps the match in `Req.init_next_round_input` by what the tree's own
`swa_reprefill_tail_tokens` says, and the two trees say different things.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from sglang.srt.mem_cache import registry
from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache
from sglang.srt.mem_cache.unified_cache_components import ComponentType

from kvproof.fuzz.drivers import sglang_0_5_15

BY_HAND = "SWARadixCache"

# The registry does not name this class any more, so it is plugged in the way that the registry
# offers to third parties: it gets the very parameters that the default choice would get.
registry.register_radix_cache_backend(BY_HAND, lambda context: SWARadixCache(context.params))


class Engine(sglang_0_5_15.Engine):
    """Adapter of the 0.5.16 family."""

    constructions: ClassVar[tuple[str, ...]] = ("registry", BY_HAND)

    def _server_arguments(self) -> dict[str, Any]:
        backend = None if self.construction == "registry" else self.construction
        return super()._server_arguments() | {"radix_cache_backend": backend}

    def _allocated_len(self, req: Any) -> int:
        return req.kv.kv_allocated_len  # type: ignore[no-any-return]

    def _nodes(self) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        if isinstance(self.tree, SWARadixCache):
            yield from super()._nodes()
            return
        stack = [(-1, child) for child in self.tree.root_node.children.values()]
        index = 0
        while stack:
            parent, node = stack.pop()
            full = node.component_data[ComponentType.FULL]
            swa = node.component_data[ComponentType.SWA]
            yield (
                parent, node.key.token_ids, full.value,
                full.lock_ref, swa.lock_ref, swa.value is None,
            )  # fmt: skip
            stack.extend((index, child) for child in node.children.values())
            index += 1
