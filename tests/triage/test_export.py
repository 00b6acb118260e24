"""Exports: safe names, and tests and examples for kvproof itself."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from kvproof.fuzz.strategies import arbitrary_scenarios, likely_scenarios
from kvproof.kernels.engines.errors import EngineError
from kvproof.model import scenario as scenario_module
from kvproof.model.monitor import check
from kvproof.model.scenario import Decode, Finish, Piece, Scenario, Submit
from kvproof.triage.export import (
    EXAMPLES,
    SAFE_NAME,
    Run,
    case_of,
    example_patch,
    kvproof_test,
    spell_scenario,
    with_safe_names,
)

from .conftest import log_of, stale_decode, uncapped
from .exporting import EVERYTHING, NAMES, case_from, is_formatted, target_named

ROOT = Path(__file__).parents[2]

# Cases


def test_a_case_ends_with_the_step_that_breaks() -> None:
    longer = replace(stale_decode(), operations=(*stale_decode().operations, Decode(), Decode()))
    case, _ = case_from(longer)
    assert case.scenario == stale_decode()
    assert case.name == "fresh_decode_other_request"
    assert case.seen_on == NAMES[0]
    assert "in step 6, the decode of request B" in " ".join(case.story)


def test_a_case_is_about_the_invariant_that_was_asked_for() -> None:
    case, _ = case_from(stale_decode(), "FRESH-PREFILL")
    assert case.violation.invariant == "FRESH-PREFILL"
    assert len(case.scenario.operations) == 5


def test_what_breaks_nowhere_is_no_case() -> None:
    run = Run(target=target_named(NAMES[0]), log=log_of(stale_decode()))
    with pytest.raises(EngineError, match="no invariant breaks on sglang-"):
        case_of(stale_decode(), [run], None)
    with pytest.raises(EngineError, match="USEFUL does not break"):
        case_of(stale_decode(), [run], "USEFUL")


@settings(max_examples=30, deadline=None)
@given(likely_scenarios() | arbitrary_scenarios())
def test_safe_names_change_the_names_only(scenario: Scenario) -> None:
    def hostile(name: str) -> str:
        return f'"); import os  # {name}\n'

    def renamed(operation: object) -> object:
        if isinstance(operation, Submit):
            pieces = tuple(Piece(hostile(p.text), p.until) for p in operation.prompt)
            return Submit(request=hostile(operation.request), prompt=pieces)
        if hasattr(operation, "request"):
            return replace(operation, request=hostile(operation.request))  # type: ignore[type-var]
        return operation

    operations = tuple(map(renamed, scenario.operations))
    evil = replace(scenario, operations=operations)
    safe = with_safe_names(evil)
    names = {getattr(op, "request", "A") for op in safe.operations}
    names |= {p.text for op in safe.operations if isinstance(op, Submit) for p in op.prompt}
    assert all(SAFE_NAME.fullmatch(name) for name in names)
    assert with_safe_names(safe) == safe
    before, after = (check(log_of(s, uncapped())) for s in (scenario, safe))
    assert before.violations.keys() == after.violations.keys()
    assert before.counts == after.counts


def test_a_safe_name_is_kept_and_never_taken() -> None:
    scenario = Scenario(
        geometry=stale_decode().geometry,
        operations=(
            Submit(request="R1", prompt=(Piece("t", 3),)),
            Submit(request="<b>", prompt=(Piece("t", 3),)),
            Finish(request="<b>"),
        ),
    )
    one, two, three = with_safe_names(scenario).operations
    assert [getattr(op, "request", None) for op in (one, two, three)] == ["R1", "R2", "R2"]


@settings(max_examples=50, deadline=None)
@given(likely_scenarios() | arbitrary_scenarios())
def test_a_spelled_scenario_is_that_scenario(scenario: Scenario) -> None:
    assert eval(spell_scenario(scenario), dict(vars(scenario_module))) == scenario


# Tests of kvproof


def test_a_test_of_kvproof_is_good_python_and_knows_the_verdicts(tmp_path: Path) -> None:
    case, run = case_from(EVERYTHING)
    clean = Run(target=target_named(NAMES[3]), log=log_of(EVERYTHING))
    text = kvproof_test(case, [run, clean])
    assert is_formatted(text, tmp_path, width=100)
    assert '"sglang-0.5.15:registry": True' in text
    assert '"sglang-0.5.23:registry": False' in text


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The tests of a checkout of kvproof, in a repository of its own."""
    folder = tmp_path / "checkout"
    shutil.copytree(
        ROOT / EXAMPLES.parent, folder / EXAMPLES.parent,
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip
    # What the fixtures need: engines are forked by a script beside the other tests.
    for name in ("conftest.py", "tests/fork_server.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    assert git(folder, "init", "-q").returncode == 0
    return folder


def test_a_patch_applies_and_the_example_is_one(checkout: Path, tmp_path: Path) -> None:
    case, _ = case_from(EVERYTHING)
    patch = tmp_path / "case.patch"
    patch.write_text(example_patch(case, checkout))
    applied = git(checkout, "apply", "--verbose", str(patch))
    assert applied.returncode == 0, applied.stderr
    text = (checkout / EXAMPLES).read_text()
    assert is_formatted(text, tmp_path, width=100)
    examples = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "example"
    ]
    added = ast.unparse(examples[-1].keywords[0].value)
    assert eval(added, dict(vars(scenario_module))) == case.scenario
    # It can be taken back, and a second one goes on top.
    (tmp_path / "two.patch").write_text(example_patch(case_from(stale_decode())[0], checkout))
    assert git(checkout, "apply", str(tmp_path / "two.patch")).returncode == 0
    assert git(checkout, "apply", "-R", str(tmp_path / "two.patch")).returncode == 0
    assert git(checkout, "apply", "-R", str(patch)).returncode == 0


def test_a_patch_needs_a_checkout(tmp_path: Path) -> None:
    case, _ = case_from(stale_decode())
    with pytest.raises(EngineError, match="cannot be read"):
        example_patch(case, tmp_path)
    (tmp_path / EXAMPLES.parent).mkdir(parents=True)
    (tmp_path / EXAMPLES).write_text("# something else\n")
    with pytest.raises(EngineError, match="has no test"):
        example_patch(case, tmp_path)


def test_exported_tests_of_kvproof_run_where_its_fixtures_are(checkout: Path) -> None:
    """On one release, to be quick."""
    case, run = case_from(stale_decode())
    file = EXAMPLES.parent / "test_exported.py"
    (checkout / file).write_text(kvproof_test(case, [run]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--import-mode=importlib", "-q", "-p", "no:cacheprovider",
         "--rootdir", ".", "-k", "0.5.15", str(file)],
        cwd=checkout, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout
