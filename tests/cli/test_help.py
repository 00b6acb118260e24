"""Every command explains itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kvproof.cli import app

runner = CliRunner()


def commands(group: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name, command in getattr(group, "commands", {}).items():
        found += commands(command, (*path, name))
    return found


ALL = commands(get_command(app))


def test_the_commands_are_there() -> None:
    assert {("fuzz",), ("replay",), ("check",), ("engine", "add"), ("engine", "doctor")} <= {*ALL}


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "kvproof")
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help(path: tuple[str, ...], option: str) -> None:
    result = runner.invoke(app, [*path, option])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
    assert result.stderr == ""
    # The command says in words what it does, not just how it is called.
    assert re.search(r"[A-Z][^\n]{20,}\.", result.stdout)


def test_the_reference_of_the_commands_is_what_they_say_now() -> None:
    made = subprocess.run(
        [
            sys.executable, "-m", "typer", "kvproof.cli.app", "utils", "docs",
            "--name", "kvproof", "--title", "Commands",
        ],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    written = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert written.strip() == made.stdout.strip(), "run: make commands"


def test_nothing_to_do_shows_the_help() -> None:
    assert "Usage:" in runner.invoke(app, []).output
