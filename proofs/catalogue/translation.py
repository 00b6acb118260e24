"""T1 to T7: translated locations, when a cached one may be used, and how it is read."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import z3

from kvproof.model.forward_reference import Departure, forward_player
from kvproof.model.forwards import ForwardOperation, Replay
from kvproof.model.forwards import Plan as PlanForward
from kvproof.model.monitor import check
from kvproof.model.scenario import Geometry, Scenario
from kvproof.model.translation import NEW_CAPTURE, Captured, Plan, asked, refreshed
from kvproof.proofs.asked import Store
from kvproof.proofs.theorem import (
    ALL_RELEASES,
    Check,
    Claim,
    Fact,
    Obligation,
    Term,
    Theorem,
    Values,
)
from kvproof.spec.indices import FullLoc, Page, SwaLoc
from kvproof.spec.translate import (
    RESERVED_LOC,
    WORD,
    double_word,
    low_word,
    replayed_loc,
    reuses_plan,
    swa_loc,
    written_to,
)

PLANNED_LEN, LOC_LEN, TOKEN = z3.Ints("planned_len loc_len i")
"""Tokens when the forward was planned, at its store, and one of the store's tokens."""

PLANNED, IDLE = z3.Bools("planned idle")

_locs_planned = z3.Function("out_cache_loc_planned", z3.IntSort(), z3.IntSort())
_locs_now = z3.Function("out_cache_loc", z3.IntSort(), z3.IntSort())
_map_planned = z3.Function("map_planned", z3.IntSort(), z3.IntSort())
_map_now = z3.Function("map", z3.IntSort(), z3.IntSort())

_store = (TOKEN >= 0, TOKEN < LOC_LEN, PLANNED_LEN >= 0)


def _translated() -> Term:
    """What the plan holds for token i: the map of then, of the location of then."""
    return SwaLoc(_map_planned(_locs_planned(TOKEN)))


def _due() -> Term:
    """CURRENT: the map at the store, of the store's own location."""
    return SwaLoc(_map_now(_locs_now(TOKEN)))


def _written() -> Term:
    return written_to(
        planned=PLANNED,
        idle=IDLE,
        planned_len=PLANNED_LEN,
        loc_len=LOC_LEN,
        planned_loc=_translated(),
        now=_due(),
    )


def _branch(*given: Fact) -> Callable[[], Claim]:
    return lambda: Claim(given=(*_store, *given), then=_written() == _due())


def _same_locs() -> Fact:
    return z3.Implies(TOKEN < PLANNED_LEN, _locs_planned(TOKEN) == _locs_now(TOKEN))


def _same_map() -> Fact:
    loc = _locs_now(TOKEN)
    return _map_planned(loc) == _map_now(loc)


def _same_map_where_planned() -> Fact:
    loc = _locs_planned(TOKEN)
    return _map_planned(loc) == _map_now(loc)


def _equal_length(*given: Fact) -> Callable[[], Claim]:
    """A store of the planned length goes where the map says."""

    def claim() -> Claim:
        loc = z3.IntVal(1)
        return Claim(
            given=(
                *_store,
                TOKEN == 0,
                PLANNED,
                z3.Not(IDLE),
                PLANNED_LEN == LOC_LEN,
                *given,
                _map_now(_locs_now(TOKEN)) >= 0,
                _map_planned(_locs_planned(TOKEN)) >= 0,
                _locs_now(TOKEN) >= loc,
                _locs_planned(TOKEN) >= loc,
            ),
            then=_written() == _due(),
            show={
                "loc planned": _locs_planned(TOKEN),
                "loc": _locs_now(TOKEN),
                "swa planned": _translated(),
                "swa": _due(),
                "length": LOC_LEN,
            },
        )

    return claim


