"""The recorder against the driver: two witnesses of the same real objects must say the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.releases import RELEASES
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import (
    Allocated,
    Ended,
    Freed,
    Gap,
    Pools,
    Ran,
    Skipped,
    Started,
    Step,
    Translated,
    Windowed,
    encode_fact,
)
from kvproof.model.monitor import check, statuses
from kvproof.model.scenario import (
    TEXT_TOKENS,
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.record.hooks import MAX_ERRORS
from kvproof.triage.lift import lift

from .conftest import CAPPED
from .normal import as_recorded, same_steps, steps
from .worker import KEY

TARGETS = [*((release, "registry") for release in RELEASES), ("0.5.16", "SWARadixCache")]

DRAFTING = Sizes(draft_tokens=(1, 3, 2))
"""Half of what is recorded speculates."""


@pytest.mark.parametrize(("release", "construction"), TARGETS)
@settings(
    max_examples=40, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), derandomize=True,
)  # fmt: skip
@given(data=st.data())
def test_recorder_and_driver_say_the_same(record, release, construction, data):
    recorded_engine = record(release, construction)
    # Some releases assert that a page holds a window, which their backend asks for.
    [target] = find_targets([f"{release}:{construction}"], EngineStore())
    sizes = replace(DRAFTING, page_holds_window=target.sizes.page_holds_window)
    scenario = data.draw(likely_scenarios(sizes) | arbitrary_scenarios(sizes))
    driven, recorded = recorded_engine.play(scenario)
    expected = as_recorded(driven, KEY)
    if not recorded:
        assert steps(expected) == []
        return
    assert not any(isinstance(fact, Gap) for fact in recorded)
    assert type(recorded[-1]) is type(expected[-1])
    same_steps(recorded, expected)
    ours = check(recorded)
    # The recorder sees no snapshots, and no page tables.
    theirs = check([fact for fact in expected if not isinstance(fact, Pools | Windowed)])
    assert ours.counts == theirs.counts


SIZES = Geometry(window=4, page_size=4, slots=2, pool_tokens=64)
STORY = Scenario(
    geometry=SIZES,
    operations=(
        Submit(request="A", prompt=(Piece("A", 17),)),
        Prefill(request="A", tokens=8),
        Prefill(request="A"),
        Decode(),
        Finish(request="A"),
        Submit(request="B", prompt=(Piece("B", 16),)),
        Prefill(request="B"),
        Finish(request="B"),
        Submit(request="C", prompt=(Piece("A", 16), Piece("C", 17))),
        Prefill(request="C"),
        Decode(),
        Retract(request="C"),
        Prefill(request="C"),
        Abort(request="C"),
        Evict(tokens=8),
        Flush(),
    ),
)


@pytest.mark.parametrize("release", ["0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_what_a_step_has_the_tree_evict_is_recorded(record, release):
    """From 0.5.19 on it asks `evict_for_alloc`, here for rings alone: no token of the full pool."""
    scenario = Scenario(
        geometry=Geometry(window=4, page_size=4, slots=3, pool_tokens=64, draft_tokens=3),
        operations=(
            Submit(request="A", prompt=(Piece("A", 5),)),
            Prefill(request="A"),
            Submit(request="B", prompt=(Piece("B", 5),)),
            Prefill(request="B"),
            Submit(request="C", prompt=(Piece("B", 5), Piece("C", 7))),
            Prefill(request="C"),
            Finish(request="A"),
            Verify(accepted=1),
        ),
    )
    _, recorded = record(release).play(scenario)
    asked = [fact.operation for fact in recorded if isinstance(fact, Step)]
    [evict] = [operation for operation in asked if isinstance(operation, Evict)]
    assert asked.index(evict) == len(asked) - 2
    assert (evict.tokens, evict.swa_tokens > 0) == (0, True)


@pytest.mark.parametrize("release", RELEASES)
def test_no_prompt_is_in_the_log(record, release):
    """Not its token ids, not the server's name for the request: text A has the ids from 10**6."""
    _, recorded = record(release).play(STORY)
    log = b"".join(map(encode_fact, recorded))
    assert b'"request":"r1"' in log
    assert b'"A"' not in log
    numbers = {int(number) for number in re.findall(rb"(?<![0-9a-f])[0-9]+(?![0-9a-f])", log)}
    assert max(numbers) < TEXT_TOKENS


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    "sabotaged",
    [
        "kvproof.record.hooks:Instrumentation._log_of",
        "kvproof.record.hooks._tokens",
        "kvproof.record.hooks.spans_of",
        "kvproof.record.hooks.spans_of_pages",
        "kvproof.record.recorder:Recorder.end_prefill",
        "kvproof.record.recorder:Recorder.begin_decode",
        "kvproof.record.recorder:Recorder.begin_release",
        "kvproof.record.recorder:Recorder.released",
        "kvproof.record.names:PrefixNames.pieces",
    ],
)
def test_an_error_of_the_recorder_does_not_reach_the_engine(record, release, sabotaged):
    engine = record(release)
    honest, whole = engine.play(STORY)
    driven, recorded = engine.play(STORY, sabotaged=sabotaged)
    assert driven == honest
    assert not any(isinstance(fact, Gap) for fact in whole)
    if recorded:  # else no log could be opened, which is not mistaken for one either
        assert any(isinstance(fact, Gap) for fact in recorded)
        assert "holds" not in statuses(check(recorded)).values()
        # It gives up after a few errors, and says where its log ends.
        assert sum(isinstance(fact, Gap) for fact in recorded) <= MAX_ERRORS + 1
        assert isinstance(recorded[-1], Ended)


