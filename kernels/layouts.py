"""What the layouts of the releases have in common: places relative to the modules that moved."""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.kernels.family import Kernel, Native

VERIFY_COMMIT = (
    "sglang.srt.managers.scheduler_components.batch_result_processor"
    ":SchedulerBatchResultProcessor._resolve_spec_v2_tokens"
)
_ALLOCATORS = "sglang.srt.mem_cache.allocator"
PAGED = f"{_ALLOCATORS}.paged:PagedTokenToKVPoolAllocator"
TOKENS = f"{_ALLOCATORS}.token:TokenToKVPoolAllocator"
UNIFIED_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"


def parts_of(*, components: str, **places: str) -> dict[str, str]:
    """Places of most releases, and what differs."""
    cache = "sglang.srt.mem_cache"
    return {
        "request": "sglang.srt.managers.schedule_batch:Req",
        "batch": "sglang.srt.managers.schedule_batch:ScheduleBatch",
        "prefill adder": "sglang.srt.managers.schedule_policy:PrefillAdder",
        "request pool": f"{cache}.memory_pool:ReqToTokenPool",
        "allocator": f"{cache}.allocator.swa:SWATokenToKVPoolAllocator",
        "page allocator": PAGED,
        "token allocator": TOKENS,
        "KV pool": f"{cache}.deepseek_v4_memory_pool:DeepSeekV4TokenToKVPool",
        "allocation": f"{cache}.allocation:alloc_for_extend",
        "release": f"{cache}.common:release_kv_cache",
        "tree builder": f"{cache}.kv_cache_builder:build_kv_cache",
        "tree registry": f"{cache}.registry:create_tree_cache",
        "unified tree": UNIFIED_TREE,
        "verify locations": "sglang.kernels.ops.speculative.cache_locs:assign_extend_cache_locs",
        "verify commit": VERIFY_COMMIT,
        "speculation": "sglang.srt.runtime_context:get_spec",
        "component type": f"{cache}.{components}:ComponentType",
        **places,
    }


def ring_kernels(*, unified: str, store: str) -> dict[str, Kernel]:
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


def memory_kernels(*, memory: str, write: str, allocator: str = PAGED) -> dict[str, Kernel]:
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


def index_kernels(
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


def methods_of(
    *,
    trees: tuple[str, ...],
    release: str,
    freed: Mapping[str, tuple[str, ...]],
    verified: str = VERIFY_COMMIT,
    paged: str = PAGED,
    tokens: str = TOKENS,
    evicts: tuple[str, ...] = (),
) -> dict[str, tuple[str, ...]]:
    """What the recorder listens to; ``evicts`` are ways to have a tree evict beside its own."""
    batch = "sglang.srt.managers.schedule_batch:ScheduleBatch"
    pool = "sglang.srt.mem_cache.memory_pool:ReqToTokenPool"
    return {
        "prefill": (f"{batch}.prepare_for_extend",),
        "decode": (f"{batch}.prepare_for_decode",),
        "verified": (verified,),
        "release": tuple(f"{tree}.{release}" for tree in trees),
        "slot freed": (f"{pool}.free",),
        "evict": (*(f"{tree}.evict" for tree in trees), *evicts),
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


def native_of(*, compress: str, store: str, norm: str) -> dict[str, Native]:
    """C++ kernels, by the modules that launch them."""
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
