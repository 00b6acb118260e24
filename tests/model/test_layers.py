"""EXACT, PURE and non-interference of logs: what the monitor says of the layers behind them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvproof.model.facts import Compared, Fact, Started
from kvproof.model.layers import Stack, judge
from kvproof.model.monitor import Monitor, check, statuses
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    BadFileError,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    Verify,
)
from kvproof.model.verdict import EXACTNESS_INVARIANTS, INVARIANTS

GEOMETRY = Geometry(window=3, page_size=2, slots=2, pool_tokens=64)
TWO = Stack.of(layers=2)
ROWS = Stack(ratios=(0, 2))
UNCAPPED = Policy(reprefill_tail=0)


def run(name: str, *pieces: Piece, finish: bool = False) -> tuple[Operation, ...]:
    prompt: Prompt = pieces
    done = (Finish(request=name),) if finish else ()
    return (Submit(request=name, prompt=prompt), Prefill(request=name), *done)


A = run("A", Piece("A", 4), finish=True)
OTHER = run("B", Piece("B", 6), finish=True)


def log(*operations: Operation, slots: int = 1) -> list[Fact]:
    geometry = Geometry(window=3, page_size=2, slots=slots, pool_tokens=64)
    scenario = Scenario(geometry=geometry, operations=operations)
    return [*reference_player(geometry, UNCAPPED).play(scenario)]


def broken(facts: Sequence[Fact], stack: Stack) -> set[str]:
    return {
        f"{invariant}/{cause}"
        for invariant, cause in check(facts, stack=stack).violations
        if invariant in EXACTNESS_INVARIANTS
    }


def test_nothing_is_asked_without_a_stack() -> None:
    facts = log(*A, *OTHER, *run("C", Piece("A", 4), Piece("C", 5)))
    assert set(statuses(check(facts))) == set(INVARIANTS)
    assert set(statuses(check(facts, stack=TWO))) == set(INVARIANTS | EXACTNESS_INVARIANTS)


def test_a_cold_run_holds_and_says_so() -> None:
    words = statuses(check(log(*run("A", Piece("A", 7), finish=True)), stack=ROWS))
    assert {words[name] for name in EXACTNESS_INVARIANTS} == {"holds"}


def test_a_short_tail_is_inexact_by_its_window() -> None:
    facts = log(*A, *OTHER, *run("C", Piece("A", 4), Piece("C", 8)))
    monitor = check(facts, stack=TWO)
    violation = monitor.violations["EXACT", "stale-window"]
    assert violation.departure.layer == 1
    assert violation.departure.position == 4
    # Layer 1 sees two stale positions, layer 2 two more.
    assert violation.departure.states == (2, 4)
    assert broken(log(*A, *OTHER, *run("C", Piece("A", 4), Piece("C", 9))), TWO) == set()


def test_the_same_tokens_left_by_an_earlier_occupant_are_exact_and_foreign() -> None:
    """B takes A's slot right after A: the rows below its match hold the very keys it needs."""
    facts = log(*A, *run("B", Piece("A", 4), Piece("B", 5)))
    assert broken(facts, TWO) == {"NON-INTERFERENCE/stale-window"}


def test_luck_passes_on_what_the_earlier_occupant_computed() -> None:
    """C's rows below its match hold B's keys for the same tokens, which B computed from stale ones.

    At layer 1 a key is its token's embedding, and so exact; at layer 2 it is not.
    """
    facts = log(
        *A, *OTHER, *run("B", Piece("A", 4), Piece("B", 6), finish=True),
        *run("C", Piece("A", 4), Piece("B", 6), Piece("C", 7)),
    )  # fmt: skip
    named = [[one.request for one in judge(facts, Stack.of(layers=n)).departures()] for n in (1, 2)]
    assert named == [["B"], ["B", "C"]]


def test_drafts_that_are_rejected_leave_no_trace() -> None:
    geometry = Geometry(window=3, page_size=2, slots=1, pool_tokens=64, draft_tokens=3)
    drafts = [Verify(accepted=accepted) for accepted in (1, 3, 2, 1)]
    scenario = Scenario(geometry=geometry, operations=(*run("A", Piece("A", 5)), *drafts, Decode()))
    facts = [*reference_player(geometry, UNCAPPED).play(scenario)]
    assert broken(facts, ROWS) == set()


def test_compressed_rows_hand_taint_on_for_good() -> None:
    facts = log(*A, *OTHER, *run("C", Piece("A", 4), Piece("C", 16)))
    assert broken(facts, ROWS) >= {"EXACT/compressed-row", "PURE/compressed-row"}
    assert broken(facts, TWO) == set()


def test_an_heir_is_named_and_its_cause_is_the_page() -> None:
    poison = run("B", Piece("A", 4), Piece("B", 12), finish=True)
    heir = run("C", Piece("A", 4), Piece("B", 12), Piece("C", 24))
    monitor = check(log(*A, *poison, *heir, slots=2), stack=ROWS)
    assert ("PURE", "inherited-page") in monitor.violations
    assert monitor.layers is not None
    by_name = {departure.request: departure for departure in monitor.layers.departures()}
    assert by_name["B"].heirs == ("C",)
    assert by_name["B"].pages > 0
    assert monitor.violations["EXACT", "compressed-row"].departure.request == "B"


def test_rows_that_do_not_fill_a_page_are_refused() -> None:
    with pytest.raises(BadFileError, match="rows of 4 tokens do not fill pages of 2"):
        check(log(*A), stack=Stack(ratios=(0, 4)))


@pytest.mark.parametrize("off", [0.0, 0.5])
def test_floats_that_say_otherwise_are_a_finding_about_us(off: float) -> None:
    facts = log(*run("A", Piece("A", 5)))
    compared = Compared(
        request="A", ratios=(0, 0), start=0, noise=0.0, rows=((), ()),
        states=((0.0,) * 5, (0.0, 0.0, 0.0, off, 0.0)),
    )  # fmt: skip
    monitor = check([*facts[:-1], compared, facts[-1]], stack=TWO)
    assert (("EXACT", "oracles-differ") in monitor.violations) == (off > 0)
    assert monitor.layers is not None
    assert monitor.layers.compared == 10


def test_floats_of_another_stack_are_left_alone() -> None:
    facts = log(*run("A", Piece("A", 5)))
    compared = Compared(
        request="A", ratios=(0,), start=0, noise=0.0, rows=((),), states=((1.0,) * 5,)
    )
    assert broken([*facts[:-1], compared, facts[-1]], TWO) == set()


def test_errors_of_a_layer_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="2 layers have 1 lists of states"):
        Compared(request="A", ratios=(0, 0), start=0, noise=0.0, rows=((), ()), states=((),))


def test_a_stack_repeats_its_ratios() -> None:
    stack = Stack.repeating(layers=5, ratios=(0, 4, 128))
    assert stack.ratios == (0, 4, 128, 0, 4)
    assert stack.misfit(256) is None
    assert stack.misfit(64) == 128


def test_what_the_monitor_keeps_does_not_grow_with_a_log_of_exact_runs() -> None:
    monitor = Monitor(stack=ROWS)
    facts = log(*A)
    assert isinstance(facts[0], Started)
    for fact in facts:
        monitor.feed(fact)
    assert monitor.layers is not None
    assert monitor.layers.broken == []
    assert monitor.layers.departed == []
