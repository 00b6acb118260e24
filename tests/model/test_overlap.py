"""Overlap scheduling: the order of launches and results, and what breaks IN-FLIGHT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.model.facts import (
    Admitted,
    Completed,
    Fact,
    Launched,
    Released,
    Rewritten,
    Skipped,
    TableLane,
)
from kvproof.model.monitor import Monitor, check, statuses
from kvproof.model.policy import Fault, Policy
from kvproof.model.reference import reference_player
from kvproof.model.scenario import (
    Abort,
    Complete,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.model.witness import OVERLAP_WITNESSES

ONE_SLOT = Geometry(window=4, page_size=1, slots=1, pool_tokens=64, overlap=1)
TWO_SLOTS = Geometry(window=4, page_size=2, slots=2, pool_tokens=64, overlap=1)
DRAFTING = Geometry(
    window=4, page_size=1, slots=1, pool_tokens=64, draft_tokens=2, overlap=1
)  # fmt: skip


def arrive(name: str, *pieces: tuple[str, int], chunk: int | None = None) -> list[Operation]:
    prompt = tuple(Piece(text, until) for text, until in pieces)
    return [Submit(request=name, prompt=prompt), Prefill(request=name, tokens=chunk)]


def play(geometry: Geometry, operations: Sequence[Operation], **policy: Any) -> list[Fact]:
    policy["faults"] = frozenset(policy.get("faults", ()))
    player = reference_player(geometry, Policy(**policy))
    return list(player.play(Scenario(geometry=geometry, operations=tuple(operations))))


def order(log: Sequence[Fact]) -> list[str]:
    """Launches, completions and releases of a log, in a word each."""
    words = []
    for fact in log:
        match fact:
            case Launched():
                words.append(
                    f"{fact.mode} {fact.launch} of {' '.join(x.request for x in fact.lanes)}"
                )
            case Completed():
                words.append(f"result {fact.launch}")
            case Released():
                words.append(f"release {fact.request}")
            case Admitted():
                words.append(f"admit {fact.request}")
            case Skipped():
                words.append(f"skip: {fact.reason}")
    return words


# The order of the loop


def test_a_result_is_taken_after_the_next_launch() -> None:
    log = play(ONE_SLOT, [*arrive("A", ("A", 3)), Decode(), Decode(), Complete(), Complete()])
    assert order(log) == [
        "admit A", "prefill 1 of A", "decode 2 of A", "result 1", "decode 3 of A", "result 2",
        "result 3", "skip: nothing is in flight",
    ]  # fmt: skip


def test_a_request_that_has_ended_is_decoded_once_more() -> None:
    log = play(
        ONE_SLOT, [*arrive("A", ("A", 3)), Decode(), Finish(request="A"), Decode(), Decode()]
    )
    assert order(log)[2:] == [
        "decode 2 of A", "result 1", "decode 3 of A", "result 2", "release A",
        "skip: no request is running",
    ]  # fmt: skip


def test_a_slot_is_lent_again_while_the_step_of_its_last_tenant_is_in_flight() -> None:
    log = play(
        ONE_SLOT,
        [*arrive("A", ("A", 3)), Finish(request="A"), Decode(), *arrive("B", ("B", 3)), Decode()],
    )
    assert order(log) == [
        "admit A", "prefill 1 of A", "decode 2 of A", "result 1", "release A", "admit B",
        "prefill 3 of B", "result 2", "decode 4 of B", "result 3",
    ]  # fmt: skip
    monitor = check(log)
    assert monitor.witnesses["lent again in flight"] == 1
    assert monitor.witnesses["decoded after its end"] == 1
    assert not monitor.violations, "steps run in order: what B writes comes after what A reads"


def test_an_abort_takes_effect_with_the_next_result() -> None:
    log = play(
        ONE_SLOT, [*arrive("A", ("A", 3)), Decode(), Abort(request="A"), Decode(), Complete()]
    )
    assert order(log)[2:] == [
        "decode 2 of A", "result 1", "decode 3 of A", "result 2", "release A", "result 3",
    ]  # fmt: skip


def test_an_abort_in_the_middle_of_a_prefill_takes_effect_at_once() -> None:
    log = play(
        ONE_SLOT, [*arrive("A", ("A", 6), chunk=3), Abort(request="A"), *arrive("B", ("B", 3))]
    )
    assert order(log) == [
        "admit A", "prefill 1 of A", "release A", "admit B", "prefill 2 of B", "result 1",
    ]  # fmt: skip
    assert not check(log).violations


def test_a_retraction_is_a_round_that_decodes_the_others() -> None:
    log = play(
        TWO_SLOTS,
        [*arrive("A", ("A", 3)), *arrive("B", ("B", 3)), Decode(), Retract(request="A"),
         Prefill(request="A")],
    )  # fmt: skip
    assert order(log)[-6:] == [
        "release A", "decode 4 of B", "result 3", "admit A", "prefill 5 of A", "result 4",
    ]  # fmt: skip
    admitted = [fact for fact in log if isinstance(fact, Admitted)]
    assert admitted[-1].prompt_len == 4, "what the step in flight sampled is dropped"


def test_the_cache_is_not_cleared_under_a_step() -> None:
    log = play(
        ONE_SLOT,
        [*arrive("A", ("A", 3)), Finish(request="A"), Decode(), Flush(), Complete(), Flush()],
    )
    assert order(log)[-2:] == ["skip: the cache is cleared only while nothing is in flight",
                               "result 2"]  # fmt: skip


def test_without_overlap_nothing_is_in_flight_and_nothing_is_asked() -> None:
    geometry = msgspec.structs.replace(ONE_SLOT, overlap=0)
    log = play(geometry, [*arrive("A", ("A", 3)), Decode(), Complete()])
    assert order(log) == ["admit A", "skip: nothing is in flight"]
    assert statuses(check(log))["IN-FLIGHT"] == "skipped"
    assert statuses(check(play(ONE_SLOT, arrive("A", ("A", 3)))))["IN-FLIGHT"] == "holds"


# IN-FLIGHT


SIZES = Sizes(draft_tokens=(1, 2), pool_tokens=(64, 40, 32), overlaps=(1,))
SCENARIOS = likely_scenarios(SIZES) | arbitrary_scenarios(SIZES)


@settings(max_examples=200, deadline=None)
@given(scenario=SCENARIOS)
def test_nothing_breaks_but_x1(scenario: Scenario) -> None:
    monitor = check(reference_player(scenario.geometry).play(scenario))
    assert monitor.ended
    assert {invariant for invariant, _ in monitor.violations} <= {"FRESH-PREFILL"}


@settings(max_examples=60, deadline=None)
@given(scenario=likely_scenarios(SIZES))
def test_windows_of_pages_break_nothing(scenario: Scenario) -> None:
    policy = Policy(window_pages=True)
    assert not check(reference_player(scenario.geometry, policy).play(scenario)).violations


def judge(geometry: Geometry, operations: Sequence[Operation], **policy: Any) -> Monitor:
    return check(play(geometry, operations, **policy))


WINDOW_BY_BLOCKS = Geometry(
    window=128, page_size=32, slots=2, pool_tokens=384, draft_tokens=4, overlap=1
)
REJECTING = [*arrive("A", ("A", 156)), *[Verify(accepted=1)] * 2]


def test_a_window_is_given_back_by_the_processed_length() -> None:
    """vLLM #47728: window 128, block 32, and drafts that are rejected."""
    right = judge(WINDOW_BY_BLOCKS, REJECTING, window_pages=True)
    assert not right.violations
    faults: set[Fault] = {"window by scheduled length"}
    wrong = judge(WINDOW_BY_BLOCKS, REJECTING, window_pages=True, faults=faults)
    assert [*wrong.violations] == [("IN-FLIGHT", "freed")]
    assert wrong.violations["IN-FLIGHT", "freed"].sentence == (
        "the verify of request A (launch 3) reads location 62 for position 30, in page 1, which is "
        "free"
    )


