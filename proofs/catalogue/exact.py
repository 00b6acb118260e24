"""X1 to X6: what prefill reads, and what of it reaches the outputs of a stack of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import z3

from kvproof.model.facts import Skipped
from kvproof.model.layers import Layers, Stack, judge
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
)
from kvproof.model.transition import is_fresh
from kvproof.proofs.catalogue.cap import decode_of_fresh_tail
from kvproof.proofs.catalogue.ring import (
    END,
    OFFSET,
    QUERY,
    STANDS_FOR,
    S,
    W,
    any_seat,
    invariant,
    launch,
    reads,
    rings,
    sizes,
    well_formed,
)
from kvproof.proofs.scenarios import hit
from kvproof.proofs.theorem import (
    ALL_RELEASES,
    UNCAPPED,
    Check,
    Claim,
    Enumeration,
    Fact,
    Obligation,
    Replay,
    Term,
    Theorem,
    Values,
)
from kvproof.spec.cap import capped_match, decodes_fresh
from kvproof.spec.exact import (
    compressed_end,
    exact_decode_tail,
    exact_frontier,
    exact_logits_tail,
    next_frontier,
)
from kvproof.spec.indices import Position
from kvproof.spec.pages import page_ceil
from kvproof.spec.ring import same_ring_row
from kvproof.spec.terms import maximum
from kvproof.spec.window import (
    decode_reads,
    floored_ring_reads,
    prefill_ring_reads,
    window_start,
)

L, LAYER, M, N, P, E, T, F, RATIO, TAIL = z3.Ints("L layer m n P E T frontier ratio tail")
"""Layers, a layer, matched and prompt length, page, cached length, tail, exact frontier, ratio."""

# X1


def _prefill_read(*given: Fact, then: Callable[[Fact, Term], Fact]) -> Claim:
    """Something about a ring read of a prefill query, and the seat's matched length."""
    seat = any_seat()
    ran, arguments = launch("prefill", seat, rings())
    return Claim(
        given=(
            *sizes(),
            S >= W,
            *well_formed(seat),
            *arguments,
            invariant(seat),
            *reads("prefill", seat, rings()),
            *given,
        ),
        then=then(is_fresh(ran.found, STANDS_FOR), seat.matched),
    )


def _fresh_exactly_past_match() -> Claim:
    return _prefill_read(then=lambda fresh, matched: fresh == (matched <= STANDS_FOR))


def _every_hit_is_stale() -> Claim:
    """The first tail query reads the key before it, which is not its own."""
    seat = any_seat()
    ran, arguments = launch("prefill", seat, rings())
    start, end = prefill_ring_reads(Position(seat.matched), Position(seat.computed), W)
    last_reused = seat.matched - 1
    return Claim(
        given=(
            *sizes(),
            *arguments,
            seat.matched >= 1,
            W >= 2,
            seat.computed == seat.matched,
            invariant(seat),
            same_ring_row(Position(last_reused), Position(OFFSET), S),
        ),
        then=z3.And(
            last_reused >= start, last_reused < end, z3.Not(is_fresh(ran.found, last_reused))
        ),
    )


def _rows_below(query: Term) -> Term:
    """Ring rows below the match that a query reads."""
    return maximum(0, M - window_start(Position(query), W))


def _pairs(queries: Term) -> Term:
    """Twice the number of pairs that the first ``queries`` tail queries contribute."""
    return queries * (2 * (W - 1) - (queries - 1))


def _pairs_start() -> Claim:
    return Claim(given=(W >= 1,), then=_pairs(z3.IntVal(0)) == 0)


def _pairs_step() -> Claim:
    k = z3.Int("k")
    return Claim(
        given=(W >= 1, M >= W - 1, k >= 0, k < W - 1),
        then=_pairs(k + 1) == _pairs(k) + 2 * _rows_below(M + k),
    )


def _pairs_end() -> Claim:
    return Claim(given=(W >= 1,), then=_pairs(W - 1) == W * (W - 1))


def _no_pairs_after() -> Claim:
    k = z3.Int("k")
    return Claim(given=(W >= 1, M >= 0, k >= W - 1), then=_rows_below(M + k) == 0)