def _rebind(found: Values) -> Check:
    """The rule on the counterexample's numbers: where the store goes, and where it should."""
    goes = written_to(
        planned=True,
        idle=False,
        planned_len=found["length"],
        loc_len=found["length"],
        planned_loc=SwaLoc(found["swa planned"]),
        now=SwaLoc(found["swa"]),
    )
    return Check(
        model="the resolver's rule",
        invariant="CURRENT",
        broken=goes != found["swa"],
        says=f"planned with location {found['loc planned']} and stored with {found['loc']}, both "
        f"of length {found['length']}: the token goes to {goes}, the map says {found['swa']}",
        question=Store(
            planned_locs=(found["loc planned"],) * found["length"],
            planned_map=_one_entry(found["loc planned"], found["swa planned"], found),
            locs=(found["loc"],) * found["length"],
            map=_one_entry(found["loc"], found["swa"], found),
        ),
        releases=ALL_RELEASES,
    )


def _one_entry(loc: int, entry: int, found: Values) -> tuple[int, ...]:
    """A map that is 0 but for one location."""
    size = max(found["loc planned"], found["loc"]) + 1
    return tuple(entry if at == loc else 0 for at in range(size))


def _epoch() -> Claim:
    """An epoch of batch and map together: equal epochs mean equal locations and an equal map."""
    planned_epoch, epoch = z3.Ints("planned_epoch epoch")
    bound = z3.Implies(
        planned_epoch == epoch, z3.And(_locs_planned(TOKEN) == _locs_now(TOKEN), _same_map())
    )
    reused = z3.And(reuses_plan(PLANNED, IDLE, PLANNED_LEN, LOC_LEN), planned_epoch == epoch)
    return Claim(
        given=(*_store, bound),
        then=z3.If(reused, _translated(), _due()) == _due(),
    )


def _elementwise_and_map() -> Claim:
    same = z3.And(PLANNED_LEN == LOC_LEN, _locs_planned(TOKEN) == _locs_now(TOKEN), _same_map())
    return Claim(given=(*_store, same), then=_written() == _due())


# T5: a captured buffer, an entry at a time, prepared for a replay of TOKENS tokens

AT, TOKENS, BEFORE = z3.Ints("at tokens tokens_before")
"""An entry of the buffer, and how many tokens this replay and the one before it have."""

_replay = (AT >= 0, TOKENS >= 0)


def _entry_before() -> Captured:
    """After any number of replays: only what `_name_stands` says is known of it."""
    return Captured(storage=SwaLoc(z3.Int("left")), in_place=z3.Bool("in_place"))


def _refreshed(entry: Captured) -> Captured:
    return refreshed(entry, at=AT, tokens=TOKENS, loc=SwaLoc(_map_now(_locs_now(AT))))


def _name_stands(entry: Captured) -> Fact:
    """The induction's invariant: what the backend fills is what the graph reads."""
    return entry.in_place


def _buffer_due() -> Term:
    """CURRENT: the map at the replay, of the replay's own locations; else the reserved one."""
    return z3.If(AT < TOKENS, _map_now(_locs_now(AT)), z3.IntVal(RESERVED_LOC))


def _capture_start() -> Claim:
    return Claim(given=_replay, then=z3.BoolVal(_name_stands(NEW_CAPTURE)))


def _capture_step() -> Claim:
    entry = _entry_before()
    return Claim(given=(*_replay, _name_stands(entry)), then=_name_stands(_refreshed(entry)))


def _graph_reads_what_is_due() -> Claim:
    entry = _entry_before()
    return Claim(
        given=(*_replay, _name_stands(entry)), then=_refreshed(entry).storage == _buffer_due()
    )


def _not_in_place() -> tuple[Captured, tuple[Fact, ...]]:
    entry = _entry_before()
    return entry, (*_replay, z3.Not(_name_stands(entry)))


def _bound_anew_reads_what_lay_there() -> Claim:
    entry, given = _not_in_place()
    return Claim(given=given, then=_refreshed(entry).storage == entry.storage)


