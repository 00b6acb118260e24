"""``--layers`` and ``--ratios``, and ``kvproof layers``: EXACT and PURE are asked for and told."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli.stack import parse_ratios, stack_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import encode_fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Geometry, Piece, Prefill, Scenario, Submit
from kvproof.model.text import encode_text
from kvproof.model.verdict import EXACTNESS_INVARIANTS, INVARIANTS

runner = CliRunner()

POISON = Scenario(
    geometry=Geometry(window=2, page_size=2, slots=3, pool_tokens=24),
    operations=tuple(
        operation
        for name, length in (("A", 2), ("B", 4), ("C", 6))
        for operation in (
            Submit(request=name, prompt=(Piece("A", length),)), Prefill(request=name),
        )
    ),
)  # fmt: skip


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "poison.scenario"
    file.write_bytes(encode_text(POISON))
    return file


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "poison.jsonl"
    player = reference_player(POISON.geometry, Policy(reprefill_tail=0))
    file.write_bytes(b"".join(encode_fact(fact) for fact in player.play(POISON)))
    return file


def refused(*arguments: str) -> str:
    result = runner.invoke(app, [*arguments])
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


def test_a_log_is_judged_through_layers_when_asked(log: Path) -> None:
    plain = json.loads(runner.invoke(app, ["check", str(log), "--json"]).stdout)
    assert set(plain["statuses"]) == set(INVARIANTS)
    assert "departures" not in plain
    result = runner.invoke(app, ["check", str(log), "--ratios", "0,2", "--json"])
    assert result.exit_code == 1
    judged = json.loads(result.stdout)
    assert {judged["statuses"][name] for name in EXACTNESS_INVARIANTS} == {"violated"}
    first, _second = judged["departures"]
    assert first | {"states": None} == {
        "request": "B", "occupancy": 2, "slot": 2, "matched_len": 2, "layer": 1, "position": 2,
        "last": 3, "states": None, "pages": 1, "heirs": ["C"],
    }  # fmt: skip
    assert judged["compared"] == 0
    pure = next(each for each in judged["violations"] if each["cause"] == "inherited-page")
    assert pure["departure"]["request"] == "B"


def test_the_story_says_how_far_it_goes(scenario: Path) -> None:
    result = runner.invoke(app, ["replay", str(scenario), "--engine", "model", "--ratios", "0,2"])
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "layer 1, position 2" in words
    assert "also PURE (inherited-page) in step 6" in words


def test_what_cannot_be_asked_is_refused(scenario: Path, log: Path) -> None:
    assert "do not fill pages of 2" in refused("replay", str(scenario), "--ratios", "0,4")
    assert "do not fill pages of 2" in refused("check", str(log), "--ratios", "0,4")
    assert "are no ratios" in refused("check", str(log), "--ratios", "0,x")
    assert "at least one layer" in refused("layers", "--layers", "0")
    assert "is no size" in refused("layers", "--size", "3")


def test_overlapped_steps_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "overlap.scenario"
    geometry = msgspec.structs.replace(POISON.geometry, overlap=1)
    file.write_bytes(encode_text(msgspec.structs.replace(POISON, geometry=geometry)))
    assert "do not go through the layers" in refused("replay", str(file), "--layers", "2")
    log = tmp_path / "overlap.jsonl"
    facts = reference_player(geometry).play(msgspec.structs.replace(POISON, geometry=geometry))
    log.write_bytes(b"".join(encode_fact(fact) for fact in facts))
    assert "not followed through layers" in refused("check", str(log), "--layers", "2")


def test_ratios_repeat_over_the_layers() -> None:
    assert stack_of(None, None) is None
    stack = stack_of(5, "0,4,128")
    assert stack is not None
    assert stack.ratios == (0, 4, 128, 0, 4)
    plain = stack_of(3, None)
    assert plain is not None
    assert plain.ratios == (0, 0, 0)
    with pytest.raises(EngineError, match="are no ratios"):
        parse_ratios("1,,2")