def _capped_prefill_fresh() -> Claim:
    matched = capped_match(E, N, W, P)
    return Claim(
        given=(W >= 2, P >= 2, N >= 1, E >= 0, E <= N, E % P == 0),
        then=_rows_below_of(matched) == 0,
        show={"W": W, "P": P, "m": matched, "tail": N - matched},
    )


def _rows_below_of(matched: Term) -> Term:
    return maximum(0, matched - window_start(Position(matched), W))


def _capped_hit(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"],
            page_size=found["P"],
            matched_len=found["m"],
            tail=found["tail"],
            slots=4,
        ),
        policy=Policy(),
        breaks="FRESH-PREFILL",
        releases=ALL_RELEASES,
    )


# X2


def _floored_reads_own() -> Claim:
    seat = any_seat()
    ran, arguments = launch("prefill", seat, rings())
    start, end = floored_ring_reads(Position(QUERY), Position(seat.computed), seat.matched, W)
    return Claim(
        given=(
            *sizes(),
            S >= W,
            *well_formed(seat),
            *arguments,
            invariant(seat),
            seat.computed <= QUERY,
            QUERY < END,
            start <= STANDS_FOR,
            end > STANDS_FOR,
            same_ring_row(STANDS_FOR, Position(OFFSET), S),
        ),
        then=is_fresh(ran.found, STANDS_FOR),
    )


def _decode_reads_own() -> Claim:
    return decode_of_fresh_tail(lambda found: found.own)


def _floored_without_cap() -> Claim:
    """Decodes of a short tail read below the match, whatever prefill leaves out."""
    start, _ = decode_reads(Position(N), W)
    return Claim(
        given=(W >= 1, M >= 1, N > M),
        then=start >= M,
        show={"W": W, "m": M, "tail": N - M},
    )


def _floored_decode(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"],
            page_size=1,
            matched_len=found["m"],
            tail=found["tail"],
            then=(Decode(),),
        ),
        policy=Policy(reprefill_tail=0),
        breaks="NON-INTERFERENCE",
        stack=Stack.of(layers=1, reading="floored reads"),
        why_not_engines="no release leaves rows below the match out",
    )


def _floored_exact() -> Claim:
    """Leaving keys out makes the first tail query exact."""
    start, end = floored_ring_reads(Position(M), Position(M), M, W)
    return Claim(
        given=(W >= 2, M >= 1),
        then=end - start == M - window_start(Position(M), W),
        show={"W": W, "m": M},
    )


def _floored_inexact(found: Values) -> Replay:
    return Replay(
        scenario=hit(window=found["W"], page_size=1, matched_len=found["m"], tail=1),
        policy=Policy(reprefill_tail=0),
        breaks="EXACT",
        stack=Stack.of(layers=1, reading="floored reads"),
        why_not_engines="no release leaves rows below the match out",
    )


# X3: induction over layers. ``below`` is exact from the frontier F on, and nowhere before.

_below = z3.Function("exact_below", z3.IntSort(), z3.BoolSort())
_p, _q = z3.Ints("p q")
_layer_sizes = (W >= 1, M >= 1, F >= M, _q >= M)


def _below_at(position: Term) -> Fact:
    """Induction hypothesis at one position."""
    return _below(position) == (position >= F)


def _layer_suffices() -> Claim:
    return Claim(
        given=(
            *_layer_sizes,
            _q >= next_frontier(F, W),
            _p <= _q,
            _p >= window_start(Position(_q), W),
            _below_at(_p),
        ),
        then=z3.And(_p >= M, _below(_p)),
    )


def _layer_needs() -> Claim:
    oldest = window_start(Position(_q), W)
    return Claim(
        given=(*_layer_sizes, _q < next_frontier(F, W), _below_at(oldest)),
        then=z3.And(oldest <= _q, z3.Or(oldest < M, z3.Not(_below(oldest)))),
    )


def _frontier_base() -> Claim:
    return Claim(given=(W >= 1, M >= 1), then=exact_frontier(M, 0, W) == M)


def _frontier_step() -> Claim:
    return Claim(
        given=(W >= 1, M >= 1, LAYER >= 0),
        then=exact_frontier(M, LAYER + 1, W) == next_frontier(exact_frontier(M, LAYER, W), W),
    )


def _frontier_past_match() -> Claim:
    return Claim(given=(W >= 1, M >= 1, LAYER >= 0), then=exact_frontier(M, LAYER, W) >= M)


