"""Mutants of the engine's kernels: edits of their source, in memory, that a theorem must notice.

The text is a key to a place in the release's own source, which stays where it is installed.
"""

from __future__ import annotations

from kvproof.kernels.capture import Edit

_SCATTER = "_swa_scatter_kernel"
_DECODE = "_v4_paged_decode_indices_kernel"
_LENGTHS = "_prefill_lengths_kernel"
_PREFILL = "_build_prefill_indices_kernel"
_TAIL = "_fill_compress_tail_kernel"
_VERIFY = "_grouped_stream_kernel"
_LOCATION = "_scatter_loc_kernel"
_EXTEND = "alloc_extend_kernel"
_DECODE_PAGE = "alloc_decode_kernel"
_LAST = "get_last_loc_kernel"
_LAST_HIP = "_get_last_loc_safe_kernel"
_WRITE = "write_req_to_token_pool_triton"
_LISTS = "create_flashinfer_kv_indices_triton"
_BACK = "assign_extend_cache_locs"
_IDS = "_build_swa_token_ids_kernel"
_CLEAR = "get_and_clear_swa_pages_kernel"
_PENDING = "_qsa_graph_row_metadata_kernel"
_REJECTED = "_clear_unaccepted_c128_draft_states_kernel"
_WINDOW = "_window_layout_queries"
_HISTORY = "_window_layout_history"
_STORE = "_triton_fused_store_flashmla_kernel"
_INDEXER = "_triton_fused_store_indexer_kernel"
_FUSED = "_paged_decode_fused_kernel"
_SPLIT = "_paged_decode_split_kernel"
_REDUCE = "_paged_decode_reduce_kernel"
_ATTEND = "_sparse_attn_v4_paged_prefill_kernel"

