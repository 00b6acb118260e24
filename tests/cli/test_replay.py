"""``kvproof replay`` and ``kvproof check``: what was found is seen again; bad files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.model.facts import encode_fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    SCHEMA,
    Decode,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    encode_scenario,
)
from kvproof.model.verdict import INVARIANTS

from .conftest import FuzzRun, Kvproof

runner = CliRunner()

GOOD = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 5),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 2), Piece("B", 3))), Prefill(request="B"), Decode(),
    ),
)  # fmt: skip


def log_lines(policy: Policy | None = None) -> list[bytes]:
    player = reference_player(GOOD.geometry, policy)
    return [encode_fact(fact) for fact in player.play(GOOD)]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "good.scenario.json"
    file.write_bytes(encode_scenario(GOOD))
    return file


@pytest.fixture(scope="module")
def replayed(fuzzed: FuzzRun, kvproof: Kvproof, tmp_path_factory: pytest.TempPathFactory):
    """Two replays of the shortest stale decode, each with its log."""
    folder = tmp_path_factory.mktemp("replay")
    logs = [folder / "one.jsonl", folder / "two.jsonl"]
    done = [
        kvproof("replay", fuzzed.scenario, "--engine", "0.5.15:registry", "--log", log)
        for log in logs
    ]
    return done, logs


def test_a_replay_breaks_again(replayed) -> None:
    [one, other], _ = replayed
    assert one.returncode == other.returncode == 1, one.stderr
    assert "FRESH-DECODE is broken on sglang-0.5.15:registry (backend interpreter)" in one.stdout
    assert "Traceback" not in one.stderr


def test_two_replays_give_the_same_bytes(replayed) -> None:
    [one, other], [log, again] = replayed
    assert one.stdout == other.stdout
    assert log.read_bytes() == again.read_bytes()
    assert len(log.read_bytes()) > 1000


def test_the_log_is_the_one_that_the_run_left(replayed, fuzzed: FuzzRun) -> None:
    kept = fuzzed.scenario.with_name(fuzzed.scenario.name.replace(".scenario.json", ".log.jsonl"))
    assert replayed[1][0].read_bytes() == kept.read_bytes()


def test_the_log_alone_shows_it(replayed) -> None:
    result = runner.invoke(app, ["check", str(replayed[1][0])])
    assert result.exit_code == 1
    assert "FRESH-DECODE is broken on sglang-0.5.15:registry" in result.stdout
    assert "STALE" in result.stdout


def test_a_release_with_the_fix_and_the_model_play_it_clean(
    fuzzed: FuzzRun, kvproof: Kvproof
) -> None:
    done = kvproof(
        "replay", fuzzed.scenario, "--engine", "0.5.23:registry", "--engine", "model", "--json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(done.stdout)["outcomes"]
    assert {outcome["target"] for outcome in outcomes} == {"sglang-0.5.23:registry", "model"}
    for outcome in outcomes:
        assert outcome["violations"] == []
        assert outcome["engine_error"] is None
        assert "violated" not in outcome["statuses"].values()
        assert outcome["statuses"]["FRESH-DECODE"] == "holds"


@pytest.mark.usefixtures("engines")
def test_an_engine_that_runs_out_of_time_is_an_engine_error(
    kvproof: Kvproof, scenario: Path
) -> None:
    done = kvproof(
        "replay", scenario, "--engine", "0.5.23:registry", "--timeout", "0.00001", "--json"
    )
    assert done.returncode == 1, done.stderr
    [outcome] = json.loads(done.stdout)["outcomes"]
    assert (outcome["target"], outcome["backend"]) == ("sglang-0.5.23:registry", "interpreter")
    assert outcome["engine_error"]["cause"] == "timed out"
    assert set(outcome["statuses"].values()) == {"engine error"}


def test_a_replay_on_the_model(scenario: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    result = runner.invoke(
        app, ["replay", str(scenario), "--engine", "model", "--log", str(log), "--json"]
    )
    assert result.exit_code == 0
    [outcome] = json.loads(result.stdout)["outcomes"]
    assert set(outcome) == {
        "target", "backend", "statuses", "violations", "engine_error", "gap", "steps",
    }  # fmt: skip
    assert set(outcome["statuses"]) == set(INVARIANTS)
    assert log.read_bytes().splitlines(keepends=True) == log_lines()


def test_a_log_that_cannot_be_written(scenario: Path, tmp_path: Path) -> None:
    log = tmp_path / "no" / "such" / "folder.jsonl"
    refused(["replay", str(scenario), "--engine", "model", "--log", str(log)],
            "cannot be written", "--log")  # fmt: skip


def test_an_unknown_engine(scenario: Path) -> None:
    refused(["replay", str(scenario), "--engine", "0.9.99"], "is not installed", "engine add")


def test_check_of_a_clean_log(tmp_path: Path) -> None:
    log = tmp_path / "clean.jsonl"
    log.write_bytes(b"".join(log_lines()))
    result = runner.invoke(app, ["check", str(log), "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["violations"] == []


def test_check_of_a_broken_log(tmp_path: Path) -> None:
    log = tmp_path / "broken.jsonl"
    log.write_bytes(b"".join(log_lines(Policy(reprefill_tail=0))))
    result = runner.invoke(app, ["check", str(log), "--json"])
    assert result.exit_code == 1
    outcome = json.loads(result.stdout)
    worst = outcome["violations"][0]
    assert (worst["invariant"], worst["cause"]) == ("FRESH-DECODE", "other-request")
    assert outcome["statuses"]["FRESH-DECODE"] == "violated"


def test_check_of_a_log_that_ends_in_an_engine_error(tmp_path: Path) -> None:
    log = tmp_path / "died.jsonl"
    error = b'{"fact":"engineerror","cause":"died","message":"killed by SIGSEGV"}\n'
    log.write_bytes(b"".join([*log_lines()[:4], error]))
    result = runner.invoke(app, ["check", str(log)])
    assert result.exit_code == 1
    assert "engine error: the engine died: killed by SIGSEGV" in result.stdout


def refused(arguments: list[str], cause: str, fix: str = "give a file that kvproof wrote") -> None:
    """Exit code 2, one line of cause, one of fix, no result and no traceback."""
    result = runner.invoke(app, arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert cause in first
    assert second.startswith("fix: ")
    assert fix in second
    assert "Traceback" not in result.output


def scenario_with(**changes: object) -> bytes:
    return json.dumps({**json.loads(encode_scenario(GOOD)), **changes}).encode()


SCENARIOS = {
    "empty": (b"", "truncated"),
    "truncated": (encode_scenario(GOOD)[:200], "truncated"),
    "no JSON": (b"hello", "malformed"),
    "binary": (b"\x93NUMPY\xff\xfe", "not a scenario"),
    "a log": (b"".join(log_lines()), "not a scenario"),
    "a list": (b"[]", "not a scenario"),
    "an unknown operation": (scenario_with(operations=[{"op": "explode"}]), "explode"),
    "an unknown field": (scenario_with(colour="red"), "colour"),
    "a window of no size": (
        scenario_with(geometry={"window": 0, "page_size": 1, "slots": 1, "pool_tokens": 8}),
        "geometry.window",
    ),
    "a pool that is no whole page": (
        scenario_with(geometry={"window": 4, "page_size": 4, "slots": 1, "pool_tokens": 9}),
        "geometry",
    ),
    "a newer version": (scenario_with(schema=SCHEMA + 1, operations=[{"op": "new"}]), "newer"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SCENARIOS)
def test_a_bad_scenario_is_refused(tmp_path: Path, kind: str) -> None:
    data, cause = SCENARIOS[kind]
    file = tmp_path / "bad.json"
    file.write_bytes(data)
    if kind == "a newer version":
        cause = f"schema version {SCHEMA + 1}"
    refused(["replay", str(file), "--engine", "model"], cause)
    refused(["replay", str(file), "--engine", "model"], str(file))


def newer_log() -> bytes:
    started, *rest = log_lines()
    newer = {**json.loads(started), "schema": SCHEMA + 1}
    return b"".join([msgspec.json.encode(newer) + b"\n", *rest])


LOGS = {
    "empty": (b"", "the log is empty"),
    "truncated in a line": (b"".join(log_lines())[:-5], f"line {len(log_lines())}"),
    "truncated between lines": (b"".join(log_lines()[:-1]), "cut off"),
    "no JSON": (b"hello\n", "line 1"),
    "a line in the middle": (b"".join([*log_lines()[:3], b"{}\n", *log_lines()[3:]]), "line 4"),
    "binary": (b"\x00\xff\xfe\n", "line 1"),
    "without its start": (b"".join(log_lines()[1:]), "starts with a 'started' fact"),
    "two logs": (b"".join(log_lines() * 2), "a second 'started' fact"),
    "a scenario": (encode_scenario(GOOD), "line 1"),
    "a newer version": (newer_log(), f"schema version {SCHEMA + 1}"),
}


@pytest.mark.parametrize("kind", LOGS)
def test_a_bad_log_is_refused(tmp_path: Path, kind: str) -> None:
    data, cause = LOGS[kind]
    file = tmp_path / "bad.jsonl"
    file.write_bytes(data)
    refused(["check", str(file)], cause)
    refused(["check", str(file)], str(file))


@pytest.mark.parametrize("command", [["replay", "--engine", "model"], ["check"]])
def test_a_file_that_is_not_there_or_is_a_folder(tmp_path: Path, command: list[str]) -> None:
    refused([*command, str(tmp_path / "nothing.json")], "No such file")
    refused([*command, str(tmp_path)], "Is a directory")


def test_no_bad_file_shows_a_traceback_in_the_console(kvproof: Kvproof, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_bytes(b"{")
    for command in (["replay", file, "--engine", "model"], ["check", file]):
        done = kvproof(*command)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 2
