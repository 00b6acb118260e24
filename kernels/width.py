"""WIDTH: how large a pool, a launch or a position may be before a kernel's arithmetic wraps around.

Each computation that an address, a mask or a stored value depends on must stay in the type that
Triton gave it. For each kernel and each size this finds the smallest value that breaks one, with
Z3's optimiser over the exact integers, and shows with bit-vectors that it is a real overflow: the
same code with numbers of the true widths gives another address or value there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import z3

from kvproof.kernels.launch_sizes import (
    COMPRESSED,
    PAGE,
    PAGE_BYTES,
    RATIO,
    SMALL_RECIPES,
    SPLITS,
    STORE_PAGE,
    V4_DIM,
    V4_HEADS,
    WINDOW,
    WORKERS,
)
from kvproof.kernels.symbolic import Access, Integers, Loop, Run, Term, must_fit

STRIDE = WINDOW + 3
"""Rows per slot with four draft tokens."""

GPU_BYTES = 288_000_000_000
"""The largest GPU that ROCm drives today."""

_ROW_BYTES = 1024
_TOKEN_BYTES = PAGE_BYTES // STORE_PAGE

REFERENCE: Mapping[str, int] = {
    # As if one layer had all of the GPU, in rows of 1 KiB, or tokens of 585 bytes.
    "rows": GPU_BYTES // _ROW_BYTES,
    "locations": GPU_BYTES // _TOKEN_BYTES,
    "tokens": 65_536,
    "positions": 1 << 20,
    # Tokens of a launch times their widest segment: the window, and a million positions by 128.
    "entries": 65_536 * (WINDOW + 8192),
    "requests": 65_536,
}
"""Sizes that no configuration passes: rows of a unified pool, locations of a paged one, tokens of a
launch, positions of a request, entries of one index stream, rows of the request table."""

ORDINARY: Mapping[str, int] = {
    "rows": 1 << 16,
    "locations": 1 << 16,
    "tokens": 512,
    "positions": 1 << 16,
    "entries": 1 << 20,
    "requests": 512,
}
"""Sizes that break nothing, at which the others are held while one of them grows."""

CONFIGURATIONS: Mapping[str, tuple[str, int]] = {
    "rows": ("--max-running-requests and --mem-fraction-static", _ROW_BYTES),
    "locations": ("--max-total-tokens", _TOKEN_BYTES),
    "tokens": ("--chunked-prefill-size", _ROW_BYTES),
    "positions": ("--context-length", 4),
    "entries": ("--chunked-prefill-size and --context-length", 4),
    "requests": ("--max-running-requests", 4),
}
"""What sets a size, and the bytes of a layer that one of it takes at least."""

Sizes: TypeAlias = Mapping[str, Term | int]

_Limit: TypeAlias = Callable[[Term, Sizes], Sequence[Term]]


def _below(size: str, least: int = 0) -> _Limit:
    return lambda value, sizes: (value >= least, value < sizes[size])


def _up_to(size: str) -> _Limit:
    return lambda value, sizes: (value >= 0, value <= sizes[size])


def _at_most(most: int) -> _Limit:
    return lambda value, _sizes: (value >= 0, value <= most)


def _exactly(number: int) -> _Limit:
    return lambda value, _sizes: (value == number,)


def _anything(_value: Term, _sizes: Sizes) -> Sequence[Term]:
    return ()


_BUFFERS: Mapping[str, _Limit] = {
    # slots: all of the slot's rows are in the pool
    **dict.fromkeys(
        ("state_slot_ptr", "state_slot_per_seq_ptr", "slot_ptr"),
        lambda value, sizes: (value >= 0, (value + 1) * STRIDE <= sizes["rows"]),
    ),
    **dict.fromkeys(
        ("positions_ptr", "pos_ptr", "final_pos_ptr", "chunk_start_ptr"), _below("positions")
    ),
    **dict.fromkeys(("batch_id_per_token_ptr", "cu_q_ptr"), _below("tokens", -1)),
    "loc_ptr": _below("rows", -1),
    **dict.fromkeys(
        (
            "indptr_ptr", "swa_indptr_ptr", "csa_indptr_ptr", "hca_indptr_ptr", "pre_indptr_ptr",
            "ext_indptr_ptr", "kv_indptr_ptr", "kv_indptr_prefix_ptr", "kv_indptr_extend_ptr",
            "kv_indptr", "swa_offsets_ptr",
        ),
        _up_to("entries"),
    ),
    "prefix_len_ptr": _at_most(WINDOW),
    "valid_len_ptr": _at_most(COMPRESSED),
    "tail_len_ptr": _at_most(COMPRESSED),
    # the request table and what is around it
    **dict.fromkeys(
        (
            "pre_lens_ptr", "seq_lens_ptr", "pre_lens", "seq_lens", "prefix_lens_tensor",
            "page_kernel_lens_ptr", "kv_start_idx", "start_offset", "end_offset",
            "swa_first_pos_ptr", "swa_gather_lens_ptr", "Pos", "Floor",
        ),
        _up_to("positions"),
    ),
    **dict.fromkeys(("extend_lens", "accept_lens"), _up_to("tokens")),
    **dict.fromkeys(
        (
            "req_pool_indices", "req_pool_indices_ptr", "req_pool_indices_tensor", "req_pool_ptr",
            "Req",
        ),
        _below("requests"),
    ),
    **dict.fromkeys(
        (
            "req_to_token", "req_to_token_ptr", "out_cache_loc", "*prefix_tensors", "indices_ptr",
            "full_page_representatives", "mapping", "full_to_swa_ptr",
        ),
        _below("locations"),
    ),
    "last_loc_ptr": _below("locations", -1),
    "free_page_ptr": lambda value, sizes: (value >= 0, (value + 1) * PAGE <= sizes["locations"]),
    "prefix_tensors": _anything,  # addresses, with which the kernel does not compute
    # the request window: a run of tokens, by the rows of the launch
    **dict.fromkeys(("Group", "First", "Last"), _below("tokens")),
    "Starts": _below("tokens", -1),
    # attention
    "kv_indices_ptr": _below("rows"),
    "kv_indices_prefix_ptr": _below("rows", -1),
    "kv_indices_extend_ptr": _below("tokens", -1),
}  # fmt: skip
"""What buffers hold. A name that is not here has no limit, and its kernel no proof."""

_PAGES: Mapping[str, str] = {"page_idx_ptr": "swa_pages", "tail_page_ptr": "swa_pages"}
"""Page tables: a page's row is behind the ring, and a row of the pool."""

