"""``kvproof convert``, ``redact``, ``schema``, and scenarios in either form for every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.model.describe import markdown
from kvproof.model.facts import encode_fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Decode,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    encode_scenario,
)
from kvproof.model.text import encode_text

runner = CliRunner()

SCENARIO = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=64),
    operations=(
        Submit(request="Ann", prompt=(Piece("secret", 5),)), Prefill(request="Ann"),
        Finish(request="Ann"),
        Submit(request="Bob", prompt=(Piece("secret", 2), Piece("Bob", 3))),
        Prefill(request="Bob"), Decode(),
    ),
)  # fmt: skip
TEXT, JSON = encode_text(SCENARIO), encode_scenario(SCENARIO)
LOG = b"".join(
    map(encode_fact, reference_player(SCENARIO.geometry, Policy(reprefill_tail=0)).play(SCENARIO))
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "scenario"  # its name says nothing
    file.write_bytes(TEXT)
    return file


def test_convert_there_and_back(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert runner.invoke(app, ["convert", str(text), "-o", str(out)]).exit_code == 0
    assert out.read_bytes() == JSON
    assert runner.invoke(app, ["convert", str(out)]).stdout_bytes == TEXT
    assert runner.invoke(app, ["convert", "-"], input=JSON).stdout_bytes == TEXT
    assert runner.invoke(app, ["convert", str(out), "--to", "json"]).stdout_bytes == JSON
    assert runner.invoke(app, ["convert", str(text), "--to", "text"]).stdout_bytes == TEXT


def test_replay_takes_text_json_and_standard_input(text: Path) -> None:
    results = [
        runner.invoke(app, ["replay", *where, "--engine", "model", "--json"], input=data)
        for where, data in ((["-"], TEXT), (["-"], JSON), ([str(text)], None))
    ]
    assert {result.exit_code for result in results} == {0}
    assert len({result.stdout for result in results}) == 1


def test_a_bad_text_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "bad"
    file.write_bytes(TEXT + b"explode\n")
    number = TEXT.count(b"\n") + 1
    for command in (["replay", "--engine", "model"], ["convert"], ["redact"]):
        result = runner.invoke(app, [*command, str(file)])
        assert result.exit_code == 2
        assert result.stdout == ""
        assert f"{file}: line {number}: 'explode'" in result.stderr
        assert "allowed: window, " in result.stderr


@pytest.mark.parametrize("data", [TEXT, JSON, LOG], ids=["text", "JSON", "log"])
def test_redact_keeps_the_form_and_hides_the_names(data: bytes, tmp_path: Path) -> None:
    file, out = tmp_path / "file", tmp_path / "out"
    file.write_bytes(data)
    done = runner.invoke(app, ["redact", str(file), "--key", "k", "-o", str(out)])
    assert done.exit_code == 0, done.output
    hidden = out.read_bytes()
    assert runner.invoke(app, ["redact", "-", "--key", "k"], input=data).stdout_bytes == hidden
    assert runner.invoke(app, ["redact", "-"], input=data).stdout_bytes != hidden
    for name in (b"Ann", b"Bob", b"secret"):
        assert name in data
        assert name not in hidden
    assert hidden.split(b"\n")[0][:8] == data.split(b"\n")[0][:8]


def test_a_redacted_log_has_the_same_verdicts(tmp_path: Path) -> None:
    file, out = tmp_path / "log", tmp_path / "redacted"
    file.write_bytes(LOG)
    runner.invoke(app, ["redact", str(file), "-o", str(out)])
    one, other = (runner.invoke(app, ["check", str(f), "--json"]) for f in (file, out))
    assert one.exit_code == other.exit_code == 1
    known, hidden = json.loads(one.stdout), json.loads(other.stdout)
    assert known["statuses"] == hidden["statuses"]
    assert known["lines"] == hidden["lines"]
    assert "Ann" in one.stdout
    assert "Ann" not in other.stdout + other.stderr


def test_schema_and_tables() -> None:
    for kind in ("scenario", "log"):
        schema = json.loads(runner.invoke(app, ["schema", kind]).stdout)
        assert schema["$defs"]
        tables = runner.invoke(app, ["schema", kind, "--markdown"]).stdout
        assert tables.strip() == markdown(kind).strip()  # type: ignore[arg-type]


def test_a_file_that_cannot_be_written(text: Path, tmp_path: Path) -> None:
    for command in ("convert", "redact"):
        result = runner.invoke(app, [command, str(text), "-o", str(tmp_path / "no" / "file")])
        assert result.exit_code == 2
        assert "cannot be written" in result.stderr
        assert "--out" in result.stderr


# Walking through a scenario


def test_until_plays_the_first_steps_only(text: Path, tmp_path: Path) -> None:
    """With a stale read in step 6, `--until` finds the first bad step by its exit code."""
    log = tmp_path / "log"
    for until, steps in ((3, 3), (6, 6), (99, 6)):
        done = runner.invoke(
            app,
            ["replay", str(text), "--engine", "model", "--until", str(until), "--log", str(log)],
        )
        assert done.exit_code == 0
        assert log.read_bytes().count(b'"fact":"step"') == steps
    assert runner.invoke(app, ["replay", str(text), "--until", "0"]).exit_code == 2


def test_step_draws_the_state_after_each_step(text: Path) -> None:
    done = runner.invoke(app, ["replay", str(text), "--engine", "model", "--step"])
    assert done.exit_code == 0, done.output
    walked = done.stdout.split("\nstep ")
    assert len(walked) == 1 + len(SCENARIO.operations)
    prefilled = walked[2]
    assert prefilled.startswith("2: prefill Ann  slot 1, reuses 0 of 5 tokens; Ann writes")
    assert "slot 1 (lent to Ann)" in prefilled
    assert "position 4 of Ann (occupancy 1)" in prefilled
    assert "free pages: 29 of 32; free slots: none" in prefilled
    assert "secret[0:2] in page 1, full_lock 1" in prefilled
    finished = walked[3]
    assert "slot 1 (free)" in finished
    assert "free slots: 1" in finished


def test_step_and_json_do_not_go_together(text: Path) -> None:
    done = runner.invoke(app, ["replay", str(text), "--engine", "model", "--step", "--json"])
    assert done.exit_code == 2
