"""K2 and K6: what a decode step reads."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.evaluate import constants
from kvproof.kernels.launch_sizes import WINDOW
from kvproof.kernels.symbolic import Access, Run
from kvproof.proofs.kernels.base import (
    LANE,
    MORE,
    PLACE,
    TOKENS,
    Code,
    P,
    Token,
    check,
    h1_h2,
    in_lanes,
    only,
    play,
    proved,
    there,
)
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term, Theorem, Values
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import (
    decode_reads,
)

DECODE = "_v4_paged_decode_indices_kernel [decode streams]"
TAIL = "_fill_compress_tail_kernel [decode streams]"

_STREAMS = ("swa", "csa", "hca")


def decode_token(run: Run, program: Term) -> Token:
    """The token that a program of the decode builder works for."""
    row = run.memory["batch_id_per_token_ptr"](program)
    return Token(
        slot=run.memory["state_slot_per_seq_ptr"](row),
        position=run.memory["positions_ptr"](program),
    )


def decode(code: Code) -> Theorem:
    """K2: the decode index builder."""

    def parts(stream: str) -> tuple[Run, Access, Token, tuple[Fact, ...], Term, Term]:
        run = code.run(DECODE)
        store = only(run, f"{stream}_indices_ptr")
        token = decode_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        given = (
            *h1_h2(token), run.memory["batch_id_per_token_ptr"](P) == P, P >= 0,
            win >= 1, win <= store.lanes, stride >= 1,
        )  # fmt: skip
        return run, store, token, given, win, stride

    def exact(stream: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            _, store, token, given, win, stride = parts(stream)
            start, end = decode_reads(Position(token.position), win)
            row = ring_row(Slot(token.slot), Position(start + LANE), stride)
            return Claim(
                given=(*given, in_lanes(store, LANE)),
                then=z3.And(
                    store.when == (end - start > LANE),
                    z3.Implies(store.when, store.value == row),
                    end - start <= store.lanes,
                ),
            )

        return claim

    def segment(stream: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, _ = parts(stream)
            start, end = decode_reads(Position(token.position), win)
            starts, more = run.memory[f"{stream}_indptr_ptr"], z3.Int("compressed")
            return Claim(
                given=(
                    *given, in_lanes(store, LANE), store.when, more >= 0,
                    starts(P + 1) == starts(P) + end - start + more,
                ),
                then=z3.And(
                    store.offset == starts(P) + LANE,
                    store.offset >= starts(P),
                    store.offset < starts(P + 1),
                ),
            )  # fmt: skip

        return claim

    def capacity_step() -> Claim:
        run, _, token, given, win, _ = parts("swa")
        start, end = decode_reads(Position(token.position), win)
        starts = run.memory["swa_indptr_ptr"]
        return Claim(
            given=(*given, starts(P + 1) == starts(P) + end - start, starts(P) <= P * win),
            then=starts(P + 1) <= (P + 1) * win,
        )

    def capacity() -> Claim:
        run, store, _, given, win, _ = parts("swa")
        starts = run.memory["swa_indptr_ptr"]
        return Claim(
            given=(
                *given, in_lanes(store, LANE), store.when, starts(P) >= 0, starts(P) <= P * win,
                P < TOKENS,
            ),
            then=z3.And(store.offset >= 0, store.offset < TOKENS * win),
        )  # fmt: skip

    def distinct(spare: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, stride = parts("swa")
            when, _, value = there(run, store, P, MORE)
            size = stride >= win if spare >= 0 else stride == win + spare
            return Claim(
                given=(
                    *given, size, in_lanes(store, LANE), in_lanes(store, MORE), LANE != MORE,
                    store.when, when,
                ),
                then=store.value != value,
                show={
                    "slot": token.slot, "position": token.position, "window": win,
                    "stride": stride,
                },
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        found = play(
            code, "decode", slots=[values["slot"]], positions=[values["position"]],
            window=[values["window"]], stride=[values["stride"]],
        )  # fmt: skip
        broken = isinstance(found, list) and len(set(found)) < len(found)
        return check(code, "rows differ", broken, f"rows that the query reads: {found}")

    return Theorem(
        identifier="K2",
        title="the decode index builder",
        statement="Each of its three streams names exactly the ring rows of decode_reads, in "
        "order, from the start of the token's segment and within it, and N x W entries suffice. "
        "The rows differ exactly if S >= W.",
        scope=f"all slots, positions, strides, windows up to {WINDOW}; H1-H5, H8; capacity by "
        "induction over tokens",
        obligations=(
            *(proved(f"exact rows, {each}", exact(each)) for each in _STREAMS),
            *(proved(f"within its segment, {each}", segment(each)) for each in _STREAMS),
            proved("capacity: step", capacity_step),
            proved("capacity suffices", capacity),
            proved("rows differ", distinct(0)),
            Obligation(
                name="nor with a stride of W - 1", claim=distinct(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_v4_paged_decode_indices_kernel ({code.release})",
    )  # fmt: skip


def compressed_tail(code: Code) -> Theorem:
    """K6: compressed entries behind the ring rows."""

    def parts() -> tuple[Run, Access, Term, Term, Term, tuple[Fact, ...]]:
        run = code.run(TAIL)
        store = only(run, "indices_ptr")
        first = run.memory["indptr_ptr"](P) + run.memory["prefix_len_ptr"](P)
        count, width = run.memory["valid_len_ptr"](P), run.arguments["Wc"]
        given = (
            P >= 0, width >= 1, count >= 0, count <= width, run.arguments["swa_pages"] >= 0,
            run.memory["prefix_len_ptr"](P) >= 0, in_lanes(store, LANE),
        )  # fmt: skip
        return run, store, first, count, width, given

    def entries() -> Claim:
        run, store, first, count, width, given = parts()
        page, pages = run.memory["page_idx_ptr"], run.arguments["swa_pages"]
        entry = page(P * width + PLACE)
        return Claim(
            given=(*given, store.when, store.offset - first == PLACE),
            then=z3.And(
                PLACE >= 0, count > PLACE,
                store.value == z3.If(entry >= 0, entry + pages, -1),
                z3.Or(store.value == -1, store.value >= pages),
            ),
        )  # fmt: skip

    def within() -> Claim:
        run, store, first, count, _, given = parts()
        starts = run.memory["indptr_ptr"]
        return Claim(
            given=(*given, store.when, starts(P + 1) == first + count),
            then=z3.And(
                store.offset >= starts(P) + run.memory["prefix_len_ptr"](P),
                store.offset < starts(P + 1),
            ),
        )

    def filled() -> Claim:
        _, store, first, count, _, given = parts()
        reach = [(LANE, PLACE % store.lanes)]
        reach += [
            (z3.Int(each), PLACE / store.lanes)
            for each in constants(store.path)
            if each.startswith("round")
        ]
        return Claim(
            given=(
                *(z3.substitute(fact, *reach) for fact in given), PLACE >= 0, count > PLACE,
            ),
            then=z3.substitute(z3.And(store.when, store.offset == first + PLACE), *reach),
        )  # fmt: skip

    return Theorem(
        identifier="K6",
        title="the compressed tail of decode",
        statement="Behind a token's ring rows stand exactly its compressed entries, each the page "
        "behind the ring or -1, never a ring row.",
        scope="all lengths, table widths, pools; H4, H5, H7 (no more entries than the row is wide)",
        obligations=(
            proved("entries", entries),
            proved("within its segment", within),
            proved("filled", filled),
        ),
        mutants=(),
        source=f"_fill_compress_tail_kernel ({code.release})",
    )