def _bound_anew_is_harmless() -> Claim:
    """The same tokens again, of other locations, into a tensor that was bound anew."""
    entry, given = _not_in_place()
    due = _map_now(_locs_now(AT))
    return Claim(
        given=(*given, AT < TOKENS, entry.storage >= 1, due >= 1),
        then=_refreshed(entry).storage == due,
        show={"tokens": TOKENS, "at": AT, "left": entry.storage, "due": due},
    )


def _tokens_alone() -> Claim:
    """Only the tokens' own entries are filled, as the replay before did for more of them."""
    left = z3.Int("left")
    return Claim(
        given=(*_replay, TOKENS >= 1, AT < BEFORE, left >= 1),
        then=z3.If(AT < TOKENS, _map_now(_locs_now(AT)), left)
        == replayed_loc(AT, TOKENS, SwaLoc(_map_now(_locs_now(AT)))),
        show={"tokens": TOKENS, "before": BEFORE, "at": AT, "left": left},
    )


def _graphs(before: int, tokens: int, departure: Departure) -> Check:
    """Two replays of a decode graph on the reference engine for forwards, which departs so."""
    names = tuple(f"R{number}" for number in range(max(before, tokens)))
    operations: tuple[ForwardOperation, ...] = (
        PlanForward(mode="extend", requests=names, tokens=2),
        Replay(mode="decode", requests=names[:before]),
        Replay(mode="decode", requests=names[:tokens]),
    )
    sizes = Geometry(
        window=2, page_size=2, slots=len(names), pool_tokens=8 * len(names),
        swa_tokens=8 * len(names) + 2,
    )  # fmt: skip
    scenario = Scenario(geometry=sizes, operations=operations)
    assert not check(forward_player(sizes).play(scenario)).violations
    found = check(forward_player(sizes, departure).play(scenario)).worst_of("CURRENT")
    return Check(
        model="the reference engine for forwards",
        invariant="CURRENT",
        broken=found is not None,
        says=f"a graph of {before} requests, then of {tokens}: "
        + (found.sentence if found else "all is as the map says"),
        why_not_engines="fixed before the oldest release that can be installed (#24743, #25889)",
    )


def _tail_kept(found: Values) -> Check:
    return _graphs(found["before"], found["tokens"], "graph tail kept")


def _bound_anew(found: Values) -> Check:
    return _graphs(found["tokens"], found["tokens"], "graph buffer not refreshed")


# T6: an int64 buffer read as int32, and the reverse. HALF and ODD make up the index.

_entry = z3.Function("entry", z3.IntSort(), z3.IntSort())
HALF, COUNT = z3.Ints("half count")
_small = 2**31


def _is_loc(value: Term) -> Fact:
    return z3.And(value >= 0, value < _small)


def _read_as_int32(half: Term, odd: bool) -> Term:
    """What an int32 reader finds at index ``2 * half + odd``; locations have no high word."""
    value = _entry(half)
    return (value - low_word(value)) / WORD if odd else low_word(value)


def _high_words_are_zero() -> Claim:
    return Claim(given=(_is_loc(_entry(HALF)),), then=_read_as_int32(HALF, True) == 0)


def _low_words_are_values() -> Claim:
    return Claim(given=(_is_loc(_entry(HALF)),), then=_read_as_int32(HALF, False) == _entry(HALF))


def _survivor_odd() -> Claim:
    """A buffer that reads the same has 0 at every odd index."""
    index = 2 * HALF + 1
    return Claim(
        given=(HALF >= 0, _is_loc(_entry(HALF)), _read_as_int32(HALF, True) == _entry(index)),
        then=_entry(index) == 0,
    )


def _survivor_even() -> Claim:
    """And at every even index past 0: it reads entry i / 2, which is 0 by induction."""
    index = 2 * HALF
    return Claim(
        given=(
            HALF >= 1,
            _is_loc(_entry(HALF)),
            _entry(HALF) == 0,
            _read_as_int32(HALF, False) == _entry(index),
        ),
        then=_entry(index) == 0,
    )


