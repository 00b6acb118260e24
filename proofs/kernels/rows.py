"""K13 to K16: kernels that read and write rows of the request table, and lists made of them."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.symbolic import Access, Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import (
    LANE,
    MORE,
    PLACE,
    Code,
    P,
    Q,
    Total,
    in_lanes,
    only,
    proved,
    reach,
    there,
)
from kvproof.proofs.theorem import Claim, Fact, Term, Theorem

LAST = "get_last_loc_kernel [last location]"
LAST_HIP = "_get_last_loc_safe_kernel [last location, HIP]"
WRITE = "write_req_to_token_pool_triton [write request rows]"
LISTS = "create_flashinfer_kv_indices_triton [index lists]"
LISTS_WINDOW = "create_flashinfer_kv_indices_triton [index lists, window]"
EXTEND = "assign_extend_cache_locs [extend locations]"

_ORDERED = "segments in order: step"


def last_location(code: Code) -> Theorem:
    """K13: the location of a request's last token."""

    def parts(name: str) -> tuple[Run, Access, Term, tuple[Fact, ...]]:
        run = code.run(name)
        store = only(run, "result_i32" if name == LAST_HIP else "result")
        row = P * store.lanes + LANE
        given = (
            P >= 0, in_lanes(store, LANE), run.arguments["num_tokens"] >= 0,
            run.memory["prefix_lens_tensor"](row) >= 0,
        )  # fmt: skip
        return run, store, row, given

    def exact(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, row, given = parts(name)
            length = run.memory["prefix_lens_tensor"](row)
            first = (
                run.memory["req_pool_indices_tensor"](row) * run.arguments["req_to_token_stride"]
            )
            due = z3.If(length > 0, run.memory["req_to_token"](first + length - 1), -1)
            return Claim(
                given=given,
                then=z3.And(
                    store.when == (run.arguments["num_tokens"] > row),
                    z3.Implies(store.when, z3.And(store.offset == row, store.value == due)),
                ),
            )

        return claim

    def own_row(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, row, given = parts(name)
            [load] = [load for load in run.loads if load.base == "req_to_token"]
            stride = run.arguments["req_to_token_stride"]
            first = run.memory["req_pool_indices_tensor"](row) * stride
            return Claim(
                given=(*given, run.memory["prefix_lens_tensor"](row) <= stride, load.when,
                       run.arguments["num_tokens"] > row),
                then=z3.And(load.offset >= first, load.offset < first + stride),
            )  # fmt: skip

        return claim

    both = ((LAST, "plain"), (LAST_HIP, "HIP"))
    return Theorem(
        identifier="K13",
        title="last location",
        statement="Cell i of the result is the location of the last token of request i's prefix, "
        "-1 without a prefix; it is read from the request's own row. Each cell has one writer.",
        scope="all lengths, rows, widths of the table and batches; H14",
        obligations=(
            *(proved(f"exact, {which}", exact(name)) for name, which in both),
            *(proved(f"reads its own row, {which}", own_row(name)) for name, which in both),
        ),
        mutants=(),
        source=f"get_last_loc_kernel, _get_last_loc_safe_kernel ({code.release})",
    )


def _extend_tokens(run: Run) -> Total:
    lengths = run.memory["extend_lens"]
    return Total(name="tokens_before", length=lengths)


def write_rows(code: Code) -> Theorem:
    """K14: a request's row of the table."""

    def parts() -> tuple[Run, tuple[Access, Access], Term, Total, tuple[Fact, ...]]:
        run = code.run(WRITE)
        stores = run.stores_to("req_to_token_ptr")
        carrying = [loop for loop in run.loops if loop.start]
        if len(stores) != 2 or len(carrying) != 1:
            raise UnknownCodeError(f"{WRITE} stores in {len(stores)} places")
        tokens = _extend_tokens(run)
        before, after = run.memory["pre_lens"](P), run.memory["seq_lens"](P)
        width = run.arguments["req_to_token_ptr_stride"]
        row = run.memory["req_pool_indices"](P)
        given = (
            P >= 0, before >= 0, after >= before, row >= 0, width >= 1, after <= width,
            run.memory["extend_lens"](P) == after - before, tokens(P) >= 0,
            carrying[0].result[0] == tokens(P), tokens.grows(P),
        )  # fmt: skip
        return run, (stores[0], stores[1]), row * width, tokens, given

    def sum_start() -> Claim:
        run, _, _, tokens, _ = parts()
        [loop] = [loop for loop in run.loops if loop.start]
        return Claim(
            given=(tokens(z3.IntVal(0)) == 0,),
            then=z3.And(
                loop.start[0] == tokens(loop.low), loop.low == 0, loop.step == 1, loop.high == P
            ),
        )

    def sum_step() -> Claim:
        run, _, _, tokens, _ = parts()
        [loop] = [loop for loop in run.loops if loop.start]
        return Claim(
            given=(
                P >= 0, loop.path, loop.head[0] == tokens(loop.counter),
                tokens.grows(loop.counter),
            ),
            then=loop.tail[0] == tokens(loop.counter + 1),
        )  # fmt: skip

    def exact(which: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, stores, first, tokens, given = parts()
            store, before = stores[which], run.memory["pre_lens"](P)
            held = run.memory["*prefix_tensors"](run.memory["prefix_tensors"](P), PLACE)
            new = run.memory["out_cache_loc"](tokens(P) + PLACE - before)
            return Claim(
                given=(*given, in_lanes(store, LANE), store.when, store.offset - first == PLACE),
                then=z3.And(
                    PLACE >= 0, run.memory["seq_lens"](P) > PLACE,
                    run.arguments["req_to_token_ptr_stride"] > PLACE,
                    store.value == z3.If(before > PLACE, held, new),
                ),
            )  # fmt: skip

        return claim

    def reads() -> Claim:
        run, _, _, tokens, given = parts()
        [load] = [load for load in run.loads if load.base == "out_cache_loc"]
        return Claim(
            given=(*given, in_lanes(load, LANE), load.when),
            then=z3.And(load.offset >= tokens(P), load.offset < tokens(P + 1)),
        )

    def filled() -> Claim:
        run, stores, first, _, given = parts()
        before = run.memory["pre_lens"](P)
        done = [
            z3.substitute(
                z3.And(in_lanes(store, LANE), store.when, store.offset == first + PLACE),
                *reach(store, PLACE - start),
            )
            for store, start in zip(stores, (0, before), strict=True)
        ]
        return Claim(
            given=(*given, PLACE >= 0, run.memory["seq_lens"](P) > PLACE), then=z3.Or(*done)
        )

    def apart() -> Claim:
        """By rows: P's cells are in its row, and so are Q's."""
        run, _, first, _, _ = parts()
        width, other = run.arguments["req_to_token_ptr_stride"], run.memory["req_pool_indices"](Q)
        row = run.memory["req_pool_indices"](P)
        one, two = z3.Ints("one two")
        return Claim(
            given=(
                row >= 0, other >= 0, width >= 1, z3.Or(row < other, other < row),
                first <= one, one < first + width, other * width <= two,
                two < other * width + width,
            ),
            then=one != two,
        )  # fmt: skip

    return Theorem(
        identifier="K14",
        title="writing request rows",
        statement="A request's row of the table is its prefix's locations and then its new ones, "
        "in order, without a gap; nothing is stored outside its first seq_len cells, new locations "
        "are read from its own segment, and requests with different rows share no cell.",
        scope="all lengths, rows, widths of the table and batches; H5, H11, H14; the sum by "
        "induction over rounds",
        obligations=(
            proved("sum of new tokens: start", sum_start),
            proved("sum of new tokens: a round", sum_step),
            proved("exact and inside, prefix", exact(0)),
            proved("exact and inside, new tokens", exact(1)),
            proved("reads its own segment", reads),
            proved("row filled", filled),
            proved("rows share no cell", apart),
        ),
        mutants=(),
        source=f"write_req_to_token_pool_triton ({code.release})",
    )


def index_lists(code: Code) -> Theorem:
    """K15: lists of locations for attention."""

    def parts(name: str) -> tuple[Run, Access, Term, Term, tuple[Fact, ...]]:
        run = code.run(name)
        store = only(run, "kv_indices_ptr")
        length = run.memory["page_kernel_lens_ptr"](P)
        start = run.memory["kv_start_idx"](P) if name == LISTS_WINDOW else z3.IntVal(0)
        width = run.arguments["req_to_token_ptr_stride"]
        starts = run.memory["kv_indptr"]
        given = (
            P >= 0, length >= 0, start >= 0, run.memory["req_pool_indices_ptr"](P) >= 0,
            width >= 1, start + length <= width, starts(P) >= 0,
            starts(P + 1) == starts(P) + length,
            # An argument that is passed is there.
            *(each != 0 for each in run.unknowns if str(each).startswith("address")),
        )  # fmt: skip
        return run, store, start, length, given

    def exact(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, start, length, given = parts(name)
            row = run.memory["req_pool_indices_ptr"](P) * run.arguments["req_to_token_ptr_stride"]
            starts = run.memory["kv_indptr"]
            return Claim(
                given=(
                    *given, in_lanes(store, LANE), store.when, store.offset - starts(P) == PLACE,
                ),
                then=z3.And(
                    PLACE >= 0, store.offset < starts(P + 1), length > PLACE,
                    store.value == run.memory["req_to_token_ptr"](row + start + PLACE),
                ),
            )  # fmt: skip

        return claim

    def own_row(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, _, _, given = parts(name)
            [load] = [load for load in run.loads if load.base == "req_to_token_ptr"]
            width = run.arguments["req_to_token_ptr_stride"]
            row = run.memory["req_pool_indices_ptr"](P) * width
            return Claim(
                given=(*given, in_lanes(load, LANE), load.when),
                then=z3.And(load.offset >= row, load.offset < row + width),
            )

        return claim

    def filled(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, _, length, given = parts(name)
            done = z3.And(
                in_lanes(store, LANE), store.when,
                store.offset == run.memory["kv_indptr"](P) + PLACE,
            )  # fmt: skip
            return Claim(
                given=(*given, PLACE >= 0, length > PLACE),
                then=z3.substitute(done, *reach(store, PLACE)),
            )

        return claim

    def ordered() -> Claim:
        run, _, _, _, _ = parts(LISTS)
        starts, length = run.memory["kv_indptr"], run.memory["page_kernel_lens_ptr"](Q)
        return Claim(
            given=(
                P >= 0, P < Q, length >= 0, starts(Q + 1) == starts(Q) + length,
                starts(P + 1) <= starts(Q),
            ),
            then=starts(P + 1) <= starts(Q + 1),
        )  # fmt: skip

    def apart(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, _, _, given = parts(name)
            when, offset, _ = there(run, store, Q, MORE)
            starts = run.memory["kv_indptr"]
            return Claim(
                given=(
                    *given, in_lanes(store, LANE), in_lanes(store, MORE), store.when, when, P < Q,
                    starts(P + 1) <= starts(Q),
                ),
                then=store.offset != offset,
            )  # fmt: skip

        return claim

    both = ((LISTS, "whole"), (LISTS_WINDOW, "window"))
    return Theorem(
        identifier="K15",
        title="index lists",
        statement="A request's segment holds exactly its locations from its start on, in order "
        "and without a gap, read from its own row; nothing is stored outside it and no two "
        "requests share a cell.",
        scope="all lengths, starts, rows, widths of the table and batches; one block of tokens a "
        "request, whole table entries; H5, H14",
        obligations=(
            *(proved(f"exact and inside, {which}", exact(name)) for name, which in both),
            *(proved(f"reads its own row, {which}", own_row(name)) for name, which in both),
            *(proved(f"segment filled, {which}", filled(name)) for name, which in both),
            proved(_ORDERED, ordered),
            *(proved(f"no two share a cell, {which}", apart(name)) for name, which in both),
        ),
        mutants=(),
        source=f"create_flashinfer_kv_indices_triton ({code.release})",
    )


def extend_locations(code: Code) -> Theorem:
    """K16: locations of an extend, read back from the table."""

    def parts() -> tuple[Run, Access, Total, tuple[Fact, ...]]:
        run = code.run(EXTEND)
        store, [loop] = only(run, "out_cache_loc"), run.loops
        if len(loop.head) != 2 or len(run.reductions) != 1:
            raise UnknownCodeError(f"{EXTEND} carries {len(loop.head)} tensors")
        start, end = run.memory["start_offset"], run.memory["end_offset"]
        tokens = Total(name="tokens_before", length=lambda i: end(i) - start(i))
        width = run.arguments["pool_len"]
        given = (
            P >= 0, start(P) >= 0, end(P) >= start(P), end(P) <= width, width >= 1,
            run.memory["req_pool_indices"](P) >= 0, tokens(P) >= 0, tokens.grows(P),
            run.reductions[0].result == tokens(P), in_lanes(store, LANE),
            loop.head[0] == start(P) + _place(run, store),
            loop.head[1] == _place(run, store),
        )  # fmt: skip
        return run, store, tokens, given

    def _place(run: Run, store: Access) -> Term:
        return run.loops[0].counter * store.lanes + LANE

    def summed() -> Claim:
        run, _, tokens, _ = parts()
        return tokens.lane_of(run.reductions[0], end=P, given=(P >= 0,))

    def carried_start() -> Claim:
        run, _, _, _ = parts()
        [loop] = run.loops
        start = run.memory["start_offset"](P)
        return Claim(
            given=(P >= 0, LANE >= 0),
            then=z3.And(
                loop.low == 0, loop.step == 1, loop.start[0] == start + LANE, loop.start[1] == LANE
            ),
        )

    def carried_step() -> Claim:
        run, store, _, given = parts()
        [loop] = run.loops
        there_ = _place(run, store) + store.lanes
        return Claim(
            given=(*given, loop.path),
            then=z3.And(
                loop.tail[0] == run.memory["start_offset"](P) + there_, loop.tail[1] == there_
            ),
        )

    def exact() -> Claim:
        run, store, tokens, given = parts()
        start, width = run.memory["start_offset"](P), run.arguments["pool_len"]
        row = run.memory["req_pool_indices"](P) * width
        return Claim(
            given=(*given, store.when, store.offset - tokens(P) == PLACE),
            then=z3.And(
                PLACE >= 0, store.offset < tokens(P + 1),
                store.value == run.memory["req_to_token"](row + start + PLACE),
                start + PLACE < width,
            ),
        )  # fmt: skip

    def filled() -> Claim:
        run, store, tokens, given = parts()
        length = run.memory["end_offset"](P) - run.memory["start_offset"](P)
        # Lane and round in which a place is stored, in what is carried too.
        reached = reach(store, PLACE)
        done = z3.substitute(z3.And(store.when, store.offset == tokens(P) + PLACE), *reached)
        return Claim(
            given=(
                *(z3.substitute(fact, *reached) for fact in given), PLACE >= 0, length > PLACE,
            ),
            then=done,
        )  # fmt: skip

    return Theorem(
        identifier="K16",
        title="locations of an extend",
        statement="A request's segment holds exactly its locations from start to end, in order "
        "and without a gap, read from its own row.",
        scope="all starts, ends, rows, widths of the table; H9, H11, H14; sums and carried offsets "
        "by induction",
        obligations=(
            proved("sum of tokens: a lane", summed),
            proved("carried offsets: start", carried_start),
            proved("carried offsets: a round", carried_step),
            proved("exact and inside", exact),
            proved("segment filled", filled),
        ),
        mutants=(),
        source=f"assign_extend_cache_locs ({code.release})",
    )
