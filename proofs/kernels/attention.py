"""K20 to K22: where paged attention reads and writes; what it computes is not looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import z3

from kvproof.kernels.launch_sizes import DIM, HEADS, SPLITS
from kvproof.kernels.symbolic import Access, Run
from kvproof.proofs.kernels.base import LANE, MORE, Code, P, Q, fixed, only, proved, there
from kvproof.proofs.theorem import Claim, Fact, Obligation, Term, Theorem

FUSED = "_paged_decode_fused_kernel [decode attention]"
SPLIT = "_paged_decode_split_kernel [decode attention, split]"
REDUCE = "_paged_decode_reduce_kernel [decode attention, split]"
PREFILL = "_sparse_attn_v4_paged_prefill_kernel [prefill attention]"

COLUMN, COLUMN_Q = z3.Ints("column column_q")
Y, Y_Q, Z, Z_Q = z3.Ints("program_y program_y_q program_z program_z_q")
ROWS, QUERIES = z3.Ints("rows queries")
"""Rows of the pool, queries of the launch."""

_PADDED = 32
"""Heads, up to whole blocks."""

_STRIDES: Mapping[str, int] = {
    "q_stride_t": HEADS * DIM,
    "q_stride_h": DIM,
    "out_stride_t": HEADS * DIM,
    "out_stride_h": DIM,
    "kv_stride_n": DIM,
    "mp_stride_t": SPLITS * _PADDED,
    "mp_stride_k": _PADDED,
    "lp_stride_t": SPLITS * _PADDED,
    "lp_stride_k": _PADDED,
    "ap_stride_t": SPLITS * _PADDED * DIM,
    "ap_stride_k": _PADDED * DIM,
    "ap_stride_h": DIM,
}
"""Of contiguous tensors, as the wrappers make or demand them; partial results are
``[queries, splits, heads, dim]``."""

_SOURCES: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    FUSED: (("kv_indptr_ptr", "kv_indices_ptr", "unified_kv_ptr"),),
    SPLIT: (("kv_indptr_ptr", "kv_indices_ptr", "unified_kv_ptr"),),
    PREFILL: (
        ("kv_indptr_prefix_ptr", "kv_indices_prefix_ptr", "unified_kv_ptr"),
        ("kv_indptr_extend_ptr", "kv_indices_extend_ptr", "kv_ptr"),
    ),
}
"""Segment starts, row numbers and rows, by kernel."""


def _place(access: Access) -> tuple[Fact, ...]:
    return (LANE >= 0, access.lanes > LANE, COLUMN >= 0, access.columns > COLUMN)


def _given(code: Code, name: str) -> tuple[Run, tuple[Fact, ...]]:
    """A kernel as it is launched, and what is known of every program of it."""
    code.run(name)  # says so if it was not understood
    run = code.shipped[name]
    run = fixed(run, **{each: _STRIDES[each] for each in _STRIDES if each in run.arguments})
    given = [P >= 0, QUERIES > P, Y >= 0, Z >= 0, QUERIES >= 1]
    for starts, _, _ in _SOURCES.get(name, (("kv_indptr_ptr", "", ""),)):
        start = run.memory[starts]
        given += [start(P) >= 0, start(P) <= start(P + 1)]
    return run, tuple(given)


def _inside(code: Code, name: str, base: str, cells: Callable[[], Term]) -> Callable[[], Claim]:
    """All accesses of a buffer lie in it."""

    def claim() -> Claim:
        run, given = _given(code, name)
        accesses = [each for each in (*run.loads, *run.stores) if each.base == base]
        return Claim(
            given=(*given, *_grid(name)),
            then=z3.And(
                *(
                    z3.Implies(
                        z3.And(each.when, *_place(each)),
                        z3.And(each.offset >= 0, each.offset < cells()),
                    )
                    for each in accesses
                )
            ),
        )

    return claim


def _grid(name: str) -> tuple[Fact, ...]:
    """Heads in blocks, or one by one; splits; parts of a row."""
    if name == REDUCE:
        return (HEADS > Y, Z < 1)
    if name == SPLIT:
        return (Y < 1, Z < SPLITS)
    return (_PADDED > Y * 16, Z < 1) if name == PREFILL else (Y < 1, Z < 1)


def _segment(code: Code, name: str, starts: str, indices: str) -> Callable[[], Claim]:
    """Row numbers are read from the query's own segment."""

    def claim() -> Claim:
        run, given = _given(code, name)
        start = run.memory[starts]
        [load] = [each for each in run.loads if each.base == indices]
        return Claim(
            given=(*given, *_grid(name), *_place(load), load.when),
            then=z3.And(load.offset >= start(P), load.offset < start(P + 1)),
        )

    return claim


