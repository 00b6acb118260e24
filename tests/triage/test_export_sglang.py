"""Exports: a test of a release, which runs there without kvproof."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Ended, Skipped, Step, encode_fact
from kvproof.model.monitor import check
from kvproof.model.scenario import Scenario
from kvproof.model.text import parse_scenario
from kvproof.model.verdict import Cause, Invariant, Violation
from kvproof.triage.export import Case, Run
from kvproof.triage.export_sglang import (
    TESTS,
    import_stubs,
    sglang_test,
    sglang_test_name,
)

from .conftest import stale_decode
from .exporting import CLASSES, EVERYTHING, NAMES, case_from, is_good, run_of, target_named

RUNNER = Path(__file__).with_name("exported_runner.py")

STALE = """
kvproof scenario 3
window 3
page_size 1
slots 1
pool_tokens 64
submit A: A[0:4]
prefill A
finish A
submit B: A[0:2]
prefill B
decode
"""

BUSY = """
kvproof scenario 3
window 4
page_size 2
slots 3
pool_tokens 64
swa_tokens 64
submit A: A[0:12]
prefill A, 6 tokens
prefill A
decode
decode
decode
decode
decode
submit B: A[0:12] B[12:15]
prefill B
decode
finish A
evict 0 tokens, 4 of the SWA pool
submit C: A[0:8] C[8:9]
prefill C
decode
retract C
prefill C
abort C
finish B
flush
"""
"""Holds on a paged pool: pages are given back, shared, evicted, locked, and all come back."""

REPLACED = """
kvproof scenario 3
window 2
page_size 1
slots 3
pool_tokens 64
swa_tokens 64
submit A: A[0:6]
prefill A
finish A
submit B: A[0:6] B[6:9]
prefill B
evict 0 tokens, 64 of the SWA pool
submit C: A[0:3] C[3:6]
prefill C
"""
"""#29351: an insert frees full pages of a tombstone that another request reads."""

PINNED = """
kvproof scenario 3
window 1
page_size 1
slots 1
pool_tokens 32
swa_tokens 8
submit A: A[0:6]
prefill A
decode
decode
decode
"""
"""#27210: a lock pins the whole node."""

MUTANTS: Mapping[Invariant, str] = {
    "WINDOW": "window-unmapped",
    "PARTITION": "page-lost",
    "MAP": "entry-kept",
    "LOCK": "locked-twice",
    "CURSOR": "cursor-ahead",
    "PADDING": "slot-zero",
    "PROGRESS": "nothing-fits",
    "USEFUL": "no-match",
    "REFINES": "other-match",
}
"""What makes a release break each, where no release does by itself; see `exported_runner`."""


def named(text: str) -> Scenario:
    return parse_scenario(text.lstrip().encode())


def corpus(name: str) -> Scenario:
    folder = Path(__file__).parents[2] / "fuzz" / "corpus"
    return parse_scenario((folder / f"{name}.scenario").read_bytes())


def installed(name: str) -> None:
    """Skip where a release beyond the usual ones is not in the store."""
    try:
        find_targets([name], EngineStore())
    except EngineError:
        pytest.skip(f"{name} is not installed")


def case(scenario: Scenario, invariant: Invariant, cause: Cause = "leak") -> Case:
    """As if the invariant had broken in the last step, somewhere."""
    last = len(scenario.operations) - 1
    violation = Violation(invariant=invariant, cause=cause, step=last, sentence="it breaks")
    return Case(scenario=scenario, violation=violation, seen_on="sglang-0.5.15:registry")


def in_engine(folder: Path, cases: Mapping[str, tuple[Case, Run]], *mutants: str) -> set[str]:
    """Names of the exported tests that fail in one process with their release and no kvproof.

    Args:
        folder: an empty one.
        cases: of one target, by the name of the module that they are exported to.
        mutants: ``module+mutant``, what is run besides; see `exported_runner`.
    """
    for name, (each, run) in cases.items():
        (folder / f"{name}.py").write_text(sglang_test(each, run))
    (folder / "import_stubs.py").write_text(import_stubs())
    (folder / RUNNER.name).write_text(RUNNER.read_text())
    barred = folder / "barred" / "kvproof"
    barred.mkdir(parents=True)
    (barred / "__init__.py").write_text("raise ImportError('kvproof is not to be here')\n")
    engine = run.target.engine
    done = subprocess.run(
        [sys.executable, "-P", "import_stubs.py", RUNNER.name, *cases, *mutants],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(map(str, (barred.parent, engine.root, engine.deps))),
        },
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == {*cases, *mutants}
    for count, failures in found.values():
        assert count == 1
        # It fails for what it asserts, not for what it stumbles over.
        assert all("AssertionError" in text for text in failures), failures
    return {name for name, (_, failures) in found.items() if failures}


