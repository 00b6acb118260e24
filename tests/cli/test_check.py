"""``kvproof check`` while the log is read: from a pipe, followed, cut off; what broke is said."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.model.facts import encode_fact
from kvproof.model.scenario import Geometry
from kvproof.model.traffic import Traffic

runner = CliRunner()

TRAFFIC = Traffic(
    geometry=Geometry(window=8, page_size=4, slots=16, pool_tokens=4096),
    requests=60, answer=20, reprefill_tail=0,
)  # fmt: skip
LINES = [encode_fact(fact) for fact in TRAFFIC.log()]
LOG = b"".join(LINES)


def test_what_broke_is_said_with_line_step_and_evidence(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(LOG)
    result = runner.invoke(app, ["check", str(file), "--json"])
    assert result.exit_code == 1
    checked = json.loads(result.stdout)
    assert checked["facts"] == len(LINES)
    assert checked["ended"]
    said = result.stderr.splitlines()
    assert len(said) == len(checked["violations"]) == len(checked["lines"])
    for violation in checked["violations"]:
        line = checked["lines"][f"{violation['invariant']}/{violation['cause']}"]
        [words] = [words for words in said if words.startswith(f"line {line}, ")]
        assert f"step {violation['step'] + 1}: {violation['invariant']}" in words
        assert violation["sentence"] in words
        # The line is where the read is: in the step that the violation names.
        before = [json.loads(text) for text in LINES[:line]]
        assert [f for f in before if f["fact"] == "step"][-1]["index"] == violation["step"]


def test_the_story_of_a_long_log_is_short(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(LOG)
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert "FRESH-DECODE is broken on traffic (backend rules)" in result.stdout
    assert "steps left out" in result.stdout
    assert len(result.stdout.splitlines()) < 80


@pytest.mark.parametrize("squeeze", [bytes, gzip.compress])
def test_a_log_from_a_pipe_zipped_or_not(tmp_path: Path, squeeze: object) -> None:
    assert callable(squeeze)
    file = tmp_path / "log"
    file.write_bytes(squeeze(LOG))
    from_file = runner.invoke(app, ["check", str(file), "--json"])
    from_pipe = runner.invoke(app, ["check", "-", "--json"], input=squeeze(LOG))
    assert from_pipe.exit_code == from_file.exit_code == 1
    assert from_pipe.stdout == from_file.stdout


def test_a_log_that_is_cut_off_after_it_broke_is_a_violation(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"".join(LINES[:-1]))
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 1
    assert "The log is cut off: it has no last fact." in result.stdout
    assert not json.loads(runner.invoke(app, ["check", str(file), "--json"]).stdout)["ended"]


def test_a_bad_line_after_a_violation_is_an_error_and_the_violation_was_said(
    tmp_path: Path,
) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(LOG + b"{}\n")
    result = runner.invoke(app, ["check", str(file)])
    assert result.exit_code == 2
    assert "FRESH-DECODE (other-request)" in result.stderr
    assert f"line {len(LINES) + 1}: not a fact" in result.stderr


def test_a_pipe_is_judged_while_it_is_written() -> None:
    """The violation is said although the writer has not closed its end."""
    command = [sys.executable, "-c", "from kvproof.cli import main; main()", "check", "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"".join(LINES[:-1]))
        process.stdin.flush()
        assert process.stderr.readline().startswith(b"line ")
        process.stdin.write(LINES[-1])
        process.stdin.close()
        process.stdin = None
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert b"FRESH-DECODE is broken" in out


def test_a_log_is_followed_until_its_last_fact(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    half = len(LOG) // 2  # in the middle of a line
    file.write_bytes(LOG[:half])
    command = [sys.executable, "-c", "from kvproof.cli import main; main()", "check", str(file),
               "--follow", "--json"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith(b"line ")  # it has read the first half
        time.sleep(0.5)
        assert process.poll() is None
        with file.open("ab") as more:
            more.write(LOG[half:])
            more.flush()
            os.fsync(more.fileno())
        out, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert json.loads(out)["facts"] == len(LINES)
