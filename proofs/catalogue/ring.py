"""R1 to R10: ring addressing, strides, chunks, drafts.

The invariant of the ring, for one arbitrary row of one slot: if the newest committed position with
that row's offset lies in the look-back of the request's next query and was computed by the request
itself, the row holds it. It is shown to hold at admission and to survive every operation, for all
sizes and in any order of operations; that every read is FRESH then follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import z3

from kvproof.model.forward import RuleForward
from kvproof.model.player import Lane
from kvproof.model.reference import Policy
from kvproof.model.scenario import Decode, Verify
from kvproof.model.transition import (
    Cell,
    Launch,
    Ring,
    Seat,
    admitted,
    decode_span,
    decoded,
    is_fresh,
    prefill_span,
    prefilled,
    verified,
    verify_span,
)
from kvproof.proofs.scenarios import lone_request
from kvproof.proofs.theorem import (
    UNCAPPED,
    Check,
    Claim,
    Fact,
    Obligation,
    Replay,
    Term,
    Theorem,
    Values,
)
from kvproof.spec.indices import PADDING_SLOT, Position, Slot
from kvproof.spec.ring import (
    can_restart,
    is_padding_row,
    newest_position,
    ring_row,
    ring_stride,
    same_ring_row,
)
from kvproof.spec.window import DECODE_ORDER, Order, scatter_keeps, window_start

Operation = Literal["prefill", "decode", "verify"]

READ_FIRST: Order = "read, then write"
WRITE_FIRST: Order = "write, then read"

W, S, D = z3.Ints("W S D")
"""Window, stride, draft tokens."""

OFFSET, STANDS_FOR, QUERY, END, ACCEPTED = z3.Ints("offset p q end accepted")


def rings(*, verify_order: Order = WRITE_FIRST, prefill_order: Order = READ_FIRST) -> Ring:
    """A ring of symbolic sizes."""
    return Ring(
        window=W,
        stride=S,
        draft_tokens=D,
        verify_order=verify_order,
        prefill_order=prefill_order,
        decode_order=DECODE_ORDER,
    )


def any_seat() -> Seat:
    """Any request in any state, and any row of its slot."""
    matched, computed, position = z3.Ints("m c at")
    own, committed, prefilling = z3.Bools("own committed prefilling")
    return Seat(
        matched=matched,
        computed=computed,
        prefilling=prefilling,
        offset=OFFSET,
        cell=Cell(own=own, position=position, committed=committed),
    )


def sizes() -> tuple[Fact, ...]:
    """Sizes make sense."""
    return W >= 1, S >= 1, D >= 1, OFFSET >= 0, OFFSET < S


def well_formed(seat: Seat) -> tuple[Fact, ...]:
    """A request has computed no less than it reused."""
    return seat.matched >= 0, seat.computed >= seat.matched


def keeps_window(seat: Seat) -> Fact:
    """INV-1. The row holds the key that the next query expects, if the request computed it."""
    newest = newest_position(seat.offset, Position(seat.computed), S)
    expected = z3.And(
        newest >= 0,
        newest >= seat.matched,
        newest >= window_start(Position(seat.computed), W),
    )
    return z3.Implies(expected, is_fresh(seat.cell, newest))


def own_rows(seat: Seat) -> Fact:
    """INV-2. What the request wrote, it wrote past its reused prefix and to the row of the key."""
    cell = seat.cell
    return z3.Implies(
        cell.own,
        z3.And(
            cell.position >= seat.matched,
            same_ring_row(Position(cell.position), Position(seat.offset), S),
        ),
    )


def no_rejected_behind(seat: Seat) -> Fact:
    """INV-3. A rejected draft stands at or past the request's end, and there is none in prefill."""
    cell = seat.cell
    behind = cell.position < seat.computed
    return z3.Implies(
        cell.own,
        z3.And(z3.Implies(seat.prefilling, behind), z3.Implies(behind, cell.committed)),
    )


def invariant(seat: Seat) -> Fact:
    """INV-1 to INV-3."""
    return z3.And(keeps_window(seat), own_rows(seat), no_rejected_behind(seat))


