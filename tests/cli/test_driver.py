"""An engine with a driver of its own, through the commands that take ``--engine``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli import app

ROOT = Path(__file__).parents[2]
CASE = ROOT / "fuzz" / "corpus" / "stale-decode.scenario"

runner = CliRunner()


def driver(*words: object) -> str:
    return " ".join(["driver:" + sys.executable, *map(str, words)])


REFERENCE = ROOT / "examples" / "reference_driver.py"
PLAIN = ROOT / "examples" / "plain_driver.py"


def broken(engine: str) -> tuple[int, set[str]]:
    done = runner.invoke(app, ["replay", str(CASE), "--engine", engine, "--json"])
    [outcome] = json.loads(done.stdout)["outcomes"]
    return done.exit_code, {each["invariant"] for each in outcome["violations"]}


def test_the_same_scenario_holds_with_the_cap_and_breaks_without() -> None:
    assert broken(driver(REFERENCE)) == (0, set())
    code, invariants = broken(driver(REFERENCE, "no-cap"))
    assert (code, "FRESH-DECODE" in invariants) == (1, True)


def test_a_driver_needs_nothing_of_kvproof() -> None:
    assert "kvproof" not in PLAIN.read_text().split('"""')[2]
    assert broken(driver(PLAIN)) == (0, set())


def test_a_run_finds_the_missing_cap_and_says_how_to_play_it_again(tmp_path: Path) -> None:
    engine = driver(REFERENCE, "no-cap")
    done = runner.invoke(
        app, ["fuzz", "--engine", engine, "--profile", "smoke", "--out", str(tmp_path)]
    )
    assert done.exit_code == 1
    folder = tmp_path / "latest" / "reference_driver-own"
    assert (folder / "FRESH-DECODE-other-request.scenario.json").is_file()
    assert f"--engine'{engine}'".replace(" ", "") in "".join(done.stdout.split())


def test_a_run_on_an_engine_that_reuses_nothing_is_vacuous(tmp_path: Path) -> None:
    arguments = ["--profile", "smoke", "--out", str(tmp_path), "--json"]
    done = runner.invoke(app, ["fuzz", "--engine", driver(PLAIN), *arguments])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["vacuous"] == ["plain_driver:own"]
    [target] = report["targets"]
    assert "holds" not in {verdict["status"] for verdict in target["verdicts"]}


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        ("driver:", "names no command"),
        ("driver:no-such-program", "no program 'no-such-program'"),
        ("driver:'", "no command line"),
        ("reference_driver:own", "brings its own driver"),
    ],
)
def test_what_is_no_driver_is_a_set_up_error(engine: str, cause: str) -> None:
    done = runner.invoke(app, ["replay", str(CASE), "--engine", engine])
    assert done.exit_code == 2
    assert cause in " ".join(done.output.split())


def test_a_driver_that_says_nothing_is_a_set_up_error(tmp_path: Path) -> None:
    mute = tmp_path / "mute.py"
    mute.write_text("raise SystemExit('the GPU is gone')")
    done = runner.invoke(app, ["replay", str(CASE), "--engine", driver(mute)])
    assert done.exit_code == 2
    assert "the GPU is gone" in " ".join(done.output.split())


def test_an_option_for_known_releases_does_not_reach_it(tmp_path: Path) -> None:
    done = runner.invoke(
        app,
        ["fuzz", "--engine", driver(REFERENCE), "--rocm-gate", "off", "--out", str(tmp_path)],
    )
    assert done.exit_code == 2
    assert "has a driver of its own" in " ".join(done.output.split())
