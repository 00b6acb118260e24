"""C1 to C5: the scheduler cap, what it guarantees and what it costs."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.model.reference import Policy
from kvproof.model.scenario import Decode
from kvproof.model.transition import Cell, decode_span, is_fresh
from kvproof.proofs.catalogue.ring import (
    OFFSET,
    STANDS_FOR,
    S,
    W,
    any_seat,
    invariant,
    launch,
    reads,
    rings,
    sizes,
)
from kvproof.proofs.scenarios import hit
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
from kvproof.spec.cap import (
    capped_bigram_match,
    capped_match,
    decodes_fresh,
    first_token_fresh,
    reprefill_bound,
)
from kvproof.spec.indices import Position
from kvproof.spec.ring import same_ring_row
from kvproof.spec.terms import maximum, minimum
from kvproof.spec.window import decode_reads, window_start

P, N, E, R, M, T = z3.Ints("P n E r m T")
"""Page size, prompt length, cached length, tail held back, matched length, re-prefilled tail."""

_sizes = (W >= 1, P >= 1, N >= 1, E >= 0, R >= 0)
_cached = (*_sizes, E % P == 0, E <= N)
"""The tree could give ``E`` tokens of the prompt."""


def _match(tail: Term, cached: Term = E) -> Term:
    return capped_match(cached, N, tail, P)


# C1


def _aligned() -> Claim:
    matched = _match(R)
    return Claim(given=_sizes, then=z3.And(matched >= 0, matched % P == 0, matched <= E))


def _idempotent() -> Claim:
    return Claim(given=_sizes, then=_match(R, _match(R)) == _match(R))


def _never_longer() -> Claim:
    return Claim(given=_sizes, then=_match(R) <= _match(z3.IntVal(0)))


def _something_computed() -> Claim:
    return Claim(given=_sizes, then=_match(R) < N)


# C2


def _tail_of_a_window() -> Claim:
    return Claim(given=_sizes, then=N - _match(W) >= minimum(N, W))


# C3


def _own_reads() -> Claim:
    """With a long enough tail, all that a decode reads was computed by the request itself."""
    seat = any_seat()
    start, end = decode_span(seat, rings())
    tail = N - seat.matched
    return Claim(
        given=(
            *sizes(),
            seat.matched >= 0,
            seat.matched < N,
            seat.computed >= N,
            decodes_fresh(seat.matched, tail, W),
            start <= STANDS_FOR,
            end > STANDS_FOR,
        ),
        then=seat.matched <= STANDS_FOR,
    )


def _short_tail_is_stale() -> Claim:
    """Else the first decode reads the key before the tail, which the request never wrote."""
    seat = any_seat()
    ran, arguments = launch("decode", seat, rings())
    start, end = decode_span(seat, rings())
    last_reused = seat.matched - 1
    return Claim(
        given=(
            *sizes(),
            S >= W,
            *arguments,
            seat.matched >= 0,
            seat.matched < N,
            seat.computed == N,
            z3.Not(decodes_fresh(seat.matched, N - seat.matched, W)),
            invariant(seat),
            same_ring_row(Position(last_reused), Position(OFFSET), S),
        ),
        then=z3.And(
            last_reused >= start, last_reused < end, z3.Not(is_fresh(ran.found, last_reused))
        ),
    )


def decode_of_fresh_tail(conclude: Callable[[Cell], Fact]) -> Claim:
    """What holds of any row that a decode reads when `decodes_fresh` holds of its request."""
    seat = any_seat()
    ran, arguments = launch("decode", seat, rings())
    return Claim(
        given=(
            *sizes(),
            S >= W,
            *arguments,
            seat.matched >= 0,
            seat.matched < N,
            seat.computed >= N,
            decodes_fresh(seat.matched, N - seat.matched, W),
            invariant(seat),
            *reads("decode", seat, rings()),
        ),
        then=conclude(ran.found),
    )


def _fresh_own_reads() -> Claim:
    return decode_of_fresh_tail(lambda found: is_fresh(found, STANDS_FOR))


def _first_token() -> Claim:
    """The last prefill query stands at n - 1; its window is its own exactly if the tail allows."""
    start = window_start(Position(N - 1), W)
    return Claim(
        given=(W >= 1, M >= 0, M < N),
        then=first_token_fresh(M, N - M, W) == z3.Or(M == 0, start >= M),
    )


def _first_decode() -> Claim:
    start, _ = decode_reads(Position(N), W)
    return Claim(
        given=(W >= 1, M >= 0, M < N),
        then=decodes_fresh(M, N - M, W) == z3.Or(M == 0, start >= M),
    )


def _weaker_tail(shortfall: int) -> Callable[[], Claim]:
    """A cap that holds back ``W - shortfall`` tokens: decodes are FRESH."""

    def claim() -> Claim:
        matched = _match(W - shortfall)
        return Claim(
            given=(*_cached, shortfall + 1 <= W),
            then=decodes_fresh(matched, N - matched, W),
            show={"W": W, "P": P, "n": N, "E": E, "m": matched, "tail": N - matched},
        )

    return claim


def _weaker_first_token() -> Claim:
    """A cap that holds back W - 1 tokens: the first token's own window is not all its own."""
    matched = _match(W - 1)
    return Claim(
        given=(*_cached, W >= 2),
        then=first_token_fresh(matched, N - matched, W),
        show={"W": W, "P": P, "m": matched, "tail": N - matched},
    )


