"""Where each release keeps what kvproof uses of it: one table, and how to tell which row applies.

A family is named after the oldest supported release that has its layout. An engine's family is told
by a file that only this layout has, not by its version, so that a checkout finds its own.
Places are ``module:name``, as `pkgutil.resolve_name` takes them; resolving one imports the engine,
so do it in an engine's process only.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof.kernels.engines.errors import EngineError
from kvproof.spec.window import Order


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One step that runs on the device.

    Attributes:
        launch: the engine's function that launches it; the kernel itself where only long methods of
            attention backends do.
        jit: the Triton kernels that are launched for it.
        rule: what it has to do: a rule of the specification, or a sentence.
    """

    launch: str
    jit: tuple[str, ...]
    rule: str


@dataclass(frozen=True, kw_only=True)
class Native:
    """A C++ kernel that the release ships as source and compiles at run time.

    Attributes:
        sources: below the release's ``csrc/deepseek_v4/``.
        launch: the engine's function or class that launches it.
        left_out: why it is listed and not compared; empty if it is compared.
    """

    sources: tuple[str, ...]
    launch: str
    left_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Releases that keep the same things in the same places.

    Attributes:
        name: the oldest supported release with this layout.
        marker: file below the engine's root that this layout has and older ones have not.
        parts: scheduler, pool and tree classes by role.
        kernels: Triton kernels by what they do.
        verify_order: whether a verify step writes its draft's rows before or after it reads.
        methods: what the recorder listens to, by what happens there: ``module:Class.method``. None
            where nobody has looked yet; the recorder then declines.
        fields: what the recorder reads of a request: attribute paths, the first that it has. A
            length may be a number or a sequence of that many.
        native: C++ kernels that read or write rows of a ring, or compressed rows.
    """

    name: str
    marker: str
    parts: Mapping[str, str]
    kernels: Mapping[str, Kernel]
    verify_order: Order
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    native: Mapping[str, Native] = field(default_factory=dict)

    @property
    def has_ring(self) -> bool:
        """Whether the release knows unified_kv, and so a ring, at all."""
        return "gate" in self.parts

    def part(self, role: str) -> Any:
        """The object of that role; imports it from the engine of this process."""
        return pkgutil.resolve_name(self.parts[role])

    def launcher(self, name: str) -> Any:
        """The engine's function that launches a kernel; imports it."""
        return pkgutil.resolve_name(self.kernels[name].launch)

    def jit(self, name: str) -> tuple[Any, ...]:
        """The Triton kernels behind a step; imports them."""
        return tuple(pkgutil.resolve_name(place) for place in self.kernels[name].jit)


_VERIFY_COMMIT = (
    "sglang.srt.managers.scheduler_components.batch_result_processor"
    ":SchedulerBatchResultProcessor._resolve_spec_v2_tokens"
)
_ALLOCATORS = "sglang.srt.mem_cache.allocator"
_PAGED = f"{_ALLOCATORS}.paged:PagedTokenToKVPoolAllocator"
_TOKENS = f"{_ALLOCATORS}.token:TokenToKVPoolAllocator"


def _parts(*, components: str, **places: str) -> dict[str, str]:
    """Places of most releases, and what differs."""
    cache = "sglang.srt.mem_cache"
    return {
        "request": "sglang.srt.managers.schedule_batch:Req",
        "batch": "sglang.srt.managers.schedule_batch:ScheduleBatch",
        "prefill adder": "sglang.srt.managers.schedule_policy:PrefillAdder",
        "request pool": f"{cache}.memory_pool:ReqToTokenPool",
        "allocator": f"{cache}.allocator.swa:SWATokenToKVPoolAllocator",
        "page allocator": _PAGED,
        "token allocator": _TOKENS,
        "KV pool": f"{cache}.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool",
        "allocation": f"{cache}.allocation:alloc_for_extend",
        "release": f"{cache}.common:release_kv_cache",
        "tree builder": f"{cache}.kv_cache_builder:build_kv_cache",
        "tree registry": f"{cache}.registry:create_tree_cache",
        "unified tree": _UNIFIED_TREE,
        "verify locations": "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs",
        "verify commit": _VERIFY_COMMIT,
        "speculation": "sglang.srt.runtime_context:get_spec",
        "component type": f"{cache}.{components}:ComponentType",
        **places,
    }


