"""Minimising keeps what breaks and why, and gives the same result however it is run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace

from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.simplify import scenario_size
from kvproof.fuzz.strategies import scenarios
from kvproof.model.facts import Admitted, EngineError, Fact, Released, Started, Wrote
from kvproof.model.monitor import check
from kvproof.model.reference import Fault, Policy
from kvproof.model.scenario import BadFileError, Geometry, Scenario, encode_scenario
from kvproof.triage.cache import ResultCache
from kvproof.triage.case import Case, load_case
from kvproof.triage.minimise import Kept, Minimiser, NotBrokenError, Watcher
from kvproof.triage.rehearse import as_recorded, busy_run
from kvproof.triage.subjects import ModelSubject
from kvproof.triage.symptoms import invariant_of, symptoms_of
from kvproof.triage.trials import Trials

from .conftest import (
    CAPPED,
    STALE,
    STALE_DECODE,
    UNCAPPED,
    FakeSubject,
    fails_at,
    played,
    write_log,
)

BUSY = busy_run(
    requests=120,
    geometry=Geometry(window=8, page_size=4, slots=16, pool_tokens=2**14),
    answer=6,
)


@pytest.fixture(scope="module")
def busy_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busy run as a recorder writes it: one stale decode, in the 108th of 120 requests."""
    path = tmp_path_factory.mktemp("busy") / "run.jsonl"
    return write_log(path, as_recorded(played(BUSY)))


def minimised(case: Case, subject: FakeSubject, cache: ResultCache, **options: object) -> Kept:
    wanted = options.pop("wanted", None)
    minimiser = Minimiser(cache=cache, **options)  # type: ignore[arg-type]
    return minimiser.run(case, subject, wanted=wanted)  # type: ignore[arg-type]


def symptoms(scenario: Scenario, policy: Policy = UNCAPPED) -> tuple[str, ...]:
    return symptoms_of(check(played(scenario, policy)))


def test_a_busy_log_comes_down_to_six_operations(busy_log: Path, cache: ResultCache) -> None:
    case = load_case(busy_log)
    assert case.found[0] == STALE_DECODE
    assert case.facts > 2500
    subject = FakeSubject()
    kept = minimised(case, subject, cache)
    result = kept.result
    assert result.symptom == STALE_DECODE
    assert len(BUSY.operations) > result.operations_before > 300
    assert (result.operations, result.scenario.geometry.slots) == (6, 1)
    assert result.tokens < 10
    assert result.confirmed
    assert result.deterministic
    assert STALE_DECODE in symptoms(result.scenario)
    assert result.violation is not None
    assert check(kept.log).violations["FRESH-DECODE", "other-request"] == result.violation
    assert isinstance(kept.log[0], Started)
    assert kept.log[0].backend == "interpreter"
    assert subject.plays == result.tries - result.recalled + 2  # two to confirm
    assert subject.closed > subject.started  # the second play to confirm has a fresh process


def test_what_is_wanted_is_kept(busy_log: Path, cache: ResultCache) -> None:
    case = load_case(busy_log, wanted="FRESH-PREFILL")
    result = minimised(case, FakeSubject(), cache, wanted="FRESH-PREFILL").result
    assert invariant_of(result.symptom) == "FRESH-PREFILL"
    assert result.symptom in symptoms(result.scenario)
    assert result.operations == 5


def test_the_result_does_not_depend_on_the_number_of_workers(
    busy_log: Path, tmp_path: Path
) -> None:
    found = []
    for workers in (1, 3):
        cache = ResultCache(tmp_path / f"{workers}.sqlite3")
        subject = FakeSubject()
        found.append(minimised(load_case(busy_log), subject, cache, workers=workers).result)
        assert subject.started == workers
    assert found[0].scenario == found[1].scenario


def test_a_second_run_plays_nothing(busy_log: Path, cache: ResultCache) -> None:
    first = minimised(load_case(busy_log), FakeSubject(), cache)
    again = FakeSubject()
    second = minimised(load_case(busy_log), again, cache)
    assert again.plays == again.started == 0
    assert second.result.scenario == first.result.scenario
    assert second.log == first.log
    assert second.result.tries == 0


