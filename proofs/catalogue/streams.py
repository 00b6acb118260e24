"""F1 and F2: what the host may do while a step is in flight."""

from __future__ import annotations

import z3
from msgspec.structs import replace

from kvproof.model.reference import Policy
from kvproof.model.scenario import (
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    Verify,
)
from kvproof.model.streams import key_after_write, read_after_rewrite, target_after_rewrite
from kvproof.proofs.scenarios import lone_request
from kvproof.proofs.theorem import Claim, Obligation, Replay, Theorem, Values
from kvproof.spec.indices import Position
from kvproof.spec.pages import page_ceil
from kvproof.spec.streams import may_rewrite, released_len, scheduled_len
from kvproof.spec.window import window_start

# F1: one location that one step reads for a position whose key is KEY, and the location it writes.

LAUNCH, BY, KEY, SEEN, OFFERED, OWN, OTHER = z3.Ints("launch by key seen offered own other")
DROPPED, BY_TABLE, LATE = z3.Bools("dropped by_table late")
_in_flight = (LAUNCH >= 1, z3.Or(DROPPED, SEEN == KEY))


def _ordered() -> Claim:
    """Whoever wrote the key was launched before: the step finds it."""
    found = key_after_write(SEEN, LAUNCH, by=BY, key=KEY)
    return Claim(given=(BY >= 1, LAUNCH >= BY), then=found == KEY)


def _later_step_writes() -> Claim:
    """The page was given back and lent again; its new owner's step was launched later."""
    found = key_after_write(SEEN, LAUNCH, by=BY, key=OFFERED)
    return Claim(given=(*_in_flight, BY > LAUNCH), then=z3.Or(DROPPED, found == KEY))


def _host_rewrites() -> Claim:
    found = read_after_rewrite(SEEN, OFFERED, looks_late=LATE)
    allowed = may_rewrite(dropped=DROPPED, writes_by_table=BY_TABLE, same_key=OFFERED == KEY)
    return Claim(given=(*_in_flight, allowed), then=z3.Or(DROPPED, found == KEY))


def _target(*, by_the_rule: bool) -> Claim:
    """Where a step writes is where it was launched to write."""
    same_key = OFFERED == KEY
    allowed = (
        may_rewrite(dropped=DROPPED, writes_by_table=BY_TABLE, same_key=same_key)
        if by_the_rule
        else z3.Or(DROPPED, same_key)
    )
    target = target_after_rewrite(OWN, OTHER, by_table=BY_TABLE, looks_late=LATE)
    return Claim(given=(*_in_flight, allowed), then=target == OWN)


def _recycled_under_a_draft_extend(_: Values) -> Replay:
    """A's verify is in flight when A's end is learnt; B gets the slot and rewrites its row."""
    return Replay(
        scenario=Scenario(
            geometry=Geometry(
                window=2, page_size=1, slots=1, pool_tokens=32, draft_tokens=2, overlap=1
            ),
            operations=(
                Submit(request="A", prompt=(Piece("A", 2),)),
                Prefill(request="A"),
                Finish(request="A"),
                Verify(accepted=1),
                Submit(request="B", prompt=(Piece("B", 4),)),
                Prefill(request="B"),
                Verify(accepted=1),
            ),
        ),
        policy=Policy(faults=frozenset({"draft extend reads the table"})),
        breaks="IN-FLIGHT",
        releases=("0.5.15:registry", "0.5.16:registry", "0.5.23:registry"),
    )


# F2: pages behind the window, given back by the processed or by the scheduled length.

W, P, D, N, Q = z3.Ints("W P D n q")
_sizes = (W >= 1, P >= 1, D >= 1, N >= 0)


def _behind_every_reader() -> Claim:
    """A step in flight starts at the processed length, and those after it do not start before."""
    return Claim(
        given=(*_sizes, Q >= N),
        then=released_len(N, W, P) <= window_start(Position(Q), W),
        show={"W": W, "P": P, "n": N, "q": Q},
    )