def _rows(code: Code, name: str, indices: str, base: str) -> Callable[[], Claim]:
    """What is read of the rows is of the row that was given, if that is one of the pool."""

    def claim() -> Claim:
        run, given = _given(code, name)
        [number] = [each for each in run.loads if each.base == indices]
        [load] = [each for each in run.loads if each.base == base]
        row = number.value
        least = -1 if name == PREFILL else 0
        return Claim(
            given=(
                *given, *_grid(name), *_place(load), load.when, number.when, row >= least,
                row < ROWS, ROWS >= 1,
            ),
            then=z3.And(
                load.offset == row * DIM + COLUMN, COLUMN < DIM, row >= 0,
                load.offset < ROWS * DIM,
            ),
        )  # fmt: skip

    return claim


def _named(code: Code, name: str, indices: str, base: str) -> Callable[[], Claim]:
    """No row is read without a row number of the segment."""

    def claim() -> Claim:
        run, given = _given(code, name)
        [number] = [each for each in run.loads if each.base == indices]
        [load] = [each for each in run.loads if each.base == base]
        return Claim(
            given=(*given, *_grid(name), *_place(load), load.when),
            then=number.when,
        )

    return claim


def _once(code: Code, name: str, base: str) -> Callable[[], Claim]:
    """No cell of the output has two writers."""

    def claim() -> Claim:
        run, given = _given(code, name)
        pairs = []
        for store in run.stores_to(base):
            for twin in run.stores_to(base):
                when, offset, _ = there(
                    run, twin, Q, MORE, column=COLUMN_Q, program_y=Y_Q, program_z=Z_Q
                )
                other = (
                    MORE >= 0, twin.lanes > MORE, COLUMN_Q >= 0, twin.columns > COLUMN_Q, when,
                )  # fmt: skip
                pairs.append(
                    z3.Implies(z3.And(store.when, *_place(store), *other), store.offset != offset)
                )
        twins = [(Y, Y_Q), (Z, Z_Q)]
        return Claim(
            given=(
                *given, *_grid(name), Q >= 0, QUERIES > Q, Y_Q >= 0, Z_Q >= 0,
                *(z3.substitute(fact, *twins) for fact in _grid(name)),
                z3.Or(P != Q, Y != Y_Q, Z != Z_Q),
            ),
            then=z3.And(*pairs),
        )  # fmt: skip

    return claim


def _written(code: Code, name: str) -> Callable[[], Claim]:
    """Every number of a query's output is stored."""

    def claim() -> Claim:
        run, given = _given(code, name)
        head, number = z3.Ints("head number")
        done = []
        for store in run.stores_to("out_ptr"):
            if name == REDUCE:
                reached = [(Y, head), (Z, z3.IntVal(0)), (LANE, number), (COLUMN, z3.IntVal(0))]
            else:
                reached = [
                    (Y, head / store.lanes), (Z, z3.IntVal(0)), (LANE, head % store.lanes),
                    (COLUMN, number),
                ]  # fmt: skip
            there_ = z3.And(
                store.when, *_place(store), store.offset == (P * HEADS + head) * DIM + number
            )
            done.append(z3.substitute(there_, *reached))
        return Claim(
            given=(
                *(fact for fact in given if not fact.eq(Y >= 0) and not fact.eq(Z >= 0)),
                head >= 0, head < HEADS, number >= 0, number < DIM,
            ),
            then=z3.Or(*done),
        )  # fmt: skip

    return claim


