"""How releases differ in who translates: the backends, or one plan an iteration.

Up to 0.5.16 each attention backend asks the pool for the translation of its batch's
``out_cache_loc``. In 0.5.23 a `KVIndexTranslator` makes a `KVLocPlan` for each iteration, which
holds the window's locations in every pool, and the backends ask that. The difference is found by
what the release has, not by its number: a checkout may be of either kind.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

_TRANSLATOR = "sglang.srt.mem_cache.kv_index_translator"

PLANS = importlib.util.find_spec(_TRANSLATOR) is not None
"""Whether this process's release plans an iteration's locations."""

_arguments: list[Any] = []


def publish(arguments: Any) -> Any:
    """Make the server's arguments known to this process, as the release's entry does."""
    context: Any = importlib.import_module("sglang.srt.runtime_context")
    _arguments[:] = [arguments]
    if PLANS:
        context.publish(arguments, role="scheduler", ranks=context.SpawnRanks(world_rank=0))
        alone = SimpleNamespace(cpu_group=None, world_size=1, rank_in_group=0)
        context.get_parallel().override_permanently(
            tp_group=alone, attn_tp_group=alone, attn_cp_group=alone, pp_group=alone
        )
    else:
        server_args: Any = importlib.import_module("sglang.srt.server_args")
        server_args.set_global_server_args_for_scheduler(arguments)
        # One rank. The override is for the process's life: nothing leaves its context.
        context.get_parallel()._overrides |= {
            name: 1
            for name in ("attn_tp_size", "attn_dcp_size", "tp_size")
            if name in context._PARALLEL_FIELDS
        } | {name: 0 for name in ("attn_dcp_rank",) if name in context._PARALLEL_FIELDS}
    return arguments


def published() -> Any:
    """The arguments that were published last."""
    return _arguments[0]


def allocator_arguments(requests: Any) -> dict[str, Any]:
    """What the SWA allocator of a planning release takes besides."""
    return {"req_to_token_pool": requests} if PLANS else {}


def make_translator(requests: Any, allocator: Any, pool: Any, page_size: int, device: str) -> Any:
    """The model runner's translator, or None where a release has none."""
    if not PLANS:
        return None
    translator: Any = importlib.import_module(_TRANSLATOR)
    return translator.KVIndexTranslator(
        req_to_token=requests.req_to_token,
        token_to_kv_pool_allocator=allocator,
        token_to_kv_pool=pool,
        page_size=page_size,
        device=device,
    )


def bind(translator: Any, batch: Any) -> None:
    """Plan an iteration that is this batch alone, as `ForwardBatch.init_new` does."""
    if translator is not None:
        translator.bind_own_plan(batch)


def bind_capture(translator: Any, batch: Any) -> None:
    """Bind a batch over a graph runner's buffers, as runners do before they capture."""
    if translator is not None:
        translator.bind_runner_slots(batch)