def launch(operation: Operation, seat: Seat, ring: Ring) -> tuple[Launch, tuple[Fact, ...]]:
    """An operation of arbitrary length, and what its arguments must satisfy."""
    if operation == "prefill":
        return prefilled(seat, ring, END), (seat.prefilling, seat.computed < END)
    if operation == "decode":
        return decoded(seat, ring), ()
    return verified(seat, ring, ACCEPTED), (ACCEPTED >= 1, ACCEPTED <= D)


def reads(operation: Operation, seat: Seat, ring: Ring) -> tuple[Fact, ...]:
    """``STANDS_FOR`` is read by some query of the operation, from the watched row."""
    if operation == "prefill":
        query: tuple[Fact, ...] = (seat.computed <= QUERY, QUERY < END)
        start, end = prefill_span(seat, ring, QUERY)
    elif operation == "decode":
        query = (seat.computed == QUERY,)
        start, end = decode_span(seat, ring)
    else:
        query = (seat.computed <= QUERY, seat.computed + D > QUERY)
        start, end = verify_span(seat, ring, QUERY)
    return (
        *query,
        start <= STANDS_FOR,
        end > STANDS_FOR,
        same_ring_row(STANDS_FOR, Position(seat.offset), S),
    )


def initiation(*bounds: Fact) -> Obligation:
    """The invariant holds when a request gets its slot, whatever the row holds."""

    def claim() -> Claim:
        seat = any_seat()
        seated = admitted(seat.cell, offset=OFFSET, matched=seat.matched)
        return Claim(given=(*sizes(), seat.matched >= 0, *bounds), then=invariant(seated))

    return Obligation(name="initiation", claim=claim)


def consecution(operation: Operation, ring: Ring, *bounds: Fact) -> Obligation:
    """The invariant survives an operation."""

    def claim() -> Claim:
        seat = any_seat()
        ran, arguments = launch(operation, seat, ring)
        return Claim(
            given=(*sizes(), *well_formed(seat), *bounds, *arguments, invariant(seat)),
            then=invariant(ran.after),
        )

    return Obligation(name=f"consecution: {operation}", claim=claim)


def safety(
    operation: Operation, ring: Ring, *bounds: Fact, name: str = "", own: bool = True
) -> Obligation:
    """Every read that stands for a position of the request's own is FRESH."""

    def claim() -> Claim:
        seat = any_seat()
        ran, arguments = launch(operation, seat, ring)
        mine: tuple[Fact, ...] = (seat.matched <= STANDS_FOR,) if own else (seat.matched == 0,)
        return Claim(
            given=(
                *sizes(),
                *well_formed(seat),
                *bounds,
                *arguments,
                invariant(seat),
                *reads(operation, seat, ring),
                *mine,
            ),
            then=is_fresh(ran.found, STANDS_FOR),
        )

    return Obligation(name=name or f"safety: {operation}", claim=claim)


def run(
    ring: Ring, *operations: Operation, bounds: tuple[Fact, ...], accepted: Term = ACCEPTED
) -> Callable[[], Claim]:
    """A run from admission without reuse: the last operation's reads are FRESH.

    Each operation but a decode takes fresh arguments. Used for refutations: what it yields is a run
    from the initial state, not a mere counterexample to an induction.
    """

    def claim() -> Claim:
        prompt = z3.Int("n")
        seat = admitted(any_seat().cell, offset=OFFSET, matched=z3.IntVal(0))
        given: list[Fact] = [*sizes(), *bounds, prompt >= 1, accepted >= 1, accepted <= D]
        seat = prefilled(seat, ring, prompt).after
        for operation in operations[:-1]:
            ran = decoded(seat, ring) if operation == "decode" else verified(seat, ring, accepted)
            seat = ran.after
        ran, _ = launch(operations[-1], seat, ring)
        return Claim(
            given=(*given, *reads(operations[-1], seat, ring)),
            then=is_fresh(ran.found, STANDS_FOR),
            show={"W": W, "S": S, "D": D, "n": prompt, "accepted": accepted, "p": STANDS_FOR},
        )

    return claim