def played(name: str, *scenarios: Scenario) -> list[Run]:
    """Scenarios on a real target, in one process."""
    target = target_named(name)
    with target.process() as process:
        runs = [Run(target=target, log=process.play(each, timeout=60)) for each in scenarios]
    assert all(isinstance(run.log[-1], Ended) for run in runs)
    return runs


def case_on(run: Run, scenario: Scenario, invariant: Invariant) -> tuple[Case, Run]:
    """The case that a run shows, or one as if it had broken in the last step."""
    violation = run.shows(invariant)
    if violation is None:
        return case(scenario, invariant), run
    cut = replace(scenario, operations=scenario.operations[: violation.step + 1])
    return Case(scenario=cut, violation=violation, seen_on=run.target.name), run


# The text


@pytest.mark.parametrize("name", NAMES)
def test_it_is_good_python(name: str, tmp_path: Path) -> None:
    refused = {"WINDOW", "MAP", "CURSOR", "PROGRESS"} | ({"LOCK"} if name == NAMES[3] else set())
    for invariant in TESTS:
        if invariant in refused:
            with pytest.raises(EngineError, match=f"no SGLang test for {invariant}"):
                sglang_test(case(EVERYTHING, invariant), run_of(EVERYTHING, name))
            continue
        text = sglang_test(case(EVERYTHING, invariant), run_of(EVERYTHING, name))
        (tmp_path / f"{invariant}.py").write_text(text)
        tree = ast.parse(text)
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        assert not any(module and module.startswith("kvproof") for module in imported)
        assert 'self.finish("nobody")' not in text
        assert 'self.prefill("A", chunk=6)' in text
    assert is_good(tmp_path, width=88)


@pytest.mark.parametrize(
    ("invariant", "cause", "reason"),
    [
        ("IN-FLIGHT", "freed", "steps in flight"),
        ("PADDING", "padding-escapes", "kernels name it"),
        ("REFINES", "row", "kernels name it"),
    ],
)
def test_what_does_not_show_is_refused(invariant: Invariant, cause: Cause, reason: str) -> None:
    with pytest.raises(EngineError, match=reason) as refused:
        sglang_test(case(EVERYTHING, invariant, cause), run_of(EVERYTHING))
    assert "--as pytest" in refused.value.fix


@pytest.mark.parametrize(
    ("field", "reason"), [("overlap", "overlap scheduling"), ("draft_tokens", "speculative")]
)
def test_what_it_does_not_play_is_refused(field: str, reason: str) -> None:
    geometry = replace(EVERYTHING.geometry, **{field: 1 if field == "overlap" else 3})
    with pytest.raises(EngineError, match=reason):
        sglang_test(case(replace(EVERYTHING, geometry=geometry), "PARTITION"), run_of(EVERYTHING))


@pytest.mark.parametrize("construction", ["paged", "paged-hicache", "paged-swa-hicache"])
def test_pools_that_it_does_not_build_are_refused(construction: str) -> None:
    run = run_of(EVERYTHING)
    other = Run(target=dataclasses.replace(run.target, construction=construction), log=run.log)
    with pytest.raises(EngineError, match="neither its tree nor its pools") as refused:
        sglang_test(case(EVERYTHING, "PARTITION"), other)
    assert "--as pytest" in refused.value.fix


def test_a_tree_of_another_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSES, NAMES[0], {"tree": "NewRadixCache"})
    with pytest.raises(EngineError, match="NewRadixCache"):
        sglang_test(case(EVERYTHING, "PARTITION"), run_of(EVERYTHING))


