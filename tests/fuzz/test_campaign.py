"""Campaigns on the reference engine: what they find, and what a bad engine cannot do to them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.fuzz import campaign as module
from kvproof.fuzz.campaign import Break, Campaign, Survey, TargetResult, result_of
from kvproof.fuzz.profiles import PROFILES, Profile
from kvproof.fuzz.simplify import scenario_size
from kvproof.fuzz.strategies import Sizes
from kvproof.model.facts import EngineError, Fact, Started, decode_fact
from kvproof.model.files import load_scenario
from kvproof.model.monitor import check
from kvproof.model.policy import SwaFault
from kvproof.model.reference import Fault, Policy
from kvproof.model.scenario import (
    Abort,
    Decode,
    Finish,
    Operation,
    Prefill,
    Retract,
    Scenario,
    Submit,
)
from kvproof.model.verdict import INVARIANTS, NEEDS_SWA, Invariant, Status
from kvproof.model.witness import CAP_WITNESS

from .conftest import (
    CAPPED,
    UNCAPPED,
    FakeProcess,
    Keeper,
    Played,
    campaign,
    fake_target,
    reason,
    verdicts,
)

SMOKE = PROFILES["smoke"]


def without_times(result: TargetResult) -> bytes:
    findings = tuple(
        replace(finding, find_seconds=0.0, shrink_seconds=0.0) for finding in result.findings
    )
    return msgspec.json.encode(replace(result, seconds=0.0, findings=findings))


# The model with rings tells who holds locks, and of no SWA pool.
UNBROKEN: dict[Invariant, Status] = {
    invariant: "skipped" if invariant in {*NEEDS_SWA, "IN-FLIGHT"} - {"LOCK"} else "holds"
    for invariant in INVARIANTS
}


@pytest.fixture
def unshrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinking takes most of a campaign's time, and is not what such a test is about."""
    monkeypatch.setattr(Campaign, "shrink", lambda _self, _broken, found, *_: found)


@pytest.fixture(scope="module")
def uncapped() -> TargetResult:
    return campaign(FakeProcess(), profile=SMOKE).run()


def test_without_a_cap_decode_is_stale_in_six_operations(uncapped: TargetResult) -> None:
    assert verdicts(uncapped) == {
        **UNBROKEN,
        "FRESH-DECODE": "violated",
        "FRESH-PREFILL": "violated",
    }
    [decode, _] = uncapped.findings
    assert decode.name == "FRESH-DECODE-other-request"
    assert decode.confirmed
    assert decode.deterministic
    assert [type(operation) for operation in decode.scenario.operations] == [
        Submit, Prefill, Finish, Submit, Prefill, Decode,
    ]  # fmt: skip
    assert decode.scenario.geometry.slots == 1
    assert decode.occurrences == uncapped.counts["FRESH-DECODE/other-request"]
    assert 1 <= decode.found_after <= SMOKE.sequences
    assert uncapped.missing == ()


def test_the_totals_add_up(uncapped: TargetResult) -> None:
    assert uncapped.sequences == SMOKE.sequences
    assert 0 < uncapped.kernel_sequences < uncapped.sequences
    assert 0 < uncapped.skipped < uncapped.operations
    assert uncapped.target == "fake:registry"


@pytest.mark.usefixtures("unshrunk")
def test_with_the_cap_decode_holds() -> None:
    result = campaign(FakeProcess(rules=CAPPED), profile=SMOKE).run()
    assert verdicts(result) == {
        **UNBROKEN,
        "FRESH-PREFILL": "violated",
    }
    assert result.witnesses["cap bound"] > 0
    assert result.missing == ()


