"""Frames: what a row holds after each step, who looked at it; facts alone decide it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings

from kvproof.fuzz.strategies import likely_scenarios
from kvproof.model.facts import (
    Admitted,
    Allocated,
    Fact,
    Freed,
    Ran,
    Read,
    Released,
    Started,
    Step,
    Wrote,
)
from kvproof.model.monitor import check
from kvproof.model.scenario import BadFileError, Scenario
from kvproof.triage.timeline import Cell, Frame, frames

from .conftest import log_of, stale_decode, uncapped


def cell(frame: Frame, row: int) -> Cell:
    return next(cell for cell in frame.cells if cell.row == row)


def test_each_operation_has_a_frame(stale_log: list[Fact]) -> None:
    drawn = list(frames(stale_log))
    assert [frame.index for frame in drawn] == [0, 1, 2, 3, 4, 5]
    assert [frame.operation for frame in drawn] == list(stale_decode().operations)


def test_a_row_keeps_its_writer_until_another_writes_it(stale_log: list[Fact]) -> None:
    drawn = list(frames(stale_log))
    assert cell(drawn[0], 6).holds is None
    for frame in drawn[1:]:
        holds = cell(frame, 6).holds
        assert holds is not None
        assert (holds.request, holds.occupancy, holds.position, holds.step) == ("A", 1, 6, 1)
    assert [cell(frame, 6).written for frame in drawn] == [False, True, *[False] * 4]
    now = cell(drawn[5], 5).holds
    assert now is not None
    assert (now.request, now.occupancy, now.position, now.step) == ("B", 2, 5, 5)


def test_the_stale_read_is_where_the_monitor_says(stale_log: list[Fact]) -> None:
    violation = check(stale_log).worst()
    assert violation is not None
    assert violation.evidence is not None
    frame = list(frames(stale_log))[violation.step]
    look = cell(frame, violation.evidence.row).look
    assert look is not None
    assert look.cause == violation.cause == "other-request"
    assert look.held == violation.evidence.writer
    assert (look.position, look.stands_for) == (5, 1)
    assert [c.row for c in frame.cells if c.look and c.look.cause == "other-request"] == [6]


def test_a_row_that_is_read_and_then_written_shows_what_the_query_found(
    stale_log: list[Fact],
) -> None:
    """A prefill reads before it writes; the cell holds the new key, the look the old one."""
    log = [
        Wrote(request="B", mode="prefill", slot=1, positions=(4, 5), rows=(9, 5))
        if isinstance(fact, Wrote) and fact.request == "B" and fact.mode == "prefill"
        else fact
        for fact in stale_log
    ]
    row = cell(list(frames(log))[4], 5)
    assert row.written
    assert row.look is not None
    assert row.look.held is not None
    assert row.holds is not None
    assert (row.look.held.request, row.holds.request) == ("A", "B")


def test_the_worst_look_is_kept_and_all_are_counted(stale_log: list[Fact]) -> None:
    doubled: list[Fact] = []
    for fact in stale_log:
        doubled.append(fact)
        if isinstance(fact, Read) and fact.mode == "decode":
            doubled.append(fact)
    last = list(frames(doubled))[-1]
    assert {c.looks for c in last.cells if c.row >= 5} == {2}
    assert {c.looks for c in last.cells if c.row < 5} == {0}


def test_who_holds_a_slot_and_how_far_it_is(stale_log: list[Fact]) -> None:
    drawn = list(frames(stale_log))
    holders = [[(t.lease.request, t.lease.occupancy) for t in frame.tenants] for frame in drawn]
    assert holders == [[], [("A", 1)], [], [], [("B", 2)], [("B", 2)]]
    assert [t.computed_len for frame in drawn for t in frame.tenants] == [7, 5, 6]


def test_a_request_starts_anew_under_an_old_name() -> None:
    log: list[Fact] = log_of(stale_decode(), uncapped())
    at = next(n for n, fact in enumerate(log) if isinstance(fact, Admitted) and fact.slot == 1)
    admitted, released = log[at], Released(request="A", slot=1)
    again = [*log[: at + 3], released, admitted]
    tenant = list(frames(again))[-1].tenants[0]
    assert tenant.computed_len == 0


def test_only_the_rows_that_are_asked_for(stale_log: list[Fact]) -> None:
    assert {c.row for f in frames(stale_log, rows=range(5, 10)) for c in f.cells} == set(
        range(5, 10)
    )
    assert {c.row for f in frames(stale_log) for c in f.cells} == set(range(10))
    assert all(not f.cells for f in frames(stale_log, rows=()))


def test_what_an_allocator_lent(stale_log: list[Fact]) -> None:
    log = [
        *stale_log[:4],
        Allocated(pool="swa", locs=((4, 8), (12, 13))),
        Freed(pool="swa", locs=((4, 5),)),
    ]
    assert list(frames(log))[-1].lent == {"swa": 4}


def as_recorded(log: Iterable[Fact]) -> list[Fact]:
    """The log as a recorder writes it: lanes, not rows."""
    recorded: list[Fact] = []
    for fact in log:
        if isinstance(fact, Wrote) and fact.request is not None:
            end = fact.positions[-1] + 1
            start = fact.positions[0]
            recorded.append(
                Ran(request=fact.request, mode=fact.mode, slot=fact.slot, start=start, end=end)
            )
        elif not isinstance(fact, Read):
            recorded.append(fact)
    return recorded


def test_a_recorded_launch_is_spelled_out(stale_log: list[Fact]) -> None:
    recorded = as_recorded(stale_log)
    assert any(isinstance(fact, Ran) for fact in recorded)
    last = list(frames(recorded))[-1]
    assert last == list(frames(stale_log))[-1]


def test_a_launch_without_a_ring_is_refused(stale_log: list[Fact]) -> None:
    started = stale_log[0]
    assert isinstance(started, Started)
    ringless = Started(
        target="model", backend="rules", geometry=started.geometry, ring_stride=None,
        reprefill_tail=0,
    )  # fmt: skip
    ran = Ran(request="A", mode="decode", slot=1, start=0, end=1)
    with pytest.raises(BadFileError, match="no ring"):
        list(frames([ringless, ran]))


@settings(max_examples=40, deadline=None)
@given(likely_scenarios())
def test_frames_agree_with_the_monitor(scenario: Scenario) -> None:
    log = log_of(scenario, uncapped())
    drawn = list(frames(log))
    assert [frame.index for frame in drawn] == [f.index for f in log if isinstance(f, Step)]
    monitor = check(log)
    if drawn:
        assert {c.row: c.holds for c in drawn[-1].cells} == {
            c.row: monitor.ghost.writer(c.row) for c in drawn[-1].cells
        }
        assert {t.lease for t in drawn[-1].tenants} == set(monitor.leases.values())
    stale = {
        (frame.index, c.look.mode == "prefill", c.look.cause)
        for frame in drawn
        for c in frame.cells
        if c.look and c.look.cause
    }
    for violation in monitor.violations.values():
        if violation.evidence is None:
            continue
        prefill = violation.invariant == "FRESH-PREFILL"
        row = next(c for c in drawn[violation.step].cells if c.row == violation.evidence.row)
        assert row.look is not None
        assert row.look.cause is not None
        assert (violation.step, prefill, row.look.cause) in stale
    # Drawing fewer steps or slots changes nothing of what is drawn.
    some = list(frames(log, rows=range(2), wanted=lambda index: index % 3 == 0))
    assert [f.index for f in some] == [f.index for f in drawn if f.index % 3 == 0]
    for frame in some:
        whole = drawn[frame.index]
        assert set(frame.cells) <= set(whole.cells)
        assert (frame.tenants, frame.pools) == (whole.tenants, whole.pools)