def _ring_kernels(*, unified: str, store: str) -> dict[str, Kernel]:
    """What moves and names ring rows, and attends over them."""
    return {
        "scatter": Kernel(
            launch=f"{store}:store_swa_into_unified",
            jit=(f"{store}:_swa_scatter_kernel",),
            rule="ring_row, scatter_keeps",
        ),
        "decode indices": Kernel(
            launch=f"{unified}.paged_decode_indices:write_v4_paged_decode_indices",
            jit=(f"{unified}.paged_decode_indices:_v4_paged_decode_indices_kernel",),
            rule="decode_reads, ring_row",
        ),
        "decode streams": Kernel(
            launch=f"{unified}.runtime:build_decode_streams",
            jit=(
                f"{unified}.paged_decode_indices:_v4_paged_decode_indices_kernel",
                f"{unified}.runtime:_fill_compress_tail_kernel",
            ),
            rule="decode_reads, ring_row, then the compressed entries",
        ),
        "prefill indices": Kernel(
            launch=f"{unified}.runtime:build_prefill_indices",
            jit=(
                f"{unified}.runtime:_prefill_lengths_kernel",
                f"{unified}.runtime:_build_prefill_indices_kernel",
            ),
            rule="prefill_ring_reads, ring_row, then the rest of the window in the chunk",
        ),
        "decode attention": Kernel(
            launch=f"{unified}.paged_decode:sparse_attn_v4_paged_decode",
            jit=(
                f"{unified}.paged_decode:_paged_decode_fused_kernel",
                f"{unified}.paged_decode:_paged_decode_split_kernel",
                f"{unified}.paged_decode:_paged_decode_reduce_kernel",
            ),
            rule="reads the rows that it is given",
        ),
        "prefill attention": Kernel(
            launch=f"{unified}.paged_prefill:sparse_attn_v4_paged_prefill",
            jit=(f"{unified}.paged_prefill:_sparse_attn_v4_paged_prefill_kernel",),
            rule="reads the rows that it is given, none for -1",
        ),
    }


def _memory_kernels(*, memory: str, write: str, allocator: str = _PAGED) -> dict[str, Kernel]:
    """What allocates pages and writes the request's rows."""
    return {
        "allocate extend": Kernel(
            launch=f"{allocator}.alloc_extend",
            jit=(f"{memory}.allocator:alloc_extend_kernel",),
            rule="page_ceil, is_page_congruent",
        ),
        "allocate decode": Kernel(
            launch=f"{allocator}.alloc_decode",
            jit=(f"{memory}.allocator:alloc_decode_kernel",),
            rule="page_ceil, is_page_congruent",
        ),
        "write request rows": Kernel(
            launch=f"sglang.srt.mem_cache.{write}:write_cache_indices",
            jit=(f"{memory}.common:write_req_to_token_pool_triton",),
            rule="a request's row is its prefix, then its new locations",
        ),
        "last location": Kernel(
            launch=f"{memory}.common:get_last_loc_triton",
            jit=(f"{memory}.common:get_last_loc_kernel",),
            rule="the location of the last prefix token, -1 for none",
        ),
        "last location, HIP": Kernel(
            launch=f"{memory}.common:get_last_loc_triton_safe",
            jit=(f"{memory}.common:_get_last_loc_safe_kernel",),
            rule="the location of the last prefix token, -1 for none",
        ),
    }


def _index_kernels(
    *, lists: str, drafts: str, paged_store: str, window_ids: tuple[str, str]
) -> dict[str, Kernel]:
    """What lists locations for attention, and stores keys by page."""
    return {
        "index lists": Kernel(
            launch=f"{lists}:create_flashinfer_kv_indices_triton",
            jit=(f"{lists}:create_flashinfer_kv_indices_triton",),
            rule="each request's locations from its start, in order, in its segment",
        ),
        "extend locations": Kernel(
            launch=f"{drafts}:assign_extend_cache_locs",
            jit=(f"{drafts}:assign_extend_cache_locs",),
            rule="each request's locations from start to end, in order, one request after another",
        ),
        "window ids": Kernel(
            launch=f"{window_ids[0]}:build_swa_token_ids",
            jit=(f"{window_ids[1]}:_build_swa_token_ids_kernel",),
            rule="full_to_swa of a request's locations from its first position on, in order",
        ),
        "paged store": Kernel(
            launch=f"{paged_store}:triton_fused_store_flashmla",
            jit=(f"{paged_store}:_triton_fused_store_flashmla_kernel",),
            rule="a token's 576 bytes and 8 scales at its place in its page",
        ),
        "indexer store": Kernel(
            launch=f"{paged_store}:triton_fused_store_indexer",
            jit=(f"{paged_store}:_triton_fused_store_indexer_kernel",),
            rule="a token's 128 bytes and its scale at its place in its page",
        ),
    }


