"""Mutants of the engines: edits of the releases' own functions, and where each is played.

Each is a mistake that a change to such code can make. The text is a key to a place in the installed
release; `kvproof.fuzz.drivers.mutants` puts the edit in place in the engine's own process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvproof.fuzz.drivers.wire import FunctionEdit

EngineArea = Literal["ring", "cap", "tree", "pools", "translation"]

_CACHE = "sglang.srt.mem_cache"
_COMMON = f"{_CACHE}.common"
_SWA_TREE = f"{_CACHE}.swa_radix_cache:SWARadixCache"
_ALLOCATOR = f"{_CACHE}.allocator.swa:SWATokenToKVPoolAllocator"
_REQUESTS = f"{_CACHE}.memory_pool:ReqToTokenPool"
_DSV4_POOL = f"{_CACHE}.deepseek_v4_memory_pool"
_UNIFIED = f"{_CACHE}.unified_radix_cache:UnifiedRadixCache"
_SWA_PART = f"{_CACHE}.unified_cache.components.swa:SWAComponent"
_RUNTIME = "sglang.kernels.ops.attention.dsv4.unified_kv_kernels.runtime"
_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend_hip_radix:DeepseekV4HipRadixBackend"
_CURSOR = f"{_COMMON}:free_swa_out_of_window_slots"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineMutant:
    """One edit of a release, and the target on which it is played.

    Attributes:
        target: e.g. ``0.5.16:registry``.
        by_kernels: the rows have to be named by the real kernels: the edit is in their launch.
        equivalent: why nothing that is observed can differ; empty if it must be noticed.
    """

    area: EngineArea
    target: str
    edit: FunctionEdit
    by_kernels: bool = False
    equivalent: str = ""


def _all() -> Iterator[EngineMutant]:
    def on(
        target: str, area: EngineArea, name: str, place: str, text: str, by: str,
        *, by_kernels: bool = False, equivalent: str = "",
    ) -> EngineMutant:  # fmt: skip
        return EngineMutant(
            area=area, target=target, by_kernels=by_kernels, equivalent=equivalent,
            edit=FunctionEdit(name=name, place=place, text=text, by=by),
        )  # fmt: skip

    # The cap of PR #30339
    capped, newest = "0.5.16:SWARadixCache", "0.5.23:registry"
    method = f"{_SWA_TREE}.swa_reprefill_tail_tokens"
    yield on(capped, "cap", "cap removed", method, "return self.sliding_window_size", "return 0")
    yield on(
        capped, "cap", "cap two short", method,
        "return self.sliding_window_size", "return self.sliding_window_size - 2",
    )
    yield on(
        capped, "cap", "cap of a page", method,
        "return self.sliding_window_size", "return self.page_size",
    )
    yield on(
        capped, "cap", "cap one short", method,
        "return self.sliding_window_size", "return self.sliding_window_size - 1",
    )
    yield on(
        newest, "cap", "cap lost in the unified tree", f"{_UNIFIED}.swa_reprefill_tail_tokens",
        "not is_unified_kv_triton()", "True",
    )
    yield on(
        newest, "cap", "cap from the cached length", f"{_COMMON}:_req_radix_key",
        "len(token_ids) - reprefill_tail", "len(token_ids) - len(token_ids) // reprefill_tail",
    )
    yield on(
        newest, "cap", "nothing is ever reused", f"{_COMMON}:_req_radix_key",
        "len(token_ids) - reprefill_tail", "0 * reprefill_tail",
    )
    # The ring and the launches of its kernels
    yield on(
        newest, "ring", "stride one short", f"{_DSV4_POOL}:get_swa_ring_size",
        "return sliding_window + spec_extra", "return sliding_window + spec_extra - 1",
    )
    yield on(
        newest, "ring", "stride without the drafts", f"{_DSV4_POOL}:get_swa_ring_size",
        "return sliding_window + spec_extra", "return sliding_window",
    )
    launched = "0.5.16:registry"
    store = f"{_RUNTIME}:store_swa_into_unified"
    streams = f"{_RUNTIME}:build_decode_streams"
    yield on(
        launched, "ring", "scatter filter one short", store, "win=win", "win=win - 1",
        by_kernels=True,
    )  # fmt: skip
    yield on(
        launched, "ring", "scatter filter one long", store, "win=win", "win=win + 1",
        by_kernels=True,
    )  # fmt: skip
    yield on(
        launched, "ring", "scatter by the window", store, "ring_stride,", "win,", by_kernels=True
    )
    yield on(
        launched, "ring", "scatter forgets the last position", store,
        "final_pos is not None", "False", by_kernels=True,
    )  # fmt: skip
    yield on(
        launched, "ring", "decode reads another slot", streams,
        "state_slot = state_slot.to(torch.int32)", "state_slot = state_slot.to(torch.int32) - 1",
        by_kernels=True,
    )  # fmt: skip
    yield on(
        launched, "ring", "decode a position behind", streams,
        "positions = positions.to(torch.int32)", "positions = positions.to(torch.int32) - 1",
        by_kernels=True,
    )  # fmt: skip
    # Slots and padding
    uncapped = "0.5.15:registry"
    yield on(
        uncapped, "pools", "padding slot is lent", f"{_REQUESTS}.__init__",
        "list(range(1,", "list(range(0,",
    )
    yield on(
        uncapped, "pools", "slot freed twice", f"{_REQUESTS}.free",
        ".append(req.req_pool_idx)", ".extend([req.req_pool_idx] * 2)",
    )
    yield on(
        uncapped, "pools", "slot kept", f"{_REQUESTS}.free",
        ".append(req.req_pool_idx)", ".count(req.req_pool_idx)",
    )
    yield on(
        uncapped, "pools", "over-allocation kept", f"{_COMMON}:release_kv_cache",
        "start_p < end_p", "False",
    )
    yield on(
        uncapped, "pools", "partial page kept", f"{_SWA_TREE}.cache_finished_req",
        "kv_indices[page_aligned_len:]", "kv_indices[:0]",
    )
    # The tree, its locks and its tombstones
    paged = "0.5.15:paged-swa"
    lock, unlock = f"{_SWA_TREE}.inc_lock_ref", f"{_SWA_TREE}.dec_lock_ref"
    split, insert = f"{_SWA_TREE}._split_node", f"{_SWA_TREE}._insert_helper"
    yield on(
        paged, "tree", "tombstone ignored", f"{_SWA_TREE}._match_prefix_helper",
        "match_len_since_tombstone = 0", "pass",
    )
    yield on(
        paged, "tree", "window lock skipped", lock, "swa_lock_size < self.sliding_window_size",
        "False",
    )
    yield on(
        paged, "tree", "window lock a node long", lock,
        "swa_lock_size += len(node.value)", "swa_lock_size += self.sliding_window_size",
    )
    yield on(paged, "tree", "lock skipped", lock, "node.full_lock_ref += 1", "pass")
    yield on(paged, "tree", "window's lock kept", unlock, "node.swa_lock_ref -= 1", "pass")
    yield on(
        paged, "tree", "split drops a lock", split,
        "new_node.full_lock_ref = child.full_lock_ref", "new_node.full_lock_ref = 0",
    )
    yield on(
        paged, "tree", "split drops the window's lock", split,
        "new_node.swa_lock_ref = child.swa_lock_ref", "new_node.swa_lock_ref = 0",
    )
    yield on(
        paged, "tree", "split forgets a tombstone", split,
        "new_node.swa_tombstone = child.swa_tombstone", "new_node.swa_tombstone = False",
    )
    yield on(
        paged, "tree", "duplicates leak", insert,
        "update_kv_after_len < total_prefix_length + prefix_len", "False",
    )
    yield on(
        paged, "tree", "recovery leaves the old entry",
        f"{_SWA_TREE}._recover_tombstone_keeping_locked_full",
        "[incoming_full.to(torch.int64)] = 0", "[incoming_full.to(torch.int64)] += 0",
    )
    yield on(
        paged, "tree", "buried and not marked", f"{_SWA_TREE}._tombstone_internal_node",
        "node.swa_tombstone = True", "node.swa_tombstone = False",
    )
    yield on(
        paged, "tree", "half of a leaf kept", f"{_SWA_TREE}._iteratively_delete_tombstone_leaf",
        ".free(node.parent.value)", ".free_swa(node.parent.value)",
    )
    yield on(
        paged, "tree", "evictable tokens miscounted", f"{_SWA_TREE}._add_new_node",
        "self.full_evictable_size_ += len(value)", "pass",
    )
    yield on(
        paged, "tree", "insert forgets the cursor", f"{_SWA_TREE}.cache_finished_req",
        "swa_evicted_seqlen=req.swa_evicted_seqlen", "swa_evicted_seqlen=0",
    )
    yield on(
        paged, "tree", "publishing forgets what is protected", f"{_SWA_TREE}.cache_unfinished_req",
        "req.cache_protected_len = len(new_indices)", "pass",
    )
    # The pools, the map and the cursor
    yield on(
        paged, "pools", "map not cleared", f"{_ALLOCATOR}.free_swa",
        "[mapping_indices] = 0", "[mapping_indices] += 0",
    )
    yield on(
        paged, "pools", "map cleared by tokens", f"{_ALLOCATOR}.free_swa",
        "self._expand_to_full_pages(free_index)", "free_index",
    )
    yield on(
        paged, "pools", "window half kept", f"{_ALLOCATOR}.free", "self.free_swa(free_index)", "pass"
    )
    yield on(
        paged, "pools", "one pool is enough", f"{_ALLOCATOR}.new_pages_available",
        "and num_swa_pages", "and 0",
    )
    yield on(
        paged, "pools", "window released too early", _CURSOR,
        "max(sliding_window_size, page_size)", "0",
    )
    yield on(
        paged, "pools", "cursor within a page", _CURSOR,
        "(new_swa_evicted_seqlen // page_size) * page_size", "new_swa_evicted_seqlen",
    )
    yield on(
        paged, "pools", "cursor stays", _CURSOR,
        "req.swa_evicted_seqlen = new_swa_evicted_seqlen", "pass",
    )
    yield on(
        paged, "pools", "cursor into the tree", _CURSOR,
        "max(req.swa_evicted_seqlen, evict_floor)", "req.swa_evicted_seqlen",
    )
    # The newest release, over the core of its tree that is Python
    python = "0.5.23:paged-swa-python"
    yield on(
        python, "tree", "tombstone ignored", f"{_SWA_PART}.create_match_validator",
        'state["len"] = 0', "pass",
    )
    yield on(
        python, "tree", "window lock skipped", f"{_SWA_PART}.acquire_component_lock",
        "covered < sliding_window_size", "False",
    )
    yield on(
        python, "tree", "recovery takes a reader's page", f"{_SWA_PART}._recover_from_incoming",
        "full_cd.lock_ref > 0", "False",
    )
    yield on(
        python, "pools", "map not cleared", f"{_ALLOCATOR}.clear_full_to_swa_mapping",
        "index_fill_(0, full_indices, 0)", "index_fill_(0, full_indices[:0], 0)",
    )
    yield on(
        python, "pools", "margin not in pages", _CURSOR, "pre_len - ceil_align(", "pre_len - max("
    )
    # The translation
    resolver = "0.5.16:dsv4"
    decide = f"{_BACKEND}.get_swa_out_cache_loc"
    translate = f"{_DSV4_POOL}:DeepSeekV4TokenToKVPool.translate_loc_from_full_to_swa"
    yield on(
        resolver, "translation", "idle takes what was left", decide,
        "not forward_batch.forward_mode.is_idle()", "True",
    )
    yield on(
        resolver, "translation", "plan of another length taken", decide,
        "cached.shape[0] == out_cache_loc.shape[0]", "True",
    )
    yield on(
        resolver, "translation", "int64 handed on", decide, "torch.int32", "torch.int64"
    )
    yield on(
        resolver, "translation", "wrong translation", translate, "[kv_indices]", "[kv_indices - 1]"
    )
    yield on(
        resolver, "translation", "no translation", translate,
        "self.full_to_swa_index_mapping[kv_indices]", "kv_indices",
    )


ENGINE_MUTANTS: tuple[EngineMutant, ...] = tuple(_all())
