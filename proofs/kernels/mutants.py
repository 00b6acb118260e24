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
    )
)