_ARGUMENTS: Mapping[str, _Limit] = {
    "ring_stride": _exactly(STRIDE),
    "n_rows": _up_to("tokens"),
    "N": _up_to("tokens"),
    "num_tokens": _up_to("tokens"),
    "num_pages": lambda value, sizes: (value >= 0, value * PAGE <= sizes["locations"]),
    "swa_pages": _up_to("rows"),
    "req_to_token_stride": _up_to("positions"),
    "req_to_token_ptr_stride": _up_to("positions"),
    "req_to_token_row_stride": _up_to("positions"),
    # the plan of a verify's pending keys
    "bs": _up_to("requests"),
    "num_padding": _up_to("requests"),
    "extend_len": lambda value, _sizes: (value >= 1, value <= RATIO),
    "seq_offset": _exactly(0),
    "max_pages": lambda value, sizes: (value >= 0, value * PAGE <= sizes["positions"]),
    # the request window: W rows of history a request, and the forward's
    "PAD": _up_to("tokens"),
    "GROUPS": _up_to("requests"),
    **dict.fromkeys(
        ("HISTORY", "ROWS"), lambda value, sizes: (value >= 0, value <= sizes["requests"] * WINDOW)
    ),
    "ZERO": _up_to("rows"),
    # attention
    **{
        name: _exactly(stride)
        for name, stride in {
            "q_stride_t": V4_HEADS * V4_DIM, "q_stride_h": V4_DIM,
            "out_stride_t": V4_HEADS * V4_DIM, "out_stride_h": V4_DIM, "kv_stride_n": V4_DIM,
            "mp_stride_t": SPLITS * V4_HEADS, "mp_stride_k": V4_HEADS,
            "lp_stride_t": SPLITS * V4_HEADS, "lp_stride_k": V4_HEADS,
            "ap_stride_t": SPLITS * V4_HEADS * V4_DIM, "ap_stride_k": V4_HEADS * V4_DIM,
            "ap_stride_h": V4_DIM,
        }.items()
    },
}  # fmt: skip

