"""SGLang 0.5.16 to 0.5.18: `UnifiedRadixCache` by the registry's choice, and `SWARadixCache`.

The releases cap the match in `Req.init_next_round_input` by what the tree's own
`swa_reprefill_tail_tokens` says, and the two trees say different things.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from sglang.srt.mem_cache import registry

from kvproof.fuzz.drivers import sglang_0_5_13
from kvproof.kernels.engines.shims import engine_family

BY_HAND = "SWARadixCache"

# The registry does not name this class any more, so it is plugged in the way that the registry
# offers to third parties: it gets the very parameters that the default choice would get.
if "SWA tree" in engine_family().parts:
    registry.register_radix_cache_backend(
        BY_HAND, lambda context: engine_family().part("SWA tree")(context.params)
    )


class Engine(sglang_0_5_13.Engine):
    """Adapter of the families 0.5.16 to 0.5.18."""

    constructions: ClassVar[tuple[str, ...]] = ("registry", BY_HAND)

    def _server_arguments(self) -> dict[str, Any]:
        backend = None if self.construction == "registry" else self.construction
        return super()._server_arguments() | {"radix_cache_backend": backend}

    def _allocated_len(self, req: Any) -> int:
        return req.kv.kv_allocated_len  # type: ignore[no-any-return]

    def _nodes(self) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        if self.construction == BY_HAND:
            yield from super()._nodes()
            return
        component = engine_family().part("component type")
        stack = [(-1, child) for child in self.tree.root_node.children.values()]
        index = 0
        while stack:
            parent, node = stack.pop()
            full = node.component_data[component.FULL]
            swa = node.component_data[component.SWA]
            yield (
                parent, node.key.token_ids, full.value,
                full.lock_ref, swa.lock_ref, swa.value is None,
            )  # fmt: skip
            stack.extend((index, child) for child in node.children.values())
            index += 1
