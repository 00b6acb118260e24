"""CURRENT: the reference engine keeps it, each departure breaks it, and the facts say why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from kvproof.fuzz.forward_strategies import forward_scenarios
from kvproof.model.facts import (
    Consumed,
    Ended,
    Fact,
    Mapped,
    Planned,
    Share,
    Skipped,
    Started,
    Step,
    decode_fact,
    encode_fact,
)
from kvproof.model.forward_player import ForwardPlayer
from kvproof.model.forward_reference import DEPARTURES, Departure, ReferenceForwards, forward_player
from kvproof.model.forwards import (
    ForwardOperation,
    Idle,
    Layer,
    Pad,
    Plan,
    Rebind,
    Release,
    Remap,
    Replay,
    Slide,
)
from kvproof.model.monitor import Monitor, check, statuses
from kvproof.model.scenario import (
    BadFileError,
    Decode,
    Geometry,
    Scenario,
    decode_scenario,
    encode_scenario,
    family_of_operations,
)
from kvproof.model.verdict import TRANSLATION_CAUSES, Cause, TranslationCause
from kvproof.model.witness import (
    ANY_CALLER_WITNESSES,
    RESOLVER_WITNESSES,
    TRANSLATION_WITNESSES,
    TranslationWitness,
    required_of,
)

SIZES = Geometry(window=4, page_size=2, slots=3, pool_tokens=64, swa_tokens=48, draft_tokens=3)

EXTEND = Plan(mode="extend", requests=("A", "B"), tokens=5)


def play(
    *operations: ForwardOperation, departure: Departure = "none", sizes: Geometry = SIZES
) -> list[Fact]:
    scenario = Scenario(geometry=sizes, operations=operations)
    return list(forward_player(sizes, departure).play(scenario))


def causes(log: Sequence[Fact]) -> set[Cause]:
    return {cause for _, cause in check(log).violations}


EVERYTHING = (
    EXTEND, Layer(), Layer(),
    Plan(mode="decode", requests=("A", "B")), Pad(rows=1), Layer(),
    Plan(mode="verify", requests=("B", "A")), Layer(),
    Plan(mode="draft", requests=("A", "B")), Layer(),
    Plan(mode="draft_extend", requests=("A",), in_graph=False), Layer(),
    Slide(request="A"), Idle(rows=2),
    Replay(mode="decode", requests=("A", "B")), Replay(mode="decode", requests=("B",)),
    Replay(mode="verify", requests=("A",)), Replay(mode="draft", requests=("A", "B")),
    Replay(mode="draft_extend", requests=("B",)), Release(request="B"),
)  # fmt: skip


def test_the_reference_engine_keeps_current_in_every_mode() -> None:
    monitor = check(play(*EVERYTHING))
    assert not monitor.violations
    assert monitor.skipped == 0
    assert statuses(monitor) == {"CURRENT": "holds"}
    assert monitor.checked["CURRENT"] > len(EVERYTHING)


@pytest.mark.parametrize("page_size", [1, 2, 4, 8])
@pytest.mark.parametrize("any_caller", [False, True])
def test_only_a_caller_who_changes_a_planned_forward_breaks_the_reference_engine(
    page_size: int, any_caller: bool
) -> None:
    found: set[Cause] = set()

    @seed(0)
    @settings(max_examples=15, database=None, deadline=None, phases=(Phase.generate,),
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(forward_scenarios(any_caller=any_caller))
    def judge(scenario: Scenario) -> None:
        sizes = Geometry(
            window=scenario.geometry.window, page_size=page_size, slots=scenario.geometry.slots,
            pool_tokens=64, swa_tokens=48, draft_tokens=scenario.geometry.draft_tokens,
        )  # fmt: skip
        found.update(causes(list(forward_player(sizes).play(scenario))))

    judge()
    assert found <= ({"changed-after-plan"} if any_caller else set())


KILLED: dict[Departure, tuple[tuple[ForwardOperation, ...], set[Cause]]] = {
    "plan of another length taken": ((EXTEND, Pad(rows=1), Layer()), {"wrong-length"}),
    "plan taken when idle": ((
        Plan(mode="extend", requests=("A",), tokens=2), Idle(rows=2)), {"padding"},
    ),
    "graph buffer not refreshed": ((
        EXTEND, Replay(mode="decode", requests=("A",)), Replay(mode="decode", requests=("A",)),
    ), {"stale"}),
    "graph tail kept": ((
        EXTEND, Replay(mode="decode", requests=("A", "B")), Replay(mode="decode", requests=("A",)),
    ), {"padding"}),
    "draft step takes the first columns": (
        (EXTEND, Plan(mode="draft", requests=("A", "B")), Layer()), {"foreign"},
    ),
    "window of a draft extend not translated": (
        (EXTEND, Replay(mode="draft_extend", requests=("A",))), {"untranslated"},
    ),
    "no window for a draft extend's graph": (
        (EXTEND, Replay(mode="draft_extend", requests=("A",))), {"missing"},
    ),
    "int64 read as int32": ((EXTEND, Layer()), {"foreign"}),
    "int64 handed on": ((EXTEND, Layer()), {"wrong-dtype"}),
    "translated twice": ((EXTEND, Layer()), {"foreign"}),
    "rows in another order": ((EXTEND, Layer()), {"foreign"}),
}  # fmt: skip
"""Each departure, operations that show it, and the causes that they are told for."""


def test_every_departure_is_to_be_killed() -> None:
    assert KILLED.keys() == DEPARTURES.keys() - {"none"} == set(get_args(Departure)) - {"none"}


@pytest.mark.parametrize("departure", KILLED)
def test_a_departure_is_killed_and_the_same_operations_hold_without_it(
    departure: Departure,
) -> None:
    operations, expected = KILLED[departure]
    assert causes(play(*operations, departure=departure)) == expected
    assert causes(play(*operations)) == set()


CHANGES = {
    "rebound": (EXTEND, Rebind(), Layer()),
    "remapped": (EXTEND, Remap(), Layer()),
    "rebound, then padded": (EXTEND, Rebind(), Plan(mode="decode", requests=("A",)), Rebind(),
                             Layer()),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_the_plan_is_told_as_the_callers(name: str) -> None:
    log = play(*CHANGES[name])
    assert causes(log) == {"changed-after-plan"}
    [violation] = check(log).violations.values()
    assert "Planned in step" in violation.sentence


def test_a_change_after_the_plan_is_seen_where_the_length_has_changed_too() -> None:
    # The resolver's length check saves the store; the windows are still those of the plan.
    monitor = check(play(EXTEND, Rebind(), Pad(rows=1), Layer()))
    stores = monitor.witnesses["translated at use: other length"]
    assert stores == 1
    assert {cause for _, cause in monitor.violations} == {"changed-after-plan"}


def test_the_sentence_names_the_token_the_place_and_the_holder() -> None:
    log = play(EXTEND, Layer(), departure="rows in another order")
    [violation] = check(log).violations.values()
    assert violation.step == 1
    assert "position 0 of request A (location 2) goes to SWA location" in violation.sentence
    assert "(position 4 of request B)" in violation.sentence
    assert "the map says 4 (position 0 of request A)" in violation.sentence


def test_the_map_is_never_the_identity() -> None:
    [mapped, *_] = [fact for fact in play(EXTEND, Layer()) if isinstance(fact, Mapped)]
    assert all(entry != loc for loc, entry in enumerate(mapped.entries) if entry)


# The player


SKIPPED: dict[str, tuple[tuple[ForwardOperation, ...], str]] = {
    "layer without a plan": ((Layer(),), "no forward is planned"),
    "pad without a plan": ((Pad(rows=1),), "no forward is planned"),
    "rebind without a plan": ((Rebind(),), "no forward is planned"),
    "remap without a plan": ((Remap(),), "no forward is planned"),
    "nobody to decode": ((Plan(mode="decode", requests=("A",)),), "none of the requests is alive"),
    "no tokens": ((Plan(mode="extend", requests=("A",), tokens=0),), "there are no tokens"),
    "no rows": ((Idle(rows=0),), "there are no rows"),
    "slide of nobody": ((Slide(request="A"),), "there is no request A"),
    "slide too early": (
        (EXTEND, Layer(), Slide(request="A")), "every SWA page of the request may still be read",
    ),
    "release of a writer": ((EXTEND, Release(request="A")), "the planned forward writes for"),
    "no room": (
        (Plan(mode="extend", requests=("A",), tokens=60),), "a pool has too few free pages",
    ),
    "another family": ((Decode(),), "this target plays forwards alone"),  # type: ignore[dict-item]
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPPED)
def test_an_operation_with_nothing_to_do_is_skipped(name: str) -> None:
    operations, reason = SKIPPED[name]
    log = play(*operations)
    [skipped] = [fact for fact in log if isinstance(fact, Skipped)]
    assert skipped.reason.startswith(reason)
    assert isinstance(log[-1], Ended)


def test_a_refused_forward_leaves_nobody_behind() -> None:
    player = ForwardPlayer(ReferenceForwards(SIZES), SIZES)
    list(player.play(Scenario(geometry=SIZES, operations=(
        Plan(mode="extend", requests=("A",), tokens=60),))))  # fmt: skip
    assert not player.requests


def test_a_released_slot_and_its_pages_are_lent_again() -> None:
    sizes = Geometry(window=4, page_size=2, slots=1, pool_tokens=16)
    grow = Plan(mode="extend", requests=("A",), tokens=12)
    other = Plan(mode="extend", requests=("B",), tokens=12)
    log = play(grow, Layer(), Idle(rows=1), Release(request="A"), other, Layer(), sizes=sizes)
    assert not any(isinstance(fact, Skipped) for fact in log)
    assert causes(log) == set()


def test_pages_behind_the_window_serve_others() -> None:
    sizes = Geometry(window=4, page_size=2, slots=2, pool_tokens=64, swa_tokens=18)
    grow = Plan(mode="extend", requests=("A",), tokens=12)
    other = Plan(mode="extend", requests=("B",), tokens=8)
    refused = play(grow, Layer(), Idle(rows=1), other, sizes=sizes)
    assert any(isinstance(fact, Skipped) for fact in refused)
    done = Idle(rows=1)  # the planned forward could still run a layer
    served = play(grow, Layer(), done, Slide(request="A"), other, Layer(), sizes=sizes)
    assert not any(isinstance(fact, Skipped) for fact in served)
    assert causes(served) == set()
    assert check(served).witnesses["page freed behind a window"] == 1


# Files


def test_scenarios_and_facts_survive_their_files() -> None:
    scenario = Scenario(geometry=SIZES, operations=EVERYTHING)
    assert decode_scenario(encode_scenario(scenario)) == scenario
    log = play(*EVERYTHING)
    assert [decode_fact(encode_fact(fact)) for fact in log] == log


def test_a_geometry_without_a_smaller_swa_pool_says_nothing_of_it() -> None:
    sizes = Geometry(window=4, page_size=2, slots=1, pool_tokens=16)
    assert b"swa_tokens" not in encode_scenario(Scenario(geometry=sizes, operations=()))
    assert sizes.swa_pool_tokens == sizes.pool_tokens


def test_an_swa_pool_is_whole_pages() -> None:
    with pytest.raises(ValueError, match="swa_tokens must be a positive multiple"):
        Geometry(window=4, page_size=4, slots=1, pool_tokens=16, swa_tokens=6)


def test_the_family_is_that_of_the_operations() -> None:
    assert family_of_operations((Layer(),)) == "translation"
    assert family_of_operations((Decode(),)) == "cache"
    assert family_of_operations(()) == "cache"


STARTED = Started(
    target="t", backend="b", geometry=SIZES, ring_stride=None, reprefill_tail=0,
    family="translation",
)  # fmt: skip
STORE = Consumed(use="store", mode="decode", locs=(2,), indices=(4,), dtype="int32",
                 takes=("int32",))  # fmt: skip

BROKEN_LOGS = {
    "a use before any plan": ([STORE], "uses locations, and none is planned"),
    "a location without an entry": (
        [
            Mapped(entries=(0, 0)),
            Planned(mode="decode", shares=(Share(request="A", start=0, locs=(2,)),)),
            STORE,
        ],
        "no entry for location 2",
    ),
    "a window that was never lent": (
        [
            Mapped(entries=(0, 0, 4)),
            Planned(mode="decode", shares=(Share(request="A", start=3, locs=(2,)),)),
            Consumed(use="read", mode="decode", counts=(4,), indices=(1, 2, 3, 4), dtype="int64",
                     takes=("int64",)),
        ],
        "position 0 of request A is read and was never lent",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_LOGS)
def test_a_log_that_cannot_be_is_refused(name: str) -> None:
    facts, message = BROKEN_LOGS[name]
    monitor = Monitor()
    monitor.feed(STARTED)
    *possible, impossible = facts
    for fact in possible:
        monitor.feed(fact)
    with pytest.raises(BadFileError, match=message):
        monitor.feed(impossible)


def test_the_forwards_own_locations_are_judged_as_well() -> None:
    monitor = Monitor()
    entries = (0, 0, 4, 5)
    for fact in (
        STARTED, Step(index=0, operation=Layer()), Mapped(entries=entries),
        Planned(mode="decode", shares=(Share(request="A", start=0, locs=(3,)),)), STORE,
    ):  # fmt: skip
        monitor.feed(fact)
    assert "holds the locations [2]; it was lent [3]" in next(
        violation.sentence for violation in monitor.violations.values()
    )


# Vocabulary


def test_every_cause_and_witness_is_known_and_reached() -> None:
    assert set(get_args(TranslationCause)) == set(TRANSLATION_CAUSES)
    known = TRANSLATION_WITNESSES | RESOLVER_WITNESSES | ANY_CALLER_WITNESSES
    assert set(get_args(TranslationWitness)) == set(known) == set(required_of("dsv4-any"))
    reached: Counter[str] = Counter()
    reached.update(check(play(*EVERYTHING)).witnesses)
    for operations in CHANGES.values():
        reached.update(check(play(*operations)).witnesses)
    assert {name for name in known if not reached[name]} == set()
    told = {cause for _, expected in KILLED.values() for cause in expected}
    assert told | {"changed-after-plan"} == set(TRANSLATION_CAUSES)