def _methods(
    *,
    trees: tuple[str, ...],
    release: str,
    freed: Mapping[str, tuple[str, ...]],
    verified: str = _VERIFY_COMMIT,
    paged: str = _PAGED,
    tokens: str = _TOKENS,
) -> dict[str, tuple[str, ...]]:
    batch = "sglang.srt.managers.schedule_batch:ScheduleBatch"
    pool = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
    return {
        "prefill": (f"{batch}.prepare_for_extend",),
        "decode": (f"{batch}.prepare_for_decode",),
        "verified": (verified,),
        "release": tuple(f"{tree}.{release}" for tree in trees),
        "slot freed": (f"{pool}.free",),
        "evict": tuple(f"{tree}.evict" for tree in trees),
        "flush": tuple(f"{tree}.reset" for tree in trees),
        "allocate": (
            f"{paged}.alloc",
            f"{paged}.alloc_extend",
            f"{paged}.alloc_decode",
            f"{tokens}.alloc",
        ),
        **freed,
        "translate": (
            "sglang.srt.mem_cache.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool"
            ".translate_loc_from_full_to_swa",
        ),
    }


def _native(*, compress: str, store: str, norm: str) -> dict[str, Native]:
    return {
        "compress plan": Native(
            sources=("c_plan.cuh",), launch=f"{compress}:CompressorPrefillPlan"
        ),
        "compressor": Native(
            sources=("c4_v2.cuh", "c128_v2.cuh"), launch=f"{compress}:compress_forward"
        ),
        "compressed store": Native(
            sources=("fused_norm_rope_v2.cuh",), launch=f"{compress}:compress_norm_rope_store"
        ),
        "paged store": Native(sources=("store.cuh",), launch=f"{store}:fused_store_cache"),
        "window store": Native(
            sources=("main_norm_rope.cuh",), launch=f"{norm}:fused_k_norm_rope_flashmla"
        ),
        "online compressor": Native(
            sources=("c128_online_v2.cuh", "online_c128_mtp.cuh"),
            launch=f"{compress}:compress_forward",
            left_out="it keeps running sums, no rows: the specification has no rule for them",
        ),
    }


