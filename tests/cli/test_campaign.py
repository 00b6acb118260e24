"""``kvproof campaign``: its report, its exit codes, its folder, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli.campaign import parse_duration
from kvproof.fuzz.fleet.ledger import FILE, Begun, Searched, read_ledger
from kvproof.kernels.engines.errors import EngineError

from .conftest import Kvproof

FAULTY = "model-never-reuse"


@pytest.fixture(scope="module")
def begun(kvproof: Kvproof, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """A short campaign on the reference engine with a fault: its report, and what it showed."""
    out = tmp_path_factory.mktemp("campaigns")
    run = kvproof(
        "campaign", "--engine", FAULTY, "--for", "1s", "--workers", "2", "--out", out, "--json"
    )
    assert run.returncode == 1, run.stderr
    return json.loads(run.stdout), run.stderr


def test_the_canaries_sing_in_every_campaign(begun: tuple[dict[str, Any], str]) -> None:
    report, _ = begun
    assert [
        (canary["target"], canary["must_break"], canary["problem"]) for canary in report["canaries"]
    ] == [("model-uncapped:registry", "FRESH-DECODE", ""), ("model-sound:registry", None, "")]
    assert all(canary["sequences"] > 0 for canary in report["canaries"])


def test_a_short_campaign_has_a_search_of_every_target_and_says_what_broke(
    begun: tuple[dict[str, Any], str],
) -> None:
    report, shown = begun
    [target] = report["targets"]
    assert target["target"] == f"{FAULTY}:registry"
    assert target["sequences"] > 0
    assert report["sequences"] >= target["sequences"]
    assert report["lost"] == []
    assert not report["as_expected"]
    for failure in report["failures"]:
        assert f"{failure['target']}: {failure['invariant']}-{failure['cause']} broke" in shown
        assert failure["confirmed"] is True
        assert failure["operations"] <= 8


def test_a_campaign_goes_on_where_it_was(
    begun: tuple[dict[str, Any], str], kvproof: Kvproof
) -> None:
    report, _ = begun
    folder = Path(report["folder"])
    before = list(read_ledger(folder / FILE))
    seconds = report["seconds"] + 3
    run = kvproof(
        "campaign", "--resume", folder, "--for", f"{seconds}s", "--workers", "1", "--json"
    )
    assert run.returncode == 1, run.stderr
    resumed = json.loads(run.stdout)
    assert resumed["sessions"] == report["sessions"] + 1
    assert resumed["sequences"] > report["sequences"]
    after = list(read_ledger(folder / FILE))
    assert after[: len(before)] == before
    assert isinstance(after[len(before)], Begun)
    searches = [(e.target, e.number) for e in after if isinstance(e, Searched)]
    assert len(searches) == len({*searches})


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5m", 90), ("8h", 28800), ("1d", 86400)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "10 m", "-1s", "1w", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(EngineError, match="is no time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--for", "soon"], "'soon' is no time"),
        (["--seed", "x"], "'x' is no seed"),
        (["--engine", "model-nothing"], "there is no reference engine"),
        (["--resume", "nowhere"], "there is no campaign in nowhere"),
    ],
)
def test_what_cannot_be_is_a_set_up_error(options: list[str], cause: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["campaign", *options, "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert cause in result.stderr
