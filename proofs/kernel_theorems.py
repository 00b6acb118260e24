"""K1 to K10: what the real kernels of a release do, proved from their own code for all inputs.

The rules that a kernel is held against are the specification's functions, called on Z3 terms. What
the host guarantees of a kernel's inputs are the hypotheses H1 to H8 below; nothing else is assumed
but the ranges of types. That no computation leaves its type is K10; the others are about numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import z3

from kvproof.kernels.evaluate import constants
from kvproof.kernels.recipes import HEAD_DIM, WINDOW
from kvproof.kernels.symbolic import Access, Integers, Run, at, must_fit
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.kernels.width import REFERENCE, STRIDE, limits
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term, Theorem, Values
from kvproof.spec.indices import PADDING_SLOT, Position, RingRow, Slot
from kvproof.spec.ring import is_padding_row, ring_row
from kvproof.spec.terms import maximum, minimum
from kvproof.spec.window import (
    decode_reads,
    prefill_ring_reads,
    scatter_keeps,
    window_start,
)

P, Q = z3.Ints("program q")
"""Two programs of a launch."""

LANE, MORE = z3.Ints("lane lane_q")
"""Two lanes."""

PLACE, COUNT, DONE, TOKENS = z3.Ints("place count done tokens")
"""A place in a segment, a number of pages, where a loop leaves off, a number of tokens."""

WIN, GROUP = z3.Ints("window group")
"""Window and size of a group of drafts, where the kernel is not told."""

Play = Callable[[str, dict[str, list[int]]], list[int] | str]
"""Launches a wrapper of the release on given numbers; what came out, or why nothing did."""

ASSUMPTIONS: Mapping[str, str] = {
    "H1": "the slot of a row is not negative",
    "H2": "a position is not negative, and not below the start of its chunk",
    "H3": "the stride is at least the window, and the window at least 1",
    "H4": "the window and a table's width are at least 1; the window fits the block that the "
    "wrapper chose for it, where the kernel has no loop over it",
    "H5": "a segment is as long as the lengths that were given for it say: the host's cumulative "
    "sum is exact",
    "H6": "tokens of one slot in a launch belong to one request: their final position is the same, "
    "their positions differ and do not pass it",
    "H7": "a page table's row has its pages first, and -1 after them; a request has no more pages "
    "than the row is wide",
    "H8": "program t of the decode builder works for batch row t",
}
"""Facts of the host that the proofs use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """A release's kernels as symbolic runs.

    Attributes:
        release: its version.
        runs: by ``kernel [recipe]``, with sizes as numbers.
        shipped: the same with the constants that the release launches with.
        unknown: kernels that were not understood, and what of them.
        play: runs a counterexample on the release; None to only state it.
    """

    release: str
    runs: Mapping[str, Run]
    shipped: Mapping[str, Run]
    unknown: Mapping[str, str]
    play: Play | None = None

    def run(self, name: str) -> Run:
        """A kernel's run.

        Raises:
            UnknownCodeError: it was not understood, or the release has no such kernel.
        """
        if name in self.unknown:
            raise UnknownCodeError(f"{name}: {self.unknown[name]}")
        if name not in self.runs:
            raise UnknownCodeError(f"{self.release} launches no {name}")
        return self.runs[name]

    def with_kernel(self, name: str, run: Run, shipped: Run) -> Code:
        """The same release with one kernel replaced, e.g. by a mutant."""
        return replace(
            self, runs={**self.runs, name: run}, shipped={**self.shipped, name: shipped}, play=None
        )


SCATTER = "_swa_scatter_kernel [scatter]"
SCATTER_LOC = "_scatter_loc_kernel [scatter by location]"
DECODE = "_v4_paged_decode_indices_kernel [decode streams]"
TAIL = "_fill_compress_tail_kernel [decode streams]"
LENGTHS = "_prefill_lengths_kernel [prefill indices]"
LENGTHS_COMPRESSED = "_prefill_lengths_kernel [prefill indices, compressed]"
PREFILL = "_build_prefill_indices_kernel [prefill indices]"
PREFILL_COMPRESSED = "_build_prefill_indices_kernel [prefill indices, compressed]"
VERIFY = "_grouped_stream_kernel [verify streams]"