@pytest.mark.parametrize(
    ("fault", "broken"),
    [
        ("leak on abort", ("PARTITION", "leak")),
        ("double free on finish", ("PARTITION", "double-free")),
        ("miscount", ("PARTITION", "sizes")),
        ("never reuse", ("USEFUL", "no-reuse")),
        ("match beyond tree", ("REFINES", "match")),
        ("pad into last slot", ("PADDING", "padding-escapes")),
    ],
)
def test_a_seeded_fault_is_found_and_brought_down(fault: Fault, broken: Break) -> None:
    process = FakeProcess(rules=Policy(faults=frozenset({fault})))
    run = campaign(process)
    found, backend, violation = run.survey().smallest[broken]
    assert (violation.invariant, violation.cause) == broken
    smallest = run.shrink(broken, found, backend, violation)

    def breaks(operations: tuple[Operation, ...]) -> bool:
        scenario = replace(smallest, operations=operations)
        return broken in check(process.play(scenario, timeout=1, backend="rules")).violations

    operations = smallest.operations
    assert breaks(operations)
    for gone in range(len(operations)):
        assert not breaks(operations[:gone] + operations[gone + 1 :])


def cut_at(
    is_bad: Callable[[Scenario], bool], cause: str, message: str
) -> Callable[[Played], list[Fact]]:
    """An engine that fails in the middle of the scenarios that are bad for it."""

    def spoil(played: Played) -> list[Fact]:
        if not is_bad(played.scenario):
            return played.log
        error = EngineError(cause=cause, message=message)  # type: ignore[arg-type]
        return [*played.log[: len(played.log) // 2], error]

    return spoil


def has(kind: type) -> Callable[[Scenario], bool]:
    return lambda scenario: any(isinstance(op, kind) for op in scenario.operations)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("raised", "ValueError: no such page at sglang/srt/x.py:1 in alloc"),
        ("timed out", "no end within 20 s"),
        ("died", "killed by SIGSEGV"),
    ],
)
def test_an_engine_that_fails_is_a_verdict_and_nothing_is_lost(
    keeper: Keeper, cause: str, message: str
) -> None:
    process = FakeProcess(spoil=cut_at(has(Abort), cause, message))
    result = campaign(process, profile=SMOKE, listener=keeper).run()
    assert result.sequences == SMOKE.sequences  # it went on
    statuses = verdicts(result)
    assert statuses["FRESH-DECODE"] == statuses["FRESH-PREFILL"] == "violated"
    for invariant in ("PARTITION", "PADDING", "USEFUL", "REFINES"):
        assert statuses[invariant] == "engine error"
        assert reason(result, invariant) == message
    [fault] = result.faults
    assert (fault.error.cause, fault.error.message) == (cause, message)
    assert fault.occurrences > 1
    folder = keeper.folder.path / "fake-registry"
    [kept] = folder.glob("engine-error-*.scenario.json")
    assert load_scenario(kept) == fault.scenario
    log = (folder / "engine-error-1.log.jsonl").read_bytes().splitlines()
    assert decode_fact(log[-1]) == fault.error
    assert isinstance(decode_fact(log[0]), Started)


@pytest.mark.usefixtures("unshrunk")
def test_failures_are_told_apart(keeper: Keeper) -> None:
    def spoil(played: Played) -> list[Fact]:
        for kind in (Abort, Retract):
            if has(kind)(played.scenario):
                return [*played.log[:2], EngineError(cause="raised", message=kind.__name__)]
        return played.log

    result = campaign(FakeProcess(spoil=spoil), profile=SMOKE, listener=keeper).run()
    assert {fault.error.message for fault in result.faults} == {"Abort", "Retract"}
    assert len(list(keeper.folder.path.glob("*/engine-error-*.log.jsonl"))) == 2


def test_an_engine_that_fails_at_once_holds_nothing() -> None:
    """Not even its first fact comes out."""
    error = EngineError(cause="died", message="exit code 1")
    result = campaign(FakeProcess(spoil=lambda _: [error])).run()
    assert set(verdicts(result).values()) == {"engine error"}
    assert result.faults[0].occurrences == result.sequences
    assert result.missing


