"""K7: what a group of drafts reads."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.symbolic import Access, Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import (
    GROUP,
    LANE,
    MORE,
    PLACE,
    WIN,
    Code,
    P,
    Token,
    check,
    h1_h2,
    in_lanes,
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

VERIFY = "_grouped_stream_kernel [verify streams]"


def verify(code: Code) -> Theorem | None:
    """K7: grouped verify streams; None where the release has none."""
    if VERIFY not in code.runs and VERIFY not in code.unknown:
        return None

    def parts(which: int) -> tuple[Run, Access, Token, Term, tuple[Fact, ...]]:
        run = code.run(VERIFY)
        stores = run.stores_to("out_ptr")
        if len(stores) != 2:
            raise UnknownCodeError(f"{VERIFY} stores in {len(stores)} places")
        store = stores[which]
        token = Token(slot=run.memory["slot_ptr"](P), position=run.memory["pos_ptr"](P))
        starts, tail = run.memory["indptr_ptr"], run.memory["tail_len_ptr"](P)
        # Positions that the group's drafts see together: window + group - 1 up to the last one.
        start, end = decode_reads(Position(token.position), Position(WIN + GROUP - 1))
        given = (
            *h1_h2(token), P >= 0, run.arguments["ring_stride"] >= 1, WIN >= 1, GROUP >= 1,
            GROUP <= 4, token.position >= GROUP - 1,  # the first draft has a position too
            stores[1].lanes >= WIN + GROUP - 1, in_lanes(store, LANE), tail >= 0,
            tail <= run.arguments["TAIL_W"], run.arguments["TAIL_W"] >= 1,
            run.arguments["swa_pages"] >= 0, starts(P + 1) == starts(P) + tail + end - start,
        )  # fmt: skip
        return run, store, token, starts(P) + (tail if which else 0), given

    def exact() -> Claim:
        run, store, token, first, given = parts(1)
        start, end = decode_reads(Position(token.position), Position(WIN + GROUP - 1))
        row = ring_row(Slot(token.slot), Position(start + LANE), run.arguments["ring_stride"])
        return Claim(
            given=given,
            then=z3.And(
                store.when == (end - start > LANE), store.offset == first + LANE,
                z3.Implies(store.when, store.value == row),
                z3.Implies(store.when, store.offset < run.memory["indptr_ptr"](P + 1)),
            ),
        )  # fmt: skip

    def tail() -> Claim:
        run, store, _, first, given = parts(0)
        entry = run.memory["tail_page_ptr"](P * run.arguments["TAIL_W"] + PLACE)
        due = z3.If(entry >= 0, entry + run.arguments["swa_pages"], -1)
        return Claim(
            given=(*given, store.when, store.offset - first == PLACE),
            then=z3.And(PLACE >= 0, run.memory["tail_len_ptr"](P) > PLACE, store.value == due),
        )

    def distinct(spare: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, _, given = parts(1)
            stride = run.arguments["ring_stride"]
            when, _, value = there(run, store, P, MORE)
            need = WIN + GROUP - 1
            return Claim(
                given=(
                    *given, stride >= need if spare >= 0 else stride == need + spare,
                    in_lanes(store, MORE), LANE != MORE, store.when, when,
                ),
                then=store.value != value,
                show={"slot": token.slot, "position": token.position, "window": WIN,
                      "group": GROUP, "stride": stride},
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        found = play(
            code, "verify", slot=[values["slot"]], position=[values["position"]],
            window=[values["window"]], stride=[values["stride"]], group=[values["group"]],
        )  # fmt: skip
        broken = isinstance(found, list) and len(set(found)) < len(found)
        return check(code, "rows differ", broken, f"rows that the group reads: {found}")

    return Theorem(
        identifier="K7",
        title="grouped verify streams",
        statement="A group's stream is its compressed tail and then exactly the ring rows that its "
        "drafts see together; they differ exactly if S >= W + group - 1.",
        scope="all slots, positions, strides, W + group - 1 up to the block of 256; H1, H2, H4, H5",
        obligations=(
            proved("exact rows", exact),
            proved("tail", tail),
            proved("rows differ", distinct(0)),
            Obligation(
                name="nor with a stride one less", claim=distinct(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_grouped_stream_kernel ({code.release})",
    )  # fmt: skip