def _survivor_suffices() -> Claim:
    """A buffer of one entry, or of zeros after the first, does read the same."""
    zero_past_first = [
        z3.Implies(index >= 1, _entry(index) == 0) for index in (HALF, 2 * HALF, 2 * HALF + 1)
    ]
    return Claim(
        given=(HALF >= 0, _is_loc(_entry(HALF)), _is_loc(_entry(2 * HALF)), *zero_past_first),
        then=z3.And(
            _read_as_int32(HALF, False) == _entry(2 * HALF),
            _read_as_int32(HALF, True) == _entry(2 * HALF + 1),
        ),
    )


def _any_buffer() -> Claim:
    one, other = _entry(z3.IntVal(0)), _entry(z3.IntVal(1))
    return Claim(
        given=(_is_loc(one), _is_loc(other), one >= 1),
        then=_read_as_int32(z3.IntVal(0), True) == other,
        show={"first": one, "second": other},
    )


def _numpy_int64_as_int32(found: Values) -> Check:
    buffer = np.array([found["first"], found["second"]], dtype="<i8")
    read = buffer.view("<i4")[:2].tolist()
    return Check(
        model="numpy",
        invariant="CURRENT: no reinterpretation",
        broken=read != buffer.tolist(),
        says=f"the int64 buffer {buffer.tolist()} read as int32 gives {read}",
    )


def _widened_pairs() -> Claim:
    """An int32 buffer read as int64: index 0 is right only if entry 1 is 0."""
    one, other = _entry(z3.IntVal(0)), _entry(z3.IntVal(1))
    return Claim(
        given=(_is_loc(one), _is_loc(other)),
        then=(double_word(one, other) == one) == (other == 0),
    )


def _widened_survivor() -> Claim:
    """And index i only if entry 2i is entry i and entry 2i + 1 is 0: so all past 0 are 0."""
    value = double_word(_entry(2 * HALF), _entry(2 * HALF + 1))
    return Claim(
        given=(
            HALF >= 1,
            _is_loc(_entry(HALF)),
            _is_loc(_entry(2 * HALF)),
            _is_loc(_entry(2 * HALF + 1)),
            _entry(HALF) == 0,
            value == _entry(HALF),
        ),
        then=z3.And(_entry(2 * HALF) == 0, _entry(2 * HALF + 1) == 0),
    )


# T7


def _plan() -> Plan:
    translations, kept = z3.Ints("translations kept")
    return Plan(translations=translations, kept=kept)


NOW, FIRST = z3.Ints("now first")


def _planned_once(plan: Plan) -> Fact:
    return z3.And(
        plan.translations >= 0,
        plan.translations <= 1,
        z3.Implies(plan.translations == 1, plan.kept == FIRST),
    )


def _plan_start() -> Claim:
    plan = Plan(translations=z3.IntVal(0), kept=z3.Int("kept"))
    return Claim(given=(), then=_planned_once(plan))


def _plan_step() -> Claim:
    plan = _plan()
    return Claim(
        given=(_planned_once(plan), z3.Implies(plan.translations == 0, NOW == FIRST)),
        then=z3.And(_planned_once(asked(plan, NOW)), asked(plan, NOW).translations == 1),
    )


def _every_reader_alike() -> Claim:
    plan = _plan()
    again = asked(asked(plan, NOW), z3.Int("later"))
    return Claim(given=(_planned_once(plan),), then=again.kept == asked(plan, NOW).kept)


LOC, SWA_PAGE, AGAIN, P = z3.Ints("loc swa_page again P")
_twice_given = (P >= 1, LOC >= P, SWA_PAGE >= 1, AGAIN >= 0)


def _twice() -> Claim:
    """A translated location, taken for a full one and translated again, is the same."""
    once = swa_loc(FullLoc(LOC), Page(SWA_PAGE), P)
    twice = swa_loc(FullLoc(once), Page(AGAIN), P)
    return Claim(
        given=_twice_given,
        then=twice == once,
        show={"P": P, "loc": LOC, "swa page": SWA_PAGE, "again": AGAIN},
    )


