"""Where each release keeps what kvproof uses of it: one table, and how to tell which row applies.

A family is named after the oldest supported release that has its layout. An engine's family is told
by a file that only this layout has, not by its version, so that a checkout finds its own.
"""

from __future__ import annotations

from pathlib import Path

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.family import Family, Kernel, Native
from kvproof.kernels.layouts import (
    PAGED,
    TOKENS,
    UNIFIED_TREE,
    index_kernels,
    memory_kernels,
    methods_of,
    native_of,
    parts_of,
    ring_kernels,
)

_JIT = "sglang.jit_kernel.dsv4"
_OPS = "sglang.kernels.ops.attention.dsv4"
_EARLIER_NATIVE = native_of(
    compress=f"{_JIT}.compress", store=f"{_JIT}.attn", norm=f"{_JIT}.elementwise"
)
_SRT_UNIFIED = "sglang.srt.layers.attention.dsv4.unified_kv_kernels"
_OPS_UNIFIED = "sglang.kernels.ops.attention.dsv4.unified_kv_kernels"
_PREFILL_UTILS = "sglang.srt.layers.attention.dsv4.sparse_prefill_utils"
_PREFILL_KERNELS = "sglang.kernels.ops.attention.dsv4.sparse_prefill_kernels"
_OPS_STORE = "sglang.kernels.ops.kvcache.dsv4_unified_kv_store"
_SWA_RADIX = "sglang.srt.mem_cache.swa_radix_cache:SWARadixCache"
_SWA_TREE = {"SWA tree": _SWA_RADIX}
_SRT_SPECULATION = {"speculation": "sglang.srt.server_args:get_global_server_args"}
_SRT_VERIFY = {
    "verify locations": "sglang.srt.speculative.triton_ops.cache_locs:assign_extend_cache_locs",
    **_SRT_SPECULATION,
}
_OLD_COMPONENTS = "unified_cache_components"
_COMPONENTS = "unified_cache.component_type"
_OPS_METADATA = {"compression metadata": f"{_OPS}.metadata_kernel:init_compression_metadata"}
_OPS_GATE = {"gate": f"{_OPS_UNIFIED}.env_gate:is_unified_kv_triton", **_OPS_METADATA}
_RUST_CORE = {
    "Rust tree core": "sglang.srt.mem_cache.rust_tree_core.extension:RustUnifiedTreeCoreBinding"
}
_OPS_MEMORY = memory_kernels(memory="sglang.kernels.ops.memory", write="allocation")
_OPS_KERNELS = ring_kernels(unified=_OPS_UNIFIED, store=f"{_OPS_UNIFIED}.runtime") | _OPS_MEMORY
_VERIFY_STREAMS = {
    "verify streams": Kernel(
        launch=f"{_OPS_UNIFIED}.grouped_verify_streams:build_grouped_verify_streams",
        jit=(f"{_OPS_UNIFIED}.grouped_verify_streams:_grouped_stream_kernel",),
        rule="decode_reads of a window as much wider as there are drafts, ring_row",
    ),
}

# Until the request's KV state moved into ``Req.kv``.
_REQ_FIELDS = {
    "slot": ("req_pool_idx",),
    "matched": ("prefix_indices",),
    "extend end": ("extend_range.end",),
    "committed": ("kv_committed_len",),
}
# Tokens of the chunk's end: a list of them, then their number. 0.5.15 says a range instead.
_REQ_FILL_IDS_FIELDS = _REQ_FIELDS | {"extend end": ("fill_ids",)}
_REQ_FILL_LEN_FIELDS = _REQ_FIELDS | {"extend end": ("extend_range.end", "fill_len")}
# From 0.5.19 on its slot, from 0.5.22 on the rest of what is matched and scheduled.
_REQ_KV_FIELDS = _REQ_FIELDS | {"slot": ("kv.req_pool_idx",), "committed": ("kv.kv_committed_len",)}
_REQ_LEN_FIELDS = _REQ_KV_FIELDS | {"matched": ("prefix_len",), "extend end": ("extend_end",)}