_PAGE_BLOCKS = 512
"""Blocks of 128 pages of a request of `REFERENCE` length."""

_MOST_DRAFTS = 64
"""Tokens of a verify. The ring of the finer compressor takes 10 (0.5.23, pool_configurator.py)."""

_GRIDS: Mapping[str, tuple[int, int]] = {
    "_paged_decode_fused_kernel": (2, 1),
    "_paged_decode_split_kernel": (2, SPLITS),
    "_paged_decode_reduce_kernel": (V4_HEADS, SPLITS),
    "_sparse_attn_v4_paged_prefill_kernel": (8, 1),
    "_triton_fused_store_flashmla_kernel": (8, 1),
    "_build_swa_token_ids_kernel": (WORKERS, 1),
    "_qsa_graph_row_metadata_kernel": (_PAGE_BLOCKS, 1),
    "_clear_unaccepted_c128_draft_states_kernel": (_MOST_DRAFTS, 2),
}
"""Programs in the second and third dimension; 1 where there is none."""

_SUMS: Mapping[str, str] = dict.fromkeys(
    ("alloc_extend_kernel", "alloc_decode_kernel", "assign_extend_cache_locs"), "tokens"
)
"""Sums of lengths, and what they are at most. Other sums count lanes."""


def of_true_size(name: str) -> bool:
    """Whether a kernel, as ``kernel [recipe]``, is launched with sizes of the real model."""
    return name.partition("[")[2].rstrip("]") not in SMALL_RECIPES


