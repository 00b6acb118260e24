"""``kvproof marks``: what counts each numbered rule of the specification in a campaign."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, show
from kvproof.cli.runs import load_run
from kvproof.fuzz.marks import Mark, marks
from kvproof.kernels.engines.errors import EngineError


def marks_(
    *,
    run: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Count in a run of `kvproof fuzz`, e.g. runs/latest."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the coverage marks: rules and branches, and the witnesses that count them.

    With --run it exits with 1 if the run counted nothing for one that a campaign can count.
    """
    found = marks(None if run is None else _counts(run))
    missed = [mark.name for mark in found if run is not None and not mark.reached]
    data = {"ok": not missed, "missed": missed, "marks": found}
    show(Group(_table(found), *_missed(missed)), data, as_json=as_json)
    if missed:
        raise typer.Exit(ExitCode.VIOLATION)


def _counts(folder: Path) -> Counter[str]:
    report = load_run(folder).report
    if report is None:
        raise EngineError(f"{folder} has no result yet", fix="wait for the run, or give another")
    counts: Counter[str] = Counter()
    for target in report.targets:
        counts.update(target.witnesses)
    return counts


def _table(found: tuple[Mark, ...]) -> RenderableType:
    table = plain_table("mark", "where", "in words", "counted by")
    for mark in found:
        by = ", ".join(
            f"{name} ({mark.counts[name]:,})" if mark.counts else name for name in mark.witnesses
        )
        table.add_row(
            Text(mark.name), mark.where, Text(mark.words),
            Text(by or f"not counted: {mark.uncounted}", style="" if by else "dim"),
        )  # fmt: skip
    return table


def _missed(names: list[str]) -> list[Text]:
    return [Text(f"\nnever reached: {', '.join(names)}", style="bold red")] if names else []
