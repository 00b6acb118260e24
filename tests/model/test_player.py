"""What operations mean, what they do when there is nothing to do, and that a scenario replays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.model.facts import (
    Admitted,
    Advanced,
    Ended,
    Fact,
    Pools,
    Read,
    Released,
    Skipped,
    Started,
    Step,
    Wrote,
    encode_fact,
)
from kvproof.model.player import OutOfTurnError, RefusedError
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
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
    number_texts,
)

SIZES = Geometry(window=4, page_size=4, slots=2, pool_tokens=32, draft_tokens=3)
ONE_SLOT = Geometry(window=4, page_size=4, slots=1, pool_tokens=32)
ANY = Sizes(draft_tokens=(1, 2), overlaps=(0, 0, 1))


def submit(name: str, length: int, text: str = "") -> Submit:
    return Submit(request=name, prompt=(Piece(text or name, length),))


def arrive(name: str, length: int, *, chunk: int | None = None) -> list[Operation]:
    return [submit(name, length), Prefill(request=name, tokens=chunk)]


def play(operations: Sequence[Operation], sizes: Geometry = SIZES, **policy: Any) -> list[Fact]:
    player = reference_player(sizes, Policy(**policy))
    return list(player.play(Scenario(geometry=sizes, operations=tuple(operations))))


def steps(log: Sequence[Fact]) -> Iterator[list[Fact]]:
    """Facts of each operation, without its `Step`."""
    facts: list[Fact] | None = None
    for fact in log:
        if isinstance(fact, Step | Ended):
            if facts is not None:
                yield facts
            facts = []
        elif facts is not None:
            facts.append(fact)


def last_step(operations: Sequence[Operation], sizes: Geometry = SIZES) -> list[Fact]:
    return list(steps(play(operations, sizes)))[-1]


# Nothing to do

RUNNING = arrive("A", 6)
PREFILLING = arrive("A", 8, chunk=4)
NOTHING_TO_DO: dict[str, tuple[list[Operation], Operation, str]] = {
    "submit of a waiting name": ([submit("A", 5)], submit("A", 5), "request A is alive"),
    "submit of a running name": (RUNNING, submit("A", 5), "request A is alive"),
    "submit of an empty prompt": ([], Submit(request="A", prompt=()), "the prompt is empty"),
    "submit of no tokens": ([], submit("A", 0), "the prompt is empty"),
    "prefill of nobody": ([], Prefill(request="A"), "there is no request A"),
    "prefill when done": (RUNNING, Prefill(request="A"), "request A is running"),
    "prefill beside a chunked one": (
        [*PREFILLING, submit("B", 5)], Prefill(request="B"), "request A is in the middle",
    ),
    "first chunk below a page": (
        [submit("A", 6)], Prefill(request="A", tokens=3), "3 tokens is smaller than a page",
    ),
    "next chunk below a page": (
        PREFILLING, Prefill(request="A", tokens=3), "3 tokens is smaller than a page",
    ),
    "chunk of no tokens": (
        [submit("A", 6)], Prefill(request="A", tokens=0), "0 tokens is smaller than a page",
    ),
    "prefill without a slot": (
        [*RUNNING, *arrive("B", 4), submit("C", 4)], Prefill(request="C"), "no free request slot",
    ),
    "prefill without pages": (
        [*arrive("A", 20), submit("B", 20)], Prefill(request="B"), "5 pages are needed, 3 are free",
    ),
    "decode of nobody": ([], Decode(), "no request is running"),
    "decode of a waiting request": ([submit("A", 5)], Decode(), "no request is running"),
    "decode of a prefilling request": (PREFILLING, Decode(), "no request is running"),
    "decode without pages": (arrive("A", 32), Decode(), "1 pages are needed, 0 are free"),
    "verify of nobody": ([], Verify(accepted=1), "no request is running"),
    "verify without pages": (arrive("A", 31), Verify(accepted=1), "1 pages are needed"),
    "finish of nobody": ([], Finish(request="A"), "there is no request A"),
    "finish of a waiting request": ([submit("A", 5)], Finish(request="A"), "A is waiting"),
    "finish of a prefilling request": (PREFILLING, Finish(request="A"), "A is prefilling"),
    "finish twice": ([*RUNNING, Finish(request="A")], Finish(request="A"), "no request A"),
    "abort of nobody": ([], Abort(request="A"), "there is no request A"),
    "retract of nobody": ([], Retract(request="A"), "there is no request A"),
    "retract of a waiting request": ([submit("A", 5)], Retract(request="A"), "A is waiting"),
    "retract of a prefilling request": (PREFILLING, Retract(request="A"), "A is prefilling"),
    "flush beside a running request": (RUNNING, Flush(), "while no request holds memory"),
    "flush beside a prefilling request": (PREFILLING, Flush(), "while no request holds memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTHING_TO_DO)
def test_operation_with_nothing_to_do_is_skipped_with_its_reason(name: str) -> None:
    before, operation, reason = NOTHING_TO_DO[name]
    [skipped] = last_step([*before, operation])
    assert isinstance(skipped, Skipped)
    assert reason in skipped.reason


def test_verify_needs_draft_tokens() -> None:
    [skipped] = last_step([*RUNNING, Verify(accepted=1)], ONE_SLOT)
    assert skipped == Skipped(reason="the geometry has no draft tokens")


@pytest.mark.parametrize(
    "operation", [Evict(tokens=0), Evict(tokens=9), Flush(), submit("A", 3)], ids=repr
)
def test_operation_that_changes_no_memory_reports_no_fact(operation: Operation) -> None:
    assert last_step([operation]) == []


# What operations do


def test_log_starts_with_the_target_and_its_pools_and_ends() -> None:
    log = play(RUNNING)
    assert isinstance(log[0], Started)
    assert isinstance(log[1], Pools)
    assert log[-1] == Ended(steps=2)
    assert [fact.index for fact in log if isinstance(fact, Step)] == [0, 1]


def test_prefill_admits_reads_writes_advances_and_publishes() -> None:
    admitted, wrote, advanced, pools = last_step(RUNNING)
    assert admitted == Admitted(request="A", slot=1, prompt_len=6, matched_len=0)
    # WINDOW-4 leaves out positions 0 and 1; row = 1 * 6 + position % 6.
    assert wrote == Wrote(
        request="A", mode="prefill", slot=1, positions=(2, 3, 4, 5), rows=(8, 9, 10, 11)
    )
    assert advanced == Advanced(request="A", computed_len=6)
    assert isinstance(pools, Pools)
    assert [node.locs for node in pools.nodes] == [(4, 5, 6, 7)]
    assert pools.holdings[0].protected_len == 4


def test_chunks_read_the_ring_before_they_write() -> None:
    facts = last_step([*PREFILLING, Prefill(request="A")])
    reads = [fact for fact in facts if isinstance(fact, Read)]
    assert [(read.position, read.first, len(read.rows)) for read in reads] == [
        (4, 1, 3), (5, 2, 2), (6, 3, 1),
    ]  # fmt: skip
    kinds = [type(fact) for fact in facts]
    assert kinds.index(Wrote) > max(at for at, kind in enumerate(kinds) if kind is Read)
    assert Advanced(request="A", computed_len=8) in facts
    first_chunk = last_step(PREFILLING)
    assert Advanced(request="A", computed_len=4, prefilling=True) in first_chunk


def test_decode_steps_all_running_requests_and_pads() -> None:
    facts = last_step([*RUNNING, *arrive("B", 5), submit("C", 4), Decode(pad=2)])
    wrote = [(fact.request, fact.positions) for fact in facts if isinstance(fact, Wrote)]
    assert wrote == [("A", (6,)), ("B", (5,)), (None, (0,)), (None, (0,))]
    reads = [(fact.request, fact.first, len(fact.rows)) for fact in facts if isinstance(fact, Read)]
    assert reads == [("A", 3, 4), ("B", 2, 4), (None, 0, 1), (None, 0, 1)]
    advanced = [fact for fact in facts if isinstance(fact, Advanced)]
    assert [fact.computed_len for fact in advanced] == [7, 6]


@pytest.mark.parametrize(("accepted", "kept"), [(0, 1), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_verify_keeps_one_to_all_draft_tokens(accepted: int, kept: int) -> None:
    facts = last_step([*RUNNING, Verify(accepted=accepted)])
    [wrote] = [fact for fact in facts if isinstance(fact, Wrote)]
    assert wrote.positions == (6, 7, 8)
    assert Advanced(request="A", computed_len=6 + kept) in facts


def test_finish_releases_the_slot_and_publishes() -> None:
    facts = last_step([*arrive("A", 6), Decode(), Decode(), Finish(request="A")])
    assert facts[0] == Released(request="A", slot=1)
    pools = facts[1]
    assert isinstance(pools, Pools)
    assert len(pools.nodes) == 2, "eight computed tokens, two pages"
    assert pools.holdings == ()


def test_abort_publishes_no_more_than_was_published() -> None:
    pools = last_step([*arrive("A", 6), Decode(), Decode(), Abort(request="A")])[1]
    assert isinstance(pools, Pools)
    assert len(pools.nodes) == 1
    assert last_step([submit("A", 5), Abort(request="A")]) == [], "a waiting one holds nothing"
    assert last_step([*PREFILLING, Abort(request="A")])[0] == Released(request="A", slot=1)


def test_retract_queues_the_request_with_its_answer() -> None:
    before: list[Operation] = [*arrive("A", 6), Decode(), Retract(request="A")]
    assert last_step(before)[0] == Released(request="A", slot=1)
    admitted = last_step([*before, Prefill(request="A")])[0]
    # 6 prompt tokens, 1 decoded, 1 sampled and not computed yet.
    assert admitted == Admitted(request="A", slot=2, prompt_len=8, matched_len=4)


def test_a_chat_turn_reuses_the_answer_of_the_turn_before() -> None:
    turn: list[Operation] = [*arrive("A", 6), Decode(), Decode(), Finish(request="A")]
    again = Submit(request="B", prompt=(Piece("A", 8), Piece("B", 14)))
    admitted = last_step([*turn, again, Prefill(request="B")])[0]
    assert admitted == Admitted(request="B", slot=2, prompt_len=14, matched_len=8)


def test_slots_are_lent_in_the_order_of_the_policy() -> None:
    turns: list[Operation] = [*arrive("A", 4), Finish(request="A"), *arrive("B", 4)]
    slots = {
        order: [fact.slot for fact in play(turns, slot_order=order) if isinstance(fact, Admitted)]
        for order in ("first in, first out", "last in, first out")
    }
    assert slots == {"first in, first out": [1, 2], "last in, first out": [2, 2]}


def test_eviction_takes_leaves_and_spares_what_is_read() -> None:
    log = play([*arrive("A", 12), Finish(request="A"), *arrive("B", 4), Evict(tokens=5)])
    pools = [fact for fact in log if isinstance(fact, Pools)]
    assert [len(snapshot.nodes) for snapshot in pools[-2:]] == [4, 2]
    assert [node.full_lock for node in pools[-1].nodes] == [0, 1]


def test_flush_clears_the_tree_and_the_order_of_slots() -> None:
    turns: list[Operation] = [*arrive("A", 8), Finish(request="A"), Flush()]
    [pools] = last_step(turns)
    assert isinstance(pools, Pools)
    assert (pools.nodes, pools.free, pools.free_slots) == ((), tuple(range(1, 9)), (1, 2))


# Replay and shrinking


def encoded(scenario: Scenario, policy: Policy) -> bytes:
    player = reference_player(scenario.geometry, policy)
    return b"".join(map(encode_fact, player.play(scenario)))


scenarios = likely_scenarios(ANY) | arbitrary_scenarios(ANY)


@settings(max_examples=60, deadline=None)
@given(scenario=scenarios)
def test_same_scenario_gives_the_same_bytes(scenario: Scenario) -> None:
    assert encoded(scenario, Policy()) == encoded(scenario, Policy())


@settings(max_examples=60, deadline=None)
@given(scenario=scenarios, data=st.data())
def test_any_part_of_a_scenario_is_a_scenario(scenario: Scenario, data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.booleans(), min_size=len(scenario.operations)))
    operations = [op for op, keep in zip(scenario.operations, kept, strict=False) if keep]
    log = play(operations, scenario.geometry)
    assert log[-1] == Ended(steps=len(operations))


@settings(max_examples=60, deadline=None)
@given(scenario=scenarios)
def test_what_follows_does_not_change_what_came_before(scenario: Scenario) -> None:
    whole = play(scenario.operations, scenario.geometry)
    half = play(scenario.operations[: len(scenario.operations) // 2], scenario.geometry)
    assert whole[: len(half) - 1] == half[:-1]


@settings(max_examples=100, deadline=None)
@given(scenario=scenarios)
def test_a_skipped_operation_changes_nothing(scenario: Scenario) -> None:
    for facts in steps(play(scenario.operations, scenario.geometry)):
        assert len(facts) == 1 or not any(isinstance(fact, Skipped) for fact in facts)


class Asked:
    """An engine, and how often it was asked for anything."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        return getattr(self.engine, name)


@settings(max_examples=100, deadline=None)
@given(scenario=scenarios)
def test_an_engine_is_not_asked_for_an_operation_out_of_turn(scenario: Scenario) -> None:
    """So the player need not look whether it changed anything."""
    player = reference_player(scenario.geometry)
    list(player.play(Scenario(geometry=scenario.geometry, operations=())))
    asked = Asked(player.engine)
    player.engine = asked  # type: ignore[assignment]  # answers everything that the engine does
    for operation in scenario.operations:
        if isinstance(operation, Submit):
            number_texts(player.texts, operation.prompt)
        before = asked.calls
        try:
            list(player._play(operation))
        except OutOfTurnError:
            assert asked.calls == before
        except RefusedError:
            assert asked.calls > before
