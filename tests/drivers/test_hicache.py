"""A hierarchical cache: what goes to the host and comes back is whose it was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvproof.fuzz.campaign import Campaign
from kvproof.fuzz.constructions import (
    LATE_COPIES,
    PAGED_HICACHE,
    PAGED_SWA_HICACHE,
    WRITE_BACK,
)
from kvproof.fuzz.profiles import PROFILES
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Admitted, Ended, Skipped, Windowed
from kvproof.model.monitor import check, statuses
from kvproof.model.scenario import (
    Decode,
    Evict,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
)

RELEASES = ["0.5.15", "0.5.16", "0.5.23"]

TARGETS = [(release, name) for name in (PAGED_SWA_HICACHE, PAGED_HICACHE) for release in RELEASES]

TREES = {
    ("0.5.15", PAGED_HICACHE): "HiRadixCache",
    ("0.5.16", PAGED_HICACHE): "HiRadixCache",
}
"""What is not `UnifiedRadixCache`."""

HOLD = {
    PAGED_HICACHE: {"WINDOW", "PARTITION", "LOCK", "USEFUL", "REFINES"},
    PAGED_SWA_HICACHE: {
        "WINDOW", "PARTITION", "MAP", "LOCK", "CURSOR", "PROGRESS", "USEFUL", "REFINES",
    },
}  # fmt: skip

BACK = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=2, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 24),)), Prefill(request="A"), Decode(), Decode(),
        Finish(request="A"), Evict(tokens=64, swa_tokens=64),
        # Written over on the device before it is needed again.
        Submit(request="X", prompt=(Piece("X", 30),)), Prefill(request="X"), Finish(request="X"),
        Evict(tokens=64, swa_tokens=64),
        Submit(request="B", prompt=(Piece("A", 24), Piece("B", 30))), Prefill(request="B"),
        Decode(), Retract(request="B"), Evict(tokens=64, swa_tokens=64), Prefill(request="B"),
        Decode(), Finish(request="B"),
    ),
)  # fmt: skip
"""A's keys leave the device, others take their place, and B needs them, twice."""


SPLIT = Scenario(
    geometry=Geometry(window=8, page_size=1, slots=2, pool_tokens=128, swa_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 20),)), Prefill(request="A", tokens=16),
        Evict(tokens=0, swa_tokens=64), Prefill(request="A"),
        Submit(request="B", prompt=(Piece("A", 6), Piece("B", 7))), Prefill(request="B"),
        Decode(), Decode(), Evict(tokens=0, swa_tokens=64), Decode(),
    ),
)  # fmt: skip
"""B branches off inside a tombstone whose copy to the host was begun by A's second chunk."""


@pytest.fixture(params=TARGETS, ids=":".join, scope="module")  # its processes start once
def target(request):
    return request.param


@pytest.fixture(scope="module")
def log(target, start):
    release, name = target
    return start(release, construction=name).play(BACK, timeout=60, backend="none")


def test_keys_come_back_from_the_host(log, target):
    assert isinstance(log[-1], Ended), log[-1]
    assert not [fact for fact in log if isinstance(fact, Skipped)]
    admitted = [fact for fact in log if isinstance(fact, Admitted)]
    assert [fact.loaded_len > 0 for fact in admitted] == [False, False, True, True]
    assert admitted[2].matched_len >= 20  # a window may be held back
    monitor = check(log)
    assert monitor.witnesses["loaded back"] == 2
    assert {name: found.sentence for name, found in monitor.violations.items()} == {}
    held = {name for name, status in statuses(monitor).items() if status == "holds"}
    assert held == HOLD[target[1]]
    assert log[0].classes["tree"].endswith(f".{TREES.get(target, 'UnifiedRadixCache')}")


@pytest.mark.parametrize("release", ["0.5.16", "0.5.23"])
def test_keys_come_back_that_went_when_they_were_evicted(start, release):
    log = start(release, construction=WRITE_BACK).play(BACK, timeout=60, backend="none")
    monitor = check(log)
    assert isinstance(log[-1], Ended), log[-1]
    assert monitor.witnesses["loaded back"] == 2
    assert not monitor.violations