def theorems(code: Code) -> tuple[Theorem, ...]:
    """All kernel theorems that a release has the kernels for."""
    every = (
        _scatter(code), _decode(code), _agreement(code), _lengths(code), _prefill(code),
        _tail(code), _verify(code), _scatter_loc(code), _padding(code), _width(code),
    )  # fmt: skip
    return tuple(theorem for theorem in every if theorem is not None)


# --- What a program sees ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Token:
    """What a program loaded of its token, as numbers."""

    slot: Term
    position: Term
    final: Term = None
    chunk_start: Term = None


def _there(run: Run, access: Access, program: Term, lane: Term) -> tuple[Term, Term, Term]:
    """Condition, cell and value of an access of another program and lane."""
    if any(name.startswith("round") for name in constants(access.when)):
        raise UnknownCodeError(f"two lanes of a loop at line {access.line} of {run.kernel}")
    when, offset, value = (
        at(term, of=run, program=program, lane=lane)
        for term in (access.when, access.offset, access.value)
    )
    return when, offset, value


def _lane(access: Access, lane: Term) -> Fact:
    return z3.And(lane >= 0, lane < access.lanes)


def _fixed(run: Run, **sizes: int) -> Run:
    """The run with some of its sizes fixed; a kernel with loops has none to fix."""
    if run.loops:
        raise UnknownCodeError(f"{run.kernel} has a loop")
    known = {name: z3.IntVal(value) for name, value in sizes.items()}

    def fix(term: Term) -> Term:
        return at(term, of=run, **known)

    def access(one: Access) -> Access:
        return replace(
            one, offset=fix(one.offset), value=fix(one.value), when=fix(one.when),
            path=fix(one.path),
        )  # fmt: skip

    return replace(
        run,
        facts=tuple(fix(fact) for fact in run.facts),
        loads=tuple(access(one) for one in run.loads),
        stores=tuple(access(one) for one in run.stores),
        steps=tuple(replace(step, term=fix(step.term), path=fix(step.path)) for step in run.steps),
    )


def _only(run: Run, base: str) -> Access:
    found = run.stores_to(base)
    if len(found) != 1:
        raise UnknownCodeError(f"{run.kernel} stores to {base} in {len(found)} places")
    return found[0]


def _proved(name: str, claim: Callable[[], Claim]) -> Obligation:
    return Obligation(name=name, claim=claim)


# --- K1: scatter ------------------------------------------------------------------------------


def _scatter_token(run: Run, program: Term) -> _Token:
    return _Token(
        slot=run.memory["state_slot_ptr"](program),
        position=run.memory["positions_ptr"](program),
        final=run.memory["final_pos_ptr"](program),
    )


def _h1_h2(token: _Token) -> tuple[Fact, ...]:
    facts = [token.slot >= 0, token.position >= 0]
    if token.final is not None:
        facts.append(token.final >= token.position)
    if token.chunk_start is not None:
        facts += [token.chunk_start >= 0, token.chunk_start <= token.position]
    return tuple(facts)


def _h6(one: _Token, other: _Token) -> Fact:
    return z3.Implies(
        one.slot == other.slot,
        z3.And(one.final == other.final, one.position != other.position),
    )


