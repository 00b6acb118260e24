"""The known defects of 'Translation and graph replay' on the installed releases, and their absence.

Each scenario is as small as it gets. What a release shows depends on its version alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.targets import RING, Target
from kvproof.model.facts import Consumed, Ended, Fact, Started
from kvproof.model.forwards import ForwardOperation, Idle, Layer, Pad, Plan, Rebind, Remap, Replay
from kvproof.model.monitor import check
from kvproof.model.scenario import Geometry, Scenario
from kvproof.model.verdict import Cause
from kvproof.model.witness import RESOLVER_WITNESSES

SIZES = Geometry(window=4, page_size=2, slots=3, pool_tokens=64, swa_tokens=32, draft_tokens=3)
"""An SWA pool half as large as the full pool."""

PLANS_DRAFT_WINDOWS = {"0.5.15": False, "0.5.15.post1": False, "0.5.16": False, "0.5.23": True}
"""Whether a release's Triton backend plans the windows of drafts, as read in its code."""

ONE = Plan(mode="extend", requests=("A",))
TWO = Plan(mode="extend", requests=("A", "B"))


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A report, what shows it, and for which causes where it is there."""

    construction: str
    operations: tuple[ForwardOperation, ...]
    causes: frozenset[Cause]
    fixed: bool = True
    line: str = ""
    sizes: Geometry = field(default=SIZES)


DEFECTS = {
    "#29858: a draft extend's graph has no window index buffer": Defect(
        construction="triton",
        operations=(ONE, Replay(mode="draft_extend", requests=("A",))),
        causes=frozenset({"missing"}),
        line="in forward_extend",
    ),
    "a draft step's windows are not planned": Defect(
        construction="triton",
        operations=(ONE, Plan(mode="draft", requests=("A",)), Layer()),
        causes=frozenset({"missing"}),
        line="in forward_decode",
    ),
    "a draft step stores at the first locations of the window": Defect(
        construction="triton",
        operations=(TWO, Plan(mode="draft", requests=("A", "B")), Layer()),
        causes=frozenset({"missing", "foreign"}),
        line="in forward_decode",
    ),
    "a draft's graph has no store locations": Defect(
        construction="triton",
        operations=(ONE, Replay(mode="draft", requests=("A",))),
        causes=frozenset({"missing"}),
        line="in forward_decode",
    ),
    "T2: a rebind that keeps the length": Defect(
        construction="dsv4-any",
        operations=(ONE, Rebind(), Layer()),
        causes=frozenset({"changed-after-plan"}),
        fixed=False,
        line="in get_swa_out_cache_loc",
    ),
    "T4: equal locations, mapped anew (#25889)": Defect(
        construction="dsv4-any",
        operations=(ONE, Remap(), Layer()),
        causes=frozenset({"changed-after-plan"}),
        fixed=False,
        line="in get_swa_out_cache_loc",
    ),
}

HELD = {
    "#24743: a replay padded after a larger batch": (
        TWO, Replay(mode="decode", requests=("A", "B")), Replay(mode="decode", requests=("A",)),
        Replay(mode="verify", requests=("A", "B")), Replay(mode="verify", requests=("B",)),
    ),
    "#27091: padding after the plan, and an idle forward after a larger one": (
        TWO, Pad(rows=2), Layer(), Idle(rows=1),
        Plan(mode="draft_extend", requests=("A",), in_graph=False), Layer(),
    ),
    "a graph's replay between eager forwards": (
        TWO, Layer(), Replay(mode="decode", requests=("A",)), Plan(mode="decode", requests=("B",)),
        Layer(), Replay(mode="decode", requests=("B",)),
    ),
    # A server's target captures graphs of one mode. That this one captures two is the driver's.
    "a graph captured before another mode's": (
        ONE, Replay(mode="verify", requests=("A",)), Replay(mode="decode", requests=("A",)),
        Replay(mode="verify", requests=("A",)),
    ),
}  # fmt: skip
"""Defects that were fixed before the oldest of these releases, or never there: they hold."""


Keep = Callable[..., EngineProcess]


def play(keep: Keep, release: Target, construction: str, scenario: Scenario) -> list[Fact]:
    target = Target(engine=release.engine, construction=construction)
    log = keep(target.name, target.process).play(scenario, timeout=60)
    assert isinstance(log[-1], Ended), log[-1]
    started = log[0]
    assert isinstance(started, Started)
    assert (started.target, started.family) == (target.name, "translation")
    return log


@pytest.mark.parametrize("name", DEFECTS)
def test_a_known_defect_is_where_it_was_and_nowhere_else(
    release: Target, keep: Keep, name: str
) -> None:
    version = release.engine.version
    if version not in PLANS_DRAFT_WINDOWS:
        pytest.skip(f"nobody has read {version} for this")
    defect = DEFECTS[name]
    scenario = Scenario(geometry=defect.sizes, operations=defect.operations)
    monitor = check(play(keep, release, defect.construction, scenario))
    present = not (defect.fixed and PLANS_DRAFT_WINDOWS[version])
    assert {cause for _, cause in monitor.violations} == (defect.causes if present else set())
    assert len(defect.operations) <= 12
    for violation in monitor.violations.values():
        assert "; at sglang/srt/layers/attention/" in violation.sentence
        assert violation.sentence.endswith(defect.line)


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("construction", ["triton", "dsv4"])
def test_a_defect_fixed_before_these_releases_is_gone(
    release: Target, keep: Keep, name: str, construction: str
) -> None:
    scenario = Scenario(geometry=SIZES, operations=HELD[name])
    assert not check(play(keep, release, construction, scenario)).violations


def test_each_branch_of_the_resolver_is_reached_and_gives_what_the_map_says(
    release: Target, keep: Keep
) -> None:
    operations = (
        TWO, Layer(), Pad(rows=1), Layer(), Idle(rows=2),
        Plan(mode="draft_extend", requests=("A",), in_graph=False), Layer(),
    )  # fmt: skip
    scenario = Scenario(geometry=SIZES, operations=operations)
    monitor = check(play(keep, release, "dsv4", scenario))
    assert not monitor.violations
    assert set(RESOLVER_WITNESSES) <= {name for name, count in monitor.witnesses.items() if count}


def test_the_resolver_of_ring_rows_takes_its_plan_for_a_decode_alone(
    release: Target, keep: Keep
) -> None:
    operations = (
        TWO, Plan(mode="decode", requests=("A", "B")), Layer(), Pad(rows=1), Layer(),
        Plan(mode="draft", requests=("A", "B")), Layer(), Idle(rows=2),
    )  # fmt: skip
    sizes = Geometry(window=4, page_size=2, slots=2, pool_tokens=64, draft_tokens=4)
    scenario = Scenario(geometry=sizes, operations=operations)
    log = play(keep, release, RING, scenario)
    assert not check(log).violations
    stores = [(fact.mode, fact.cached) for fact in log if isinstance(fact, Consumed)]
    assert stores == [
        ("decode", True), ("decode", False), ("draft", False), ("draft", False), ("idle", False),
    ]  # fmt: skip


def test_dtypes_are_facts(release: Target, keep: Keep) -> None:
    scenario = Scenario(geometry=SIZES, operations=(ONE, Layer()))
    seen = {}
    for construction in ("triton", "dsv4"):
        log = play(keep, release, construction, scenario)
        seen[construction] = {fact.dtype for fact in log if isinstance(fact, Consumed)}
    # PR #27091: plain int64 look-ups, and int32 where the kernels of a backend take no other.
    assert seen == {"triton": {"int64"}, "dsv4": {"int32"}}
