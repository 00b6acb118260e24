"""Every counterexample ever found, replayed: what it breaks on each target is what it broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.fuzz.corpus import Case, LogCase, load_corpus, load_logs, what_breaks
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.targets import Target
from kvproof.model.facts import Started
from kvproof.model.verdict import CAUSES, EXACTNESS_CAUSES, EXACTNESS_INVARIANTS, INVARIANTS

CORPUS = Path(__file__).parents[1] / "corpus"
CASES = load_corpus(CORPUS)
LOGS = load_logs(CORPUS)


@pytest.mark.parametrize("rows", ["by rule", "by kernel"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_breaks_what_it_broke(
    case: Case, rows: str, target: Target, process: EngineProcess
) -> None:
    backend: Backend = "rules" if rows == "by rule" else process.backend
    if backend != "rules" and not case.verdicts.kernels:
        pytest.skip("the case is too large to be replayed on the real kernels each time")
    if target.name not in case.verdicts.breaks:
        pytest.skip(f"the case says nothing of {target.name}: kvproof corpus add --replace")
    found = what_breaks(
        process.play(case.scenario, timeout=60, backend=backend), case.verdicts.stack
    )
    expected = case.verdicts.breaks[target.name]
    assert found == expected, (
        f"{case.name} on {target.name} (backend {backend}): gone: "
        f"{sorted({*expected} - {*found})}, new: {sorted({*found} - {*expected})}. If the change "
        "is right, renew the case: kvproof corpus add --replace"
    )


@pytest.mark.parametrize("case", LOGS, ids=lambda case: case.name)
def test_a_log_is_judged_as_it_was(case: LogCase) -> None:
    started = case.facts[0]
    assert isinstance(started, Started)
    assert case.verdicts.breaks == {started.target: what_breaks(case.facts)}


def test_the_corpus_holds_each_kind_of_violation_that_a_release_shows() -> None:
    """Losing a case would lose its test without a failure."""
    shown = {name for case in CASES for broken in case.verdicts.breaks.values() for name in broken}
    assert shown >= {
        "FRESH-DECODE/other-request", "FRESH-DECODE/never-written", "FRESH-DECODE/same-content",
        "FRESH-PREFILL/other-request", "FRESH-PREFILL/never-written", "FRESH-PREFILL/same-content",
        "USEFUL/no-reuse", "PURE/compressed-row", "PURE/inherited-page",
    }  # fmt: skip
    for name in shown:
        invariant, _, cause = name.partition("/")
        assert invariant in INVARIANTS | EXACTNESS_INVARIANTS
        assert cause in CAUSES | EXACTNESS_CAUSES


@pytest.mark.parametrize("case", [*CASES, *LOGS], ids=lambda case: case.name)
def test_a_case_breaks_something_and_says_why(case: Case | LogCase) -> None:
    assert any(case.verdicts.breaks.values())
    assert case.verdicts.why.endswith(".")