def _replayed(verify_order: Order, *steps: str) -> Callable[[Values], Replay]:
    def replay(found: Values) -> Replay:
        return Replay(
            scenario=lone_request(
                window=found["W"],
                prompt_len=found["n"],
                draft_tokens=found["D"],
                then=tuple(
                    Decode() if step == "decode" else Verify(accepted=found["accepted"])
                    for step in steps
                ),
            ),
            policy=Policy(stride=found["S"], verify_order=verify_order),
            breaks="FRESH-DECODE",
            why_not_engines="no release can be built with another stride than its own",
        )

    return replay


def _always_stale(operation: Operation, ring: Ring, *bounds: Fact) -> Callable[[], Claim]:
    """With one row too few, a request with a full look-back reads a stale row whatever its sizes.

    The row is that of the oldest key that the first query reads, or that the next query would.
    """

    def claim() -> Claim:
        seat = any_seat()
        ran, arguments = launch(operation, seat, ring)
        later = ring.verify_order == READ_FIRST
        oldest = seat.computed - W + (2 if later else 1)
        read_by = seat.computed + 1 if later else seat.computed
        return Claim(
            given=(
                *sizes(),
                *well_formed(seat),
                *bounds,
                *arguments,
                ACCEPTED == 1,
                oldest >= 0,
                same_ring_row(oldest, Position(OFFSET), S),
            ),
            then=z3.And(
                window_start(Position(read_by), W) == oldest,
                z3.Not(is_fresh(ran.after.cell if later else ran.found, oldest)),
            ),
        )

    return claim


# R1, R2, R3: addresses

_s, _t, _p, _q = z3.Ints("s t p q")
_addresses = (S >= 1, _s >= 0, _t >= 0, _p >= 0, _q >= 0)


def _row(slot: Term, position: Term) -> Term:
    return ring_row(Slot(slot), Position(position), S)


def _slots_disjoint() -> Claim:
    return Claim(given=(*_addresses, _s != _t), then=_row(_s, _p) != _row(_t, _q))


def _stays_in_slot() -> Claim:
    return Claim(given=_addresses, then=z3.And(_row(_s, _p) >= _s * S, _row(_s, _p) < _s * S + S))


def _consecutive_distinct() -> Claim:
    return Claim(given=(*_addresses, _p < _q, _q < _p + S), then=_row(_s, _p) != _row(_s, _q))


def _one_more_collides() -> Claim:
    return Claim(given=_addresses, then=_row(_s, _p) == _row(_s, _p + S))


def _same_row_rule() -> Claim:
    same = same_ring_row(Position(_p), Position(_q), S)
    return Claim(
        given=(*_addresses, _p - _q < 2 * S, _q - _p < 2 * S),
        then=same == (_row(_s, _p) == _row(_s, _q)),
    )


def _newest_rule() -> Claim:
    newest = newest_position(OFFSET, Position(_p), S)
    return Claim(
        given=(*_addresses, OFFSET >= 0, OFFSET < S),
        then=z3.And(
            newest < _p,
            newest >= _p - S,
            z3.Implies(newest >= 0, _row(_s, newest) == _s * S + OFFSET),
        ),
    )


def _padding_stays() -> Claim:
    row = _row(z3.IntVal(PADDING_SLOT), _p)
    return Claim(given=_addresses, then=is_padding_row(row, S))


def _live_never_padding() -> Claim:
    return Claim(
        given=(*_addresses, _s != PADDING_SLOT), then=z3.Not(is_padding_row(_row(_s, _p), S))
    )


def _wrapped(*bounds: Fact) -> tuple[Fact, ...]:
    """A request has gone round its ring twice, and owns the row."""
    seat = any_seat()
    return (
        *sizes(),
        W >= 3,
        *bounds,
        *well_formed(seat),
        seat.computed >= 2 * S,
        invariant(seat),
        seat.cell.own,
        seat.cell.position >= S,
    )


# R8: the scatter filter

_start, _final = z3.Ints("start final")


