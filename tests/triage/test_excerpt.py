"""Excerpts: what of a long log is kept, and that it still tells the same violation."""

from __future__ import annotations

from msgspec.structs import replace

from kvproof.fuzz.story import tell
from kvproof.model.facts import Fact, Started, Step, Wrote
from kvproof.model.monitor import check
from kvproof.model.scenario import Decode, Piece, Prefill, Scenario, Submit
from kvproof.triage.excerpt import MOST_ROWS, MOST_SLOT_ROWS, MOST_STEPS, excerpt

from .conftest import busy, log_of, stale_decode, uncapped


def test_a_short_log_is_kept_whole(stale_log: list[Fact]) -> None:
    kept = excerpt(lambda: iter(stale_log))
    assert kept.is_whole
    assert kept.facts == tuple(stale_log)
    assert kept.violation == check(stale_log).worst()


def test_a_long_log_is_cut_to_its_violation() -> None:
    log = log_of(busy(rounds=500), uncapped())
    kept = excerpt(lambda: iter(log))
    violation = check(log).worst()
    assert kept.violation == violation
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.writer is not None
    indices = [frame.index for frame in kept.frames]
    assert len(indices) <= MOST_STEPS
    assert indices == sorted(indices)
    assert violation.step in indices
    assert violation.evidence.writer.step in indices
    assert violation.evidence.reader.step in indices
    # Who computed the prefix, and every submit that the story names.
    steps = {f.index: f.operation for f in log if isinstance(f, Step)}
    spelled = tell(violation, kept.facts)
    assert "submit A: A[0:7]" in spelled
    assert "submit B: A[0:4] B[4:5]" in spelled
    assert len(steps) == 2006


def test_the_state_of_a_kept_step_is_that_of_the_whole_log() -> None:
    log = log_of(busy(rounds=40), uncapped())
    kept = excerpt(lambda: iter(log))
    assert not kept.is_whole
    last = kept.frames[-1]
    monitor = check(log)
    assert {c.row: c.holds for c in last.cells} == {
        c.row: monitor.ghost.writer(c.row) for c in last.cells
    }


def test_a_busy_log_is_told_of_the_story_s_requests_only() -> None:
    """Eight others decode in the step that breaks; the story does not name them."""
    end = stale_decode(slots=9)
    others = [f"other{number}" for number in range(8)]
    scenario = Scenario(
        geometry=replace(end.geometry, pool_tokens=1024),
        operations=(
            *end.operations[:3],
            *(Submit(request=name, prompt=(Piece(name, 3),)) for name in others),
            *(Prefill(request=name) for name in others),
            *(Decode() for _ in range(60)),
            *end.operations[3:],
        ),
    )  # fmt: skip
    log = log_of(scenario, uncapped())
    kept = excerpt(lambda: iter(log))
    assert kept.violation is not None
    assert kept.violation.evidence is not None
    assert kept.requests is not None
    assert {f.request for f in kept.facts if isinstance(f, Wrote)} <= kept.requests


def test_a_log_is_not_held() -> None:
    log = log_of(busy(rounds=40), uncapped())
    reads = 0

    def again() -> object:
        nonlocal reads
        reads += 1
        return iter(log)

    kept = excerpt(again)  # type: ignore[arg-type]
    assert reads >= 3
    assert len(kept.facts) < len(log) / 2


def test_many_rows_are_cut_to_the_slot_of_the_violation() -> None:
    log = log_of(stale_decode(slots=40), uncapped())
    kept = excerpt(lambda: iter(log))
    assert kept.violation is not None
    assert kept.violation.evidence is not None
    slot = kept.violation.evidence.reader.slot
    assert {c.row // 5 for c in kept.frames[-1].cells} == {slot}


def test_a_huge_stride_asks_for_no_endless_work(stale_log: list[Fact]) -> None:
    started = stale_log[0]
    assert isinstance(started, Started)
    huge = replace(started, ring_stride=1 << 24)
    log: list[Fact] = [huge, *[f for f in stale_log[1:] if type(f).__name__ in ("Step", "Ended")]]
    kept = excerpt(lambda: iter(log))
    assert len(kept.frames[0].cells) == max(MOST_ROWS, MOST_SLOT_ROWS)


def test_a_clean_long_log_shows_its_end() -> None:
    log = log_of(busy(rounds=40))
    kept = excerpt(lambda: iter(log))
    assert kept.violation is None
    assert [f.index for f in kept.frames] == list(range(166 - MOST_STEPS, 166))
