"""The user's story: a stale read in a busy server's log becomes a regression test of the release.

The same with 2,000 requests, and how long each step takes: `python benchmarks/story.py`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.fuzz.busy import SHORT_TAIL, busy_scenario
from kvproof.fuzz.corpus import load_corpus
from kvproof.fuzz.drivers.recorded import record_play
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.files import load_scenario

REQUESTS = 300
HIDDEN = "FRESH-DECODE/other-request"

pytestmark = pytest.mark.usefixtures("own_cache")


def kvproof(*arguments: object, exit_code: int) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def log(engines: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """What the recorder writes of a busy run on the real objects of 0.5.15."""
    scenario = busy_scenario(requests=REQUESTS)
    return record_play(EngineStore().find("0.5.15"), scenario, tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def minimised(log: Path, runs: Path) -> dict[str, Any]:
    """What `kvproof minimise LOG` said, and left on disk."""
    report = runs / "report.json"
    if not report.exists():
        report.write_text(kvproof("minimise", log, "--out", runs, "--json", exit_code=0))
    said = json.loads(report.read_text())
    assert isinstance(said, dict)
    return said


def test_check_names_the_one_stale_decode(log: Path) -> None:
    checked = json.loads(kvproof("check", log, "--json", exit_code=1))
    assert checked["target"] == "sglang-0.5.15:recorded"
    assert checked["ended"]
    [violation] = [v for v in checked["violations"] if v["invariant"] == "FRESH-DECODE"]
    assert checked["violations"][0] == violation
    assert f"{violation['invariant']}/{violation['cause']}" == HIDDEN
    # The recorder calls requests r1, r2, ... in order of appearance.
    reader = violation["evidence"]["reader"]
    assert reader["request"] == f"r{REQUESTS * 2 // 3 + 1}"
    assert reader["prompt_len"] - reader["matched_len"] == SHORT_TAIL


def test_minimise_brings_it_to_a_handful_of_operations(minimised: dict[str, Any]) -> None:
    result = minimised["result"]
    assert result["symptom"] == HIDDEN
    assert result["target"] == "sglang-0.5.15:registry"
    assert result["operations"] <= 8
    assert result["operations_before"] > REQUESTS
    assert result["confirmed"]
    assert result["deterministic"]


def test_bisect_names_the_releases(minimised: dict[str, Any]) -> None:
    engines = ("--engines", "0.5.15,0.5.16,0.5.23")
    found = json.loads(kvproof("bisect", minimised["file"], *engines, "--json", exit_code=0))
    assert found["symptom"] == HIDDEN
    verdicts = {each["version"]: each["verdict"] for each in found["versions"]}
    assert verdicts == {"0.5.15": "bad", "0.5.16": "bad", "0.5.23": "good"}


def test_the_small_one_goes_into_the_corpus(
    minimised: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [target] = find_targets([minimised["result"]["target"]], EngineStore())
    # Outside a test it is all that are installed, which takes a while.
    monkeypatch.setattr("kvproof.cli.corpus.find_targets", lambda *_: (target,))
    kvproof(
        "corpus", "add", minimised["file"], "--name", "busy-run", "--why", "A short tail.",
        "--corpus", tmp_path, exit_code=0,
    )  # fmt: skip
    [case] = load_corpus(tmp_path)
    assert case.scenario == load_scenario(Path(minimised["file"]))
    assert HIDDEN in case.verdicts.breaks[target.name]


def test_explain_draws_the_log_and_the_small_one(
    log: Path, minimised: dict[str, Any], tmp_path: Path
) -> None:
    for source in (log, Path(minimised["file"]).with_name("minimised.log.jsonl")):
        page = tmp_path / f"{source.stem}.html"
        told = kvproof("explain", source, "--html", page, exit_code=1)
        assert "FRESH-DECODE is broken on sglang-0.5.15:" in told
        assert page.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(("release", "fails"), [("0.5.15", True), ("0.5.23", False)])
def test_export_gives_a_test_that_fails_and_one_that_passes(
    minimised: dict[str, Any], release: str, fails: bool, tmp_path: Path
) -> None:
    kvproof(
        "export", minimised["file"], "--as", "sglang-test", "--engine", release,
        "--out", tmp_path, exit_code=0,
    )  # fmt: skip
    [test] = tmp_path.glob("test_*.py")
    engine = EngineStore().find(release)
    done = subprocess.run(
        [sys.executable, "-P", "import_stubs.py", test.name],
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join(map(str, (engine.root, engine.deps))),
        },
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert "Ran 1 test" in done.stderr, done.stderr
    assert done.returncode == int(fails), done.stderr
    assert ("reads the ring rows of these positions" in done.stderr) == fails