@pytest.mark.parametrize("release", RELEASES)
def test_a_double_free_of_the_engine_is_told(record, release):
    """On any release: what an allocator lends and takes back is judged without a ring too."""
    engine = record(release)
    _, sound = engine.play(STORY)
    assert statuses(check(sound))["PARTITION"] == "holds"
    _, recorded = engine.play(STORY, freed_twice=True)
    assert ("PARTITION", "double-free") in check(recorded).violations
    again, _ = engine.play(STORY)
    assert check(again).worst_of("PARTITION") is None  # the fault was the test's


def test_levels(record):
    """Without locations the log is shorter, and says the same of everything else."""
    engine = record("0.5.15")
    _, host = engine.play(STORY)
    _, full = engine.play(STORY, level="full")
    _, requests = engine.play(STORY, level="requests")
    assert full == host  # the pools are on the CPU
    locations = (Allocated, Freed, Translated)
    assert any(isinstance(fact, Allocated) for fact in host)
    assert requests == [fact for fact in host if not isinstance(fact, locations)]


def test_without_a_ring_no_launches_are_told(record):
    driven, recorded = record("0.5.15", rocm_gate=False).play(STORY)
    assert not any(isinstance(fact, Ran) for fact in recorded)
    same_steps(recorded, as_recorded(driven, KEY))
    assert statuses(check(recorded))["FRESH-DECODE"] == "unknown"


DRAFTED = Scenario(
    geometry=Geometry(window=4, page_size=4, slots=1, pool_tokens=128, draft_tokens=3),
    operations=(
        Submit(request="A", prompt=(Piece("A", 17),)), Prefill(request="A"),
        Verify(accepted=3), Verify(accepted=1), Finish(request="A"),
        Submit(request="B", prompt=(Piece("B", 18),)), Prefill(request="B"), Finish(request="B"),
        Submit(request="C", prompt=(Piece("A", 17), Piece("C", 18))), Prefill(request="C"),
        Verify(accepted=2), Verify(accepted=3), Retract(request="C"),
        Prefill(request="C", tokens=8), Abort(request="C"),
    ),
)  # fmt: skip
"""C reuses 16 tokens of 18, so its first verify reads what B left in the slot."""


@pytest.mark.parametrize("release", RELEASES)
def test_verifies_are_recorded_and_their_log_is_lifted(record, release):
    """Launches, accepted counts, and what a verdict says; a scenario made of it shows the same."""
    engine = record(release)
    driven, recorded = engine.play(DRAFTED)
    started = recorded[0]
    assert isinstance(started, Started)
    assert started.geometry == DRAFTED.geometry
    assert started.bigram_keys
    has_ring = started.ring_stride is not None
    drafts = [fact for fact in recorded if isinstance(fact, Ran) and fact.mode == "verify"]
    assert [(fact.start, fact.end) for fact in drafts] == has_ring * [
        (17, 20), (20, 23), (18, 21), (20, 23),
    ]  # fmt: skip
    verifies = [fact.operation for fact in recorded if isinstance(fact, Step)]
    counts = [step.accepted for step in verifies if isinstance(step, Verify)]
    assert counts == [3, 1, 2, 3]
    stale = check(recorded).counts.keys() & {("FRESH-DECODE", "other-request")}
    assert bool(stale) == (has_ring and release not in CAPPED)
    assert check(recorded).worst_of("PARTITION") is None
    again, _ = engine.play(lift(recorded))
    assert bool(check(again).counts.keys() & {("FRESH-DECODE", "other-request")}) == bool(stale)
    assert [fact for fact in again if isinstance(fact, Skipped)] == []
    assert check(driven).witnesses["over-allocation released"]