def _kept(position: Term, window: Term = W) -> Fact:
    return z3.And(
        position >= _start,
        position <= _final,
        scatter_keeps(Position(position), Position(_final), window),
    )


def _written_once(stride_short: int) -> Callable[[], Claim]:
    def claim() -> Claim:
        stride = (S >= W) if not stride_short else (W - stride_short == S)
        return Claim(
            given=(*_addresses, W >= 1, _start >= 0, stride, _p < _q, _kept(_p), _kept(_q)),
            then=_row(_s, _p) != _row(_s, _q),
            show={"W": W, "S": S, "start": _start, "final": _final, "p": _p, "q": _q},
        )

    return claim


def _writes_twice(found: Values) -> Check:
    rules = RuleForward(window=found["W"], stride=found["S"], verify_order=WRITE_FIRST)
    lane = Lane(request="A", slot=1, occupancy=1, start=found["start"], end=found["final"] + 1)
    rows = [
        row for fact in rules.prefill([lane]) if hasattr(fact, "positions") for row in fact.rows
    ]
    return Check(
        model="rules as a kernel",
        invariant="one launch writes a row once",
        broken=len(set(rows)) < len(rows),
        says=f"with W={found['W']} and a stride of {found['S']}, a chunk "
        f"[{found['start']}, {found['final'] + 1}) writes rows {rows}",
    )


def _filter_keeps(spare: int) -> Callable[[], Claim]:
    """All that the next query looks back on passes a filter of ``W - spare`` keys."""

    def claim() -> Claim:
        looked_at = z3.And(_p >= window_start(Position(_final + 1), W), _p <= _final, _p >= _start)
        return Claim(
            given=(spare + 1 <= W, _start >= 0, _final >= _start, looked_at),
            then=scatter_keeps(Position(_p), Position(_final), W - spare),
            show={"W": W, "start": _start, "final": _final, "p": _p},
        )

    return claim


def _filter_short(found: Values) -> Check:
    window, final, lost = found["W"], found["final"], found["p"]
    kept = [
        position
        for position in range(found["start"], final + 1)
        if scatter_keeps(Position(position), Position(final), window - 2)
    ]
    return Check(
        model="rules as a kernel",
        invariant="FRESH-DECODE",
        broken=lost >= window_start(Position(final + 1), window) and lost not in kept,
        says=f"with W={window} and a filter of {window - 2} keys, the chunk "
        f"[{found['start']}, {final + 1}) keeps {kept}; the decode at {final + 1} reads {lost}",
    )


def _early_scatter(extra: int) -> Callable[[], Claim]:
    """A scatter that runs before its chunk's reads, for chunks of ``S - W + 1 + extra`` tokens."""

    def claim() -> Claim:
        seat = any_seat()
        ring = rings(prefill_order=WRITE_FIRST)
        ran, arguments = launch("prefill", seat, ring)
        length = END - seat.computed
        limit = S - W + 1 + extra
        return Claim(
            given=(
                *sizes(),
                *well_formed(seat),
                S >= W,
                D == 1,
                *arguments,
                invariant(seat),
                length <= limit if extra == 0 else length == limit,
                seat.matched == 0,
                *reads("prefill", seat, ring),
            ),
            then=is_fresh(ran.found, STANDS_FOR),
            show={"W": W, "S": S, "c": seat.computed, "end": END, "p": STANDS_FOR},
        )

    return claim


def _early_scatter_breaks_all() -> Claim:
    """With S = W, every chunk of two or more tokens overwrites the first query's oldest key."""
    seat = any_seat()
    ring = rings(prefill_order=WRITE_FIRST)
    ran, arguments = launch("prefill", seat, ring)
    return Claim(
        given=(
            *sizes(),
            *well_formed(seat),
            S == W,
            W >= 2,
            *arguments,
            END - seat.computed >= 2,
            seat.computed >= W - 1,
            seat.computed == QUERY,
            window_start(QUERY, W) == STANDS_FOR,
            same_ring_row(STANDS_FOR, Position(OFFSET), S),
        ),
        then=z3.Not(is_fresh(ran.found, STANDS_FOR)),
    )