def _read_obligations(code: Code, name: str) -> tuple[Obligation, ...]:
    found: list[Obligation] = [
        proved("queries", _inside(code, name, "q_ptr", lambda: QUERIES * HEADS * DIM)),
        proved("sinks", _inside(code, name, "attn_sink_ptr", lambda: z3.IntVal(HEADS))),
    ]
    for starts, indices, base in _SOURCES[name]:
        found += [
            proved(f"row numbers of its segment, {indices}", _segment(code, name, starts, indices)),
            proved(f"rows are named, {base}", _named(code, name, indices, base)),
            proved(f"rows of the pool, {base}", _rows(code, name, indices, base)),
        ]
    return tuple(found)


def _output_obligations(code: Code, name: str) -> tuple[Obligation, ...]:
    return (
        proved("output inside", _inside(code, name, "out_ptr", lambda: QUERIES * HEADS * DIM)),
        proved("output whole", _written(code, name)),
        proved("one writer a cell", _once(code, name, "out_ptr")),
    )


_SCOPE = (
    f"all segments, rows, queries; {HEADS} heads of {DIM}, contiguous; H5, H17; dots and floats "
    "are not looked at"
)


def fused_decode(code: Code) -> Theorem:
    """K20: decode attention in one kernel."""
    return Theorem(
        identifier="K20",
        title="addresses of decode attention",
        statement="Row numbers are read from the query's own segment, rows are those that they "
        "name and lie in the pool, and each number of the output has exactly one writer.",
        scope=_SCOPE,
        obligations=(*_read_obligations(code, FUSED), *_output_obligations(code, FUSED)),
        mutants=(),
        source=f"_paged_decode_fused_kernel ({code.release})",
    )


def split_decode(code: Code) -> Theorem:
    """K21: decode attention in two kernels."""
    partials = (
        ("m_partial_ptr", lambda: QUERIES * SPLITS * _PADDED),
        ("l_partial_ptr", lambda: QUERIES * SPLITS * _PADDED),
        ("acc_partial_ptr", lambda: QUERIES * SPLITS * _PADDED * DIM),
    )

    def agreed(base: str) -> Callable[[], Claim]:
        """What the reduction reads of a split is what the split stored for that head."""

        def claim() -> Claim:
            split, given = _given(code, SPLIT)
            reduce, more = _given(code, REDUCE)
            store = only(split, base)
            [load] = [each for each in reduce.loads if each.base == base]
            # There a program is a head and a lane a split; here it is the other way round.
            names = [(LANE, Z), (Y, LANE), (Z, z3.IntVal(0))]
            offset, when = (z3.substitute(each, *names) for each in (load.offset, load.when))
            return Claim(
                given=(
                    *given, *more, *_grid(SPLIT), *_place(store), LANE < HEADS, load.lanes > Z,
                    when,
                ),
                then=z3.And(store.when, store.offset == offset),
            )  # fmt: skip

        return claim

    return Theorem(
        identifier="K21",
        title="addresses of split decode attention",
        statement="As K20; the partial results lie in their buffers, each with one writer, and the "
        "reduction reads exactly those that were written.",
        scope=f"{_SCOPE}; {SPLITS} splits",
        obligations=(
            *_read_obligations(code, SPLIT)[:1], *_read_obligations(code, SPLIT)[2:],
            *(proved(f"partial results inside, {base}", _inside(code, SPLIT, base, cells))
              for base, cells in partials),
            *(proved(f"one writer a cell, {base}", _once(code, SPLIT, base))
              for base, _ in partials),
            *(proved(f"reduction reads inside, {base}", _inside(code, REDUCE, base, cells))
              for base, cells in partials),
            *(proved(f"reduction reads what was written, {base}", agreed(base))
              for base, _ in partials),
            *_output_obligations(code, REDUCE),
        ),
        mutants=(),
        source=f"_paged_decode_split_kernel, _paged_decode_reduce_kernel ({code.release})",
    )  # fmt: skip


def prefill_attention(code: Code) -> Theorem:
    """K22: prefill attention."""
    return Theorem(
        identifier="K22",
        title="addresses of prefill attention",
        statement="As K20, for the rows of the ring and of the chunk; a row number of -1 reads "
        "nothing.",
        scope=_SCOPE,
        obligations=(*_read_obligations(code, PREFILL), *_output_obligations(code, PREFILL)),
        mutants=(),
        source=f"_sparse_attn_v4_paged_prefill_kernel ({code.release})",
    )
