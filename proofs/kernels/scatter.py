"""K1 and K8: the kernels that write ring rows."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.launch_sizes import HEAD_DIM, ROPE_DIM
from kvproof.kernels.symbolic import Access, Run
from kvproof.proofs.kernels.base import (
    LANE,
    MORE,
    Code,
    P,
    Q,
    Token,
    check,
    fixed,
    h1_h2,
    h6,
    in_lanes,
    only,
    play,
    proved,
    there,
)
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term, Theorem, Values
from kvproof.spec.indices import PADDING_SLOT, Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import (
    scatter_keeps,
)

SCATTER = "_swa_scatter_kernel [scatter]"
POOLS = (
    ("_swa_scatter_kernel [scatter into two pools]", HEAD_DIM),
    ("_swa_scatter_kernel [scatter into two pools, launch 2]", ROPE_DIM),
)
"""The fp8 layout's launches, and the width of their rows."""

SCATTER_LOC = "_scatter_loc_kernel [scatter by location]"


def scatter_token(run: Run, program: Term) -> Token:
    """The token that a program of the scatter works for."""
    return Token(
        slot=run.memory["state_slot_ptr"](program),
        position=run.memory["positions_ptr"](program),
        final=run.memory["final_pos_ptr"](program),
    )


def scatter(code: Code) -> Theorem:
    """K1: the scatter kernel."""

    def parts() -> tuple[Run, Access, Term, Term]:
        run = fixed(code.run(SCATTER), D=HEAD_DIM)
        return run, only(run, "unified_ptr"), run.arguments["win"], run.arguments["ring_stride"]

    def given(run: Run, store: Access, win: Term, stride: Term) -> tuple[Fact, ...]:
        return (
            *h1_h2(scatter_token(run, P)), win >= 1, stride >= 1, P >= 0,
            in_lanes(store, LANE), store.when,
        )  # fmt: skip

    def row() -> Claim:
        run, store, win, stride = parts()
        token = scatter_token(run, P)
        due = ring_row(Slot(token.slot), Position(token.position), stride)
        return Claim(
            given=given(run, store, win, stride), then=store.offset == due * HEAD_DIM + LANE
        )

    def own_rows() -> Claim:
        run, store, win, stride = parts()
        first = scatter_token(run, P).slot * stride
        return Claim(
            given=given(run, store, win, stride),
            then=z3.And(
                store.offset >= first * HEAD_DIM, store.offset < (first + stride) * HEAD_DIM
            ),
        )

    def kept() -> Claim:
        run, store, win, stride = parts()
        token = scatter_token(run, P)
        keeps = scatter_keeps(Position(token.position), Position(token.final), win)
        return Claim(
            given=(*h1_h2(token), win >= 1, stride >= 1, P >= 0, in_lanes(store, LANE)),
            then=store.when == z3.And(run.arguments["n_rows"] > P, keeps),
        )

    def source() -> Claim:
        run, store, win, stride = parts()
        due = run.memory["kv_ptr"](P * HEAD_DIM + LANE)
        return Claim(given=given(run, store, win, stride), then=store.value == due)

    def collide(spare: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, win, stride = parts()
            one, other = scatter_token(run, P), scatter_token(run, Q)
            when, offset, _ = there(run, store, Q, MORE)
            size = stride >= win if spare >= 0 else stride == win + spare
            return Claim(
                given=(
                    *given(run, store, win, stride), *h1_h2(other), one.slot != PADDING_SLOT,
                    h6(one, other, win), size, Q >= 0, P != Q, in_lanes(store, MORE), when,
                ),
                then=store.offset != offset,
                show={
                    "slot": one.slot, "other slot": other.slot, "position": one.position,
                    "other position": other.position, "final": one.final,
                    "other final": other.final, "window": win, "stride": stride,
                },
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        tokens = [("slot", "position", "final"), ("other slot", "other position", "other final")]
        found = play(
            code, "scatter",
            slots=[values[slot] for slot, _, _ in tokens],
            positions=[values[position] for _, position, _ in tokens],
            finals=[values[final] for _, _, final in tokens],
            window=[values["window"]], stride=[values["stride"]],
        )  # fmt: skip
        broken = isinstance(found, list) and -1 in found
        return check(code, "ring row", broken, f"rows that hold the tokens afterwards: {found}")

    return Theorem(
        identifier="K1",
        title="the scatter kernel",
        statement="A token's key goes to its slot's row at position mod stride, whole and from its "
        "own row; exactly the last W positions of each request are kept; and no two kept tokens of "
        "a launch, padding aside, share a cell exactly if S >= W.",
        scope="all slots, positions, strides, windows, numbers of tokens; rows of 512; H1-H3, H6",
        obligations=(
            proved("row is ring_row", row),
            proved("stays in the slot's rows", own_rows),
            proved("kept exactly if scatter_keeps", kept),
            proved("the token's own key", source),
            proved("no two tokens share a cell", collide(0)),
            Obligation(
                name="nor with a stride of W - 1", claim=collide(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_swa_scatter_kernel ({code.release})",
    )  # fmt: skip


def scatter_by_location(code: Code) -> Theorem | None:
    """K8: the scatter to given rows; None where the release has none."""
    if SCATTER_LOC not in code.runs and SCATTER_LOC not in code.unknown:
        return None

    def claim() -> Claim:
        run = fixed(code.run(SCATTER_LOC), D=HEAD_DIM)
        store, row = only(run, "unified_ptr"), run.memory["loc_ptr"](P)
        return Claim(
            given=(P >= 0, in_lanes(store, LANE)),
            then=z3.And(
                store.when == z3.And(run.arguments["n_rows"] > P, row >= 0),
                store.offset == row * HEAD_DIM + LANE,
                z3.Implies(store.when, store.value == run.memory["kv_ptr"](P * HEAD_DIM + LANE)),
            ),
        )

    return Theorem(
        identifier="K8",
        title="the scatter by location",
        statement="A token's key goes whole to the row that it was given, and nowhere if that is "
        "negative.",
        scope="all rows; rows of 512",
        obligations=(proved("row, mask and value", claim),),
        mutants=(),
        source=f"_scatter_loc_kernel ({code.release})",
    )


def two_pools(code: Code) -> Theorem | None:
    """K24: the scatter of the fp8 layout; None where the release has none."""
    if all(name not in code.runs and name not in code.unknown for name, _ in POOLS):
        return None

    def parts(name: str, width: int) -> tuple[Run, Access, Term, Token, tuple[Fact, ...]]:
        run = fixed(code.run(name), D=width)
        store, token = only(run, "unified_ptr"), scatter_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        row = ring_row(Slot(token.slot), Position(token.position), stride)
        given = (*h1_h2(token), win >= 1, stride >= 1, P >= 0, in_lanes(store, LANE))
        return run, store, row, token, given

    def exact(name: str, width: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, row, token, given = parts(name, width)
            keeps = scatter_keeps(
                Position(token.position), Position(token.final), run.arguments["win"]
            )
            return Claim(
                given=given,
                then=z3.And(
                    store.when == z3.And(run.arguments["n_rows"] > P, keeps),
                    store.offset == row * width + LANE,
                    z3.Implies(store.when, store.value == run.memory["kv_ptr"](P * width + LANE)),
                ),
            )  # fmt: skip

        return claim

    def lockstep() -> Claim:
        """Both launches name one row: an offset is that row times the width, and the lane."""
        (one, width), (other, narrow) = POOLS
        _, store, row, _, given = parts(one, width)
        _, twin, _, _, more = parts(other, narrow)
        return Claim(
            given=(*given, *more, store.when, twin.when, store.offset == row * width + LANE),
            then=twin.offset == row * narrow + LANE,
        )

    return Theorem(
        identifier="K24",
        title="the scatter of the fp8 layout",
        statement="Both launches, of packed bytes and of the bf16 rope part, store exactly the "
        "tokens that scatter_keeps says, whole, at ring_row: the two pools stay in lockstep.",
        scope=f"all slots, positions, strides, windows, numbers of tokens; rows of {HEAD_DIM} "
        f"bytes and {ROPE_DIM} numbers; H1-H3",
        obligations=(
            *(proved(f"row, mask and value, width {width}", exact(name, width))
              for name, width in POOLS),
            proved("one row in both pools", lockstep),
        ),
        mutants=(),
        source=f"_swa_scatter_kernel ({code.release})",
    )  # fmt: skip
