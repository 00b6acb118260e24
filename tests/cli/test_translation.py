"""Scenarios and logs of forwards through the command line: replayed, judged, told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.fuzz import targets
from kvproof.fuzz.constructions import BY_FAMILY
from kvproof.fuzz.expected import load_expected
from kvproof.fuzz.targets import TRANSLATIONS
from kvproof.kernels.catalogue import FAMILIES
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine
from kvproof.model.forwards import ForwardOperation, Layer, Pad, Plan, Rebind
from kvproof.model.scenario import Geometry, Scenario, encode_scenario
from kvproof.model.text import parse_scenario

runner = CliRunner()

SIZES = Geometry(window=4, page_size=2, slots=2, pool_tokens=32, swa_tokens=24)
EXTEND = Plan(mode="extend", requests=("A", "B"), tokens=3)


def scenario_file(folder: Path, *operations: ForwardOperation) -> Path:
    file = folder / "forwards.scenario.json"
    file.write_bytes(encode_scenario(Scenario(geometry=SIZES, operations=operations)))
    return file


def test_a_scenario_of_forwards_is_replayed_on_the_model(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, EXTEND, Layer(), Pad(rows=2), Layer())
    log = tmp_path / "log.jsonl"
    result = runner.invoke(app, ["replay", str(file), "--engine", "model", "--log", str(log)])
    assert result.exit_code == 0, result.output
    assert "CURRENT" in result.stdout
    assert "FRESH-DECODE" not in result.stdout
    judged = runner.invoke(app, ["check", str(log), "--json"])
    assert judged.exit_code == 0, judged.output
    assert json.loads(judged.stdout)["statuses"] == {"CURRENT": "holds"}


def test_what_breaks_is_told(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, EXTEND, Rebind(), Layer())
    result = runner.invoke(app, ["replay", str(file), "--engine", "model"])
    assert result.exit_code == 1, result.output
    assert "plan extend A B, 3 tokens each" in result.stdout
    assert "Planned in step 1, rebound in step 2" in " ".join(result.stdout.split())


def test_an_unknown_family_is_a_usage_error() -> None:
    result = runner.invoke(app, ["fuzz", "--family", "rings"])
    assert result.exit_code == 2


def test_the_table_expects_current_of_translation_targets_alone() -> None:
    current, others = set(), set()
    for entry in load_expected():
        construction = entry.target.partition(":")[2]
        (current if entry.invariant == "CURRENT" else others).add(construction)
    assert current <= set(TRANSLATIONS)
    assert not others & set(TRANSLATIONS)


def test_a_failing_scenario_is_made_smaller(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, EXTEND, Layer(), Pad(rows=1), Layer(), EXTEND, Rebind(), Layer())
    runs = tmp_path / "runs"
    command = ["minimise", str(file), "--engine", "model", "--out", str(runs), "--json"]
    result = runner.invoke(app, command)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["result"]
    assert found["symptom"] == "CURRENT/changed-after-plan"
    assert [operation["op"] for operation in found["scenario"]["operations"]] == [
        "plan", "rebind", "layer",
    ]  # fmt: skip
    assert found["scenario"]["operations"][0]["requests"] == ["A"]


@pytest.mark.parametrize("form", ["scenario", "log"])
def test_what_breaks_is_explained_and_drawn(form: str, tmp_path: Path) -> None:
    file = scenario_file(tmp_path, EXTEND, Rebind(), Layer())
    if form == "log":
        log = tmp_path / "log.jsonl"
        runner.invoke(app, ["replay", str(file), "--engine", "model", "--log", str(log)])
        command = ["explain", str(log)]
    else:
        command = ["explain", str(file), "--engine", "model"]
    page = tmp_path / "page.html"
    result = runner.invoke(app, [*command, "--html", str(page)])
    assert result.exit_code == 1, result.output
    assert "CURRENT" in result.stdout
    assert "swa_tokens" in page.read_text()


def test_a_step_after_many_is_told_with_its_plan(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, EXTEND, *[Layer()] * 60, EXTEND, Rebind(), Layer())
    log = tmp_path / "log.jsonl"
    runner.invoke(app, ["replay", str(file), "--engine", "model", "--log", str(log)])
    result = runner.invoke(app, ["check", str(log)])
    assert result.exit_code == 1, result.output
    assert "plan extend A B" in result.stdout
    assert "steps left out" in result.stdout


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["corpus", "add", "--name", "x", "--why", "y"], "is of forwards"),
        (["bisect", "--engines", "0.5.15,0.5.23"], "give --construction with one of triton"),
        (["export", "--as", "pytest"], "no exported tests of forwards"),
    ],
)
def test_what_is_made_for_caches_refuses_forwards(
    command: list[str], words: str, tmp_path: Path
) -> None:
    file = scenario_file(tmp_path, EXTEND, Rebind(), Layer())
    result = runner.invoke(app, [*command, str(file)])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_forwards_are_exported_as_text(tmp_path: Path) -> None:
    file = scenario_file(tmp_path, EXTEND, Rebind(), Layer())
    result = runner.invoke(app, ["export", "--as", "text", str(file)])
    assert result.exit_code == 0, result.output
    assert "swa_tokens 24" in result.stdout
    assert parse_scenario(result.stdout.encode()).operations == (EXTEND, Rebind(), Layer())


@pytest.mark.parametrize("name", BY_FAMILY)
def test_targets_play_forwards_only_where_their_driver_was_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = next(family for family in FAMILIES if family.name == name)
    monkeypatch.setattr(targets, "family_of", lambda _root: family)
    nowhere = Path("nowhere")
    engine = Engine(name="e", version="1", source="path", root=nowhere, deps=nowhere)
    found = targets.targets_of(engine)
    forwards = [t.construction for t in found if t.family == "translation"]
    assert forwards == (list(TRANSLATIONS) if name in {"0.5.14", "0.5.16", "0.5.23"} else [])
    playable = BY_FAMILY[name]
    assert tuple(t.construction for t in found if t.family == "cache") == playable


def test_no_forwards_run_on_a_gpu() -> None:
    nowhere = Path("nowhere")
    engine = Engine(name="e", version="1", source="path", root=nowhere, deps=nowhere)
    with pytest.raises(EngineError, match="in the interpreter alone"):
        targets.Target(engine=engine, construction="triton").process(kernels="cuda")
