"""``kvproof explain`` tells and draws what broke; ``kvproof export`` makes a test of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.fuzz import STATUS_STYLES, paint
from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, show
from kvproof.fuzz.story import tell
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import EngineError as EngineFault
from kvproof.model.monitor import statuses
from kvproof.model.scenario import BadFileError, load_scenario
from kvproof.model.verdict import Violation
from kvproof.triage.excerpt import Excerpt, Log, excerpt
from kvproof.triage.page import render
from kvproof.triage.source import is_log, log_file, played_log

FileArgument = Annotated[Path, typer.Argument(help="A scenario or a log (JSON Lines).")]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """What was explained.

    Attributes:
        steps: number of steps of the log.
        shown: numbers of those that the story shows, from 0.
        story: the text; empty if nothing broke.
        html: the page, if one was asked for.
    """

    target: str
    backend: str
    statuses: dict[str, str]
    violation: Violation | None
    engine_error: EngineFault | None
    steps: int
    shown: tuple[int, ...]
    story: str
    html: Path | None


def explain(
    file: FileArgument,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Where to play a scenario: an engine or target, e.g. 0.5.16:registry, or `model`. "
            "Default: the first installed one on which it breaks."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the page here: one file, opens from disk.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what broke, where and how it came to that, as text and as a page.

    Of a long log only the steps around the violation and those that led to it are shown. Exit code
    0 if every invariant holds, 1 if one breaks or the engine failed, 2 for a set-up error.
    """
    shown = excerpt(_log(file, engine or []))
    if not shown.monitor.ended and shown.monitor.engine_error is None and not shown.violation:
        raise BadFileError(f"{file}: the log is cut off: it has no last fact")
    if html is not None:
        write_text(html, render(shown), option="--html")
    explained = Explained(
        target=shown.started.target,
        backend=shown.started.backend,
        statuses={str(name): word for name, word in statuses(shown.monitor).items()},
        violation=shown.violation,
        engine_error=shown.monitor.engine_error,
        steps=shown.monitor.steps,
        shown=tuple(frame.index for frame in shown.frames),
        story=tell(shown.violation, shown.facts) if shown.violation else "",
        html=html,
    )
    show(Group(*_told(explained, shown)), explained, as_json=as_json)
    if explained.violation is not None or explained.engine_error is not None:
        raise typer.Exit(ExitCode.VIOLATION)


def _log(file: Path, engines: list[str]) -> Log:
    if is_log(file):
        if engines:
            raise EngineError(
                f"{file} is a log: it says on what it was made",
                fix="leave --engine out, or give a scenario",
            )
        return log_file(file)
    scenario = load_scenario(file)
    with progress("playing", lines=False) as report:
        return played_log(scenario, engines, report=report)


def _told(explained: Explained, shown: Excerpt) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if explained.violation is None:
        table = plain_table("invariant", "verdict")
        for invariant, status in explained.statuses.items():
            table.add_row(invariant, Text(status, STATUS_STYLES[status]))
        parts += [Text(f"{explained.target} (backend {explained.backend})", "bold"), table]
    else:
        parts.append(paint(explained.story))
        if not shown.is_whole:
            parts.append(
                Text(
                    f"The operations are {len(shown.frames)} of {explained.steps:,}: those that "
                    "led to the violation and those around it."
                )
            )
    if explained.engine_error is not None:
        error = explained.engine_error
        parts.append(Text(f"engine error: the engine {error.cause}: {error.message}", "magenta"))
    if explained.html is not None:
        parts.append(Text(f"page: {explained.html}"))
    return parts


def write_text(path: Path, text: str, *, option: str) -> None:
    """Write a file; raises EngineError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"{path} cannot be written: {error.strerror}", fix=f"give another file with {option}"
        ) from error