def test_a_refused_step_is_what_progress_is_about() -> None:
    scenario = named(PINNED)
    log = [
        fact
        for index, operation in enumerate(scenario.operations)
        for fact in (Step(index=index, operation=operation), *[Skipped(reason="")] * (index == 4))
    ]
    started = replace(run_of(EVERYTHING).started, swa_tokens=8)
    run = Run(target=target_named("sglang-0.5.15:paged-swa"), log=[started, *log])
    assert sglang_test(case(scenario, "PROGRESS"), run).count("self.decode()") == 3
    assert sglang_test(case(scenario, "MAP"), run).count("self.decode()") == 2


def test_the_same_scenario_has_the_same_export() -> None:
    found, run = case_from(stale_decode())
    again = [encode_fact(fact) for fact in run_of(stale_decode()).log]
    assert again == [encode_fact(fact) for fact in run.log]
    assert sglang_test(found, run) == sglang_test(found, run)
    assert sglang_test_name(found) == "test_fresh_decode_other_request.py"


def test_the_stubs_need_no_kvproof() -> None:
    assert "kvproof" not in {
        (node.module or "").partition(".")[0]
        for node in ast.walk(ast.parse(import_stubs()))
        if isinstance(node, ast.ImportFrom)
    }


# On releases


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        (NAMES[0], {"everything", "stale"}),
        (NAMES[2], set()),
        (NAMES[3], {"tombstone"}),
    ],
)
def test_ring_rows_and_reuse_on_releases(name: str, fails: set[str], tmp_path: Path) -> None:
    """0.5.15 has no cap; 0.5.23 loses what is cached behind a tombstone."""
    tombstone = corpus("short-live-run")
    stale, lost = played(name, named(STALE), tombstone)
    cases = {
        "everything": (case(EVERYTHING, "FRESH-DECODE"), run_of(EVERYTHING, name)),
        "stale": (case(named(STALE), "FRESH-DECODE"), stale),
        "tombstone": case_on(lost, tombstone, "USEFUL"),
        "partition": (case(tombstone, "PARTITION"), lost),
        "refines": (case(tombstone, "REFINES"), lost),
    }
    assert in_engine(tmp_path, cases) == fails


def test_each_invariant_fails_on_a_release_that_a_mutant_breaks(tmp_path: Path) -> None:
    """And holds as the release is; the same tests, in the same process.

    So does the case of #27210 there, which 0.5.15 breaks.
    """
    busy = named(BUSY)
    run, pinned = played("sglang-0.5.16:paged-swa", busy, named(PINNED))
    broken = {v.invariant for v in check(run.log).violations.values()}
    assert not broken
    names = {invariant: invariant.lower() for invariant in MUTANTS}
    cases = {name: (case(busy, invariant), run) for invariant, name in names.items()}
    cases["pinned"] = (case(named(PINNED), "PROGRESS"), pinned)
    mutants = {f"{names[invariant]}+{mutant}" for invariant, mutant in MUTANTS.items()}
    assert in_engine(tmp_path, cases, *sorted(mutants)) == mutants


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        ("sglang-0.5.12:paged-swa", {"partition", "progress"}),
        ("sglang-0.5.14:paged-swa-unified", {"partition"}),
        ("sglang-0.5.15:paged-swa", {"progress"}),
        ("sglang-0.5.21:paged-swa", set()),
    ],
)
def test_pools_on_releases(name: str, fails: set[str], tmp_path: Path) -> None:
    """#29351 until 0.5.14, #27210 until 0.5.15; a release that is not in the store is skipped."""
    installed(name)
    scenarios = {"partition": named(REPLACED), "progress": named(PINNED), "map": named(BUSY)}
    runs = dict(zip(scenarios, played(name, *scenarios.values()), strict=True))
    invariants: dict[str, Invariant] = {
        "partition": "PARTITION", "progress": "PROGRESS", "map": "MAP",
    }  # fmt: skip
    cases = {
        key: case_on(runs[key], scenarios[key], invariant) for key, invariant in invariants.items()
    }
    for invariant in ("WINDOW", "CURSOR", "USEFUL", "REFINES", "PADDING"):
        cases[invariant.lower()] = (case(scenarios["map"], invariant), runs["map"])
    assert in_engine(tmp_path, cases) == fails
