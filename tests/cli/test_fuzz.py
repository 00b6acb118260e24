"""``kvproof fuzz``: its report, its files, its exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli import fuzz as command
from kvproof.cli.fuzz import Report
from kvproof.fuzz.campaign import Campaign
from kvproof.fuzz.profiles import PROFILES
from kvproof.fuzz.strategies import Sizes
from kvproof.model.facts import EngineError, Fact
from kvproof.model.files import load_scenario
from kvproof.model.scenario import Abort
from kvproof.model.verdict import INVARIANTS
from kvproof.model.witness import WITNESSES, required_of

from ..fuzz.conftest import CAPPED, FakeProcess, Played, fake_target
from .conftest import FuzzRun, Kvproof

runner = CliRunner()


def test_a_known_release_is_as_expected(fuzzed: FuzzRun) -> None:
    assert fuzzed.completed.returncode == 0, fuzzed.completed.stderr
    report = fuzzed.report
    assert report["as_expected"] is True
    assert report["vacuous"] == []
    assert (report["seed"], report["profile"]) == (0, "smoke")
    assert {cell["agreement"] for cell in report["comparisons"]} == {"as expected"}


def test_the_report_has_its_schema(fuzzed: FuzzRun) -> None:
    """It decodes as the type that it was made from, with nothing besides."""
    report = msgspec.json.decode(fuzzed.completed.stdout, type=Report)
    assert json.loads(msgspec.json.encode(report)) == fuzzed.report
    [target] = report.targets
    assert target.target == "sglang-0.5.15:registry"
    assert target.sequences == PROFILES["smoke"].sequences
    assert [verdict.invariant for verdict in target.verdicts] == list(INVARIANTS)
    assert set(WITNESSES) <= set(target.witnesses)
    assert [(cell.target, cell.invariant) for cell in report.comparisons] == [
        (target.target, invariant) for invariant in INVARIANTS
    ]
    decode = next(v for v in target.verdicts if v.invariant == "FRESH-DECODE")
    assert decode.status == "violated"
    assert decode.backend == "interpreter"
    assert decode.violation is not None
    assert decode.violation.evidence is not None
    assert len(decode.violation.evidence.ring) >= 1


def test_progress_does_not_get_into_the_json(fuzzed: FuzzRun) -> None:
    assert fuzzed.completed.stdout.startswith("{")
    assert "sglang-0.5.15:registry" in fuzzed.completed.stderr


def test_the_files_are_where_the_report_says(fuzzed: FuzzRun) -> None:
    report = fuzzed.report
    folder = Path(report["folder"])
    assert folder == fuzzed.out / "0001"
    assert (fuzzed.out / "latest").resolve() == folder.resolve()
    assert json.loads((folder / "result.json").read_text()) == report
    files = {path.name for path in (folder / "sglang-0.5.15-registry").iterdir()}
    for finding in report["targets"][0]["findings"]:
        name = "{invariant}-{cause}".format(**finding["violation"])
        assert {f"{name}.scenario.json", f"{name}.log.jsonl", f"{name}.txt"} <= files
    assert len(load_scenario(fuzzed.scenario).operations) <= 8


@pytest.mark.usefixtures("engines")
def test_without_the_gate_it_fails_as_vacuous(kvproof: Kvproof, tmp_path: Path) -> None:
    done = kvproof(
        "fuzz", "--engine", "0.5.23:registry", "--profile", "smoke", "--rocm-gate", "off",
        "--out", tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "vacuous: never reached:" in done.stdout
    assert "ring read by decode" in done.stdout
    assert "Not as expected." in done.stdout
    assert "holds" not in done.stdout
    assert "0 of them on the real kernels" in done.stdout


@pytest.mark.usefixtures("engines")
@pytest.mark.parametrize(
    ("arguments", "cause", "fix"),
    [
        (["--engine", "0.9.99"], "engine '0.9.99' is not installed", "kvproof engine add"),
        (["--engine", "my-branch"], "engine 'my-branch' is not installed", "--path"),
        (["--profile", "huge"], "no profile 'huge'", "smoke, default, long"),
        (["--seed", "lucky"], "'lucky' is no seed", "give a number, or `random`"),
        (["--seed", "-1"], "'-1' is no seed", "give a number"),
        (["--baseline", "sglang-9:x"], "no target 'sglang-9:x'", "sglang-0.5.23:registry"),
    ],
)
def test_a_set_up_error_is_one_cause_and_one_fix(
    tmp_path: Path, arguments: list[str], cause: str, fix: str
) -> None:
    result = runner.invoke(app, ["fuzz", *arguments, "--out", str(tmp_path / "runs")])
    assert result.exit_code == 2
    assert result.stdout == ""
    first, second = result.stderr.splitlines()
    assert first.startswith("error: ")
    assert cause in first
    assert second.startswith("fix: ")
    assert fix in second
    assert not (tmp_path / "runs").exists()  # nothing was begun


@pytest.mark.usefixtures("engines")
def test_an_unknown_construction_names_those_there_are() -> None:
    result = runner.invoke(app, ["fuzz", "--engine", "0.5.15:best"])
    assert result.exit_code == 2
    assert "sglang-0.5.15:registry" in result.stderr


@pytest.mark.usefixtures("engines")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = runner.invoke(
        app, ["fuzz", "--engine", "0.5.15", "--out", str(tmp_path / "file" / "runs")]
    )
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr
    assert "--out" in result.stderr


@pytest.mark.parametrize("option", [["--rocm-gate", "maybe"], ["--time", "soon"], ["--nonsense"]])
def test_a_usage_error(option: list[str]) -> None:
    assert runner.invoke(app, ["fuzz", *option]).exit_code == 2


# The same command on an engine that is none, to see what it does with the unexpected.


class FakeTarget:
    """A target whose process is the reference engine."""

    name = asked = "fake:registry"
    construction = "registry"
    family = "cache"
    has_ring = True
    reuses = True
    gives_back = True
    witnesses = required_of("registry")
    sizes = Sizes()
    engine = fake_target().engine

    def __init__(self, process: FakeProcess) -> None:
        self.fake = process

    def process(self, **_: object) -> FakeProcess:
        return self.fake


@pytest.fixture
def fuzz_fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def fuzz(process: FakeProcess, *arguments: str):
        # Shrinking has tests of its own, and takes most of the time.
        monkeypatch.setattr(Campaign, "shrink", lambda _self, _broken, found, *_: found)
        monkeypatch.setattr(
            command, "find_targets", lambda *_names, **_family: (FakeTarget(process),)
        )
        return runner.invoke(
            app, ["fuzz", "--profile", "smoke", "--out", str(tmp_path / "runs"), *arguments]
        )

    return fuzz


def test_a_violation_that_no_entry_expects_is_news(fuzz_fake) -> None:
    result = fuzz_fake(FakeProcess())
    assert result.exit_code == 1
    assert "Not as expected." in result.stdout
    assert "no entry of the table expects this violation" in result.stdout
    # The story of the worst one is told at once, and how to see it again.
    assert "FRESH-DECODE is broken on fake:registry (backend interpreter)" in result.stdout
    assert "How it came to that" in result.stdout
    assert re.search(r"replay: kvproof replay \S+/FRESH-DECODE-\S+\.json --engine fake:registry",
                     result.stdout)  # fmt: skip
    assert "FRESH-PREFILL is broken" not in result.stdout


def test_a_baseline_makes_a_new_engine_s_known_faults_expected(fuzz_fake) -> None:
    result = fuzz_fake(FakeProcess(), "--baseline", "sglang-0.5.15:registry", "--stories")
    assert result.exit_code == 0, result.output
    assert "All as expected." in result.stdout
    assert "FRESH-DECODE is broken" in result.stdout
    assert "FRESH-PREFILL is broken" in result.stdout  # with --stories, all of them


def test_a_known_violation_that_is_gone_is_news(fuzz_fake) -> None:
    result = fuzz_fake(FakeProcess(rules=CAPPED), "--baseline", "sglang-0.5.15:registry")
    assert result.exit_code == 1
    assert "FRESH-DECODE: changed: the table expects a violation" in result.stdout


def test_an_engine_that_fails_is_reported_and_kept(fuzz_fake, tmp_path: Path) -> None:
    def spoil(played: Played) -> list[Fact]:
        if any(isinstance(operation, Abort) for operation in played.scenario.operations):
            return [*played.log[:3], EngineError(cause="died", message="killed by SIGSEGV")]
        return played.log

    result = fuzz_fake(FakeProcess(rules=CAPPED, spoil=spoil))
    assert result.exit_code == 1
    assert "engine error (died, " in result.stdout
    assert "killed by SIGSEGV" in result.stdout
    folder = tmp_path / "runs/latest/fake-registry"
    assert {"engine-error-1.scenario.json", "engine-error-1.log.jsonl"} <= {
        path.name for path in folder.iterdir()
    }


def test_what_is_not_repeated_is_said(fuzz_fake) -> None:
    result = fuzz_fake(FakeProcess(rules=FakeProcess().rules, kernels=CAPPED))
    assert result.exit_code == 1
    assert "FRESH-DECODE-other-request was seen but is not repeated" in result.stdout
    assert "unknown" in result.stdout


def test_a_random_seed_is_printed(fuzz_fake) -> None:
    result = fuzz_fake(FakeProcess(rules=CAPPED), "--seed", "random", "--time", "0", "--json")
    assert result.exit_code == 1  # no time shows nothing
    report = json.loads(result.stdout)
    assert report["seed"] == report["targets"][0]["seed"]
    assert report["vacuous"] == ["fake:registry"]