@pytest.mark.usefixtures("unshrunk")
def test_an_engine_that_fails_only_when_confirmed_is_no_finding(keeper: Keeper) -> None:
    def spoil(played: Played) -> list[Fact]:
        error = EngineError(cause="raised", message="no kernel")
        return [error] if played.backend == "interpreter" else played.log

    result = campaign(FakeProcess(spoil=spoil), listener=keeper).run()
    assert verdicts(result)["FRESH-DECODE"] == "unknown"


@pytest.mark.usefixtures("unshrunk")
def test_what_the_kernels_do_not_repeat_is_unknown(keeper: Keeper) -> None:
    result = campaign(FakeProcess(rules=UNCAPPED, kernels=CAPPED), listener=keeper).run()
    assert verdicts(result)["FRESH-DECODE"] == "unknown"
    assert "the real kernels do not repeat" in reason(result, "FRESH-DECODE")
    finding = result.findings[0]
    assert finding.violation.invariant == "FRESH-DECODE"
    assert not finding.confirmed
    folder = keeper.folder.path / "fake-registry"
    assert load_scenario(folder / f"{finding.name}.scenario.json") == finding.scenario
    assert (folder / f"{finding.name}.unshrunk.json").exists()
    assert not (folder / f"{finding.name}.txt").exists()  # no story of what did not happen


def test_what_only_the_kernels_show_is_shrunk_on_them() -> None:
    process = FakeProcess(rules=CAPPED, kernels=UNCAPPED)
    result = campaign(process, profile=Profile(sequences=40, kernel_share=2)).run()
    assert verdicts(result)["FRESH-DECODE"] == "violated"
    assert len(result.findings[0].scenario.operations) <= 8
    assert process.asked["interpreter"] > 2 * result.kernel_sequences


@pytest.mark.parametrize("backend", ["rules", "interpreter"])
def test_what_is_gone_when_played_again_is_unknown(keeper: Keeper, backend: str) -> None:
    """Each scenario breaks once: when the survey, or shrinking, sees it for the first time."""
    clean = FakeProcess(rules=CAPPED)

    def spoil(played: Played) -> list[Fact]:
        if played.times == 0 and played.backend == backend:
            return played.log
        return clean.play(played.scenario, timeout=1, backend=played.backend)

    result = campaign(FakeProcess(spoil=spoil), listener=keeper).run()
    assert verdicts(result)["FRESH-DECODE"] == "unknown"
    assert "FRESH-DECODE" in {invariant for invariant, _ in keeper.breaks}
    assert list((keeper.folder.path / "fake-registry").glob("FRESH-DECODE-*.unshrunk.json"))


@pytest.mark.usefixtures("unshrunk")
def test_logs_that_differ_are_unknown() -> None:
    process = FakeProcess()

    def spoil(played: Played) -> list[Fact]:
        started = replace(played.log[0], versions={"play": str(sum(process.plays.values()))})
        return [started, *played.log[1:]]

    process.spoil = spoil
    result = campaign(process).run()
    assert verdicts(result)["FRESH-DECODE"] == "unknown"
    assert reason(result, "FRESH-DECODE") == "two plays of the smallest scenario differ"
    assert result.findings[0].confirmed
    assert not result.findings[0].deterministic


@pytest.mark.usefixtures("unshrunk")
def test_confirmation_takes_two_processes(keeper: Keeper) -> None:
    process = FakeProcess()
    result = campaign(process, listener=keeper).run()
    assert process.closed == len(result.findings)


@pytest.mark.usefixtures("unshrunk")
def test_a_run_that_reaches_too_little_holds_nothing() -> None:
    result = campaign(FakeProcess(rules=CAPPED), profile=Profile(sequences=1)).run()
    assert result.missing
    assert "holds" not in verdicts(result).values()
    assert any(verdict.reason.startswith("vacuous: ") for verdict in result.verdicts)


