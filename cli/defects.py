"""``kvproof defects``: the known defects of the field, and how each is found again here."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, renewing, show
from kvproof.fuzz.manifest import processor
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.files import renew
from kvproof.triage.find_again import DefectResult, Finder, Outcome
from kvproof.triage.known_defects import (
    ByFuzzing,
    ByScenario,
    Defect,
    OutOfReach,
    Way,
    load_defects,
)

BEGIN = "<!-- known defects: made by `kvproof defects --run --table`, do not edit -->"
END = "<!-- end of known defects -->"


class DefectsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run.

    Attributes:
        on_releases: names of those that were found on the real code of a release.
        not_run: names of those with a way whose engine is not installed.
        broken: names of those with a way that did not find it.
    """

    defects: tuple[DefectResult, ...]
    on_releases: tuple[str, ...]
    not_run: tuple[str, ...]
    broken: tuple[str, ...]
    seed: int
    machine: str


def defects(
    *,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="A name or a report, e.g. 30339; repeatable."),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Find them again, on every engine that is installed.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn.")] = 0,
    time: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="For one search on one target.")
    ] = 120.0,
    tables: Annotated[
        list[Path] | None,
        typer.Option("--table", metavar="FILE", help="Renew a document's table; with --run."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List known defects of KV caches, and find them again.

    Each is found on the real code of a release, by the fuzzer or by a scenario; or a mutant of the
    specification stands in, which the monitor or a proof must kill; or it says why neither.

    Exit code 1 if one is not found as the registry says.
    """
    if tables and not run:
        raise EngineError("a table needs figures of a run", fix="add --run")
    chosen = _chosen(load_defects(), only)
    if not run:
        show(_listed(chosen), chosen, as_json=as_json)
        return
    with (
        progress("finding known defects") as report,
        closing(Finder(seed=seed, seconds=time, report=report)) as finder,
    ):
        results = tuple(finder.run(defect) for defect in chosen)
    made = _report(results, seed)
    for document in tables or ():
        with renewing():
            renew(document, begin=BEGIN, end=END, table=markdown(made))
    show(_found(made), made, as_json=as_json)
    if made.broken:
        raise typer.Exit(ExitCode.VIOLATION)


def _chosen(known: Sequence[Defect], only: Sequence[str] | None) -> tuple[Defect, ...]:
    if not only:
        return tuple(known)
    wanted = {one.lstrip("#") for one in only}
    chosen = tuple(
        defect
        for defect in known
        if wanted & {defect.name, *(report.lstrip("#") for report in defect.ids)}
    )
    if not chosen:
        raise EngineError(
            f"no known defect is called {', '.join(only)}", fix="see `kvproof defects` for all"
        )
    return chosen


def _report(results: tuple[DefectResult, ...], seed: int) -> DefectsReport:
    return DefectsReport(
        defects=results,
        on_releases=tuple(r.defect.name for r in results if r.on_releases),
        not_run=tuple(
            r.defect.name for r in results if any(o.state == "not run" for o in r.outcomes)
        ),
        broken=tuple(r.defect.name for r in results if not r.as_promised),
        seed=seed,
        machine=f"{os.cpu_count()} cores, {processor()}, Python {platform.python_version()}",
    )


def _listed(chosen: Sequence[Defect]) -> RenderableType:
    table = plain_table("defect", "reports", "what goes wrong", "releases", "found by")
    for defect in chosen:
        table.add_row(
            Text(defect.name), Text(", ".join(defect.ids)), Text(defect.what),
            Text(defect.affects), Text("\n".join(map(_way, defect.found))),
        )  # fmt: skip
    return table


def _way(way: Way) -> str:
    match way:
        case ByFuzzing() | ByScenario():
            return f"{way.__struct_config__.tag} on {', '.join(way.targets)}: {way.symptom}"
        case OutOfReach():
            return f"out of reach: {way.reason}"
    return str(way.__struct_config__.tag)


_STYLES = {"found": "green", "not found": "bold red", "not run": "yellow", "out of reach": "dim"}


def _found(report: DefectsReport) -> RenderableType:
    table = plain_table("defect", "by", "where", "what breaks", "steps", "seconds", "")
    for result in report.defects:
        for number, outcome in enumerate(result.outcomes):
            table.add_row(
                Text(result.defect.name if not number else ""),
                Text(outcome.by),
                Text(outcome.where),
                Text(outcome.breaks),
                "" if outcome.operations is None else str(outcome.operations),
                f"{outcome.seconds:.1f}" if outcome.seconds else "",
                Text(outcome.state, _STYLES[outcome.state]),
            )
            if outcome.state == "not found":
                table.add_row("", "", "", Text(outcome.reason, "red"))
    return Group(
        table,
        "",
        Text(
            f"{len(report.on_releases)} of {len(report.defects)} found on the real code of a "
            f"release, {len(report.not_run)} not run for want of an engine, "
            f"{len(report.broken)} not found as the registry says. {report.machine}."
        ),
    )


def markdown(report: DefectsReport) -> str:
    """The table of a document: a row a way, the report in the first one of each defect."""
    lines = [
        "| reports | what goes wrong | affected | how found | where | steps | breaks |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in report.defects:
        defect = result.defect
        said = [", ".join(defect.ids), defect.what, defect.affects]
        for outcome in result.outcomes:
            if outcome.by == "control":
                continue
            steps = "" if outcome.operations is None else str(outcome.operations)
            cells = [*said, _how(outcome), outcome.where, steps, _breaks(outcome)]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
            said = ["", "", ""]
    return "\n".join(
        [
            *lines,
            "",
            f"{len(report.on_releases)} of {len(report.defects)} entries are found on the real "
            f"code of a release; {len(report.not_run)} were not run for want of an engine. Seed "
            f"{report.seed}, {report.machine}.",
        ]
    )


def _how(outcome: Outcome) -> str:
    if outcome.state == "not run":
        return f"{outcome.by}, not run"
    if outcome.sequences:
        return f"{outcome.by}, {outcome.seconds:.1f} s, {outcome.sequences} sequences"
    return outcome.by


def _breaks(outcome: Outcome) -> str:
    match outcome.state:
        case "found":
            return outcome.breaks + (f": {outcome.reason}" if outcome.reason else "")
        case "not found":
            return f"not found: {outcome.reason}"
        case "not run":
            return outcome.breaks
    return outcome.reason