def _short_tail_run(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"],
            page_size=found["P"],
            matched_len=found["m"],
            tail=found["tail"],
            then=(Decode(),),
        ),
        policy=Policy(reprefill_tail=0),
        breaks="FRESH-DECODE",
        releases=UNCAPPED,
    )


def _first_token_run(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"], page_size=found["P"], matched_len=found["m"], tail=found["tail"]
        ),
        policy=Policy(reprefill_tail=0),
        breaks="FRESH-PREFILL",
        releases=UNCAPPED,
    )


_apart = (*_cached, W >= 2, N >= W)


def _differ_at_page_edge() -> Claim:
    looser, tighter = _match(W - 1), _match(W)
    return Claim(
        given=(*_apart, looser != tighter),
        then=z3.And((N - W + 1) % P == 0, looser - tighter == P),
    )


def _differ_there_indeed() -> Claim:
    looser, tighter = _match(W - 1), _match(W)
    return Claim(given=(*_apart, (N - W + 1) % P == 0, E >= N - W + 1), then=looser - tighter == P)


# C4


def _cost(*, bigram: bool, slack: int = 0) -> Callable[[], Claim]:
    def claim() -> Claim:
        matched = capped_bigram_match(E, N, W, P) if bigram else _match(W)
        bound = reprefill_bound(N, E, W, P, bigram=bigram)
        if slack:
            bound = maximum(N - E, W + P - 1 + (1 if bigram else 0) - slack)
        return Claim(
            given=(*_cached, (N - 1 if bigram else N) >= E),
            then=N - matched <= bound,
            show={"W": W, "P": P, "n": N, "E": E, "m": matched},
        )

    return claim


def _cost_reached(*, bigram: bool) -> Claim:
    """Every W and P has prompts of any length that reach the bound: E is a page past the match."""
    extra = 1 if bigram else 0
    prompt = M + W + P - 1 + extra
    matched = (capped_bigram_match if bigram else capped_match)(M + P, prompt, W, P)
    return Claim(given=(W >= 1, P >= 1, M >= 0, M % P == 0), then=matched == M)


def _costs_that_much(*, bigram: bool) -> Callable[[Values], Check]:
    def check(found: Values) -> Check:
        window, page, prompt, cached = (found[name] for name in ("W", "P", "n", "E"))
        rule = capped_bigram_match if bigram else capped_match
        tail = prompt - rule(cached, prompt, window, page)
        bound = reprefill_bound(prompt, cached, window, page, bigram=bigram)
        return Check(
            model="the cap's rule",
            invariant="USEFUL, one token tighter",
            broken=tail == bound and bound > prompt - cached,
            says=f"W={window}, P={page}: of {prompt} tokens with {cached} cached, {tail} are "
            f"prefilled again",
        )

    return check


# C5


def _exposed_construction() -> Claim:
    """A construction that holds back r tokens has a request whose decode is stale, if r is short.

    The request is named: a page is cached, and ``max(r, 1)`` tokens follow it.
    """
    held = maximum(R, 1)
    prompt = P + held
    matched = capped_match(P, prompt, R, P)
    return Claim(
        given=(W >= 1, P >= 1, R >= 0, held < W - 1),
        then=z3.And(matched == P, z3.Not(decodes_fresh(matched, prompt - matched, W))),
    )


def _safe_construction() -> Claim:
    matched = _match(R)
    return Claim(
        given=(*_cached, maximum(R, 1) >= W - 1), then=decodes_fresh(matched, N - matched, W)
    )


def _uncapped_run(found: Values) -> Replay:
    return Replay(
        scenario=hit(
            window=found["W"],
            page_size=found["P"],
            matched_len=found["P"],
            tail=1,
            then=(Decode(),),
        ),
        policy=Policy(reprefill_tail=0),
        breaks="FRESH-DECODE",
        releases=UNCAPPED,
    )


def _uncapped() -> Claim:
    """A construction whose method returns 0, as 0.5.16 is wired without a hierarchical cache."""
    matched = _match(z3.IntVal(0))
    return Claim(
        given=(*_cached, W >= 3),
        then=decodes_fresh(matched, N - matched, W),
        show={"W": W, "P": P, "n": N, "E": E},
    )