_stack_sizes = (W >= 1, M >= 1, L >= 1, N > M)


def _logits() -> Claim:
    return Claim(
        given=_stack_sizes,
        then=(exact_frontier(M, L, W) <= N - 1) == (exact_logits_tail(L, W) <= N - M),
    )


def _decodes() -> Claim:
    """Every decode query stands at n or later; the first decides."""
    return Claim(
        given=(*_stack_sizes, _q >= N),
        then=z3.And(
            z3.Implies(exact_decode_tail(L, W) <= N - M, _q >= exact_frontier(M, L, W)),
            (exact_frontier(M, L, W) <= N) == (exact_decode_tail(L, W) <= N - M),
        ),
    )


def _pages_only_add() -> Claim:
    """A cap of any tail leaves at least that tail, in whole pages."""
    matched = capped_match(E, N, TAIL, P)
    return Claim(
        given=(P >= 1, N >= 1, E >= 0, TAIL >= 0), then=z3.Or(matched == 0, N - matched >= TAIL)
    )


def _chunks_cover() -> Claim:
    """Ring and chunk together give a query its window, wherever the chunk starts."""
    start, end = prefill_ring_reads(Position(_q), Position(_p), W)
    at = z3.Int("at")
    in_ring = z3.And(at >= start, at < end)
    in_chunk = z3.And(at >= maximum(start, _p), at <= _q)
    in_window = z3.And(at >= window_start(Position(_q), W), at <= _q)
    return Claim(
        given=(W >= 1, _p >= 0, _q >= _p),
        then=z3.And(z3.Or(in_ring, in_chunk) == in_window, z3.Not(z3.And(in_ring, in_chunk))),
    )


def _one_layer_is_the_cap() -> Claim:
    return Claim(given=(W >= 1,), then=exact_logits_tail(1, W) == W)


def _one_token_short() -> Claim:
    return Claim(
        given=(W >= 2, M >= 1, L >= 1, exact_logits_tail(L, W) - 1 == N - M),
        then=exact_frontier(M, L, W) <= N - 1,
        show={"W": W, "L": L, "m": M, "tail": N - M},
    )


def _inexact_logits(found: Values) -> Replay:
    return Replay(
        scenario=hit(window=found["W"], page_size=1, matched_len=found["m"], tail=found["tail"]),
        policy=Policy(reprefill_tail=0),
        breaks="EXACT",
        stack=Stack.of(layers=found["L"]),
        releases=UNCAPPED,
    )


def _one_token_short_decode() -> Claim:
    return Claim(
        given=(W >= 2, M >= 1, L >= 2, N > M, exact_decode_tail(L, W) - 1 == N - M),
        then=exact_frontier(M, L, W) <= N,
        show={"W": W, "L": L, "m": M, "tail": N - M},
    )


def _inexact_decode(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"],
            page_size=1,
            matched_len=found["m"],
            tail=found["tail"],
            then=(Decode(),),
        ),
        policy=Policy(reprefill_tail=0),
        breaks="EXACT",
        stack=Stack.of(layers=found["L"]),
        releases=UNCAPPED,
    )


def _brute_force() -> tuple[int, str | None]:
    """The closed forms against taint carried through every layer, read by read."""
    cases = 0
    for layers in range(1, 4):
        for window in range(1, 5):
            for tail in range(1, exact_logits_tail(layers, window) + 3):
                cases += 1
                scenario = hit(
                    window=window, page_size=1, matched_len=3, tail=tail, then=(Decode(),)
                )
                broken = _judged(scenario, Policy(reprefill_tail=0), Stack.of(layers=layers)).broken
                logits = any(b.invariant == "EXACT" and b.step == 7 for b in broken)
                decode = any(b.invariant == "EXACT" and b.step == 8 for b in broken)
                if logits == (tail >= exact_logits_tail(layers, window)) or decode == (
                    tail >= exact_decode_tail(layers, window)
                ):
                    return cases, f"W={window}, L={layers}, tail {tail}"
    return cases, None


def _judged(scenario: Scenario, policy: Policy, stack: Stack) -> Layers:
    return judge(reference_player(scenario.geometry, policy).play(scenario), stack)


# X4