def test_a_run_without_a_ring_holds_nothing() -> None:
    def spoil(played: Played) -> list[Fact]:
        started = replace(played.log[0], ring_stride=None, reprefill_tail=0, backend="none")
        return [started, *(f for f in played.log[1:] if type(f).__name__ not in {"Read", "Wrote"})]

    result = campaign(FakeProcess(spoil=spoil), profile=SMOKE).run()
    assert set(verdicts(result).values()) == {"unknown", "skipped"}
    assert "there is no ring" in reason(result, "FRESH-DECODE")
    assert "vacuous" in reason(result, "PARTITION")
    assert result.kernel_sequences == 0  # no kernel ran, whatever was asked for


@pytest.mark.parametrize(("construction", "keeps"), [("registry", True), ("chunk", False)])
def test_where_no_prefix_is_kept_no_cap_binds_and_nothing_is_to_be_reused(
    construction: str, keeps: bool
) -> None:
    survey = Survey(
        target=dataclasses.replace(fake_target(), construction=construction), has_cap=True
    )
    assert (CAP_WITNESS in survey.missing()) == keeps
    result = result_of(survey, (), target=fake_target(), seed=0)
    assert verdicts(result)["USEFUL"] == ("unknown" if keeps else "skipped")


@pytest.mark.parametrize(
    ("fault", "status"), [("cursor never moves", "skipped"), ("cursor past the window", "violated")]
)
def test_a_cursor_is_judged_where_some_request_moves_it(fault: SwaFault, status: Status) -> None:
    rules = Policy(paged_swa=True, faults=frozenset({fault}))
    target = dataclasses.replace(
        fake_target(),
        has_ring=False,
        gives_back=False,
        sizes=Sizes(swa_shares=(1, 2), draft_tokens=(3,)),
    )
    result = dataclasses.replace(
        campaign(FakeProcess(rules=rules), profile=SMOKE), target=target
    ).run()
    assert "SWA page given back" not in result.missing
    assert verdicts(result)["CURSOR"] == status


class Clock:
    """One second a play."""

    def __init__(self, process: FakeProcess) -> None:
        self.process = process

    def monotonic(self) -> float:
        return float(sum(self.process.asked.values()))


def test_the_time_limit_ends_the_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    process = FakeProcess()
    monkeypatch.setattr(module, "time", Clock(process))
    began = time.monotonic()
    result = campaign(process, profile=PROFILES["long"], time_limit=10.0).survey()
    assert result.sequences == 11  # the one that was being played at the limit is counted
    assert time.monotonic() - began < 10  # and the other 19,989 are not even drawn


def test_no_time_shows_nothing() -> None:
    result = campaign(FakeProcess(), time_limit=-1.0).run()
    assert result.sequences == 0
    assert set(verdicts(result).values()) == {"unknown", "skipped"}


def test_the_same_seed_gives_the_same_result() -> None:
    small = Profile(sequences=15)
    one, other = (campaign(FakeProcess(), profile=small, seed=1).run() for _ in range(2))
    assert one.findings
    assert without_times(one) == without_times(other)
    assert campaign(FakeProcess(), profile=small, seed=2).survey().counts != (
        campaign(FakeProcess(), profile=small, seed=1).survey().counts
    )


def test_the_listener_hears_of_each_step(keeper: Keeper) -> None:
    sizes: list[int] = []

    class Counting(type(keeper)):  # type: ignore[misc]
        def shrinking(self, target: object, broken: object, operations: int) -> None:
            sizes.append(operations)

    listener = Counting(keeper.folder)
    result = campaign(FakeProcess(), profile=Profile(sequences=15), listener=listener).run()
    assert sizes
    assert listener.findings == list(result.findings)
    assert set(listener.breaks) == {tuple(name.split("/")) for name in result.counts}
    for finding in result.findings:
        assert scenario_size(finding.scenario)[0] <= max(sizes)