def _early_scatter_run(found: Values) -> Replay:
    return Replay(
        scenario=lone_request(
            window=found["W"],
            prompt_len=found["end"],
            chunks=(found["c"], found["end"] - found["c"]),
            draft_tokens=found["S"] - found["W"] + 1,
        ),
        policy=Policy(prefill_order=WRITE_FIRST),
        breaks="FRESH-PREFILL",
        why_not_engines="every release reads before it scatters",
    )


# R7: the filter and long drafts

_r7_bounds = (D >= 2, D <= W, S >= W + D - 2)


def _dropped() -> Claim:
    """With D > W the first draft token is not written, whatever the stride, and is read next."""
    ring = rings(verify_order=READ_FIRST)
    prompt = z3.Int("n")
    seat = admitted(any_seat().cell, offset=OFFSET, matched=z3.IntVal(0))
    seat = prefilled(seat, ring, prompt).after
    after = verified(seat, ring, z3.IntVal(1)).after
    start, end = verify_span(after, ring, after.computed)
    return Claim(
        given=(
            *sizes(),
            W >= 2,
            D > W,
            S >= W,
            prompt >= 1,
            same_ring_row(prompt, Position(OFFSET), S),
        ),
        then=z3.And(start <= prompt, prompt < end, z3.Not(is_fresh(after.cell, prompt))),
    )


# R9: rejected drafts


def _no_rejected(operation: Operation) -> Callable[[], Claim]:
    def claim() -> Claim:
        seat = any_seat()
        ran, arguments = launch(operation, seat, rings())
        return Claim(
            given=(
                *sizes(),
                *well_formed(seat),
                S >= W + D - 1,
                *arguments,
                own_rows(seat),
                no_rejected_behind(seat),
            ),
            then=no_rejected_behind(ran.after),
        )

    return claim


def _reads_committed(operation: Operation) -> Callable[[], Claim]:
    def claim() -> Claim:
        seat = any_seat()
        ran, arguments = launch(operation, seat, rings())
        return Claim(
            given=(
                *sizes(),
                *well_formed(seat),
                S >= W + D - 1,
                *arguments,
                invariant(seat),
                *reads(operation, seat, rings()),
                seat.matched <= STANDS_FOR,
            ),
            then=z3.And(ran.found.own, ran.found.committed),
        )

    return claim


# R10: rewinds

_end, _restart = z3.Ints("e c")
_saturated = (W >= 1, S >= W, _end >= S, _restart >= 0, _restart <= _end)


def _survives() -> Claim:
    """A restart that the rule allows finds every key of its look-back."""
    return Claim(
        given=(
            *_saturated,
            OFFSET >= 0,
            OFFSET < S,
            can_restart(Position(_end), Position(_restart), W, S),
            _p >= window_start(Position(_restart), W),
            _p < _restart,
            same_ring_row(Position(_p), Position(OFFSET), S),
        ),
        then=newest_position(OFFSET, Position(_end), S) == _p,
    )


def _lost() -> Claim:
    """A restart that the rule forbids has lost the oldest key of its look-back."""
    oldest = window_start(Position(_restart), W)
    return Claim(
        given=(
            *_saturated,
            OFFSET >= 0,
            OFFSET < S,
            z3.Not(can_restart(Position(_end), Position(_restart), W, S)),
            same_ring_row(oldest, Position(OFFSET), S),
        ),
        then=z3.And(oldest < _restart, newest_position(OFFSET, Position(_end), S) != oldest),
    )


def _shortcut(*bounds: Fact) -> Callable[[], Claim]:
    """The rule against the short form ``e - c <= S - W + 1``."""

    def claim() -> Claim:
        rule = can_restart(Position(_end), Position(_restart), W, S)
        return Claim(
            given=(*_saturated, *bounds),
            then=rule == (_end - _restart <= S - W + 1),
            show={"W": W, "S": S, "e": _end, "c": _restart},
        )

    return claim


