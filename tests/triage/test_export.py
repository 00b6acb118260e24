"""Exports: a test of a release that runs without kvproof, tests and examples for kvproof itself."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from kvproof.fuzz.strategies import arbitrary_scenarios, likely_scenarios
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model import scenario as scenario_module
from kvproof.model.facts import encode_fact
from kvproof.model.monitor import check
from kvproof.model.scenario import (
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
)
from kvproof.triage import export as export_module
from kvproof.triage.export import (
    EXAMPLES,
    SAFE_NAME,
    Case,
    Run,
    case_of,
    example_patch,
    import_stubs,
    kvproof_test,
    sglang_test,
    sglang_test_name,
    spell_scenario,
    with_safe_names,
)

from .conftest import log_of, stale_decode, uncapped

ROOT = Path(__file__).parents[2]

NO_ENGINES = "KVPROOF_NO_ENGINES"

EVERYTHING = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=3, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 12),)),
        Prefill(request="A", tokens=6), Prefill(request="A"), Decode(pad=2),
        Submit(request="X", prompt=(Piece("X", 6), Piece("Z", 11))),
        Prefill(request="X"), Abort(request="X"), Abort(request="nobody"),
        Retract(request="A"), Prefill(request="A"), Decode(), Evict(tokens=4),
        Finish(request="A"), Flush(),
        Submit(request="A", prompt=(Piece("A", 12),)), Prefill(request="A"),
        Submit(request="P", prompt=(Piece("P", 12),)), Prefill(request="P", tokens=4),
        Abort(request="P"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 12), Piece("C", 13))), Prefill(request="B"),
        Decode(pad=1), Decode(),
    ),
)  # fmt: skip
"""Every operation that a driver plays, then a stale decode."""


def targets() -> tuple[Target, ...]:
    try:
        return find_targets((), EngineStore())
    except EngineError:
        return ()


def target_named(name: str) -> Target:
    found = {target.name: target for target in targets()}
    if name in found:
        return found[name]
    if os.environ.get(NO_ENGINES) == "1":
        pytest.skip(f"{name} is not installed, and {NO_ENGINES}=1 says that none is wanted")
    pytest.fail(f"{name} is not installed. Run `make engines`.", pytrace=False)


NAMES = (
    "sglang-0.5.15:registry",
    "sglang-0.5.16:registry",
    "sglang-0.5.16:SWARadixCache",
    "sglang-0.5.23:registry",
)


def run_of(scenario: Scenario, name: str = NAMES[0]) -> Run:
    """As if the target had played it; the reference engine without a cap did."""
    return Run(target=target_named(name), log=log_of(scenario, uncapped()))


def case_from(scenario: Scenario, invariant: str | None = None) -> tuple[Case, Run]:
    run = run_of(scenario)
    return case_of(scenario, [run], invariant), run


def is_formatted(text: str, tmp_path: Path, *, width: int) -> bool:
    file = tmp_path / "formatted.py"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--diff",
         "--line-length", str(width), file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stdout, done.stdout
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert linted.returncode == 0, linted.stdout
    return done.returncode == 0


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


# A test of SGLang


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("invariant", ["FRESH-DECODE", "FRESH-PREFILL"])
def test_a_test_of_each_release_is_good_python(name: str, invariant: str, tmp_path: Path) -> None:
    case = case_of(EVERYTHING, [run_of(EVERYTHING)], invariant)
    text = sglang_test(case, run_of(EVERYTHING, name))
    assert is_formatted(text, tmp_path, width=88)
    tree = ast.parse(text)
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not any(module and module.startswith("kvproof") for module in imported)
    assert 'self.finish("nobody")' not in text
    assert 'self.prefill("A", chunk=6)' in text


def test_an_invariant_that_one_request_does_not_show_is_refused() -> None:
    case, run = case_from(stale_decode())
    other = Case(
        scenario=case.scenario,
        violation=replace(case.violation, invariant="PARTITION", cause="leak"),
        seen_on=case.seen_on,
    )
    with pytest.raises(EngineError, match="no SGLang test for PARTITION"):
        sglang_test(other, run)


def test_a_release_of_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case, run = case_from(stale_decode())
    monkeypatch.setattr(export_module, "_DIALECTS", {})
    with pytest.raises(EngineError, match="no SGLang test for releases like sglang-"):
        sglang_test(case, run)


@pytest.mark.parametrize(
    ("name", "breaks"),
    [(NAMES[0], True), (NAMES[2], False), (NAMES[3], False)],
)
def test_it_fails_on_the_release_without_a_cap_and_passes_with_one(
    name: str, breaks: bool, tmp_path: Path
) -> None:
    """In a process that has the release and what it requires, and no kvproof."""
    case = case_of(EVERYTHING, [run_of(EVERYTHING)], "FRESH-DECODE")
    run = run_of(EVERYTHING, name)
    test = tmp_path / sglang_test_name(case)
    test.write_text(sglang_test(case, run))
    (tmp_path / "import_stubs.py").write_text(import_stubs())
    barred = tmp_path / "barred" / "kvproof"
    barred.mkdir(parents=True)
    (barred / "__init__.py").write_text("raise ImportError('kvproof is not to be here')\n")
    engine = run.target.engine
    done = subprocess.run(
        [sys.executable, "-P", "import_stubs.py", test.name],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(map(str, (barred.parent, engine.root, engine.deps))),
        },
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "Ran 1 test" in done.stderr, done.stderr
    assert done.returncode == int(breaks), done.stderr
    assert ("reads the ring rows of these positions" in done.stderr) == breaks


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
    folder = checkout / EXAMPLES.parent
    (folder / "test_exported.py").write_text(kvproof_test(case, [run]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--import-mode=importlib", "-q", "-p", "no:cacheprovider",
         "-k", "0.5.15", "test_exported.py"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout


def test_the_stubs_are_those_that_kvproof_uses() -> None:
    assert "kvproof" not in {
        (node.module or "").partition(".")[0]
        for node in ast.walk(ast.parse(import_stubs()))
        if isinstance(node, ast.ImportFrom)
    }


def test_the_same_scenario_has_the_same_export() -> None:
    case, run = case_from(stale_decode())
    again = [encode_fact(fact) for fact in run_of(stale_decode()).log]
    assert again == [encode_fact(fact) for fact in run.log]
    assert sglang_test(case, run) == sglang_test(case, run)
