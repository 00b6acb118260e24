"""Slices begin with a violation's parties and end with the whole."""

from __future__ import annotations

from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Decode,
    Evict,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    requests_of,
)
from kvproof.model.verdict import Violation
from kvproof.triage.lift import lift
from kvproof.triage.rehearse import as_recorded
from kvproof.triage.slices import slices

from .conftest import played


def served(name: str, prompt: Prompt, *, ended: bool = True) -> list[Operation]:
    end: list[Operation] = [Finish(request=name)] if ended else []
    return [Submit(request=name, prompt=prompt), Prefill(request=name), Decode(), *end]


def own(name: str) -> Prompt:
    return (Piece(name, 7),)


SHARED = (Piece("S", 4),)

RUN = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=3, pool_tokens=256),
    operations=tuple(
        operation
        for life in (
            served("publisher", (*SHARED, Piece("publisher", 9))),
            served("one", own("one")),
            served("previous", own("previous")),
            served("two", own("two"), ended=False),
            served("three", own("three")),
            [Evict(tokens=2)],
            served("reader", (*SHARED, Piece("reader", 5)), ended=False),
        )
        for operation in life
    ),
)


def stale_read(log: list[object]) -> Violation:
    return check(log).violations["FRESH-DECODE", "other-request"]  # type: ignore[arg-type]


def test_the_parties_come_first_each_alone_in_one_slot() -> None:
    violation = stale_read(played(RUN))
    assert violation.evidence is not None
    assert violation.evidence.previous is not None
    previous = violation.evidence.previous.request
    first = next(iter(slices(RUN, violation)))
    assert requests_of(first.operations) == ["publisher", previous, "reader"]
    assert first.geometry.slots == 1
    assert not any(isinstance(op, Evict) for op in first.operations)
    assert stale_read(played(first)).cause == "other-request"


def test_the_publisher_is_found_without_snapshots() -> None:
    """A recorder takes none: whoever shares the prefix is taken for the publisher."""
    recorded = list(as_recorded(played(RUN)))
    violation = stale_read(recorded)
    assert violation.evidence is not None
    assert violation.evidence.publisher is None
    first = next(iter(slices(lift(recorded), violation)))
    assert requests_of(first.operations)[0] == "publisher"


def test_slices_grow_up_to_the_whole_and_none_comes_twice() -> None:
    violation = stale_read(played(RUN))
    found = list(slices(RUN, violation))
    counts = [len(requests_of(each.operations)) for each in found]
    assert counts == sorted(counts)
    assert counts[0] == 3
    assert found[-1] == RUN
    assert len(found) == len({*found})


def test_the_others_keep_their_order_and_the_decodes_of_who_runs() -> None:
    violation = stale_read(played(RUN))
    whole = [op for op in RUN.operations if not isinstance(op, Decode)]
    for each in slices(RUN, violation):
        if each.geometry.slots > 1:
            kept = [op for op in each.operations if not isinstance(op, Decode)]
            assert kept == [op for op in whole if op in kept]


def test_one_that_still_runs_is_finished_before_the_next() -> None:
    violation = stale_read(played(RUN))
    for each in slices(RUN, violation):
        if each.geometry.slots == 1 and "two" in requests_of(each.operations):
            assert Finish(request="two") in each.operations
            assert Finish(request="reader") not in each.operations
            return
    raise AssertionError("nothing was served one by one")


def test_without_evidence_the_last_request_comes_first() -> None:
    first = next(iter(slices(RUN, None)))
    assert requests_of(first.operations) == ["reader"]
    whole = list(slices(RUN, None))[-1]
    assert requests_of(whole.operations) == requests_of(RUN.operations)


def test_a_scenario_without_requests_is_its_only_slice() -> None:
    bare = Scenario(geometry=RUN.geometry, operations=(Evict(tokens=1), Decode()))
    assert list(slices(bare, None))[-1] == bare