def _restarts_from_start(found: Values) -> Check:
    window, stride, end, restart = (found[name] for name in ("W", "S", "e", "c"))
    held = {position % stride: position for position in range(end)}
    first = window_start(Position(restart), window)
    intact = all(held[position % stride] == position for position in range(first, restart))
    return Check(
        model="a ring written position by position",
        invariant="rewind exactly if e - c <= S - W + 1",
        broken=intact != (end - restart <= stride - window + 1),
        says=f"with W={window}, S={stride}, a ring written up to {end} restarts at {restart}: the "
        f"keys {list(range(first, restart))} are {'there' if intact else 'lost'}",
    )


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        identifier="R1",
        title="slots are disjoint",
        statement="Rows of different slots are disjoint, and a key stays in its slot's rows.",
        scope="all S >= 1, slots, positions",
        obligations=(
            Obligation(name="different slots, different rows", claim=_slots_disjoint),
            Obligation(name="a row lies in its slot", claim=_stays_in_slot),
        ),
        mutants=("slot stride one short",),
        witness=lambda: (*_addresses, _s != _t, _p >= S, _q >= S),
        source="_swa_scatter_kernel",
    ),
    Theorem(
        identifier="R2",
        title="a ring holds S positions",
        statement="Any S consecutive positions of one slot have distinct rows; S + 1 do not.",
        scope="all S >= 1, slots, positions",
        obligations=(
            Obligation(name="S consecutive positions", claim=_consecutive_distinct),
            Obligation(name="S + 1 collide", claim=_one_more_collides),
            Obligation(name="the sharing rule agrees with the rows", claim=_same_row_rule),
            Obligation(name="the newest position of a row", claim=_newest_rule),
        ),
        mutants=("row modulo one less", "newest position off by one", "sharing rule off"),
        witness=lambda: (*_addresses, _p < _q, _q < _p + S, _p % S > _q % S),
        source="_swa_scatter_kernel",
    ),
    Theorem(
        identifier="R3",
        title="padding stays in slot 0",
        statement="Padded rows carry slot 0 and stay in its rows; no row of a lent slot is one.",
        scope="all S >= 1, slots, positions",
        obligations=(
            Obligation(name="padded rows stay", claim=_padding_stays),
            Obligation(name="live rows stay out", claim=_live_never_padding),
        ),
        mutants=("slot stride one short", "padding test one row too wide"),
        witness=lambda: (*_addresses, _p >= 2 * S, _s == 1),
        source="ReqToTokenPool; padded CUDA-graph rows",
    ),
    Theorem(
        identifier="R4",
        title="no reuse, no stale read",
        statement="Without reuse and with S >= W every ring read of prefill and decode is FRESH, "
        "for any chunking. With reuse the same holds for every read at or past the match.",
        scope="all W, S >= W, n, m, any chunking and order of steps",
        obligations=(
            initiation(S >= W),
            consecution("prefill", rings(), S >= W),
            consecution("decode", rings(), S >= W),
            safety("prefill", rings(), S >= W),
            safety("decode", rings(), S >= W),
        ),
        mutants=(
            "row written modulo one less",
            "scatter before the chunk's reads",
            "decode reads before it writes",
            "window one too wide",
            "scatter keeps two too few",
        ),
        witness=lambda: (
            *sizes(),
            S >= W,
            W >= 2,
            any_seat().matched == 0,
            any_seat().computed > S,
            invariant(any_seat()),
            any_seat().cell.own,
        ),
        source="PR #30339",
    ),
    Theorem(
        identifier="R5",
        title="decode needs a stride of W",
        statement="Plain decode is FRESH with S >= W; with S = W - 1 it is not.",
        scope="all W, S, n",
        obligations=(
            initiation(S >= W, D == 1),
            consecution("decode", rings(), S >= W, D == 1),
            safety("decode", rings(), S >= W, D == 1),
            Obligation(
                name="tight: S = W - 1",
                claim=run(rings(), "decode", bounds=(S == W - 1, D == 1)),
                expected="refuted",
                replay=_replayed(WRITE_FIRST, "decode"),
            ),
            Obligation(
                name="S = W - 1 fails for every W >= 2",
                claim=_always_stale("decode", rings(), S == W - 1),
            ),
        ),
        mutants=("decode reads before it writes", "window one too wide"),
        witness=lambda: _wrapped(S == W, D == 1),
        source="DeepSeekV4TokenToKVPool.__init__",
    ),
    Theorem(
        identifier="R6",
        title="verify after writing needs W + D - 1",
        statement="A verify that writes its D tokens before it reads needs S >= W + D - 1. That is "
        "exactly the stride of the releases (RING-1): there is no spare row.",
        scope="all W, D, S, n, accepted 1..D, any order of prefill, decode and verify",
        obligations=(
            Obligation(
                name="RING-1 gives that stride",
                claim=lambda: Claim(given=(W >= 1, D >= 1), then=ring_stride(W, D) == W + D - 1),
            ),
            initiation(S >= W + D - 1),
            consecution("prefill", rings(), S >= W + D - 1),
            consecution("decode", rings(), S >= W + D - 1),
            consecution("verify", rings(), S >= W + D - 1),
            safety("verify", rings(), S >= W + D - 1),
            safety("decode", rings(), S >= W + D - 1),
            Obligation(
                name="tight: S = W + D - 2",
                claim=run(rings(), "verify", bounds=(S == W + D - 2, D >= 2)),
                expected="refuted",
                replay=_replayed(WRITE_FIRST, "verify"),
            ),
            Obligation(
                name="S = W + D - 2 fails for every W and D",
                claim=_always_stale("verify", rings(), S == W + D - 2),
            ),
        ),
        mutants=("stride one short", "verify reads before it writes"),
        witness=lambda: _wrapped(S == W + D - 1, D >= 3),
        source="0.5.18 on; grouped decode streams of 0.5.23",
    ),
    Theorem(
        identifier="R7",
        title="verify before writing needs W + D - 2",
        statement="A verify that reads the old window and then writes needs S >= W + D - 2, for "
        "2 <= D <= W; one row less fails. With D = 1 the bound is W, since decode and the "
        "scatter need that. With D > W no stride helps: the scatter filter drops accepted tokens.",
        conjecture="the bound was stated for all D >= 2; it is false for D > W",
        scope="all W, 2 <= D <= W, S, n, accepted 1..D, any order of prefill, decode and verify",
        obligations=(
            initiation(*_r7_bounds),
            consecution("prefill", rings(verify_order=READ_FIRST), *_r7_bounds),
            consecution("decode", rings(verify_order=READ_FIRST), *_r7_bounds),
            consecution("verify", rings(verify_order=READ_FIRST), *_r7_bounds),
            safety("verify", rings(verify_order=READ_FIRST), *_r7_bounds),
            safety("decode", rings(verify_order=READ_FIRST), *_r7_bounds),
            Obligation(
                name="tight: S = W + D - 3",
                claim=run(
                    rings(verify_order=READ_FIRST),
                    "verify",
                    "verify",
                    bounds=(S == W + D - 3, D >= 2, D <= W),
                ),
                expected="refuted",
                replay=_replayed(READ_FIRST, "verify", "verify"),
            ),
            Obligation(
                name="S = W + D - 3 fails for every W and D",
                claim=_always_stale(
                    "verify", rings(verify_order=READ_FIRST), S == W + D - 3, D >= 2, D <= W
                ),
            ),
            Obligation(name="D > W fails for every stride", claim=_dropped),
            Obligation(
                name="the filter drops accepted tokens if D > W",
                claim=run(
                    rings(verify_order=READ_FIRST),
                    "verify",
                    "verify",
                    bounds=(S == W + D - 1, D > W, W >= 2),
                ),
                expected="refuted",
                replay=lambda found: Replay(
                    scenario=_replayed(READ_FIRST, "verify", "verify")(found).scenario,
                    policy=Policy(verify_order=READ_FIRST),
                    breaks="FRESH-DECODE",
                    releases=UNCAPPED,
                ),
            ),
        ),
        mutants=("accepted tokens one too many", "window one too wide"),
        witness=lambda: _wrapped(S == W + D - 2, D >= 3, D <= W),
        source="deepseek_v4_backend_hip_radix.py (0.5.15 to 0.5.17)",
    ),
    Theorem(
        identifier="R8",
        title="the scatter filter",
        statement="The filter pos > final_pos - W never writes a row twice in a launch if S >= W, "
        "and keeps enough for the next chunk and for decode. It keeps one key more than anyone "
        "reads: W - 1 keys would do, W - 2 would not. A scatter before the chunk's reads is safe "
        "up to a chunk of S - W + 1 tokens and breaks FRESH-PREFILL with one token more; with "
        "S = W every chunk of two or more tokens breaks it.",
        scope="all W, S, chunks",
        obligations=(
            Obligation(name="no row twice", claim=_written_once(0)),
            Obligation(
                name="tight: S = W - 1",
                claim=_written_once(1),
                expected="refuted",
                replay=_writes_twice,
            ),
            Obligation(name="W keys are enough", claim=_filter_keeps(0)),
            Obligation(name="W - 1 keys are enough", claim=_filter_keeps(1)),
            Obligation(
                name="tight: W - 2 keys",
                claim=_filter_keeps(2),
                expected="refuted",
                replay=_filter_short,
            ),
            Obligation(name="early scatter: S - W + 1 tokens are safe", claim=_early_scatter(0)),
            Obligation(
                name="early scatter: S - W + 2 tokens",
                claim=_early_scatter(1),
                expected="refuted",
                replay=_early_scatter_run,
            ),
            Obligation(
                name="early scatter: S = W breaks every chunk", claim=_early_scatter_breaks_all
            ),
        ),
        mutants=("scatter keeps one too many", "scatter keeps two too few"),
        witness=lambda: _wrapped(S == W, D == 1, any_seat().prefilling),
        source="store_swa_into_unified",
    ),
    Theorem(
        identifier="R9",
        title="rejected drafts are never read",
        statement="Rows of rejected draft tokens are rewritten before anything reads them, for "
        "every accepted count 1..D.",
        scope="all W, D, S >= W + D - 1, accepted 1..D, any order of steps",
        obligations=(
            *(
                Obligation(
                    name=f"rejected rows lie past the end: {operation}",
                    claim=_no_rejected(operation),
                )
                for operation in ("prefill", "decode", "verify")
            ),
            *(
                Obligation(name=f"never read: {operation}", claim=_reads_committed(operation))
                for operation in ("prefill", "decode", "verify")
            ),
        ),
        mutants=(
            "decode reads before it writes",
            "verify reads before it writes",
            "accepted tokens one too many",
        ),
        witness=lambda: (
            *sizes(),
            S == W + D - 1,
            D >= 3,
            any_seat().cell.own,
            z3.Not(any_seat().cell.committed),
            invariant(any_seat()),
            *well_formed(any_seat()),
        ),
        source="eagle_worker; #506 and #509 of rMLX for the defect elsewhere",
    ),
    Theorem(
        identifier="R10",
        title="how far a ring rewinds",
        statement="A ring written up to e restarts at c exactly when the window of c begins at "
        "e - S or later, which is e - c <= S - W + 1 once the ring has wrapped (e > S) and c has a "
        "window (W >= 2). A ring that was just filled (e = S) restarts anywhere.",
        conjecture="e - c <= S - W + 1 was stated for every saturated ring; e = S, c < W - 1 "
        "and W = 1 are exceptions",
        scope="all W, S >= W, e >= S, c",
        obligations=(
            Obligation(name="allowed restarts find their window", claim=_survives),
            Obligation(name="forbidden restarts have lost a key", claim=_lost),
            Obligation(
                name="the short form, wrapped", claim=_shortcut(_end > S, W >= 2, _restart > 0)
            ),
            Obligation(
                name="the short form, just filled",
                claim=_shortcut(W >= 2, _restart > 0),
                expected="refuted",
                replay=_restarts_from_start,
            ),
        ),
        mutants=("rewind one too far", "window one too wide"),
        witness=lambda: (*_saturated, W >= 3, S > W, _end > 2 * S, _restart == _end - 2),
        source="rings that roll back drafts",
    ),
)