def _double_translation(found: Values) -> Check:
    page = found["P"]
    once = swa_loc(FullLoc(found["loc"]), Page(found["swa page"]), page)
    twice = swa_loc(FullLoc(once), Page(found["again"]), page)
    return Check(
        model="the map's rule",
        invariant="a read is translated once",
        broken=once != twice,
        says=f"P={page}: location {found['loc']} is translated to {once}, and {once} to {twice}",
    )


def _twice_is_once_exactly() -> Claim:
    """It is the same exactly where the map sends the sliding-window page to itself."""
    once = swa_loc(FullLoc(LOC), Page(SWA_PAGE), P)
    twice = swa_loc(FullLoc(once), Page(AGAIN), P)
    place = LOC % P
    return Claim(
        # The first translation keeps the place in the page (theorem P4).
        given=(*_twice_given, once == SWA_PAGE * P + place, once % P == place),
        then=(twice == once) == (AGAIN == SWA_PAGE),
    )


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        identifier="T1",
        title="the resolver's branches",
        statement="Without a plan, in an idle forward and for another length the write resolver "
        "gives the value of the map for the forward's own out_cache_loc; with a plan of the same "
        "length it does so if the plan was made of the same locations and the same map.",
        scope="any map, any locations; a token at a time",
        obligations=(
            Obligation(name="no plan", claim=_branch(z3.Not(PLANNED))),
            Obligation(name="idle", claim=_branch(IDLE)),
            Obligation(name="stale shape", claim=_branch(PLANNED_LEN != LOC_LEN)),
            Obligation(name="current", claim=_branch(_same_locs(), _same_map())),
        ),
        mutants=("idle forgotten", "longer plans accepted"),
        witness=lambda: (*_store, PLANNED, z3.Not(IDLE), PLANNED_LEN == LOC_LEN, LOC_LEN >= 2),
        source="get_swa_out_cache_loc (0.5.15)",
    ),
    Theorem(
        identifier="T2",
        title="equal length is not CURRENT",
        statement="A plan of the same length may be of other locations: it is taken, and the store "
        "goes elsewhere.",
        scope="refuted: a counterexample",
        expected="refuted",
        obligations=(
            Obligation(
                name="equal length suffices", claim=_equal_length(), expected="refuted",
                replay=_rebind,
            ),
        ),
        mutants=("plans never used",),
        source="get_swa_out_cache_loc; #27091 review",
    ),
    Theorem(
        identifier="T3",
        title="when equal length is enough",
        statement="It is enough where, between the plan and the store, the locations change only "
        "by appended padding and the map does not change at them, or the forward is idle. Both "
        "halves of the condition are needed.",
        conjecture="it was stated without the condition on the map",
        scope="any map, any locations",
        obligations=(
            Obligation(
                name="padding appended",
                claim=_branch(_same_locs(), _same_map(), PLANNED_LEN <= LOC_LEN),
            ),
            Obligation(name="or idle", claim=_branch(IDLE)),
            Obligation(
                name="locations alone", claim=_equal_length(_same_locs()), expected="refuted",
                replay=_rebind,
            ),
            Obligation(
                name="the map alone",
                claim=_equal_length(_same_map_where_planned()),
                expected="refuted", replay=_rebind,
            ),
        ),
        mutants=("idle forgotten", "plans never used"),
        witness=lambda: (*_store, PLANNED, _same_locs(), _same_map(), PLANNED_LEN < LOC_LEN),
        source="get_swa_out_cache_loc; #25889",
    ),
    Theorem(
        identifier="T4",
        title="what makes a plan safe",
        statement="An epoch bound to batch and map generation is enough without a side condition. "
        "Element-wise equality of the locations is enough only while the map has not changed at "
        "them.",
        conjecture="element-wise equality was said to be enough by itself; a location can be freed "
        "and mapped anew between plan and store",
        scope="any map, any locations",
        obligations=(
            Obligation(name="epoch", claim=_epoch),
            Obligation(name="equal elements and map", claim=_elementwise_and_map),
            Obligation(
                name="equal elements alone",
                claim=_equal_length(_locs_planned(TOKEN) == _locs_now(TOKEN)),
                expected="refuted", replay=_rebind,
            ),
        ),
        mutants=("plans never used",),
        witness=lambda: (*_store, PLANNED, z3.Not(IDLE), PLANNED_LEN == LOC_LEN, _same_map()),
        source="PR #27091; #25889",
    ),
    Theorem(
        identifier="T5",
        title="what a graph's replay reads",
        statement="A captured graph reads the map's entries of the replay's own locations, and the "
        "reserved one behind them, whatever earlier replays left, if its buffers are filled in "
        "place and whole. A name that was bound anew leaves what lay there; filling the tokens' "
        "entries alone leaves the tail of a larger batch.",
        scope="any buffer, map and locations, any number of replays, by induction; an entry at a "
        "time",
        obligations=(
            Obligation(name="initiation: capture", claim=_capture_start),
            Obligation(name="consecution: replay", claim=_capture_step),
            Obligation(name="safety: what the graph reads", claim=_graph_reads_what_is_due),
            Obligation(name="bound anew, it reads the old", claim=_bound_anew_reads_what_lay_there),
            Obligation(
                name="the tokens' entries alone", claim=_tokens_alone, expected="refuted",
                replay=_tail_kept,
            ),
            Obligation(
                name="a name bound anew", claim=_bound_anew_is_harmless, expected="refuted",
                replay=_bound_anew,
            ),
        ),
        mutants=(
            "buffer filled a row too far", "tail of the buffer kept", "buffer never filled",
        ),
        witness=lambda: (*_replay, _name_stands(_entry_before()), AT >= TOKENS, TOKENS >= 1),
        source="PR #27091; #24743, #25889",
    ),
    Theorem(
        identifier="T6",
        title="dtype is part of the contract",
        statement="An int64 buffer of locations read as int32 gives entry i / 2 at even i and 0 at "
        "odd i. It survives exactly if every entry past the first is 0. An int32 buffer read as "
        "int64 survives under the same condition, as far as it reaches.",
        scope="buffers of any length with entries below 2**31, by induction over the index",
        obligations=(
            Obligation(name="high words are 0", claim=_high_words_are_zero),
            Obligation(name="low words are the values", claim=_low_words_are_values),
            Obligation(name="survivors: odd entries are 0", claim=_survivor_odd),
            Obligation(name="survivors: even entries past 0 are 0", claim=_survivor_even),
            Obligation(name="zeros past the first survive", claim=_survivor_suffices),
            Obligation(name="widened: entry 1 is 0", claim=_widened_pairs),
            Obligation(name="widened: entries past 0 are 0", claim=_widened_survivor),
            Obligation(
                name="any buffer survives", claim=_any_buffer, expected="refuted",
                replay=_numpy_int64_as_int32,
            ),
        ),
        mutants=("halves swapped", "words of 16 bits"),
        witness=lambda: (_is_loc(_entry(HALF)), HALF >= 3, _entry(HALF) >= 7),
        source="#11452",
    ),
    Theorem(
        identifier="T7",
        title="translated once",
        statement="Each (forward, pool) translates once and every reader gets that value. A read "
        "that is translated twice lands elsewhere unless the map sends the SWA page to itself.",
        scope="any number of readers, any map, all P",
        obligations=(
            Obligation(name="initiation", claim=_plan_start),
            Obligation(name="consecution: ask", claim=_plan_step),
            Obligation(name="safety: all readers alike", claim=_every_reader_alike),
            Obligation(name="twice is once exactly then", claim=_twice_is_once_exactly),
            Obligation(
                name="translating twice is harmless", claim=_twice, expected="refuted",
                replay=_double_translation,
            ),
        ),
        mutants=("translated on every read",),
        witness=lambda: (_planned_once(_plan()), _plan().translations == 1),
        source="KVLocPlan (0.5.23); #38187",
    ),
)  # fmt: skip