RECYCLED = [
    *arrive("A", ("A", 4)), Finish(request="A"), Verify(accepted=1), *arrive("B", ("B", 6)),
    Decode(),
]  # fmt: skip


def test_a_draft_extend_that_looks_up_where_it_writes_meets_the_next_tenant() -> None:
    """SGLang #18803: the slot is recycled while the draft extend still reads its row."""
    right = judge(DRAFTING, RECYCLED)
    assert not right.violations
    assert right.witnesses["table rewritten in flight"] == 1, "the row is rewritten all the same"
    assert right.witnesses["verified after its end"] == 1
    faults: set[Fault] = {"draft extend reads the table"}
    wrong = judge(DRAFTING, RECYCLED, faults=faults)
    assert [*wrong.violations] == [("IN-FLIGHT", "rewritten")]
    assert wrong.violations["IN-FLIGHT", "rewritten"].sentence == (
        "the verify of request A (launch 2) writes position 4 by row 1 of the page table, where "
        "the host wrote location 11 for 5 while it was in flight, since step 4: 11 is a location "
        "which holds position 4 of request B (occupancy 2, launch 3)"
    )


def test_an_abort_that_frees_at_once_is_seen() -> None:
    operations = [*arrive("A", ("A", 6)), Abort(request="A"), *arrive("B", ("B", 6)), Decode()]
    faults: set[Fault] = {"abort frees at once"}
    assert ("IN-FLIGHT", "rewritten") in judge(ONE_SLOT, operations, faults=faults).violations
    assert not judge(ONE_SLOT, operations).violations


