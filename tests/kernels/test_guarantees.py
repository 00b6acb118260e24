"""Each assumption of the proofs: arguments of which it holds, and one edit that breaks it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvproof.kernels.catalogue import FAMILIES
from kvproof.kernels.guarantees import breaches
from kvproof.proofs.kernels import ASSUMPTIONS


def _of(**arguments: Any) -> dict[str, Any]:
    return {
        name: np.array(value) if isinstance(value, list) else value
        for name, value in arguments.items()
    }


SCATTER = _of(
    state_slot_ptr=[1, 1, 2, 0, 0], positions_ptr=[4, 5, 9, 0, 0], final_pos_ptr=[5, 5, 9, 0, 0],
    n_rows=5, win=4, ring_stride=6,
)  # fmt: skip
DECODE = _of(
    batch_id_per_token_ptr=[0, 1, -1], state_slot_per_seq_ptr=[1, 2], positions_ptr=[0, 9, 0],
    swa_indptr_ptr=[0, 1, 5, 5], csa_indptr_ptr=[0, 1, 5, 5], hca_indptr_ptr=[0, 3, 7, 7],
    win=4, ring_stride=6, BLOCK_N=4,
)  # fmt: skip
PREFILL = _of(
    positions_ptr=[5], chunk_start_ptr=[4], cu_q_ptr=[0], state_slot_ptr=[1],
    page_idx_ptr=[7, 8, -1], pre_indptr_ptr=[0, 4], ext_indptr_ptr=[0, 2], win=4, ring_stride=4,
    Wc=3, HAS_COMPRESS=True,
)  # fmt: skip
EXTEND = _of(
    pre_lens_ptr=[0, 5], seq_lens_ptr=[3, 9], last_loc_ptr=[-1, 20], free_page_ptr=[3, 9],
    bs_upper=2, page_size=4,
)  # fmt: skip
ROWS = _of(
    req_pool_indices=[3, 1], pre_lens=[0, 4], seq_lens=[2, 8], extend_lens=[2, 4],
    req_to_token_ptr_stride=8,
)  # fmt: skip
CLEAR = _of(
    full_page_representatives=[0, 9], mapping=[0] * 12, index_stride=1, page_size=4, num_pages=2
)
STORE = _of(
    indices_ptr=[0, 511], N=2, cache_u8_ptr=[0] * 20, BYTES_PER_PAGE=10, PAGE_SIZE=256,
)  # fmt: skip
PENDING = _of(
    seq_lens_ptr=[0, 2], req_pool_ptr=[1, 0], req_to_token_ptr=[1, 2, 3, 4, 0, 0, 0, 0], bs=2,
    num_padding=0, extend_len=1, req_to_token_row_stride=4, MODE=1,
)  # fmt: skip
REJECTED = _of(req_pool_indices=[1, 2], seq_lens=[0, 9])
RUNS = _of(
    Req=[3, 3, 1], Pos=[7, 8, 0], Group=[0, 0, 1], First=[0, 0, 2], Last=[1, 1, 2], N=3, WINDOW=4,
    W=4,
)  # fmt: skip
ATTENTION = _of(kv_indptr_ptr=[0, 2, 2], kv_indices_ptr=[5, 0])

CASES = [
    ("H1", "_swa_scatter_kernel", SCATTER, {"state_slot_ptr": [1, 1, -1, 0, 0]}),
    ("H2", "_swa_scatter_kernel", SCATTER, {"positions_ptr": [4, 5, -1, 0, 0]}),
    ("H3", "_swa_scatter_kernel", SCATTER, {"ring_stride": 3}),
    ("H6", "_swa_scatter_kernel", SCATTER, {"positions_ptr": [5, 5, 9, 0, 0]}),
    ("H6", "_swa_scatter_kernel", SCATTER, {"final_pos_ptr": [5, 5, 8, 0, 0]}),
    ("H4", "_v4_paged_decode_indices_kernel", DECODE, {"BLOCK_N": 2}),
    ("H5", "_v4_paged_decode_indices_kernel", DECODE, {"swa_indptr_ptr": [0, 1, 4, 4]}),
    ("H8", "_v4_paged_decode_indices_kernel", DECODE, {"batch_id_per_token_ptr": [1, 0, -1]}),
    ("H2", "_build_prefill_indices_kernel", PREFILL, {"chunk_start_ptr": [6]}),
    ("H5", "_build_prefill_indices_kernel", PREFILL, {"ext_indptr_ptr": [0, 3]}),
    ("H7", "_build_prefill_indices_kernel", PREFILL, {"page_idx_ptr": [7, -1, 8]}),
    ("H9", "alloc_extend_kernel", EXTEND, {"bs_upper": 1}),
    ("H11", "alloc_extend_kernel", EXTEND, {"seq_lens_ptr": [3, 4]}),
    ("H12", "alloc_extend_kernel", EXTEND, {"last_loc_ptr": [-1, 21]}),
    ("H13", "alloc_extend_kernel", EXTEND, {"free_page_ptr": [3]}),
    ("H13", "alloc_extend_kernel", EXTEND, {"free_page_ptr": [3, 3]}),
    ("H14", "write_req_to_token_pool_triton", ROWS, {"req_pool_indices": [3, 3]}),
    ("H14", "write_req_to_token_pool_triton", ROWS, {"req_to_token_ptr_stride": 7}),
    ("H15", "get_and_clear_swa_pages_kernel", CLEAR, {"full_page_representatives": [0, 3]}),
    ("H15", "get_and_clear_swa_pages_kernel", CLEAR, {"full_page_representatives": [0, 12]}),
    ("H16", "_triton_fused_store_flashmla_kernel", STORE, {"indices_ptr": [5, 5]}),
    ("H16", "_triton_fused_store_flashmla_kernel", STORE, {"indices_ptr": [0, 512]}),
    ("H1", "_qsa_graph_row_metadata_kernel", PENDING, {"req_pool_ptr": [1, -1]}),
    ("H2", "_qsa_graph_row_metadata_kernel", PENDING, {"seq_lens_ptr": [-1, 2]}),
    ("H14", "_qsa_graph_row_metadata_kernel", PENDING, {"seq_lens_ptr": [0, 4]}),
    ("H16", "_qsa_graph_row_metadata_kernel", PENDING, {"req_to_token_ptr": [1, -1] + [0] * 6}),
    ("H1", "_clear_unaccepted_c128_draft_states_kernel", REJECTED, {"req_pool_indices": [1, -1]}),
    ("H2", "_clear_unaccepted_c128_draft_states_kernel", REJECTED, {"seq_lens": [0, -1]}),
    ("H1", "_window_layout_queries", RUNS, {"Req": [-3, -3, 1]}),
    ("H2", "_window_layout_queries", RUNS, {"Pos": [7, 8, -1]}),
    ("H4", "_window_layout_queries", RUNS, {"WINDOW": 5}),
    ("H18", "_window_layout_queries", RUNS, {"Pos": [7, 9, 0]}),
    ("H18", "_window_layout_queries", RUNS, {"Last": [1, 2, 2]}),
    ("H18", "_window_layout_queries", RUNS, {"Group": [0, 1, 1]}),
    ("H17", "_paged_decode_fused_kernel", ATTENTION, {"kv_indices_ptr": [5, -1]}),
]


@pytest.mark.parametrize(("assumption", "kernel", "good", "edit"), CASES)
def test_an_edit_breaks_the_assumption_and_only_it(
    assumption: str, kernel: str, good: dict[str, Any], edit: dict[str, Any]
) -> None:
    programs = {"_swa_scatter_kernel": 5, "_v4_paged_decode_indices_kernel": 3}.get(kernel, 2)
    programs = 1 if kernel == "_build_prefill_indices_kernel" else programs
    assert breaches(kernel, good, programs) == []
    found = breaches(kernel, good | _of(**edit), programs)
    # A position before its chunk also changes how long its segments are due to be.
    assert assumption in {one.assumption for one in found}
    assert {one.assumption for one in found} <= {assumption, "H5"}
    assert all(one.kernel == kernel and one.message for one in found)


def test_every_assumption_about_arguments_is_checked() -> None:
    # H10 is about the compiler, not about a launch's arguments.
    assert {case[0] for case in CASES} == ASSUMPTIONS.keys() - {"H10"}


def test_every_catalogued_kernel_that_reads_what_the_host_gives_is_checked() -> None:
    kernels = {
        place.partition(":")[2]
        for family in FAMILIES
        for kernel in family.kernels.values()
        for place in kernel.jit
    }
    # What these two assume holds of any arguments, or is of another kernel's making.
    free = {"_scatter_loc_kernel", "_paged_decode_reduce_kernel"}
    for kernel in kernels - free:
        with pytest.raises(KeyError):
            breaches(kernel, {}, 1)