class Breaking(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size that breaks a kernel, or one of its accesses.

    Attributes:
        access: e.g. ``store cache_fp8_ptr, line 96``; empty for the kernel as a whole.
        size: which size of `REFERENCE`.
        smallest: that many break it, the other sizes being ordinary; None if no number below
            2**40 does.
        line: line of the computation.
        exact: what it should give.
        bits: its type's width.
        wraps: where the same launch in bit-vectors stores or loads something else; empty if
            nothing that is stored or loaded differs.
        launch: the numbers of that launch: program, lane, and what it was given and loads.
        configuration: what sets the size, if a GPU has room for it; empty if it has not.
    """

    kernel: str
    size: str
    smallest: int | None
    access: str = ""
    line: int = 0
    exact: int = 0
    bits: int = 0
    wraps: str = ""
    launch: dict[str, int] = {}
    configuration: str = ""


_ELSEWHERE: dict[tuple[str, str], str] = {
    ("_paged_decode_fused_kernel", "tokens"): "a decode batch with 128 heads",
    ("_paged_decode_split_kernel", "tokens"): "a decode batch with 128 heads and "
    "SGLANG_MLA_HCA_KV_SPLITS=16 where the release has it; its own rule splits small batches only",
    ("_sparse_attn_v4_paged_prefill_kernel", "tokens"): "--chunked-prefill-size with 128 heads "
    "(attention without tensor parallelism)",
}
_ELSEWHERE |= {
    ("_paged_decode_reduce_kernel", "tokens"): _ELSEWHERE["_paged_decode_split_kernel", "tokens"]
}
"""What else sets a size of a kernel."""


def configuration(kernel: str, size: str, smallest: int) -> str:
    """How an engine comes to a size, and what it takes; empty if no GPU has room for it."""
    option, each = CONFIGURATIONS[size]
    option = _ELSEWHERE.get((kernel, size), option)
    if smallest * each > GPU_BYTES:
        return ""
    return f"{option}: {smallest:,} {size}, {smallest * each / 1e9:.1f} GB"


def limits(run: Run, sizes: Sizes) -> tuple[Term, ...]:
    """What sizes mean for everything that a program is given and loads."""
    y, z = _GRIDS.get(run.kernel, (1, 1))
    facts = [
        *run.facts,
        run.grid[1] == y,
        run.grid[2] == z,
        run.program < sizes["tokens"],
        run.programs[1] < y,
        run.programs[2] < z,
    ]
    for name, value in run.arguments.items():
        facts += _ARGUMENTS.get(name, _anything)(value, sizes)
    for load in run.loads:
        if load.base in _PAGES:
            behind = load.value + run.arguments.get(_PAGES[load.base], 0)
            facts += [load.value >= -1, behind < sizes["rows"]]
        else:
            facts += _BUFFERS.get(load.base, _anything)(load.value, sizes)
    facts += [each for loop in run.loops for each in _carried(run, loop, sizes)]
    for each in run.reductions:
        most = sizes[_SUMS[run.kernel]] if run.kernel in _SUMS else each.lanes
        facts += [each.result >= 0, each.result <= most]
    # H10, without which masked lanes may hold anything.
    for unknown in run.undefined:
        places = (run.lane, z3.IntVal(0)) if isinstance(unknown, z3.FuncDeclRef) else ()
        facts.append((unknown(*places) if places else unknown) == 0)
    sizes_of: Sequence[Access | Loop] = (*run.loads, *run.stores, *run.loops)
    lanes = [*(each.lanes for each in sizes_of), *(each.lanes for each in run.reductions)]
    columns = [*(each.columns for each in sizes_of), *(each.lanes for each in run.reductions)]
    facts += [run.lane >= 0, run.lane < max(lanes), run.column >= 0, run.column < max(columns)]
    return tuple(facts)


def _carried(run: Run, loop: Loop, sizes: Sizes) -> list[Term]:
    """What loops carry, as the theorems about them have it."""
    if run.kernel == "write_req_to_token_pool_triton":  # K14: a sum of lengths
        return [z3.And(each >= 0, each <= sizes["tokens"]) for each in (*loop.head, *loop.result)]
    if run.kernel == "assign_extend_cache_locs":  # K16: places in the row and in the segment
        places = zip(loop.head, (sizes["positions"], sizes["tokens"]), strict=True)
        return [z3.And(each >= 0, each < most + loop.lanes) for each, most in places]
    if run.kernel == "_prefill_lengths_kernel":  # K4: no more pages than the table is wide
        return [z3.And(each >= 0, each <= loop.high) for each in (*loop.head, *loop.result)]
    return []


def breaking(name: str, run: Run, bits: Run, *, timeout_s: float = 20.0) -> list[Breaking]:
    """For each size the smallest that breaks a kernel, and below the reference each access."""
    found = []
    for size in REFERENCE:
        whole = smallest_breaking(name, run, bits, size, timeout_s=timeout_s)
        found.append(whole)
        if whole.smallest is not None and whole.smallest <= REFERENCE[size]:
            found += [
                smallest_breaking(name, run, bits, size, access=access, timeout_s=timeout_s)
                for access in (*run.loads, *run.stores)
            ]
    return found


def smallest_breaking(
    name: str, run: Run, bits: Run, size: str, *, access: Access | None = None,
    timeout_s: float = 20.0,
) -> Breaking:  # fmt: skip
    """The smallest value of one size that breaks a kernel, or one of its accesses.

    Args:
        name: of the kernel and the launch it was met in.
        run: the kernel with the constants it is launched with, in integers.
        bits: the same in bit-vectors.
        size: which one; the others are ordinary.
        access: the load or store; all of them if None.
        timeout_s: for the optimiser; no answer is an error, not a verdict.

    Raises:
        TimeoutError: the optimiser gave no answer.
    """
    unknown = z3.Int(size)
    due = must_fit(run, (*run.loads, *run.stores) if access is None else (access,))
    called = ""
    if access is not None:
        verb = "store" if any(access is each for each in run.stores) else "load"
        called = f"{verb} {access.base}, line {access.line}"
    broken = [
        z3.And(condition, z3.Not(Integers().in_range(step.term, step.bits)))
        for step, condition in due
    ]
    optimiser = z3.Optimize()
    optimiser.set("timeout", round(1000 * timeout_s))
    optimiser.add(*limits(run, {**ORDINARY, size: unknown}), z3.Or(*broken))
    optimiser.add(unknown >= 1, unknown < 1 << 40)
    optimiser.minimize(unknown)
    answer = optimiser.check()
    if answer == z3.unsat:
        return Breaking(kernel=name, size=size, access=called, smallest=None)
    if answer == z3.unknown:
        raise TimeoutError(f"no smallest {size} for {name}: {optimiser.reason_unknown()}")
    model = optimiser.model()
    step = next(
        step
        for (step, _), broke in zip(due, broken, strict=True)
        if z3.is_true(model.eval(broke, model_completion=True))
    )
    smallest = _number(model, unknown)
    return Breaking(
        kernel=name,
        size=size,
        access=called,
        smallest=smallest,
        line=step.line,
        exact=_number(model, step.term),
        bits=step.bits,
        wraps=_wraps(run, bits, model, access),
        launch=_launch(run, model),
        configuration=configuration(run.kernel, size, smallest),
    )


def _launch(run: Run, model: z3.ModelRef) -> dict[str, int]:
    """The numbers of a model: a concrete program of a concrete launch."""
    found = {str(term): _number(model, term) for term in (*run.programs, run.lane, run.column)}
    found |= {name: _number(model, value) for name, value in run.arguments.items()}
    for load in run.loads:
        if load.base in _BUFFERS and z3.is_true(model.eval(load.when, model_completion=True)):
            found[f"{load.base}[{_number(model, load.offset)}]"] = _number(model, load.value)
    return found


def _number(model: z3.ModelRef, term: Term) -> int:
    value: int = model.eval(term, model_completion=True).as_long()
    return value


def _wraps(run: Run, bits: Run, model: z3.ModelRef, access: Access | None) -> str:
    """Play a model on bit-vectors: the first access that comes out differently."""
    solver = z3.Solver()
    pairs = [*zip(run.programs, bits.programs, strict=True), (run.lane, bits.lane)]
    pairs += [(run.column, bits.column)]
    pairs += [(value, bits.arguments[name]) for name, value in run.arguments.items()]
    for loop, same in zip(run.loops, bits.loops, strict=True):
        pairs += [(loop.counter, same.counter)]
        pairs += [
            (a, b)
            for a, b in zip((*loop.head, *loop.result), (*same.head, *same.result), strict=True)
            if not z3.is_bool(a)
        ]
    pairs += [(a.result, b.result) for a, b in zip(run.reductions, bits.reductions, strict=True)]
    for number, vector in pairs:
        solver.add(vector == _number(model, number))
    for one, other in zip(run.loads, bits.loads, strict=True):
        # What a load gives is the same; where it is from is what may differ.
        if z3.is_true(model.eval(one.when, model_completion=True)):
            solver.add(other.value == _number(model, one.value))
    if solver.check() != z3.sat:
        return ""
    vectors = solver.model()
    for one, other in zip((*run.loads, *run.stores), (*bits.loads, *bits.stores), strict=True):
        there = z3.is_true(model.eval(one.when, model_completion=True))
        if access is not None and one is not access:
            continue
        if there != z3.is_true(vectors.eval(other.when, model_completion=True)):
            at = vectors.eval(other.offset, model_completion=True).as_signed_long()
            return f"line {one.line}: " + (
                "masked away, and should not be" if there else f"not masked away, address {at:,}"
            )
        if not there:
            continue
        compared = [("address", one.offset, other.offset)]
        if not one.opaque:
            compared.append(("value", one.value, other.value))
        for what, number, vector in compared:
            exact = _number(model, number)
            found = vectors.eval(vector, model_completion=True).as_signed_long()
            if found != exact and vector.size() > 16:
                return f"line {one.line}: {what} {found:,} instead of {exact:,}"
    return ""