def _scatter(code: Code) -> Theorem:
    def parts() -> tuple[Run, Access, Term, Term]:
        run = _fixed(code.run(SCATTER), D=HEAD_DIM)
        return run, _only(run, "unified_ptr"), run.arguments["win"], run.arguments["ring_stride"]

    def given(run: Run, store: Access, win: Term, stride: Term) -> tuple[Fact, ...]:
        return (
            *_h1_h2(_scatter_token(run, P)), win >= 1, stride >= 1, P >= 0,
            _lane(store, LANE), store.when,
        )  # fmt: skip

    def row() -> Claim:
        run, store, win, stride = parts()
        token = _scatter_token(run, P)
        due = ring_row(Slot(token.slot), Position(token.position), stride)
        return Claim(
            given=given(run, store, win, stride), then=store.offset == due * HEAD_DIM + LANE
        )

    def own_rows() -> Claim:
        run, store, win, stride = parts()
        first = _scatter_token(run, P).slot * stride
        return Claim(
            given=given(run, store, win, stride),
            then=z3.And(
                store.offset >= first * HEAD_DIM, store.offset < (first + stride) * HEAD_DIM
            ),
        )

    def kept() -> Claim:
        run, store, win, stride = parts()
        token = _scatter_token(run, P)
        keeps = scatter_keeps(Position(token.position), Position(token.final), win)
        return Claim(
            given=(*_h1_h2(token), win >= 1, stride >= 1, P >= 0, _lane(store, LANE)),
            then=store.when == z3.And(run.arguments["n_rows"] > P, keeps),
        )

    def source() -> Claim:
        run, store, win, stride = parts()
        due = run.memory["kv_ptr"](P * HEAD_DIM + LANE)
        return Claim(given=given(run, store, win, stride), then=store.value == due)

    def collide(spare: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, win, stride = parts()
            one, other = _scatter_token(run, P), _scatter_token(run, Q)
            when, offset, _ = _there(run, store, Q, MORE)
            size = stride >= win if spare >= 0 else stride == win + spare
            return Claim(
                given=(
                    *given(run, store, win, stride), *_h1_h2(other), _h6(one, other), size,
                    Q >= 0, P != Q, _lane(store, MORE), when,
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
        found = _play(
            code, "scatter",
            slots=[values[slot] for slot, _, _ in tokens],
            positions=[values[position] for _, position, _ in tokens],
            finals=[values[final] for _, _, final in tokens],
            window=[values["window"]], stride=[values["stride"]],
        )  # fmt: skip
        broken = isinstance(found, list) and -1 in found
        return _check(code, "ring row", broken, f"rows that hold the tokens afterwards: {found}")

    return Theorem(
        identifier="K1",
        title="the scatter kernel",
        statement="A token's key goes to its slot's row at position mod stride, whole and from its "
        "own row; exactly the last W positions of each request are kept; and no two kept tokens of "
        "a launch share a cell exactly if S >= W.",
        scope="all slots, positions, strides, windows, numbers of tokens; rows of 512; H1-H3, H6",
        obligations=(
            _proved("row is ring_row", row),
            _proved("stays in the slot's rows", own_rows),
            _proved("kept exactly if scatter_keeps", kept),
            _proved("the token's own key", source),
            _proved("no two tokens share a cell", collide(0)),
            Obligation(
                name="nor with a stride of W - 1", claim=collide(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_swa_scatter_kernel ({code.release})",
    )  # fmt: skip


# --- K2: decode -------------------------------------------------------------------------------

_STREAMS = ("swa", "csa", "hca")


def _decode_token(run: Run, program: Term) -> _Token:
    row = run.memory["batch_id_per_token_ptr"](program)
    return _Token(
        slot=run.memory["state_slot_per_seq_ptr"](row),
        position=run.memory["positions_ptr"](program),
    )


def _decode(code: Code) -> Theorem:
    def parts(stream: str) -> tuple[Run, Access, _Token, tuple[Fact, ...], Term, Term]:
        run = code.run(DECODE)
        store = _only(run, f"{stream}_indices_ptr")
        token = _decode_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        given = (
            *_h1_h2(token), run.memory["batch_id_per_token_ptr"](P) == P, P >= 0,
            win >= 1, win <= store.lanes, stride >= 1,
        )  # fmt: skip
        return run, store, token, given, win, stride

    def exact(stream: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            _, store, token, given, win, stride = parts(stream)
            start, end = decode_reads(Position(token.position), win)
            row = ring_row(Slot(token.slot), Position(start + LANE), stride)
            return Claim(
                given=(*given, _lane(store, LANE)),
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
                    *given, _lane(store, LANE), store.when, more >= 0,
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
                *given, _lane(store, LANE), store.when, starts(P) >= 0, starts(P) <= P * win,
                P < TOKENS,
            ),
            then=z3.And(store.offset >= 0, store.offset < TOKENS * win),
        )  # fmt: skip

    def distinct(spare: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, stride = parts("swa")
            when, _, value = _there(run, store, P, MORE)
            size = stride >= win if spare >= 0 else stride == win + spare
            return Claim(
                given=(
                    *given, size, _lane(store, LANE), _lane(store, MORE), LANE != MORE,
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
        found = _play(
            code, "decode", slots=[values["slot"]], positions=[values["position"]],
            window=[values["window"]], stride=[values["stride"]],
        )  # fmt: skip
        broken = isinstance(found, list) and len(set(found)) < len(found)
        return _check(code, "rows differ", broken, f"rows that the query reads: {found}")

    return Theorem(
        identifier="K2",
        title="the decode index builder",
        statement="Each of its three streams names exactly the ring rows of decode_reads, in "
        "order, from the start of the token's segment and within it, and N x W entries suffice. "
        "The rows differ exactly if S >= W.",
        scope=f"all slots, positions, strides, windows up to {WINDOW}; H1-H5, H8; capacity by "
        "induction over tokens",
        obligations=(
            *(_proved(f"exact rows, {each}", exact(each)) for each in _STREAMS),
            *(_proved(f"within its segment, {each}", segment(each)) for each in _STREAMS),
            _proved("capacity: step", capacity_step),
            _proved("capacity suffices", capacity),
            _proved("rows differ", distinct(0)),
            Obligation(
                name="nor with a stride of W - 1", claim=distinct(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_v4_paged_decode_indices_kernel ({code.release})",
    )  # fmt: skip


# --- K3: agreement ----------------------------------------------------------------------------


def _agreement(code: Code) -> Theorem:
    def writer(stride: Term) -> tuple[_Token, Term, tuple[Fact, ...]]:
        """A stored cell's row, as ``(cell - lane) = row * 512``."""
        run = _fixed(code.run(SCATTER), D=HEAD_DIM)
        store = _only(run, "unified_ptr")
        when, offset, _ = _there(run, store, Q, MORE)
        offset, when = (
            z3.substitute(term, (run.arguments["ring_stride"], stride)) for term in (offset, when)
        )
        token = _scatter_token(run, Q)
        # The builders' buffers have the same names and are others: the writer's are loaded once.
        slot, position, final = z3.Ints("slot_w position_w final_w")
        names = ((token.slot, slot), (token.position, position), (token.final, final))
        offset, when = (z3.substitute(term, *names) for term in (offset, when))
        own = _Token(slot=slot, position=position, final=final)
        return own, offset - MORE, (when, *_h1_h2(own), stride >= 1, _lane(store, MORE), Q >= 0)

    def decode() -> Claim:
        run = code.run(DECODE)
        store, token = _only(run, "swa_indices_ptr"), _decode_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        own, cell, written = writer(stride)
        start, _ = decode_reads(Position(token.position), win)
        return Claim(
            given=(
                *written, *_h1_h2(token), win >= 1, win <= store.lanes, _lane(store, LANE),
                P >= 0, run.memory["batch_id_per_token_ptr"](P) == P, store.when,
                own.slot == token.slot, own.position == start + LANE,
            ),
            then=cell == store.value * HEAD_DIM,
        )  # fmt: skip

    def prefill() -> Claim:
        run = code.run(PREFILL)
        store, token = _only(run, "pre_out_ptr"), _prefill_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        own, cell, written = writer(stride)
        place = store.offset - run.memory["pre_indptr_ptr"](P)
        start, _ = prefill_ring_reads(Position(token.position), Position(token.chunk_start), win)
        return Claim(
            given=(
                *written, *_h1_h2(token), win >= 1, _lane(store, LANE), P >= 0, store.when,
                own.slot == token.slot, place == PLACE, own.position == start + PLACE,
            ),
            then=cell == store.value * HEAD_DIM,
        )  # fmt: skip

    return Theorem(
        identifier="K3",
        title="writer and readers agree",
        statement="The row that the decode and the prefill builder name for a slot and position is "
        "the row that the scatter kernel writes for them.",
        scope=f"all slots, positions, strides; windows up to {WINDOW} for decode; H1-H4, H8",
        obligations=(
            _proved("scatter and decode builder", decode),
            _proved("scatter and prefill builder", prefill),
        ),
        mutants=(),
        source=f"_swa_scatter_kernel and both builders ({code.release})",
    )


# --- K4: prefill lengths ----------------------------------------------------------------------


def _prefill_token(run: Run, program: Term) -> _Token:
    slots = run.memory.get("state_slot_ptr")
    return _Token(
        slot=z3.IntVal(0) if slots is None else slots(program),
        position=run.memory["positions_ptr"](program),
        chunk_start=run.memory["chunk_start_ptr"](program),
    )


def _prefill_counts(token: _Token, win: Term) -> tuple[Term, Term]:
    """Entries that a query takes from the ring, and from its own chunk."""
    start, end = prefill_ring_reads(Position(token.position), Position(token.chunk_start), win)
    first = maximum(window_start(Position(token.position), win), token.chunk_start)
    return maximum(end - start, 0), token.position - first + 1


def _lengths(code: Code) -> Theorem:
    def plain(name: str) -> tuple[Run, Term, Term, tuple[Fact, ...]]:
        run = code.run(name)
        token, win = _prefill_token(run, P), run.arguments["win"]
        ring, chunk = _prefill_counts(token, win)
        return run, ring, chunk, (*_h1_h2(token), win >= 1, P >= 0)

    def extend(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, chunk, given = plain(name)
            store = _only(run, "extend_len_ptr")
            return Claim(
                given=given,
                then=z3.And(store.when, store.offset == P, store.value == chunk),
            )

        return claim

    def prefix() -> Claim:
        run, ring, _, given = plain(LENGTHS)
        store = _only(run, "prefix_len_ptr")
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
        store = _only(run, "prefix_len_ptr")
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
            _proved("extend length", extend(LENGTHS)),
            _proved("prefix length", prefix),
            _proved("extend length, compressed", extend(LENGTHS_COMPRESSED)),
            _proved("count: a lane", one_page),
            _proved("count: start", start),
            _proved("count: a round", step),
            _proved("prefix length, compressed", compressed),
        ),
        mutants=(),
        source=f"_prefill_lengths_kernel ({code.release})",
    )


# --- K5: prefill indices ----------------------------------------------------------------------


def _prefill(code: Code) -> Theorem:
    def parts(
        name: str, base: str, which: int
    ) -> tuple[Run, Access, _Token, tuple[Fact, ...], Term, Term]:
        run = code.run(name)
        stores = run.stores_to(base)
        if len(stores) != (2 if name == PREFILL_COMPRESSED and base == "pre_out_ptr" else 1):
            raise UnknownCodeError(f"{name} stores to {base} in {len(stores)} places")
        store, token = stores[which], _prefill_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        given = (
            *_h1_h2(token), win >= 1, stride >= 1, P >= 0, run.arguments["Wc"] >= 1,
            _lane(store, LANE),
        )  # fmt: skip
        return run, store, token, given, win, stride

    def ring(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, store, token, given, win, stride = parts(name, "pre_out_ptr", 0)
            count, _ = _prefill_counts(token, win)
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
            _, count = _prefill_counts(token, win)
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
            ring_count, chunk_count = _prefill_counts(token, win)
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
            count, _ = _prefill_counts(token, win)
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
        found = _play(
            code, "prefill", table=table, window=[values["window"]], stride=[values["window"]],
            swa_pages=[40],
        )  # fmt: skip
        broken = isinstance(found, list) and any(0 <= row < 40 for row in found)
        return _check(code, "no ring row among compressed entries", broken, f"entries: {found}")

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
            *(_proved(f"ring rows, {_short(each)}", ring(each))
              for each in (PREFILL, PREFILL_COMPRESSED)),
            *(_proved(f"chunk rows, {_short(each)}", chunk(each))
              for each in (PREFILL, PREFILL_COMPRESSED)),
            *(_proved(f"{what} segment filled, {_short(each)}", filled(each, base, starts, 0))
              for what, base, starts in streams for each in (PREFILL, PREFILL_COMPRESSED)),
            _proved("compressed entries", compressed(packed=True)),
            _proved(
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


# --- K6: compressed tail ----------------------------------------------------------------------


def _tail(code: Code) -> Theorem:
    def parts() -> tuple[Run, Access, Term, Term, Term, tuple[Fact, ...]]:
        run = code.run(TAIL)
        store = _only(run, "indices_ptr")
        first = run.memory["indptr_ptr"](P) + run.memory["prefix_len_ptr"](P)
        count, width = run.memory["valid_len_ptr"](P), run.arguments["Wc"]
        given = (
            P >= 0, width >= 1, count >= 0, count <= width, run.arguments["swa_pages"] >= 0,
            run.memory["prefix_len_ptr"](P) >= 0, _lane(store, LANE),
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
            _proved("entries", entries),
            _proved("within its segment", within),
            _proved("filled", filled),
        ),
        mutants=(),
        source=f"_fill_compress_tail_kernel ({code.release})",
    )


# --- K7: grouped verify -----------------------------------------------------------------------


def _verify(code: Code) -> Theorem | None:
    if VERIFY not in code.runs and VERIFY not in code.unknown:
        return None

    def parts(which: int) -> tuple[Run, Access, _Token, Term, tuple[Fact, ...]]:
        run = code.run(VERIFY)
        stores = run.stores_to("out_ptr")
        if len(stores) != 2:
            raise UnknownCodeError(f"{VERIFY} stores in {len(stores)} places")
        store = stores[which]
        token = _Token(slot=run.memory["slot_ptr"](P), position=run.memory["pos_ptr"](P))
        starts, tail = run.memory["indptr_ptr"], run.memory["tail_len_ptr"](P)
        # Positions that the group's drafts see together: window + group - 1 up to the last one.
        start, end = decode_reads(Position(token.position), Position(WIN + GROUP - 1))
        given = (
            *_h1_h2(token), P >= 0, run.arguments["ring_stride"] >= 1, WIN >= 1, GROUP >= 1,
            GROUP <= 4, token.position >= GROUP - 1,  # the first draft has a position too
            stores[1].lanes >= WIN + GROUP - 1, _lane(store, LANE), tail >= 0,
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
            when, _, value = _there(run, store, P, MORE)
            need = WIN + GROUP - 1
            return Claim(
                given=(
                    *given, stride >= need if spare >= 0 else stride == need + spare,
                    _lane(store, MORE), LANE != MORE, store.when, when,
                ),
                then=store.value != value,
                show={"slot": token.slot, "position": token.position, "window": WIN,
                      "group": GROUP, "stride": stride},
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        found = _play(
            code, "verify", slot=[values["slot"]], position=[values["position"]],
            window=[values["window"]], stride=[values["stride"]], group=[values["group"]],
        )  # fmt: skip
        broken = isinstance(found, list) and len(set(found)) < len(found)
        return _check(code, "rows differ", broken, f"rows that the group reads: {found}")

    return Theorem(
        identifier="K7",
        title="grouped verify streams",
        statement="A group's stream is its compressed tail and then exactly the ring rows that its "
        "drafts see together; they differ exactly if S >= W + group - 1.",
        scope="all slots, positions, strides, W + group - 1 up to the block of 256; H1, H2, H4, H5",
        obligations=(
            _proved("exact rows", exact),
            _proved("tail", tail),
            _proved("rows differ", distinct(0)),
            Obligation(
                name="nor with a stride one less", claim=distinct(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_grouped_stream_kernel ({code.release})",
    )  # fmt: skip


# --- K8 and padding ---------------------------------------------------------------------------


def _scatter_loc(code: Code) -> Theorem | None:
    if SCATTER_LOC not in code.runs and SCATTER_LOC not in code.unknown:
        return None

    def claim() -> Claim:
        run = _fixed(code.run(SCATTER_LOC), D=HEAD_DIM)
        store, row = _only(run, "unified_ptr"), run.memory["loc_ptr"](P)
        return Claim(
            given=(P >= 0, _lane(store, LANE)),
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
        obligations=(_proved("row, mask and value", claim),),
        mutants=(),
        source=f"_scatter_loc_kernel ({code.release})",
    )


def _padding(code: Code) -> Theorem:
    def scatter() -> Claim:
        run = _fixed(code.run(SCATTER), D=HEAD_DIM)
        store, token = _only(run, "unified_ptr"), _scatter_token(run, P)
        stride, row = run.arguments["ring_stride"], z3.Int("row")
        return Claim(
            given=(
                *_h1_h2(token), token.slot == PADDING_SLOT, stride >= 1, P >= 0, store.when,
                _lane(store, LANE), store.offset == row * HEAD_DIM + LANE,
            ),
            then=is_padding_row(RingRow(row), stride),
        )  # fmt: skip

    def decode() -> Claim:
        run = code.run(DECODE)
        store, token = _only(run, "swa_indices_ptr"), _decode_token(run, P)
        stride, win = run.arguments["ring_stride"], run.arguments["win"]
        return Claim(
            given=(
                *_h1_h2(token), token.slot == PADDING_SLOT, stride >= 1, win >= 1, P >= 0,
                store.when, _lane(store, LANE),
            ),
            then=is_padding_row(RingRow(store.value), stride),
        )  # fmt: skip

    def skipped() -> Claim:
        run = code.run(DECODE)
        row = run.memory["batch_id_per_token_ptr"](P)
        stored = z3.Or(*(store.when for store in run.stores))
        return Claim(given=(P >= 0,), then=z3.Implies(row < 0, z3.Not(stored)))

    return Theorem(
        identifier="K9",
        title="padded rows",
        statement="A row of slot 0 writes and reads rows of slot 0 alone; a decode row that is "
        "marked -1 stores nothing.",
        scope="all positions and strides; H2",
        obligations=(
            _proved("scatter", scatter),
            _proved("decode builder", decode),
            _proved("marked rows", skipped),
        ),
        mutants=(),
        source=f"_swa_scatter_kernel, _v4_paged_decode_indices_kernel ({code.release})",
    )


# --- K10: widths ------------------------------------------------------------------------------


def _width(code: Code) -> Theorem:
    def claim(name: str) -> Callable[[], Claim]:
        def build() -> Claim:
            if name in code.unknown:
                raise UnknownCodeError(f"{name}: {code.unknown[name]}")
            run = code.shipped[name]
            fits = [
                z3.Implies(condition, INTEGERS.in_range(step.term, step.bits))
                for step, condition in must_fit(run, (*run.loads, *run.stores))
            ]
            return Claim(given=limits(run, REFERENCE), then=z3.And(*fits))

        return build

    sizes = ", ".join(f"{limit:,} {name}" for name, limit in REFERENCE.items())
    return Theorem(
        identifier="K10",
        title="widths",
        statement="No computation that an address, a mask or a stored value depends on leaves its "
        f"type with up to {sizes}. The smallest sizes that break a kernel are in the table of "
        "widths.",
        scope=f"the constants that the release launches with; a stride of {STRIDE}",
        obligations=tuple(_proved(name, claim(name)) for name in (*code.shipped, *code.unknown)),
        mutants=(),
        source=f"all kernels of K1 to K9 ({code.release})",
    )


# --- Replays ----------------------------------------------------------------------------------


def _play(code: Code, wrapper: str, **numbers: Sequence[int]) -> list[int] | str:
    if code.play is None:
        return "not played: no engine is at hand"
    return code.play(wrapper, {name: list(values) for name, values in numbers.items()})


def _check(code: Code, invariant: str, broken: bool, says: str) -> Check:
    return Check(
        model=f"{code.release} in the interpreter", invariant=invariant, broken=broken, says=says
    )


INTEGERS = Integers()