_compressed_sizes = (W >= 2, M >= 1, RATIO >= 1, M % RATIO == 0, LAYER >= 2)


def _first_tail_state_tainted() -> Claim:
    """The first tail position is inexact above every layer."""
    return Claim(given=(W >= 2, M >= 1, LAYER >= 1), then=exact_frontier(M, LAYER, W) > M)


def _row_is_seen() -> Claim:
    """Its compressed row is seen by every query from the row's last token on."""
    return Claim(
        given=(*_compressed_sizes, _q >= M + RATIO - 1),
        then=compressed_end(_q, RATIO) >= M + RATIO,
    )


def _taint_stays() -> Claim:
    """A query's own state is in its window: what is inexact below a layer is so above it."""
    return Claim(
        given=(*_layer_sizes, z3.Not(_below(_q)), _p == _q),
        then=z3.And(_p >= window_start(Position(_q), W), _p <= _q, z3.Not(_below(_p))),
    )


def _no_tail_left() -> Claim:
    """Tails that see the row, and tails that are too short without it, are all tails."""
    return Claim(
        given=(W >= 2, L >= 2, RATIO >= 1, exact_logits_tail(L, W) >= RATIO, T >= 1),
        then=z3.Or(T >= RATIO, exact_logits_tail(L, W) > T),
    )


def _any_ratio() -> Claim:
    return Claim(
        given=(W >= 2, L >= 2, RATIO >= 1, T >= 1),
        then=z3.Or(T >= RATIO, exact_logits_tail(L, W) > T),
        show={"W": W, "L": L, "ratio": RATIO, "T": T},
    )


def _exact_before_the_row(found: Values) -> Check:
    window, layers, ratio, tail = (found[name] for name in ("W", "L", "ratio", "T"))
    stack = Stack.of(layers=layers, compressed=frozenset({2}), ratio=ratio)
    scenario = hit(window=window, page_size=ratio, matched_len=ratio, tail=tail)
    broken = [b for b in _judged(scenario, Policy(reprefill_tail=0), stack).broken if b.step == 7]
    return Check(
        model="layers over the reference engine",
        invariant="no finite tail is EXACT",
        broken=not any(b.invariant == "EXACT" for b in broken),
        says=f"W={window}, {layers} layers, compressed rows of {ratio} tokens: a tail of {tail} "
        "gives exact logits, since no compressed row of the tail is complete yet",
    )


def _long_tail_heals() -> Claim:
    """With a compressed layer past the first, a long tail gives exact logits."""
    return Claim(
        given=(*_compressed_sizes, L >= LAYER, exact_logits_tail(L, W) <= T, T >= RATIO),
        then=z3.Or(compressed_end(M + T - 1, RATIO) <= M, exact_frontier(M, LAYER - 1, W) <= M),
        show={"W": W, "L": L, "layer": LAYER, "ratio": RATIO, "m": M, "T": T},
    )


def _never_heals(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"], page_size=found["ratio"], matched_len=found["m"], tail=found["T"]
        ),
        policy=Policy(reprefill_tail=0),
        breaks="EXACT",
        stack=Stack.of(
            layers=found["L"], compressed=frozenset({found["layer"]}), ratio=found["ratio"]
        ),
        releases=UNCAPPED,
    )


# X5

_rebuild_sizes = (W >= 1, L >= 1, M >= 1, E >= M)
"""A rebuild replays the tokens from M to E."""


def _rebuild_exact() -> Claim:
    return Claim(
        given=_rebuild_sizes,
        then=(exact_frontier(M, L, W) <= E) == (exact_decode_tail(L, W) <= E - M),
    )


def _rebuild_rows_exact() -> Claim:
    """Compressed rows past E come from states that are exact below every layer."""
    return Claim(
        given=(
            *_rebuild_sizes,
            exact_decode_tail(L, W) <= E - M,
            LAYER >= 1,
            LAYER <= L,
            _q >= E,
        ),
        then=_q >= exact_frontier(M, LAYER - 1, W),
    )


def _rebuild_short() -> Claim:
    return Claim(
        given=(*_rebuild_sizes, W >= 2, exact_decode_tail(L, W) - 1 == E - M),
        then=exact_frontier(M, L, W) <= E,
        show={"W": W, "L": L, "m": M, "E": E},
    )