def edit_last(log: list[Fact], kind: type[Fact], **changed: Any) -> list[Fact]:
    index = max(at for at, fact in enumerate(log) if isinstance(fact, kind))
    return [*log[:index], msgspec.structs.replace(log[index], **changed), *log[index + 1 :]]


PAIR = [*arrive("A", ("A", 4)), *arrive("B", ("B", 4)), Decode(), Complete()]


def test_a_step_that_reads_anothers_page_is_seen() -> None:
    log = play(TWO_SLOTS, PAIR)
    [launched] = [x for x in log if isinstance(x, Launched) and x.mode == "decode"]
    [one, other] = launched.lanes
    swapped = msgspec.structs.replace(one, locs=(other.locs[0], *one.locs[1:]))
    monitor = check(edit_last(log, Launched, lanes=(swapped, other)))
    assert [*monitor.violations] == [("IN-FLIGHT", "overwritten")]
    assert "which holds position 0 of request B" in monitor.worst().sentence  # type: ignore[union-attr]


def test_a_table_entry_may_only_move_to_where_the_same_key_is() -> None:
    """As when a request's own copy of a page gives way to the tree's."""
    log = play(TWO_SLOTS, PAIR)
    [launched] = [x for x in log if isinstance(x, Launched) and x.mode == "decode"]
    [one, other] = launched.lanes
    to_other = Rewritten(lane=0, position=0, locs=(other.locs[0],))
    monitor = check(edit_last(log, Completed, rewritten=(to_other,)))
    assert [*monitor.violations] == [("IN-FLIGHT", "rewritten")]
    to_itself = Rewritten(lane=0, position=0, locs=(one.locs[0],))
    assert not check(edit_last(log, Completed, rewritten=(to_itself,))).violations


def test_a_duplicate_gives_way_to_the_tree_under_a_step() -> None:
    """B computes what A publishes meanwhile; its step in flight may read either copy."""
    same = [*arrive("A", ("A", 6)), *arrive("B", ("A", 6)), Decode(), Decode(), Evict(tokens=64),
            *arrive("C", ("C", 6))]  # fmt: skip
    monitor = judge(TWO_SLOTS, same)
    assert monitor.witnesses["table rewritten in flight"] == 1
    assert monitor.witnesses["freed in flight"] >= 1
    assert {invariant for invariant, _ in monitor.violations} <= {"FRESH-PREFILL"}


def test_results_are_taken_in_order() -> None:
    log = edit_last(play(TWO_SLOTS, PAIR), Completed, launch=4)
    assert [*check(log).violations] == [("IN-FLIGHT", "not-launched")]


@pytest.mark.parametrize(
    "fields",
    [{"first": 3}, {"end": 1}, {"locs": (1, 2)}],
    ids=["reads from behind its start", "ends before its start", "a location is missing"],
)
def test_a_lane_that_does_not_add_up_is_refused(fields: dict[str, Any]) -> None:
    lane: dict[str, Any] = {"request": "A", "slot": 1, "start": 2, "end": 3, "locs": (1, 2, 3)}
    assert TableLane(**lane).locs == (1, 2, 3)
    with pytest.raises(ValueError, match=r"lane reads|locations for"):
        TableLane(**(lane | fields))


def test_every_witness_is_reached() -> None:
    leave = [*arrive("A", ("A", 3)), Finish(request="A"), Decode(), Evict(tokens=64)]
    monitor = judge(ONE_SLOT, [*leave, *arrive("B", ("B", 3)), Decode()])
    assert [name for name in OVERLAP_WITNESSES if not monitor.witnesses[name]] == []