@pytest.mark.parametrize(
    ("release", "construction", "broken"),
    [
        ("0.5.15", LATE_COPIES, {("WINDOW", "unmapped")}),
        ("0.5.16", LATE_COPIES, {("WINDOW", "unmapped")}),
        ("0.5.16", PAGED_SWA_HICACHE, set()),
        ("0.5.23", LATE_COPIES, set()),
    ],
)
def test_a_copy_that_ends_late_takes_another_s_lock(start, release, construction, broken):
    """docs/findings/a-copy-that-ends-takes-another-s-lock.md."""
    log = start(release, construction=construction).play(SPLIT, timeout=60, backend="none")
    assert isinstance(log[-1], Ended), log[-1]
    assert not [fact for fact in log if isinstance(fact, Skipped)]
    assert set(check(log).violations) == broken


def test_the_marks_are_those_of_the_first_writer(log):
    """Occupancy 1 is A: its marks were stored once, before they went to the host."""
    found = next(fact for fact in log if isinstance(fact, Windowed) and fact.request == "B")
    assert found.prefix_seen == tuple((1, position) for position in range(found.start))
    assert found.seen == tuple((1, position) for position in range(found.first, found.start))


@pytest.mark.parametrize(
    ("wrong", "cause", "held"),
    [
        ((2, 23), "other-request", "which holds position 23 of request X"),
        ((1, 3), "other-request", "which holds position 3 of request A"),
        (None, "never-written", "which nobody has written"),
    ],
)
def test_a_page_that_comes_back_as_another_s_is_seen(log, target, wrong, cause, held):
    at = next(i for i, f in enumerate(log) if isinstance(f, Windowed) and f.request == "B")
    told = [marks for marks in ("seen", "prefix_seen") if getattr(log[at], marks)]
    assert len(told) == (2 if target[1] == PAGED_SWA_HICACHE else 1)
    for marks in told:
        changed = replace(log[at], **{marks: (*getattr(log[at], marks)[:-1], wrong)})
        [(broken, violation)] = check([*log[:at], changed, *log[at + 1 :]]).violations.items()
        assert broken == ("WINDOW", cause)
        assert violation.sentence.endswith(held)


def test_pages_that_come_back_in_another_order_are_seen(start, target):
    """The seeded fault; what is loaded is read at once, so the first reader shows it."""
    release, name = target
    process = start(release, construction=name, pages_rolled=1)
    monitor = check(process.play(BACK, timeout=60, backend="none"))
    violation = monitor.violations["WINDOW", "other-request"]
    assert "request B" in violation.sentence
    assert "at its location of the full pool" in violation.sentence


def test_a_smoke_campaign_is_not_vacuous(start, target):
    """What goes to the host and comes back is drawn, and halves that tombstones lost with it."""
    process = start(target[0], construction=target[1])
    [asked] = find_targets([":".join(target)], EngineStore())
    campaign = Campaign(
        target=asked, process=process, profile=PROFILES["smoke"], seed=0,
        enough=lambda survey: not survey.missing(),
    )  # fmt: skip
    survey = campaign.survey()
    assert survey.missing() == ()
    assert survey.faults == {}


@pytest.mark.parametrize(("release", "refused"), [("0.5.15", True), ("0.5.16", False)])
def test_a_prompt_that_the_host_holds_is_charged_twice_up_to_0_5_15(start, release, refused):
    """docs/engines.md tells why: an idle engine refuses it for SWA memory that is all free."""
    scenario = Scenario(
        geometry=replace(BACK.geometry, swa_tokens=32),
        operations=(
            Submit(request="A", prompt=(Piece("A", 24),)), Prefill(request="A"),
            Finish(request="A"), Evict(tokens=40, swa_tokens=40),
            Submit(request="B", prompt=(Piece("A", 24),)), Prefill(request="B"),
        ),
    )  # fmt: skip
    log = start(release, construction=PAGED_SWA_HICACHE).play(scenario, timeout=60, backend="none")
    assert (("PROGRESS", "refused") in check(log).violations) == refused