def _rebuild_run(found: Values) -> Replay:
    """The tree could give E tokens; the cap starts the replay at m; one token is new."""
    window, start, cached = found["W"], found["m"], found["E"]
    scenario = hit(window=window, page_size=1, matched_len=cached, tail=1)
    return Replay(
        scenario=scenario,
        policy=Policy(reprefill_tail=cached + 1 - start),
        breaks="EXACT",
        stack=Stack.of(
            layers=found["L"], compressed=frozenset(range(1, found["L"] + 1)), reading="rebuild"
        ),
        why_not_engines="no release rebuilds",
    )


def _rebuild_pages() -> Claim:
    return Claim(
        given=(),
        then=z3.And(
            page_ceil(exact_decode_tail(43, 128), 256) == 5632,
            page_ceil(exact_decode_tail(61, 128), 256) == 7936,
        ),
    )


def _rebuild_brute_force() -> tuple[int, str | None]:
    cases = 0
    for layers in range(1, 4):
        stack = Stack.of(
            layers=layers, compressed=frozenset(range(1, layers + 1)), reading="rebuild"
        )
        for window in range(1, 5):
            need = exact_decode_tail(layers, window)
            for replayed in range(need + 3):
                cases += 1
                cached = need + 4
                scenario = hit(window=window, page_size=1, matched_len=cached, tail=1)
                broken = _judged(scenario, Policy(reprefill_tail=replayed + 1), stack).broken
                exact = not any(b.invariant == "EXACT" for b in broken)
                if exact != (replayed >= need):
                    return cases, f"W={window}, L={layers}, {replayed} tokens replayed"
    return cases, None


# X6


def _published_page_pure() -> Claim:
    """The first page that a hit publishes is made of exact states below layer 2."""
    return Claim(
        given=(W >= 2, M >= 1, P >= 1, N >= M + P),
        then=exact_frontier(M, 1, W) <= M,
        show={"W": W, "P": P, "m": M, "n": N},
    )


X6_STACK = Stack.of(layers=2, compressed=frozenset({2}))