_FREED_PAGES = {"free": (f"{TOKENS}.free",), "free pages": (f"{PAGED}._release_page_ids",)}
_TREE_METHODS = methods_of(
    trees=(_SWA_RADIX, UNIFIED_TREE),
    release="cache_finished_req",
    freed={"free": (f"{PAGED}.free", f"{TOKENS}.free")},
)
_OLD_PAGED = "sglang.srt.mem_cache.allocator:PagedTokenToKVPoolAllocator"
_OLD_TOKENS = "sglang.srt.mem_cache.allocator:TokenToKVPoolAllocator"
_OLD_VERIFY_COMMIT = (
    "sglang.srt.managers.scheduler_output_processor_mixin"
    ":SchedulerOutputProcessorMixin._resolve_spec_overlap_tokens"
)
_OLD_METHODS = methods_of(
    trees=(_SWA_RADIX, UNIFIED_TREE),
    release="cache_finished_req",
    freed={"free": (f"{_OLD_PAGED}.free", f"{_OLD_TOKENS}.free")},
    verified=_OLD_VERIFY_COMMIT,
    paged=_OLD_PAGED,
    tokens=_OLD_TOKENS,
)
_TREE_PAGE_METHODS = methods_of(
    trees=(_SWA_RADIX, UNIFIED_TREE), release="cache_finished_req", freed=_FREED_PAGES
)
_EVICTS_FOR_ALLOCATION = (f"{UNIFIED_TREE}.evict_for_alloc",)
_TREE_ALLOCATION_METHODS = methods_of(
    trees=(_SWA_RADIX, UNIFIED_TREE),
    release="cache_finished_req",
    freed=_FREED_PAGES,
    evicts=_EVICTS_FOR_ALLOCATION,
)
_ROW_METHODS = methods_of(
    trees=(UNIFIED_TREE,),
    # The first thing that release_kv_cache asks of the tree.
    release="claim_kv_row",
    freed=_FREED_PAGES,
    evicts=_EVICTS_FOR_ALLOCATION,
)