MUTANTS: tuple[Edit, ...] = tuple(
    Edit(kernel=kernel, text=text, by=by)
    for kernel, text, by in (
        # one key too many, one too few, rows of the wrong slot, the wrong cell
        (_SCATTER, "pos <= fp - win", "pos < fp - win"),
        (_SCATTER, "pos <= fp - win", "pos <= fp - win + 1"),
        (_SCATTER, "s * ring_stride", "s * win"),
        (_SCATTER, "(pos % ring_stride)", "(pos % win)"),
        (_SCATTER, "(pos % ring_stride)", "((pos + 1) % ring_stride)"),
        (_SCATTER, "row >= n_rows", "row > n_rows"),
        (_SCATTER, "mask = offs < D", "mask = offs < D - 1"),
        (_SCATTER, "kv_ptr + row * D", "kv_ptr + pos * D"),
        (_SCATTER, "s = tl.load(state_slot_ptr + row)", "s = tl.load(state_slot_ptr + row) + 1"),
        # int32 where the release has int64
        (_SCATTER, "unified_ptr + loc * D", "unified_ptr + loc.to(tl.int32) * D"),
        (_LOCATION, ".to(tl.int64)", ""),
        (_LOCATION, "loc < 0", "loc <= 0"),
        (_DECODE, "tl.minimum(pos + 1, win)", "tl.minimum(pos, win)"),
        (_DECODE, "abs_pos = pos - n + 1 + i  #", "abs_pos = pos - n + i  #"),
        (_DECODE, "ring_idx = abs_pos % ring_stride", "ring_idx = abs_pos % win"),
        (_DECODE, "paged = slot * ring_stride + ring_idx", "paged = slot * win + ring_idx"),
        (_DECODE, "mask = i < n", "mask = i <= n"),
        (_DECODE, "csa_indices_ptr + csa_base + i, paged", "csa_indices_ptr + swa_base + i, paged"),
        (_DECODE, "hca_indices_ptr + hca_base + i", "hca_indices_ptr + hca_base + i + 1"),
        (_DECODE, "if bid < 0:", "if bid <= 0:"),
        (_LENGTHS, "tl.maximum(pos - win + 1, 0)", "tl.maximum(pos - win, 0)"),
        (_LENGTHS, "tl.minimum(tpic + 1, win)", "tl.minimum(tpic, win)"),
        (_LENGTHS, "(pi >= 0)", "(pi > 0)"),
        (_PREFILL, "tl.maximum(pos - win + 1, 0)", "tl.maximum(pos - win, 0)"),
        (_PREFILL, "cuq + tpic - extend_count + 1", "cuq + tpic - extend_count"),
        (_PREFILL, "gp = swa_low + k", "gp = swa_low + k + 1"),
        (_PREFILL, "(gp % ring_stride)", "(gp % win)"),
        (_PREFILL, "m = k < extend_count", "m = k <= extend_count"),
        (_PREFILL, "m = k < prefix_swa_count", "m = k <= prefix_swa_count"),
        (_PREFILL, "pi + swa_pages", "pi"),
        (_PREFILL, "cbase = pbase + prefix_swa_count", "cbase = pbase"),
        (_TAIL, "tl.where(pi >= 0,", "tl.where(pi > 0,"),
        (_TAIL, "m = j < nc", "m = j <= nc"),
        (_TAIL, "indices_ptr + cbase + j", "indices_ptr + cbase + j + 1"),
        (_VERIFY, "abs_pos = pos - n + 1 + i", "abs_pos = pos - n + i"),
        (_VERIFY, "abs_pos % ring_stride", "abs_pos % swa_pages"),
        (_VERIFY, "out_ptr + base + n_tail + i", "out_ptr + base + i"),
        (_VERIFY, "m = j < n_tail", "m = j <= n_tail"),
        # locations: a neighbour's segment, a neighbour's page, one too many
        (_EXTEND, "last_loc + 1 + offset_one_page", "last_loc + offset_one_page"),
        (
            _EXTEND,
            "output_start_loc = sum_extend_lens - extend_len",
            "output_start_loc = sum_extend_lens",
        ),
        (_EXTEND, "sum_num_new_pages - num_page_start_loc_self", "sum_num_new_pages"),
        (_EXTEND, "page_start * page_size + offset % page_size", "page_start * page_size + offset"),
        (_EXTEND, "mask=offset_one_page < num_part1", "mask=offset_one_page <= num_part1"),
        (_EXTEND, "mask=offset_one_page < num_part3", "mask=offset_one_page <= num_part3"),
        (
            _EXTEND,
            "new_page_start_loc + num_page_start_loc_self - 1",
            "new_page_start_loc + num_page_start_loc_self",
        ),
        (_EXTEND, "mask = offset < num_part2", "mask = offset <= num_part2"),
        (
            _EXTEND,
            "tl.load(seq_lens_ptr + load_offset, mask=load_offset <= pid)",
            "tl.load(seq_lens_ptr + load_offset, mask=load_offset < pid)",
        ),
        (_DECODE_PAGE, "out_indices + pid, last_loc + 1", "out_indices + pid, last_loc"),
        (_DECODE_PAGE, "out_indices + pid, page * page_size", "out_indices + pid, page"),
        (_DECODE_PAGE, "tl.where(load_offset <= pid,", "tl.where(load_offset < pid,"),
        (_DECODE_PAGE, "free_page_ptr + new_page_start_loc", "free_page_ptr + sum_num_new_pages"),
        # the request table: the wrong token, the wrong row, no token
        (_LAST, "+ (prefix_lens - 1)", "+ prefix_lens"),
        (_LAST, "token_mask = prefix_lens > 0", "token_mask = prefix_lens >= 0"),
        (_LAST_HIP, "mask & (prefix_lens > 0)", "mask & (prefix_lens >= 0)"),
        (_LAST_HIP, "mask = offset < num_tokens", "mask = offset <= num_tokens"),
        (_WRITE, "mask = offset < pre_len", "mask = offset <= pre_len"),
        (_WRITE, "tl.load(extend_lens + i)", "tl.load(extend_lens + i + 1)"),
        (_WRITE, "mask = offset < (seq_len - pre_len)", "mask = offset < seq_len"),
        (_WRITE, "for i in range(pid)", "for i in range(pid + 1)"),
        (_LISTS, "mask = offset < kv_end - kv_start", "mask = offset < kv_end"),
        (
            _LISTS,
            "kv_indices_ptr + kv_indices_offset + offset",
            "kv_indices_ptr + kv_indices_offset + offset + 1",
        ),
        (
            _BACK,
            "tl.load(start_offset + length_offset, mask=length_offset < pid, other=0)",
            "tl.load(start_offset + length_offset, mask=length_offset <= pid, other=0)",
        ),
        (_BACK, "mask = load_offset < kv_end", "mask = load_offset <= kv_end"),
        (_BACK, "save_offset += BLOCK_SIZE", "save_offset += BLOCK_SIZE - 1"),
        (_BACK, "token_pool + load_offset", "token_pool + load_offset + 1"),
        (_CLEAR, "rep_mask = rep_offsets < num_pages", "rep_mask = rep_offsets <= num_pages"),
        (_CLEAR, "full_reps // page_size * page_size", "full_reps"),
        (_CLEAR, "swa_reps // page_size, mask=rep_mask", "swa_reps, mask=rep_mask"),
        (_CLEAR, "swa_reps > 0, mask=rep_mask", "swa_reps >= 0, mask=rep_mask"),
        (_CLEAR, "(page_mapping > 0) &", "(page_mapping > 1) &"),
        # a row of the ring of pending keys, of its group, of another request
        (_PENDING, "(current % RATIO)", "((current + 1) % RATIO)"),
        (_PENDING, "current - (RATIO - 1 - k)", "current - (RATIO - k)"),
        (_PENDING, "row // extend_len", "row % extend_len"),
        (_PENDING, "seq_len % RATIO == 0", "seq_len % RATIO == 1"),
        (_PENDING, "last_loc // RATIO, 0", "last_loc, 0"),
        (
            _PENDING,
            "real, base + row % extend_len + 1, 1",
            "real, base + row % extend_len + 1, RATIO",
        ),
        (_PENDING, "tl.maximum(loc // FULL_PAGE, 0)", "tl.maximum(loc // RATIO, 0)"),
        # a token that was accepted, a row of another position or request, half a state
        (_REJECTED, "draft_offset < accept_len", "draft_offset <= accept_len"),
        (_REJECTED, "seq_len + draft_offset", "seq_len + draft_offset - accept_len"),
        (_REJECTED, "req_pool_idx * ring_size", "bid * ring_size"),
        (_REJECTED, "row * (half * 2)", "row * half"),
        (_REJECTED, "row_base + half + offsets", "row_base + offsets"),
        # a key too many, another group's history, a row of the forward that is not the key's
        (_WINDOW, "seen >= 0", "seen >= 1"),
        (_WINDOW, "seen >= floor[:, None]", "seen > floor[:, None]"),
        (_WINDOW, "(first_pos[:, None] - WINDOW)", "(first_pos[:, None] - WINDOW + 1)"),
        (_WINDOW, "HISTORY + first[:, None] + seen", "HISTORY + row[:, None] + seen"),
        (_WINDOW, "seen < first_pos[:, None]", "seen <= first_pos[:, None]"),
        (_WINDOW, "(last - row) < CAPACITY", "(last - row) <= CAPACITY"),
        (_HISTORY, "pos % CAPACITY", "pos % WINDOW"),
        (_HISTORY, "req * CAPACITY", "req * WINDOW"),
        (_HISTORY, "first_pos - WINDOW + row % WINDOW", "first_pos - WINDOW + row % CAPACITY"),
        (_HISTORY, "pos >= floor", "pos > floor"),
        (_IDS, "pos = first_pos + i", "pos = first_pos + i + 1"),
        (_IDS, "out_ptr + out_off + i", "out_ptr + out_off + worker_id"),
        (
            _IDS,
            "range(worker_id, gather_len, num_workers)",
            "range(worker_id, gather_len, num_workers + 1)",
        ),
        (_IDS, "tl.load(full_to_swa_ptr + full_id)", "tl.load(full_to_swa_ptr + pos)"),
        # paged stores: other bytes of the page, and int32 again
        (_STORE, "token_id >= N", "token_id > N"),
        (_STORE, "slot * SLOT_BYTES", "slot * (SLOT_BYTES - 1)"),
        (_STORE, "+ BF16_ROPE_OFFSET", "+ 0"),
        (_STORE, "slot * SCALES_PER_TOKEN", "slot * ROPE_TILE_ID"),
        (_STORE, ".to(tl.int64)", ".to(tl.int32)"),
        (_INDEXER, ".to(tl.int64)", ".to(tl.int32)"),
        (
            _INDEXER,
            "page * BYTES_PER_PAGE + slot * HEAD_DIM + lane",
            "page * BYTES_PER_PAGE + slot + lane",
        ),
        (_INDEXER, "SCALE_PAGE_OFFSET_F32 + slot", "SCALE_PAGE_OFFSET_F32"),
        # attention: another query's segment, a row beside it, a head too many
        (_FUSED, "h_mask = h_offs < H", "h_mask = h_offs <= H"),
        (_FUSED, "kv_indices_ptr + kv_start + k_pos", "kv_indices_ptr + k_pos"),
        (_FUSED, "valid = k_pos < kv_len", "valid = k_pos <= kv_len"),
        (_FUSED, "slot[:, None] * kv_stride_n", "(slot[:, None] + 1) * kv_stride_n"),
        (_FUSED, "t * out_stride_t", "t * out_stride_h"),
        (_SPLIT, "tile_start = pid_k * tiles_per_segment", "tile_start = -1"),
        (_SPLIT, "pid_k * ap_stride_k", "pid_k * ap_stride_h"),
        (_SPLIT, "pid_k * lp_stride_k", "pid_k"),
        (_REDUCE, "segm_mask = k_offs < act", "segm_mask = k_offs <= act"),
        (_REDUCE, "h * mp_stride_h", "h * mp_stride_k"),
        (_REDUCE, "out_off = t * out_stride_t", "out_off = h * out_stride_t"),
        (_ATTEND, "kv_indices_prefix_ptr + p_start + k_pos", "kv_indices_prefix_ptr + k_pos"),
        (
            _ATTEND,
            "slot_clamped[:, None] * pkv_stride_n",
            "(slot_clamped[:, None] + 1) * pkv_stride_n",
        ),
        (_ATTEND, "kv_indptr_extend_ptr + t + 1", "kv_indptr_extend_ptr + t + 2"),
        (_ATTEND, "t * out_stride_t", "(t + 1) * out_stride_t"),
    )
)