def test_other_code_is_played_anew(cache: ResultCache) -> None:
    minimised(Case(scenario=STALE), FakeSubject(), cache)
    changed = FakeSubject(code="2")
    minimised(Case(scenario=STALE), changed, cache)
    assert changed.plays > 10


class _StopsAt(Watcher):
    """Ctrl-C once so few operations are left; keeps what it was told."""

    def __init__(self, operations: int) -> None:
        self.operations = operations
        self.best: list[Scenario] = []
        self.tries = 0

    def better(self, scenario: Scenario) -> None:
        self.best.append(scenario)
        if len(scenario.operations) <= self.operations:
            raise KeyboardInterrupt

    def tried(self, trials: Trials) -> None:
        self.tries += 1


def test_an_interrupted_run_has_told_its_best_and_is_taken_up_again(
    busy_log: Path, cache: ResultCache
) -> None:
    watcher = _StopsAt(operations=6)
    with pytest.raises(KeyboardInterrupt):
        minimised(load_case(busy_log), FakeSubject(), cache, watcher=watcher)
    assert STALE_DECODE in symptoms(watcher.best[-1])
    sizes = [scenario_size(scenario)[0] for scenario in watcher.best]
    assert sizes == sorted(sizes, reverse=True)
    again = _StopsAt(operations=0)
    result = minimised(load_case(busy_log), FakeSubject(), cache, watcher=again).result
    assert watcher.tries > 20
    assert again.tries == result.tries - result.recalled
    assert result.recalled >= watcher.tries


@pytest.mark.parametrize(
    ("fault", "symptom", "operations"),
    [
        ("leak on abort", "PARTITION/leak", 3),
        ("never reuse", "USEFUL/no-reuse", 4),
        ("miscount", "PARTITION/sizes", 2),
        ("pad into last slot", "PADDING/padding-escapes", 3),
    ],
)
def test_a_violation_without_a_stale_read(
    cache: ResultCache, fault: Fault, symptom: str, operations: int
) -> None:
    policy = Policy(faults=frozenset({fault}))
    scenario = BUSY
    if fault == "pad into last slot":
        scenario = replace(
            BUSY,
            operations=tuple(
                replace(op, pad=3) if type(op).__name__ == "Decode" else op
                for op in BUSY.operations[:200]
            ),
        )
    case = Case(scenario=replace(scenario, operations=scenario.operations[:200]))
    result = minimised(case, FakeSubject(policy=policy), cache, wanted=symptom).result
    assert result.symptom == symptom
    assert result.operations <= operations
    assert symptom in symptoms(result.scenario, policy)


def test_an_engine_that_raises_is_kept_raising_in_the_same_place(cache: ResultCache) -> None:
    message = "ValueError: no page 7 at sglang/srt/mem_cache/x.py:123 in alloc"
    subject = FakeSubject(spoil=fails_at(Released, message))
    result = minimised(Case(scenario=STALE), subject, cache).result
    assert result.symptom == "engine error/ValueError in alloc of sglang/srt/mem_cache/x.py"
    assert result.violation is None
    assert result.confirmed
    assert [type(op).__name__ for op in result.scenario.operations] in (
        ["Submit", "Prefill", "Finish"], ["Submit", "Prefill", "Abort"],
    )  # fmt: skip


def test_another_failure_of_the_engine_does_not_count(cache: ResultCache) -> None:
    """Without its last operations the engine fails elsewhere: they stay."""

    def spoil(log: list[Fact], _: Backend) -> list[Fact]:
        place = "free" if any(isinstance(fact, Released) for fact in log) else "alloc"
        message = f"ValueError: bad at sglang/srt/x.py:1 in {place}"
        return [*log[:-1], EngineError(cause="raised", message=message)]

    result = minimised(Case(scenario=STALE), FakeSubject(spoil=spoil), cache).result
    assert result.symptom == "engine error/ValueError in free of sglang/srt/x.py"
    assert result.operations == 3


