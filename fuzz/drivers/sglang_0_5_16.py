"""SGLang 0.5.16 to 0.5.18: `UnifiedRadixCache` by the registry's choice, and `SWARadixCache`.

The releases cap the match in `Req.init_next_round_input` by what the tree's own
`swa_reprefill_tail_tokens` says, and the two trees say different things.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.mem_cache import registry

from kvproof.fuzz.constructions import SWA_TREE
from kvproof.fuzz.drivers import sglang_0_5_13
from kvproof.kernels.engines.shims import engine_family

# The registry does not name this class any more, so it is plugged in the way that the registry
# offers to third parties: it gets the very parameters that the default choice would get.
if "SWA tree" in engine_family().parts:
    registry.register_radix_cache_backend(
        SWA_TREE, lambda context: engine_family().part("SWA tree")(context.params)
    )


class Engine(sglang_0_5_13.Engine):
    """Adapter of the families 0.5.16 to 0.5.18."""

    def _server_arguments(self) -> dict[str, Any]:
        return super()._server_arguments() | {"radix_cache_backend": self.choice.tree or None}

    def _allocated_len(self, req: Any) -> int:
        return req.kv.kv_allocated_len  # type: ignore[no-any-return]

    def _swa_evicted_len(self, req: Any) -> int:
        return req.kv.swa_evicted_seqlen  # type: ignore[no-any-return]