def tainted_page(window: int, page_size: int, *, slots: int = 3) -> Scenario:
    """Six operations after which a request reuses a page that depends on a slot's past."""
    first, second = page_size * (1 + window // page_size), page_size * (2 + 2 * window)
    third = second + window + page_size
    return Scenario(
        geometry=Geometry(
            window=window,
            page_size=page_size,
            slots=slots,
            pool_tokens=page_ceil(3 * third + page_size, page_size),
        ),
        operations=(
            Submit(request="A", prompt=(Piece("A", first),)),
            Prefill(request="A"),
            Submit(request="B", prompt=(Piece("A", second),)),
            Prefill(request="B"),
            Submit(request="C", prompt=(Piece("A", third),)),
            Prefill(request="C"),
        ),
    )


def _published_taint(found: Values) -> Replay:
    return Replay(
        scenario=tainted_page(found["W"], max(2, found["P"])),
        policy=Policy(),
        breaks="PURE",
        stack=X6_STACK,
        releases=ALL_RELEASES,
    )


_ALPHABET: tuple[Operation, ...] = (
    *(Submit(request=name, prompt=(Piece("A", n),)) for name, n in (("A", 3), ("B", 5), ("C", 7))),
    *(Prefill(request=name) for name in "ABC"),
    *(Finish(request=name) for name in "ABC"),
    *(Retract(request=name) for name in "AB"),
    Abort(request="A"),
    Decode(),
    Evict(tokens=1),
)  # fmt: skip


@cache
def _shortest_inheritance() -> tuple[int, int | None]:
    """Scenarios tried, and the length of the shortest in which a tainted page is inherited."""
    geometry = Geometry(window=2, page_size=1, slots=3, pool_tokens=64)
    level: list[tuple[Operation, ...]] = [()]
    tried = 0
    for length in range(1, 7):
        longer = []
        for operations in level:
            for operation in _ALPHABET:
                run = (*operations, operation)
                tried += 1
                facts = list(
                    reference_player(geometry, Policy()).play(
                        Scenario(geometry=geometry, operations=run)
                    )
                )
                if any(isinstance(fact, Skipped) for fact in facts):
                    continue  # the same as the run without that operation
                if any(judge(facts, X6_STACK).inherits_tainted_page()):
                    return tried, length
                longer.append(run)
        level = longer
    return tried, None


def _six_operations() -> tuple[int, str | None]:
    tried, length = _shortest_inheritance()
    return tried, None if length == 6 else f"the shortest has {length} operations"


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        identifier="X1",
        title="prefill reads stale rows on every hit",
        statement="FRESH-PREFILL fails on every hit, capped or not (W >= 2): a ring read of a tail "
        "query is FRESH exactly when it stands for a position at or past the match. With m >= W - "
        "1 and T >= W - 1 there are W(W - 1)/2 stale (query, row) pairs a layer: 8128 for W = 128.",
        scope="all W, S >= W, P, n, m, any chunking",
        obligations=(
            Obligation(name="every hit has a stale read", claim=_every_hit_is_stale),
            Obligation(name="fresh exactly past the match", claim=_fresh_exactly_past_match),
            Obligation(name="pairs: no query", claim=_pairs_start),
            Obligation(name="pairs: one query more", claim=_pairs_step),
            Obligation(name="pairs: W - 1 queries", claim=_pairs_end),
            Obligation(name="pairs: none after", claim=_no_pairs_after),
            Obligation(
                name="FRESH-PREFILL under the cap", claim=_capped_prefill_fresh,
                expected="refuted", replay=_capped_hit,
            ),
        ),
        mutants=("window one too wide", "prefill reads one position less"),
        witness=lambda: (
            *sizes(), S >= W, W >= 3, any_seat().matched >= W,
            any_seat().computed > any_seat().matched, *well_formed(any_seat()),
            invariant(any_seat()), any_seat().cell.own,
        ),
        source="build_prefill_indices",
    ),
    Theorem(
        identifier="X2",
        title="non-interference needs floored reads and the cap",
        statement="The output does not depend on the slot's previous occupant exactly when nothing "
        "is reused, or prefill leaves out ring rows below the match and T >= W - 1. That gives "
        "determinism, not EXACT: the keys left out are missing.",
        conjecture="floored prefill reads alone were said to suffice; without the cap, decodes "
        "of a short tail still read the previous occupant's rows",
        scope="all W, S >= W, n, m, any chunking, any number of decodes",
        obligations=(
            Obligation(name="floored prefill reads are own", claim=_floored_reads_own),
            Obligation(name="decodes of a long tail read own rows", claim=_decode_reads_own),
            Obligation(name="without the floor a foreign row is read", claim=_every_hit_is_stale),
            Obligation(
                name="the floor without the cap", claim=_floored_without_cap, expected="refuted",
                replay=_floored_decode,
            ),
            Obligation(
                name="the floor makes EXACT", claim=_floored_exact, expected="refuted",
                replay=_floored_inexact,
            ),
        ),
        mutants=("reads floored one too low", "decode rule off by one"),
        witness=lambda: (W >= 3, M >= 2, N > M, decodes_fresh(M, N - M, W)),
        source="build_prefill_indices",
    ),
    Theorem(
        identifier="X3",
        title="the exact tail is L(W - 1) + 1",
        statement="In a stack of L sliding-window layers the logits of the last prompt token are "
        "EXACT exactly when T >= L(W - 1) + 1 (or nothing is reused), later decodes exactly when "
        "T >= L(W - 1). Pages only add to the tail, chunking changes nothing, and for L = 1 this "
        "is the cap W.",
        scope="all L and W, by induction over layers; all m, n, P, any chunking",
        obligations=(
            Obligation(name="frontier: no layer", claim=_frontier_base),
            Obligation(name="frontier: one layer more", claim=_frontier_step),
            Obligation(name="frontier: not before the match", claim=_frontier_past_match),
            Obligation(name="a layer is exact past the next frontier", claim=_layer_suffices),
            Obligation(name="a layer is inexact before it", claim=_layer_needs),
            Obligation(name="logits", claim=_logits),
            Obligation(name="decodes", claim=_decodes),
            Obligation(name="pages only add", claim=_pages_only_add),
            Obligation(name="chunks change nothing", claim=_chunks_cover),
            Obligation(name="one layer is the cap", claim=_one_layer_is_the_cap),
            Obligation(
                name="tight: T = L(W - 1) and the logits", claim=_one_token_short,
                expected="refuted", replay=_inexact_logits,
            ),
            Obligation(
                name="tight: T = L(W - 1) - 1 and decodes", claim=_one_token_short_decode,
                expected="refuted", replay=_inexact_decode,
            ),
            Enumeration(
                name="brute force through the layers", run=_brute_force,
                bound="L <= 3, W <= 4, m = 3, every tail up to two past the bound", proved_too=True,
            ),
        ),
        mutants=("frontier one short", "exact tail one short", "window one too wide"),
        witness=lambda: (W >= 3, L >= 3, M >= 2, exact_logits_tail(L, W) < N - M),
        source="PR #30339; #34562",
    ),
    Theorem(
        identifier="X4",
        title="compressed rows never heal",
        statement="If a layer past the first writes compressed rows of r tokens for the tail, no "
        "finite tail restores exact logits, provided r <= L(W - 1) + 1. With longer rows the tails "
        "from L(W - 1) + 1 to r - 1 are exact, since no row of the tail is complete.",
        conjecture="it was stated without the condition on r",
        scope="all L, W, r, m, T",
        obligations=(
            Obligation(
                name="the first tail state is inexact at every layer",
                claim=_first_tail_state_tainted,
            ),
            Obligation(name="its row is seen for ever after", claim=_row_is_seen),
            Obligation(name="what is inexact stays so above", claim=_taint_stays),
            Obligation(name="that leaves no tail", claim=_no_tail_left),
            Obligation(
                name="for any r", claim=_any_ratio, expected="refuted",
                replay=_exact_before_the_row,
            ),
            Obligation(
                name="a long tail heals", claim=_long_tail_heals, expected="refuted",
                replay=_never_heals,
            ),
        ),
        mutants=("stack frontier a layer short", "compressed row one token early"),
        witness=lambda: (*_compressed_sizes, RATIO >= 2, T >= RATIO),
        source="compress ratios 4 and 128 of DeepSeek-V4",
    ),
    Theorem(
        identifier="X5",
        title="a rebuild replays L(W - 1) tokens",
        statement="A policy that keeps the compressed rows of the tree and recomputes "
        "sliding-window keys only is EXACT for every request exactly when it replays at least L(W "
        "- 1) tokens. For W = 128 and pages of 256 that is 5632 tokens (22 pages) with L = 43 and "
        "7936 (31 pages) with L = 61.",
        scope="all L, W, E, start of the replay; given that the tree is PURE",
        obligations=(
            Obligation(name="exact from the first new token on", claim=_rebuild_exact),
            Obligation(name="new compressed rows are exact", claim=_rebuild_rows_exact),
            Obligation(name="page-rounded numbers", claim=_rebuild_pages),
            Obligation(
                name="tight: one token less", claim=_rebuild_short, expected="refuted",
                replay=_rebuild_run,
            ),
            Enumeration(
                name="brute force through the layers", run=_rebuild_brute_force,
                bound="L <= 3, W <= 4, all layers compressed, replays up to two past the bound",
                proved_too=True,
            ),
        ),
        mutants=("stack frontier a layer short", "rebuild one short"),
        witness=lambda: (*_rebuild_sizes, L >= 2, W >= 2, exact_decode_tail(L, W) <= E - M),
        source="decoder bounded replay (0.5.23)",
    ),
    Theorem(
        identifier="X6",
        title="a tainted page can be inherited",
        statement="A request that hits publishes a page whose compressed rows at layer 2 depend on "
        "its slot's past, and a later request in another slot inherits it: submit and prefill A, "
        "then B with a longer prompt, then C with a still longer one. Six operations are the "
        "minimum: three admissions are needed, and each takes a prefill and a submit or a retract.",
        scope="the taint: all W >= 2, P, m; the minimum: up to a bound",
        obligations=(
            Obligation(
                name="what a hit publishes is PURE", claim=_published_page_pure,
                expected="refuted", replay=_published_taint,
            ),
            Enumeration(
                name="no shorter scenario", run=_six_operations,
                bound=f"every sequence of {len(_ALPHABET)} operations on W = 2, P = 1, 3 slots",
            ),
        ),
        mutants=("stack frontier a layer short",),
        witness=lambda: (W >= 3, M >= W, P >= 2, N >= M + P),
        source="compressed pages of DeepSeek-V4; PURE",
    ),
)  # fmt: skip
