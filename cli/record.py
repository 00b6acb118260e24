"""``kvproof record`` runs a server with the recorder on."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from kvproof.cli.output import JsonOption, plain_table, show
from kvproof.kernels.engines.errors import EngineError
from kvproof.record.launch import Sealed, environment, make_reachable, seal
from kvproof.record.locs import Level


def record(
    command: Annotated[
        list[str],
        typer.Argument(help="The server's command line, after --.", metavar="-- COMMAND..."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="New folder for the logs. Default: recordings/ and the time."),
    ] = None,
    level: Annotated[
        Level,
        typer.Option(
            help="Locations of the pools: none (requests), those that the host knows (host), or "
            "all, waiting for the device at each (full)."
        ),
    ] = "host",
    as_json: JsonOption = False,
) -> None:
    """Run a server with the recorder on: one log a scheduler process.

    The exit code is the server's own; 2 if it cannot be started, or if nothing was recorded.
    """
    logs = out or Path("recordings") / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    try:
        logs.mkdir(parents=True)
    except OSError as error:
        raise EngineError(
            f"{logs} cannot be made: {error.strerror}", fix="give a new folder with --out"
        ) from error
    code = _run(command, logs, level)
    sealed = [seal(path) for path in sorted(logs.glob("*.jsonl"))]
    if not sealed:
        raise EngineError(
            f"nothing was recorded; the command ended with exit code {code}",
            fix="look into the server's log for lines with 'kvproof'; a release without plugins "
            "cannot be recorded, and a server without requests has nothing to record",
        )
    _show(sealed, code, as_json=as_json)
    if code:
        raise typer.Exit(code)


def _run(command: list[str], logs: Path, level: Level) -> int:
    with tempfile.TemporaryDirectory(prefix="kvproof-record-") as folder:
        make_reachable(Path(folder))
        env = environment(os.environ, reachable=Path(folder), logs=logs, level=level)
        try:
            server = subprocess.Popen(command, env=env)
        except OSError as error:
            raise EngineError(
                f"{shlex.join(command)} cannot be started: {error.strerror}",
                fix="give the server's command line after --",
            ) from error
        while True:
            try:
                code = server.wait()
            except KeyboardInterrupt:
                # The terminal has sent it to the server too, which takes its time to end.
                continue
            # Killed by a signal: what a shell makes of it.
            return code if code >= 0 else 128 - code


def _show(sealed: list[Sealed], code: int, *, as_json: bool) -> None:
    table = plain_table("log", "steps", "bytes")
    for log in sealed:
        table.add_row(str(log.path), f"{log.steps:,}", f"{log.bytes:,}")
    hint = f"judge it with: kvproof check {sealed[0].path}"
    show(Group(table, hint), {"logs": sealed, "exit_code": code}, as_json=as_json)