FAMILIES = (
    Family(
        name="0.5.23",
        marker="sglang/srt/layers/attention/dsv4/unified_kv_gate.py",
        parts=parts_of(
            components=_COMPONENTS,
            gate="sglang.srt.layers.attention.dsv4.unified_kv_gate:is_unified_kv_triton",
            **_OPS_METADATA,
            **_RUST_CORE,
        ),
        kernels=ring_kernels(unified=_OPS_UNIFIED, store=_OPS_STORE)
        | _OPS_MEMORY
        | index_kernels(
            lists="sglang.kernels.ops.attention.kv_indices",
            drafts="sglang.kernels.ops.speculative.cache_locs",
            paged_store="sglang.kernels.ops.kvcache.triton_store_cache",
            window_ids=(_PREFILL_KERNELS, _PREFILL_KERNELS),
        )
        | _VERIFY_STREAMS
        | {
            # The same kernel, launched for each pool of the fp8 layout.
            "scatter into two pools": Kernel(
                launch=f"{_OPS_STORE}:store_swa_into_unified",
                jit=(f"{_OPS_STORE}:_swa_scatter_kernel",),
                rule="ring_row, scatter_keeps, the same for both pools",
            ),
            "clear window pages": Kernel(
                launch="sglang.kernels.ops.memory.allocator:get_and_clear_swa_pages",
                jit=("sglang.kernels.ops.memory.allocator:get_and_clear_swa_pages_kernel",),
                rule="full_to_swa of a page's tokens is read, then 0 for exactly them",
            ),
            "pending keys": Kernel(
                launch="sglang.srt.layers.attention.qsa.graph_metadata:launch_graph_metadata",
                jit=(
                    "sglang.srt.layers.attention.qsa.graph_metadata:_qsa_graph_row_metadata_kernel",
                ),
                rule="ring_row of a ring of one group, for a verify's tokens and for their groups",
            ),
            "clear rejected states": Kernel(
                launch="sglang.kernels.ops.kvcache.dsv4_c128_cleanup"
                ":clear_unaccepted_c128_draft_states",
                jit=(
                    "sglang.kernels.ops.kvcache.dsv4_c128_cleanup"
                    ":_clear_unaccepted_c128_draft_states_kernel",
                ),
                rule="ring_row of the tokens of a verify that were not accepted",
            ),
            "request window": Kernel(
                launch="sglang.kernels.ops.kvcache.dsv41_window_layout:build_window_layout",
                jit=(
                    "sglang.kernels.ops.kvcache.dsv41_window_layout:_window_layout_queries",
                    "sglang.kernels.ops.kvcache.dsv41_window_layout:_window_layout_history",
                ),
                rule="decode_reads of each query, ring_row of what comes before the forward",
            ),
            "scatter by location": Kernel(
                launch=f"{_OPS_STORE}:scatter_bf16_into_unified",
                jit=(f"{_OPS_STORE}:_scatter_loc_kernel",),
                rule="the row that is given, none for a negative one",
            ),
        },
        verify_order="write, then read",
        methods=_ROW_METHODS,
        fields=_REQ_LEN_FIELDS,
        native=native_of(
            compress=f"{_OPS}.compress", store=f"{_OPS}.attn", norm=f"{_OPS}.norm_rope"
        )
        | {
            "compressed store into two pools": Native(
                sources=("fused_norm_rope_v2.cuh",),
                launch=f"{_OPS}.compress:compress_norm_rope_store",
            ),
            "low-ratio compressors": Native(
                sources=("c1.cuh", "c2.cuh"),
                launch=f"{_OPS}.low_ratio_compress:c2_prefill_norm_rope_store",
                left_out="of DeepSeek-V4.1: its pages are not those of unified_kv",
            ),
            "window store with queries": Native(
                sources=("main_norm_rope.cuh",),
                launch=f"{_OPS}.norm_rope:fused_k_norm_rope_flashmla",
                left_out="needs AMD's compiler: this form of the kernel is built on ROCm only",
            ),
        },
    ),
    Family(
        name="0.5.22",
        marker="sglang/srt/mem_cache/kv_loc_plan.py",
        parts=parts_of(components=_COMPONENTS, **_OPS_GATE, **_RUST_CORE),
        kernels=_OPS_KERNELS | _VERIFY_STREAMS,
        verify_order="write, then read",
        methods=_ROW_METHODS,
        fields=_REQ_LEN_FIELDS,
    ),
    Family(
        name="0.5.21",
        marker=f"{_OPS_UNIFIED.replace('.', '/')}/grouped_verify_streams.py",
        parts=parts_of(components=_COMPONENTS, **_OPS_GATE, **_RUST_CORE),
        kernels=_OPS_KERNELS | _VERIFY_STREAMS,
        verify_order="write, then read",
        methods=_ROW_METHODS,
        fields=_REQ_KV_FIELDS,
    ),
    Family(
        name="0.5.20",
        marker=f"{_OPS_UNIFIED.replace('.', '/')}/layout.py",
        parts=parts_of(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE, **_RUST_CORE),
        kernels=_OPS_KERNELS,
        verify_order="write, then read",
        methods=_TREE_ALLOCATION_METHODS,
        fields=_REQ_KV_FIELDS,
    ),
    Family(
        name="0.5.19",
        marker="sglang/srt/mem_cache/rust_tree_core/extension.py",
        parts=parts_of(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE, **_RUST_CORE),
        kernels=_OPS_KERNELS,
        verify_order="write, then read",
        methods=_TREE_ALLOCATION_METHODS,
        fields=_REQ_KV_FIELDS,
    ),
    Family(
        name="0.5.18",
        marker="sglang/srt/mem_cache/l2_transfer.py",
        parts=parts_of(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE),
        kernels=_OPS_KERNELS,
        verify_order="write, then read",
        methods=_TREE_PAGE_METHODS,
        fields=_REQ_FIELDS,
    ),
    Family(
        name="0.5.17",
        marker="sglang/srt/mem_cache/unified_cache/component_type.py",
        parts=parts_of(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE),
        kernels=_OPS_KERNELS,
        verify_order="read, then write",
        methods=_TREE_PAGE_METHODS,
        fields=_REQ_FIELDS,
    ),
    Family(
        name="0.5.16",
        marker=f"{_OPS_UNIFIED.replace('.', '/')}/env_gate.py",
        parts=parts_of(components=_OLD_COMPONENTS, **_OPS_GATE, **_SWA_TREE, **_SRT_SPECULATION),
        kernels=_OPS_KERNELS
        | index_kernels(
            lists="sglang.kernels.ops.kvcache.kv_indices",
            drafts="sglang.kernels.ops.speculative.cache_locs",
            paged_store="sglang.jit_kernel.triton_store_cache",
            window_ids=(_PREFILL_UTILS, _PREFILL_KERNELS),
        ),
        verify_order="read, then write",
        methods=_TREE_METHODS,
        fields=_REQ_FIELDS,
        native=_EARLIER_NATIVE,
    ),
    Family(
        name="0.5.14",
        marker=f"{_SRT_UNIFIED.replace('.', '/')}/env_gate.py",
        parts=parts_of(
            components=_OLD_COMPONENTS,
            gate=f"{_SRT_UNIFIED}.env_gate:is_unified_kv_triton",
            **{
                "compression metadata": "sglang.srt.layers.attention.dsv4.metadata_kernel"
                ":init_compression_metadata"
            },
            allocation="sglang.srt.mem_cache.common:alloc_for_extend",
            **_SWA_TREE,
            **_SRT_VERIFY,
        ),
        kernels=ring_kernels(unified=_SRT_UNIFIED, store=f"{_SRT_UNIFIED}.runtime")
        | memory_kernels(memory="sglang.srt.mem_cache.triton_ops", write="common")
        | index_kernels(
            lists="sglang.srt.layers.attention.triton_ops.kv_indices",
            drafts="sglang.srt.speculative.triton_ops.cache_locs",
            paged_store="sglang.jit_kernel.triton_store_cache",
            window_ids=(_PREFILL_UTILS, _PREFILL_UTILS),
        ),
        verify_order="read, then write",
        methods=_TREE_METHODS,
        fields=_REQ_FILL_LEN_FIELDS,
        native=_EARLIER_NATIVE,
    ),
    Family(
        name="0.5.13",
        marker="sglang/srt/mem_cache/kv_cache_builder.py",
        parts=parts_of(
            components=_OLD_COMPONENTS,
            allocation="sglang.srt.mem_cache.common:alloc_for_extend",
            **_SWA_TREE,
            **_SRT_VERIFY,
        ),
        kernels=memory_kernels(memory="sglang.srt.mem_cache.triton_ops", write="common"),
        verify_order="read, then write",
        methods=_TREE_METHODS,
        fields=_REQ_FILL_LEN_FIELDS,
    ),
    Family(
        name="0.5.12",
        marker="sglang/srt/mem_cache/deepseek_v4_memory_pool.py",
        parts={
            role: place
            for role, place in parts_of(
                components=_OLD_COMPONENTS,
                allocator="sglang.srt.mem_cache.swa_memory_pool:SWATokenToKVPoolAllocator",
                allocation="sglang.srt.mem_cache.common:alloc_for_extend",
                **{
                    "page allocator": _OLD_PAGED,
                    "token allocator": _OLD_TOKENS,
                    "verify locations": "sglang.srt.speculative.eagle_info_v2"
                    ":assign_extend_cache_locs",
                    "verify commit": _OLD_VERIFY_COMMIT,
                    **_SRT_SPECULATION,
                },
                **_SWA_TREE,
            ).items()
            # Its scheduler builds the tree itself.
            if role not in {"tree builder", "tree registry"}
        },
        kernels=memory_kernels(
            memory="sglang.srt.mem_cache",
            write="common",
            allocator=_OLD_PAGED,
        ),
        verify_order="read, then write",
        methods=_OLD_METHODS,
        fields=_REQ_FILL_IDS_FIELDS,
    ),
)
"""All layouts, newest first: the first whose marker exists is the engine's."""


def family_of(root: Path) -> Family:
    """Layout of the engine whose ``sglang/`` lies in ``root``; imports nothing.

    Raises:
        EngineError: no layout that kvproof knows.
    """
    for family in FAMILIES:
        if (root / family.marker).is_file():
            return family
    raise EngineError(
        "this engine has no DeepSeek-V4 pool in any known place: it is older than 0.5.12, or newer "
        "than this kvproof",
        fix="test one of the supported releases, or add its layout to kernels/catalogue.py",
    )