def _witness() -> tuple[Fact, ...]:
    return (*_cached, W >= 2, P >= 2, E > 0, _match(W) > 0, _match(W) < _match(z3.IntVal(0)))


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        identifier="C1",
        title="the cap is a cap",
        statement="A capped match is not negative, page aligned, no longer than what is cached or "
        "than an uncapped match, leaves a token to compute, and capping twice is capping once.",
        scope="all n, E, P, held back tails",
        obligations=(
            Obligation(name="range and alignment", claim=_aligned),
            Obligation(name="capping twice", claim=_idempotent),
            Obligation(name="never longer than uncapped", claim=_never_longer),
            Obligation(name="a token is left", claim=_something_computed),
        ),
        mutants=("no page floor", "the whole prompt may match"),
        witness=_witness,
        source="PR #30339; Req.init_next_round_input",
    ),
    Theorem(
        identifier="C2",
        title="a cap of W leaves a window",
        statement="With a cap of W, min(n, W) tokens or more are prefilled.",
        scope="all n, E, P, W",
        obligations=(Obligation(name="T >= min(n, W)", claim=_tail_of_a_window),),
        mutants=("cap off by one", "page ceiling for floor"),
        witness=_witness,
        source="PR #30339",
    ),
    Theorem(
        identifier="C3",
        title="which tail keeps decode fresh",
        statement="Every decode is FRESH exactly when T >= W - 1 or nothing is reused; the last "
        "prefill query, which gives the first token, has a window of its own exactly when T >= W. "
        "The two caps differ only if n - W + 1 is a multiple of P, and then by a page.",
        scope="all W, S >= W, P, n, m, E, number of decodes",
        obligations=(
            Obligation(name="long tail: only own keys are read", claim=_own_reads),
            Obligation(name="long tail: they are FRESH", claim=_fresh_own_reads),
            Obligation(name="short tail: the first decode is stale", claim=_short_tail_is_stale),
            Obligation(name="the rule is the window of the first decode", claim=_first_decode),
            Obligation(name="the rule is the window of the first token", claim=_first_token),
            Obligation(name="a cap of W - 1 keeps decode fresh", claim=_weaker_tail(1)),
            Obligation(
                name="tight: a cap of W - 2",
                claim=_weaker_tail(2),
                expected="refuted",
                replay=_short_tail_run,
            ),
            Obligation(
                name="tight: a cap of W - 1 and the first token",
                claim=_weaker_first_token,
                expected="refuted",
                replay=_first_token_run,
            ),
            Obligation(name="the caps differ only at a page edge", claim=_differ_at_page_edge),
            Obligation(name="and there by a page", claim=_differ_there_indeed),
        ),
        mutants=("decode rule off by one", "first token rule off by one", "window one too wide"),
        witness=lambda: (*_cached, W >= 2, P >= 2, _match(W) > 0, _match(W) < _match(W - 1)),
        source="PR #30339",
    ),
    Theorem(
        identifier="C4",
        title="what the cap costs",
        statement="T <= max(n - E, W + P - 1); with bigram keys T <= max(n - E, W + P). Neither "
        "bound depends on the length of the prompt, and neither can be lowered by one.",
        scope="all W, P, n, page aligned E",
        obligations=(
            Obligation(name="cost", claim=_cost(bigram=False)),
            Obligation(
                name="tight: W + P - 2",
                claim=_cost(bigram=False, slack=1),
                expected="refuted",
                replay=_costs_that_much(bigram=False),
            ),
            Obligation(name="reached for every W and P", claim=lambda: _cost_reached(bigram=False)),
            Obligation(name="cost with bigram keys", claim=_cost(bigram=True)),
            Obligation(
                name="tight: W + P - 1 with bigram keys",
                claim=_cost(bigram=True, slack=1),
                expected="refuted",
                replay=_costs_that_much(bigram=True),
            ),
            Obligation(
                name="reached with bigram keys for every W and P",
                claim=lambda: _cost_reached(bigram=True),
            ),
        ),
        mutants=("bigram entry forgotten", "cap one page too much"),
        witness=_witness,
        source="PR #30339; RadixKey.__len__",
    ),
    Theorem(
        identifier="C5",
        title="every construction must cap",
        statement="A construction whose method returns r is exposed exactly when "
        "max(r, 1) < W - 1: then one cached page and max(r, 1) further tokens are enough for a "
        "stale decode. So a method that returns 0 is exposed for every W >= 3.",
        scope="all W, P, r, n, E",
        obligations=(
            Obligation(name="exposed: the request", claim=_exposed_construction),
            Obligation(name="safe otherwise", claim=_safe_construction),
            Obligation(
                name="a method that returns 0",
                claim=_uncapped,
                expected="refuted",
                replay=_uncapped_run,
            ),
        ),
        mutants=("decode rule off by one", "cap off by one"),
        witness=lambda: (W >= 4, P >= 2, R >= 1, maximum(R, 1) < W - 1),
        source="swa_reprefill_tail_tokens (0.5.16, 0.5.23)",
    ),
)
