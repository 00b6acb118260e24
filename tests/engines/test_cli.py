from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli import engine as commands
from kvproof.kernels.engines.store import EngineStore

from .conftest import Workshop

runner = CliRunner()


@pytest.fixture(autouse=True)
def store(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> EngineStore:
    """The commands work on the workshop's store."""

    monkeypatch.setattr(commands, "EngineStore", lambda **_: workshop.store)
    return workshop.store


def test_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert re.fullmatch(r"kvproof \d+\.\d+.*\n", result.output)


def test_add_list_remove() -> None:
    assert runner.invoke(app, ["engine", "add", "1.0", "sglang==2.0"]).exit_code == 0
    listed = runner.invoke(app, ["engine", "list"])
    assert listed.exit_code == 0
    assert re.search(r"sglang-1\.0 +1\.0 +pinned +PyPI +ready", listed.output)
    assert runner.invoke(app, ["engine", "remove", "1.0"]).exit_code == 0
    listed = runner.invoke(app, ["engine", "list"])
    assert "sglang-1.0" not in listed.output
    assert "sglang-2.0" in listed.output


def test_list_as_json(checkout: Path) -> None:
    empty = json.loads(runner.invoke(app, ["engine", "list", "--json"]).stdout)
    assert empty["engines"] == []
    runner.invoke(app, ["engine", "add", "1.0", "--path", str(checkout), "--name", "mine"])
    result = runner.invoke(app, ["engine", "list", "--json"])
    assert result.exit_code == 0
    mine, release = json.loads(result.stdout)["engines"]
    assert (mine["name"], mine["source"], mine["root"]) == ("mine", "path", str(checkout))
    assert mine["sha256"] is None
    assert set(release) == {
        "name", "version", "source", "root", "deps", "wheel", "sha256", "pinned", "problem",
    }  # fmt: skip
    assert (release["name"], release["pinned"], release["problem"]) == ("sglang-1.0", True, None)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["engine", "remove", "0.5.15"], "is not installed"),
        (["engine", "doctor", "nonsense"], "is not installed"),
        (["engine", "doctor"], "no engine is installed"),
        (["engine", "add"], "nothing to add"),
        (["engine", "add", "vllm==1"], "names no release"),
        (["engine", "add", "3.0"], "not one of the supported releases"),
        (["engine", "add", "--path", "/nowhere/at/all"], "holds no sglang/ package"),
        (["engine", "add", "1.0", "--name", "x"], "--name is for checkouts"),
    ],
)
def test_error_is_one_cause_and_one_fix(arguments: list[str], cause: str) -> None:
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert cause in first
    assert second.startswith("fix: ")
    assert "Traceback" not in result.output


def test_error_with_debug_is_raised() -> None:
    result = runner.invoke(app, ["--debug", "engine", "remove", "0.5.15"])
    assert type(result.exception).__name__ == "EngineError"


def test_unexpected_error_is_not_taken_for_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> EngineStore:
        raise RuntimeError("a bug")

    monkeypatch.setattr(commands, "EngineStore", broken)
    result = runner.invoke(app, ["engine", "list"])
    assert result.exit_code == 2
    assert "kvproof itself failed: RuntimeError: a bug" in result.stderr


def test_usage_error() -> None:
    result = runner.invoke(app, ["engine", "frobnicate"])
    assert result.exit_code == 2


def test_doctor_as_json_and_its_exit_code() -> None:
    runner.invoke(app, ["engine", "add", "1.0"])
    result = runner.invoke(app, ["engine", "doctor", "--json"])
    assert result.exit_code == 2  # the small engine has no layout that kvproof knows
    report = json.loads(result.stdout)
    assert report["ok"] is False
    [diagnosis] = report["engines"]
    assert diagnosis["engine"]["name"] == "sglang-1.0"
    assert {"probe", "status", "detail", "next_step", "log"} == set(diagnosis["results"][0])
    assert {result["status"] for result in diagnosis["results"]} <= {"ok", "not ok", "skipped"}
    assert isinstance(diagnosis["shims"], list)
    table = runner.invoke(app, ["engine", "doctor"])
    assert table.exit_code == 2
    assert "layout" in table.output
    assert "not ok" in table.output
