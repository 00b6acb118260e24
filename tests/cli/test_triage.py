"""``kvproof minimise`` and ``kvproof bisect``, and the two after one another on real releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from kvproof.cli import app
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Gap, encode_fact
from kvproof.model.files import load_scenario
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Geometry, Scenario, encode_scenario
from kvproof.triage.minimise import Minimiser
from kvproof.triage.rehearse import as_recorded, busy_run

runner = CliRunner()

BUSY = Geometry(window=8, page_size=4, slots=16, pool_tokens=2**11)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A busy run of the model without a cap, as a recorder writes it."""
    scenario = busy_run(requests=40, geometry=replace(BUSY, slots=8), answer=6)
    facts = reference_player(scenario.geometry, Policy(reprefill_tail=0)).play(scenario)
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    path.write_bytes(b"".join(map(encode_fact, as_recorded(facts))))
    return path


def minimise(*arguments: object, out: Path) -> Result:
    return runner.invoke(app, ["minimise", *map(str, arguments), "--out", str(out)])


def test_a_log_becomes_a_scenario_a_log_and_a_story(log: Path, tmp_path: Path) -> None:
    result = minimise(log, "--jobs", 1, out=tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert "FRESH-DECODE is broken on model" in result.stdout
    assert "STALE" in result.stdout
    assert "looking for the smallest scenario that breaks FRESH-DECODE/" in result.stderr
    latest = tmp_path / "runs" / "latest"
    assert {path.name for path in latest.iterdir()} == {
        "minimised.scenario.json", "minimised.log.jsonl", "minimised.txt",
    }  # fmt: skip
    scenario = load_scenario(latest / "minimised.scenario.json")
    assert len(scenario.operations) == 6
    assert (latest / "minimised.txt").read_text() in result.stdout.replace("\n\n\n", "\n\n")
    checked = runner.invoke(app, ["check", str(latest / "minimised.log.jsonl")])
    assert checked.exit_code == 1
    assert "FRESH-DECODE is broken on model" in checked.stdout


def test_the_result_as_json_and_a_second_run_from_memory(log: Path, tmp_path: Path) -> None:
    reports: list[dict[str, Any]] = []
    for _ in range(2):
        result = minimise(log, "--json", "--invariant", "FRESH-PREFILL", out=tmp_path / "runs")
        assert result.exit_code == 0, result.output
        reports.append(json.loads(result.stdout))
    first, second = (report["result"] for report in reports)
    assert first["symptom"].startswith("FRESH-PREFILL/")
    assert first["target"] == "model"
    assert first["operations"] == 5 < first["operations_before"]
    assert first["violation"]["invariant"] == "FRESH-PREFILL"
    assert first["tries"] > 0 == second["tries"]
    assert first["scenario"] == second["scenario"]
    assert [Path(report["file"]).parent.name for report in reports] == ["0001", "0002"]
    for report in reports:
        assert load_scenario(Path(report["file"])).operations


def test_an_interrupted_run_says_where_its_best_is(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = Scenario(geometry=BUSY, operations=())

    def interrupted(minimiser: Minimiser, *_: object, **__: object) -> None:
        minimiser.watcher.better(best)
        raise KeyboardInterrupt

    monkeypatch.setattr(Minimiser, "run", interrupted)
    result = minimise(log, out=tmp_path / "runs")
    assert result.exit_code == 130
    assert "the smallest so far, 0 operations: " in result.stderr
    path = Path(result.stderr.rpartition(": ")[2].strip())
    assert load_scenario(path) == best


def refused(result: Result, cause: str, fix: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    first, second = result.stderr.splitlines()[-2:]
    assert first.startswith("error: ")
    assert cause in first
    assert second.startswith("fix: ")
    assert fix in second


def test_what_cannot_be_minimised_is_refused(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    refused(minimise(log, "--invariant", "FRESH", out=out), "no invariant 'FRESH'", "FRESH-DECODE")
    refused(minimise(log, "--invariant", "PADDING", out=out), "breaks PADDING", "kvproof wrote")
    refused(minimise(tmp_path / "nothing", out=out), "No such file", "kvproof wrote")
    refused(minimise(log, "--engine", "0.9.99", out=out), "is not installed", "engine add")
    scenario = tmp_path / "scenario.json"
    scenario.write_bytes(encode_scenario(Scenario(geometry=BUSY, operations=())))
    refused(
        minimise(scenario, "--engine", "model", out=out), "breaks nothing when played on model",
        "--engine",
    )  # fmt: skip
    (tmp_path / "file").touch()
    refused(minimise(log, out=tmp_path / "file"), "cannot be written", "--out")


def with_gap(log: Path, tmp_path: Path, *, before_step: int) -> Path:
    """The log with facts missing before a step."""
    lines = log.read_bytes().splitlines(keepends=True)
    [at] = [
        number
        for number, fact in enumerate(map(json.loads, lines))
        if fact["fact"] == "step" and fact["index"] == before_step
    ]
    file = tmp_path / "gap.jsonl"
    gap = encode_fact(Gap(reason="the disk did not keep up", dropped=1234))
    file.write_bytes(b"".join([*lines[:at], gap, *lines[at:]]))
    return file


def steps_of(log: Path) -> list[int]:
    facts = map(json.loads, log.read_bytes().splitlines())
    return [fact["index"] for fact in facts if fact["fact"] == "step"]


def test_what_comes_after_a_gap_is_left_out_and_that_is_said(log: Path, tmp_path: Path) -> None:
    checked = json.loads(runner.invoke(app, ["check", str(log), "--json"]).stdout)
    breaks_at = checked["violations"][0]["step"]
    file = with_gap(
        log, tmp_path, before_step=next(step for step in steps_of(log) if step > breaks_at)
    )
    words = "1,234 facts are missing there (the disk did not keep up)"
    for command in ("check", "explain"):
        result = runner.invoke(app, [command, str(file)])
        assert result.exit_code == 1, result.output
        assert f"Not judged after step {breaks_at + 1}: {words}." in result.stdout
    result = minimise(file, "--json", out=tmp_path / "runs")
    assert result.exit_code == 0, result.output
    assert words in result.stderr
    report = json.loads(result.stdout)["result"]
    assert report["operations"] == 6
    texts = [runner.invoke(app, ["export", str(f), "--as", "text"]).stdout for f in (file, log)]
    assert 0 < len(texts[0]) < len(texts[1])


def test_a_log_with_a_gap_before_anything_broke_is_no_success(log: Path, tmp_path: Path) -> None:
    first, second = steps_of(log)[:2]
    file = with_gap(log, tmp_path, before_step=second)
    words = f"cannot be judged after step {first + 1}: 1,234 facts are missing"
    for command in ("check", "explain"):
        refused(runner.invoke(app, [command, str(file)]), f"gap.jsonl: the log {words}", "file")
    refused(minimise(file, out=tmp_path / "runs"), words, "file")


@pytest.mark.parametrize(
    "command",
    [["minimise"], ["explain"], ["export", "--as", "text"], ["bisect", "--engines", "0.5.15"]],
)
def test_what_is_read_twice_is_not_taken_from_a_pipe(command: list[str]) -> None:
    refused(runner.invoke(app, [*command, "-"], input="{}"), "only once", "file")


def bisect(*arguments: object) -> Result:
    return runner.invoke(app, ["bisect", *map(str, arguments)])


def test_a_search_without_its_ends_is_refused(log: Path) -> None:
    for arguments in (
        [], ["--checkout", "."], ["--checkout", ".", "--good", "a"],
        ["--engines", "1..2", "--checkout", ".", "--good", "a", "--bad", "b"],
    ):  # fmt: skip
        refused(bisect(log, *arguments), "not said what to search", "--engines 0.5.12..0.5.23")
    refused(bisect(log, "--engines", "0.9.1..0.9.2"), "release 0.9.1 is not known", "engine add")
    refused(bisect(log, "--engines", "1..2", "--invariant", "X"), "no invariant", "FRESH-DECODE")


@pytest.fixture(scope="module")
def real_log(
    engines: None,  # noqa: ARG001  # asked for what it checks
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A busy run of 0.5.15, as a recorder writes it."""
    [target] = find_targets(["0.5.15:registry"], EngineStore())
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    scenario = busy_run(requests=60, geometry=BUSY, answer=6)
    process: EngineProcess = target.process()
    with process, path.open("wb") as file:
        for fact in as_recorded(process.stream(scenario, timeout=120, backend="rules")):
            file.write(encode_fact(fact))
    return path


def test_from_a_release_s_log_to_the_release_that_mended_it(real_log: Path, tmp_path: Path) -> None:
    small = minimise(real_log, "--jobs", 1, "--json", out=tmp_path / "runs")
    assert small.exit_code == 0, small.output
    report = json.loads(small.stdout)
    result = report["result"]
    assert (result["target"], result["symptom"]) == (
        "sglang-0.5.15:registry", "FRESH-DECODE/other-request",
    )  # fmt: skip
    assert result["operations"] == 6
    assert result["confirmed"]
    assert result["deterministic"]

    found = bisect(report["file"], "--engines", "0.5.15,0.5.23", "--json")
    assert found.exit_code == 0, found.output
    bisection = json.loads(found.stdout)
    verdicts = {each["version"]: each["verdict"] for each in bisection["versions"]}
    assert verdicts["0.5.15"] == "bad"
    assert verdicts["0.5.23"] == "good"
    assert bisection["symptom"] == "FRESH-DECODE/other-request"
    assert bisection["first_bad"] == "0.5.15"
    told = bisect(report["file"], "--engines", "0.5.15,0.5.23")
    assert "It was mended in " in told.stdout
    assert "it may have come in earlier" in told.stdout
