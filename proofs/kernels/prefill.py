"""K4 and K5: what a prefill step reads."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.evaluate import constants
from kvproof.kernels.symbolic import Access, Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import (
    COUNT,
    DONE,
    LANE,
    PLACE,
    Code,
    P,
    Token,
    check,
    h1_h2,
    in_lanes,
    only,
    play,
    proved,
)
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term, Theorem, Values
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.terms import maximum, minimum
from kvproof.spec.window import (
    prefill_ring_reads,
    window_start,
)

LENGTHS = "_prefill_lengths_kernel [prefill indices]"
LENGTHS_COMPRESSED = "_prefill_lengths_kernel [prefill indices, compressed]"
PREFILL = "_build_prefill_indices_kernel [prefill indices]"
PREFILL_COMPRESSED = "_build_prefill_indices_kernel [prefill indices, compressed]"


def prefill_token(run: Run, program: Term) -> Token:
    """The query that a program of a prefill kernel works for."""
    slots = run.memory.get("state_slot_ptr")
    return Token(
        slot=z3.IntVal(0) if slots is None else slots(program),
        position=run.memory["positions_ptr"](program),
        chunk_start=run.memory["chunk_start_ptr"](program),
    )


def prefill_counts(token: Token, win: Term) -> tuple[Term, Term]:
    """Entries that a query takes from the ring, and from its own chunk."""
    start, end = prefill_ring_reads(Position(token.position), Position(token.chunk_start), win)
    first = maximum(window_start(Position(token.position), win), token.chunk_start)
    return maximum(end - start, 0), token.position - first + 1


def lengths(code: Code) -> Theorem:
    """K4: how much a query reads from where."""

    def plain(name: str) -> tuple[Run, Term, Term, tuple[Fact, ...]]:
        run = code.run(name)
        token, win = prefill_token(run, P), run.arguments["win"]
        ring, chunk = prefill_counts(token, win)
        return run, ring, chunk, (*h1_h2(token), win >= 1, P >= 0)

    def extend(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, chunk, given = plain(name)
            store = only(run, "extend_len_ptr")
            return Claim(
                given=given,
                then=z3.And(store.when, store.offset == P, store.value == chunk),
            )

        return claim

    def prefix() -> Claim:
        run, ring, _, given = plain(LENGTHS)
        store = only(run, "prefix_len_ptr")
        return Claim(given=given, then=z3.And(store.when, store.offset == P, store.value == ring))

    def summed() -> tuple[Run, Term, Callable[[Term], Term], tuple[Fact, ...]]:
        """The run, the width, the closed form of the count so far, and facts."""
        run, _, _, given = plain(LENGTHS_COMPRESSED)
        width = run.arguments["Wc"]
        return run, width, lambda upto: minimum(upto, COUNT), (*given, width >= 1, COUNT >= 0)

    def one_page() -> Claim:
        """A lane adds 1 exactly if its entry is one of the pages."""
        run, width, so_far, given = summed()
        [total], [loop] = run.reductions, run.loops
        page = run.memory["page_idx_ptr"]
        place = loop.counter + LANE
        packed = (page(P * width + place) >= 0) == (place < COUNT)  # H7 at this entry
        return Claim(
            given=(
                *given, total.path, LANE >= 0, total.lanes > LANE, width >= COUNT,
                z3.Implies(z3.And(place >= 0, place < width), packed),
            ),
            then=total.element == so_far(place + 1) - so_far(place),
        )  # fmt: skip

    def start() -> Claim:
        run, _, so_far, given = summed()
        [loop] = run.loops
        return Claim(given=given, then=z3.And(loop.low == 0, loop.start[0] == so_far(loop.low)))

    def step() -> Claim:
        run, _, so_far, given = summed()
        [total], [loop] = run.reductions, run.loops
        return Claim(
            given=(
                *given, loop.path, loop.head[0] == so_far(loop.counter),
                total.result == so_far(loop.counter + total.lanes) - so_far(loop.counter),
            ),
            then=z3.And(
                loop.step == total.lanes, loop.tail[0] == so_far(loop.counter + loop.step)
            ),
        )  # fmt: skip

    def compressed() -> Claim:
        run, width, so_far, given = summed()
        [loop] = run.loops
        _, ring, _, _ = plain(LENGTHS_COMPRESSED)
        store = only(run, "prefix_len_ptr")
        return Claim(
            # The loop leaves off at DONE, the first multiple of its step past the width.
            given=(*given, width >= COUNT, width >= 1, width <= DONE,
                   loop.result[0] == so_far(DONE)),
            then=z3.And(
                loop.high == width, store.when, store.offset == P, store.value == ring + COUNT
            ),
        )  # fmt: skip

    return Theorem(
        identifier="K4",
        title="prefill lengths",
        statement="A query takes exactly prefill_ring_reads from the ring and the rest of its "
        "window from its own chunk; its compressed entries are counted exactly.",
        scope="all positions, chunk starts, windows, table widths; H1, H2, H4, H7; the count by "
        "induction over lanes and rounds",
        obligations=(
            proved("extend length", extend(LENGTHS)),
            proved("prefix length", prefix),
            proved("extend length, compressed", extend(LENGTHS_COMPRESSED)),
            proved("count: a lane", one_page),
            proved("count: start", start),
            proved("count: a round", step),
            proved("prefix length, compressed", compressed),
        ),
        mutants=(),
        source=f"_prefill_lengths_kernel ({code.release})",
    )


def prefill(code: Code) -> Theorem:
    """K5: the prefill index builder."""

    def parts(
        name: str, base: str, which: int
    ) -> tuple[Run, Access, Token, tuple[Fact, ...], Term, Term]:
        run = code.run(name)
        stores = run.stores_to(base)
        if len(stores) != (2 if name == PREFILL_COMPRESSED and base == "pre_out_ptr" else 1):
            raise UnknownCodeError(f"{name} stores to {base} in {len(stores)} places")
        store, token = stores[which], prefill_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        given = (
            *h1_h2(token), win >= 1, stride >= 1, P >= 0, run.arguments["Wc"] >= 1,
            in_lanes(store, LANE),
        )  # fmt: skip
        return run, store, token, given, win, stride

    def ring(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, stride = parts(name, "pre_out_ptr", 0)
            count, _ = prefill_counts(token, win)
            start, _ = prefill_ring_reads(
                Position(token.position), Position(token.chunk_start), win
            )
            base = run.memory["pre_indptr_ptr"](P)
            row = ring_row(Slot(token.slot), Position(start + PLACE), stride)
            return Claim(
                given=(*given, store.when, store.offset - base == PLACE),
                then=z3.And(PLACE >= 0, count > PLACE, store.value == row),
            )

        return claim

    def chunk(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, _ = parts(name, "ext_out_ptr", 0)
            _, count = prefill_counts(token, win)
            first = maximum(window_start(Position(token.position), win), token.chunk_start)
            base, row = run.memory["ext_indptr_ptr"](P), run.memory["cu_q_ptr"](P)
            due = row + first - token.chunk_start + PLACE
            return Claim(
                given=(*given, store.when, store.offset - base == PLACE),
                then=z3.And(PLACE >= 0, count > PLACE, store.value == due),
            )

        return claim

    def filled(name: str, base: str, starts: str, which: int) -> Callable[[], Claim]:
        """Every entry of the segment is stored, by the round and lane that reach it."""

        def claim() -> Claim:
            run, store, token, given, win, _ = parts(name, base, which)
            ring_count, chunk_count = prefill_counts(token, win)
            first = run.memory[starts](P)
            count = (ring_count, chunk_count)[base == "ext_out_ptr"]
            if which == 1:
                first += ring_count
                count = run.memory[starts](P + 1) - first
            lanes = store.lanes
            rounds = [name for name in constants(store.path) if name.startswith("round")]
            reach = [(z3.Int("lane"), PLACE % lanes)]
            reach += [(z3.Int(each), PLACE / lanes) for each in rounds]
            there = z3.substitute(z3.And(store.when, store.offset == first + PLACE), *reach)
            kept = [z3.substitute(fact, *reach) for fact in given]
            limit = () if which == 0 else (count <= run.arguments["Wc"],)
            return Claim(
                given=(*kept, *limit, PLACE >= 0, count > PLACE,
                       *(() if rounds else (count <= lanes,))),
                then=there,
            )  # fmt: skip

        return claim

    def compressed(packed: bool) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, _ = parts(PREFILL_COMPRESSED, "pre_out_ptr", 1)
            count, _ = prefill_counts(token, win)
            starts, page = run.memory["pre_indptr_ptr"], run.memory["page_idx_ptr"]
            width, pages = run.arguments["Wc"], run.arguments["swa_pages"]
            entry = page(P * width + PLACE)
            total = starts(P + 1) - starts(P) - count
            return Claim(
                given=(
                    *given, store.when, store.offset - starts(P) - count == PLACE, pages >= 0,
                    total <= width, *((entry >= 0,) if packed else (entry >= -1,)),
                ),
                then=z3.And(
                    PLACE >= 0, store.offset < starts(P + 1), store.value == entry + pages,
                    store.value >= pages,
                ),
                show={"window": win, "place": PLACE, "entry": entry},
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        # The first query of a request has its compressed entries alone in its prefix.
        table = [5] * values["place"] + [-1, 5]
        found = play(
            code, "prefill", table=table, window=[values["window"]], stride=[values["window"]],
            swa_pages=[40],
        )  # fmt: skip
        broken = isinstance(found, list) and any(0 <= row < 40 for row in found)
        return check(code, "no ring row among compressed entries", broken, f"entries: {found}")

    streams = (
        ("ring", "pre_out_ptr", "pre_indptr_ptr"),
        ("chunk", "ext_out_ptr", "ext_indptr_ptr"),
    )
    return Theorem(
        identifier="K5",
        title="the prefill index builder",
        statement="The prefix segment names exactly the ring rows of prefill_ring_reads, in order, "
        "then the compressed pages; the extend segment names the rest of the window in the chunk. "
        "Both are filled without a gap and nothing is stored outside them.",
        scope="all slots, positions, chunk starts, strides, windows, table widths; H1, H2, H4, H5, "
        "H7",
        obligations=(
            *(proved(f"ring rows, {_short(each)}", ring(each))
              for each in (PREFILL, PREFILL_COMPRESSED)),
            *(proved(f"chunk rows, {_short(each)}", chunk(each))
              for each in (PREFILL, PREFILL_COMPRESSED)),
            *(proved(f"{what} segment filled, {_short(each)}", filled(each, base, starts, 0))
              for what, base, starts in streams for each in (PREFILL, PREFILL_COMPRESSED)),
            proved("compressed entries", compressed(packed=True)),
            proved(
                "compressed segment filled",
                filled(PREFILL_COMPRESSED, "pre_out_ptr", "pre_indptr_ptr", 1),
            ),
            Obligation(
                name="compressed entries without H7", claim=compressed(packed=False),
                expected="refuted", replay=replay,
            ),
        ),
        mutants=(),
        source=f"_build_prefill_indices_kernel ({code.release})",
    )  # fmt: skip


def _short(name: str) -> str:
    return "compressed" if "compressed" in name else "plain"