def _never_back() -> Claim:
    """What was given back stays so: the bound of a longer request is no lower."""
    return Claim(given=(*_sizes, Q >= N), then=released_len(N, W, P) <= released_len(Q, W, P))


def _by_scheduled_len() -> Claim:
    """One verify is in flight, and keeps one token: the next one starts a token further."""
    return Claim(
        given=(*_sizes, D <= W, N >= 1),
        then=released_len(scheduled_len(N, D, 1), W, P) <= window_start(Position(N + 1), W),
        show={"W": W, "P": P, "D": D, "n": N},
    )


def _decode_by_scheduled_len() -> Claim:
    return Claim(
        given=_sizes,
        then=released_len(scheduled_len(N, 1, 1), W, P) <= window_start(Position(N + 1), W),
    )


def _rejected_drafts(values: Values) -> Replay:
    """The page that the second verify's window begins in is gone."""
    window, page_size, drafts = values["W"], values["P"], values["D"]
    scenario = lone_request(
        window=window,
        prompt_len=values["n"],
        then=(Verify(accepted=1), Verify(accepted=1)),
        draft_tokens=drafts,
    )
    room = page_ceil(scenario.geometry.pool_tokens, page_size)
    return Replay(
        scenario=replace(
            scenario,
            geometry=replace(
                scenario.geometry, page_size=page_size, pool_tokens=room, overlap=1
            ),
        ),
        policy=Policy(window_pages=True, faults=frozenset({"window by scheduled length"})),
        breaks="IN-FLIGHT",
        why_not_engines="every release gives a window back by the processed length",
    )  # fmt: skip


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        identifier="F1",
        title="what a step in flight finds",
        statement="A step that was launched finds the keys of its own tokens and writes where it "
        "was launched to write, though pages are given back and lent again behind it: a later step "
        "alone writes them. The host may move a table entry under it only to the same key, and no "
        "entry of a row by which it writes, even if its result is dropped.",
        scope="any number of steps and host operations, by induction; one location at a time",
        obligations=(
            Obligation(name="initiation: launched before", claim=_ordered),
            Obligation(name="consecution: a later step writes", claim=_later_step_writes),
            Obligation(name="consecution: the host rewrites", claim=_host_rewrites),
            Obligation(
                name="it writes where it was launched to", claim=lambda: _target(by_the_rule=True)
            ),
            Obligation(
                name="tight: rows of dropped steps may be rewritten",
                claim=lambda: _target(by_the_rule=False),
                expected="refuted",
                replay=_recycled_under_a_draft_extend,
            ),
        ),
        mutants=("steps out of order", "row rewritten under a draft extend"),
        witness=lambda: (*_in_flight, z3.Not(DROPPED), BY == LAUNCH + 1, OFFERED != KEY),
        source="Scheduler.event_loop_overlap; #18803",
    ),
    Theorem(
        identifier="F2",
        title="a window is given back by the processed length",
        statement="Pages behind the window of the processed length are read by no step in flight "
        "and by none after it, however many drafts are rejected. The scheduled length, which "
        "counts all drafts in flight as kept, takes pages that the next verify reads. With one "
        "token a step it would do.",
        scope="all W, P, D, n",
        obligations=(
            Obligation(name="behind every reader", claim=_behind_every_reader),
            Obligation(name="never back", claim=_never_back),
            Obligation(
                name="tight: by the scheduled length",
                claim=_by_scheduled_len,
                expected="refuted",
                replay=_rejected_drafts,
            ),
            Obligation(name="scheduled length, D = 1", claim=_decode_by_scheduled_len),
        ),
        mutants=("window released by one more",),
        witness=lambda: (*_sizes, P >= 2, W > P, released_len(N, W, P) >= 2 * P),
        source="ScheduleBatch.maybe_evict_swa; vLLM #47728",
    ),
)