_JIT = "sglang.jit_kernel.dsv4"
_OPS = "sglang.kernels.ops.attention.dsv4"
_EARLIER_NATIVE = _native(
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
_UNIFIED_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_OLD_COMPONENTS = "unified_cache_components"
_COMPONENTS = "unified_cache.component_type"
_OPS_METADATA = {"compression metadata": f"{_OPS}.metadata_kernel:init_compression_metadata"}
_OPS_GATE = {"gate": f"{_OPS_UNIFIED}.env_gate:is_unified_kv_triton", **_OPS_METADATA}
_RUST_CORE = {
    "Rust tree core": "sglang.srt.mem_cache.rust_tree_core.extension:RustUnifiedTreeCoreBinding"
}
_OPS_MEMORY = _memory_kernels(memory="sglang.kernels.ops.memory", write="allocation")
_OPS_KERNELS = _ring_kernels(unified=_OPS_UNIFIED, store=f"{_OPS_UNIFIED}.runtime") | _OPS_MEMORY
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

_FREED_PAGES = {"free": (f"{_TOKENS}.free",), "free pages": (f"{_PAGED}._release_page_ids",)}
_TREE_METHODS = _methods(
    trees=(_SWA_RADIX, _UNIFIED_TREE),
    release="cache_finished_req",
    freed={"free": (f"{_PAGED}.free", f"{_TOKENS}.free")},
)
_OLD_PAGED = "sglang.srt.mem_cache.allocator:PagedTokenToKVPoolAllocator"
_OLD_TOKENS = "sglang.srt.mem_cache.allocator:TokenToKVPoolAllocator"
_OLD_VERIFY_COMMIT = (
    "sglang.srt.managers.scheduler_output_processor_mixin"
    ":SchedulerOutputProcessorMixin._resolve_spec_overlap_tokens"
)
_OLD_METHODS = _methods(
    trees=(_SWA_RADIX, _UNIFIED_TREE),
    release="cache_finished_req",
    freed={"free": (f"{_OLD_PAGED}.free", f"{_OLD_TOKENS}.free")},
    verified=_OLD_VERIFY_COMMIT,
    paged=_OLD_PAGED,
    tokens=_OLD_TOKENS,
)
_TREE_PAGE_METHODS = _methods(
    trees=(_SWA_RADIX, _UNIFIED_TREE), release="cache_finished_req", freed=_FREED_PAGES
)
_ROW_METHODS = _methods(
    trees=(_UNIFIED_TREE,),
    # The first thing that release_kv_cache asks of the tree.
    release="claim_kv_row",
    freed=_FREED_PAGES,
)

FAMILIES = (
    Family(
        name="0.5.23",
        marker="sglang/srt/layers/attention/dsv4/unified_kv_gate.py",
        parts=_parts(
            components=_COMPONENTS,
            gate="sglang.srt.layers.attention.dsv4.unified_kv_gate:is_unified_kv_triton",
            **_OPS_METADATA,
            **_RUST_CORE,
        ),
        kernels=_ring_kernels(unified=_OPS_UNIFIED, store=_OPS_STORE)
        | _OPS_MEMORY
        | _index_kernels(
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
            "scatter by location": Kernel(
                launch=f"{_OPS_STORE}:scatter_bf16_into_unified",
                jit=(f"{_OPS_STORE}:_scatter_loc_kernel",),
                rule="the row that is given, none for a negative one",
            ),
        },
        verify_order="write, then read",
        methods=_ROW_METHODS,
        fields=_REQ_LEN_FIELDS,
        native=_native(compress=f"{_OPS}.compress", store=f"{_OPS}.attn", norm=f"{_OPS}.norm_rope")
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
        parts=_parts(components=_COMPONENTS, **_OPS_GATE, **_RUST_CORE),
        kernels=_OPS_KERNELS | _VERIFY_STREAMS,
        verify_order="write, then read",
        methods=_ROW_METHODS,
        fields=_REQ_LEN_FIELDS,
    ),
    Family(
        name="0.5.21",
        marker=f"{_OPS_UNIFIED.replace('.', '/')}/grouped_verify_streams.py",
        parts=_parts(components=_COMPONENTS, **_OPS_GATE, **_RUST_CORE),
        kernels=_OPS_KERNELS | _VERIFY_STREAMS,
        verify_order="write, then read",
        methods=_ROW_METHODS,
        fields=_REQ_KV_FIELDS,
    ),
    Family(
        name="0.5.20",
        marker=f"{_OPS_UNIFIED.replace('.', '/')}/layout.py",
        parts=_parts(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE, **_RUST_CORE),
        kernels=_OPS_KERNELS,
        verify_order="write, then read",
        methods=_TREE_PAGE_METHODS,
        fields=_REQ_KV_FIELDS,
    ),
    Family(
        name="0.5.19",
        marker="sglang/srt/mem_cache/rust_tree_core/extension.py",
        parts=_parts(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE, **_RUST_CORE),
        kernels=_OPS_KERNELS,
        verify_order="write, then read",
        methods=_TREE_PAGE_METHODS,
        fields=_REQ_KV_FIELDS,
    ),
    Family(
        name="0.5.18",
        marker="sglang/srt/mem_cache/l2_transfer.py",
        parts=_parts(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE),
        kernels=_OPS_KERNELS,
        verify_order="write, then read",
        methods=_TREE_PAGE_METHODS,
        fields=_REQ_FIELDS,
    ),
    Family(
        name="0.5.17",
        marker="sglang/srt/mem_cache/unified_cache/component_type.py",
        parts=_parts(components=_COMPONENTS, **_OPS_GATE, **_SWA_TREE),
        kernels=_OPS_KERNELS,
        verify_order="read, then write",
        methods=_TREE_PAGE_METHODS,
        fields=_REQ_FIELDS,
    ),
    Family(
        name="0.5.16",
        marker=f"{_OPS_UNIFIED.replace('.', '/')}/env_gate.py",
        parts=_parts(components=_OLD_COMPONENTS, **_OPS_GATE, **_SWA_TREE, **_SRT_SPECULATION),
        kernels=_OPS_KERNELS
        | _index_kernels(
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
        parts=_parts(
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
        kernels=_ring_kernels(unified=_SRT_UNIFIED, store=f"{_SRT_UNIFIED}.runtime")
        | _memory_kernels(memory="sglang.srt.mem_cache.triton_ops", write="common")
        | _index_kernels(
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
        parts=_parts(
            components=_OLD_COMPONENTS,
            allocation="sglang.srt.mem_cache.common:alloc_for_extend",
            **_SWA_TREE,
            **_SRT_VERIFY,
        ),
        kernels=_memory_kernels(memory="sglang.srt.mem_cache.triton_ops", write="common"),
        verify_order="read, then write",
        methods=_TREE_METHODS,
        fields=_REQ_FILL_LEN_FIELDS,
    ),
    Family(
        name="0.5.12",
        marker="sglang/srt/mem_cache/deepseek_v4_memory_pool.py",
        parts={
            role: place
            for role, place in _parts(
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
        kernels=_memory_kernels(
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