def without_ring_writes(log: list[Fact], backend: Backend) -> list[Fact]:
    """Kernels that write the row beside the one that the rule gives."""
    return [
        replace(fact, rows=tuple(row + 1 for row in fact.rows))
        if backend == "interpreter" and isinstance(fact, Wrote)
        else fact
        for fact in log
    ]


def test_what_only_the_kernels_show_is_made_smaller_on_them(cache: ResultCache) -> None:
    subject = FakeSubject(policy=CAPPED, spoil=without_ring_writes)
    result = minimised(Case(scenario=STALE), subject, cache, wanted="REFINES").result
    assert (result.symptom, result.backend) == ("REFINES/row", "interpreter")
    assert result.operations == 2


def test_what_the_kernels_do_not_repeat_is_not_confirmed_and_not_cached(
    cache: ResultCache,
) -> None:
    def spoil(log: list[Fact], backend: Backend) -> list[Fact]:
        return log if backend == "rules" else [f for f in log if not isinstance(f, Admitted)][:2]

    for _ in range(2):
        subject = FakeSubject(spoil=spoil)
        result = minimised(Case(scenario=STALE), subject, cache).result
        assert not result.confirmed
        assert subject.plays > 2


def test_plays_that_differ_are_said_to_differ(cache: ResultCache) -> None:
    count = iter(range(100_000))

    def spoil(log: list[Fact], _: Backend) -> list[Fact]:
        started = log[0]
        assert isinstance(started, Started)
        return [replace(started, versions={"n": str(next(count))}), *log[1:]]

    result = minimised(Case(scenario=STALE), FakeSubject(spoil=spoil), cache).result
    assert result.confirmed
    assert not result.deterministic


def test_a_case_that_breaks_nothing_there_is_refused(tmp_path: Path, cache: ResultCache) -> None:
    log = write_log(tmp_path / "log.jsonl", as_recorded(played(STALE)))
    capped = FakeSubject(policy=CAPPED)
    with pytest.raises(NotBrokenError, match="the log does not break FRESH-DECODE/other-request"):
        minimised(load_case(log), capped, cache)
    with pytest.raises(NotBrokenError, match="does not break PADDING"):
        minimised(Case(scenario=STALE), FakeSubject(), cache, wanted="PADDING")


def test_a_log_in_which_nothing_is_wrong_is_refused(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", played(STALE, CAPPED))
    with pytest.raises(BadFileError, match="nothing in the log is wrong"):
        load_case(log)
    log = write_log(tmp_path / "log.jsonl", played(STALE))
    with pytest.raises(BadFileError, match=f"breaks PADDING; it shows {STALE_DECODE}"):
        load_case(log, wanted="PADDING")


def test_the_model_takes_the_cap_of_the_log(cache: ResultCache) -> None:
    for policy, breaks in ((UNCAPPED, True), (CAPPED, False)):
        subject = ModelSubject(policy)
        run: Callable[[], Kept] = lambda subject=subject: Minimiser(cache=cache).run(  # noqa: E731
            Case(scenario=STALE), subject, wanted="FRESH-DECODE"
        )
        if breaks:
            assert run().result.operations == 6
        else:
            with pytest.raises(NotBrokenError):
                run()


def test_a_scenario_file_of_one_line_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "one-line.json"
    path.write_bytes(b" ".join(encode_scenario(STALE).split()))
    assert load_case(path) == Case(scenario=STALE)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(scenario=scenarios())
def test_any_failing_scenario_becomes_smaller_and_breaks_alike(
    scenario: Scenario, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = symptoms(scenario)
    assume(found)
    cache = ResultCache(tmp_path_factory.mktemp("cache") / "cache.sqlite3")
    result = minimised(Case(scenario=scenario), FakeSubject(), cache).result
    assert result.symptom == found[0]
    assert found[0] in symptoms(result.scenario)
    assert scenario_size(result.scenario) <= scenario_size(scenario)
    cache.close()
