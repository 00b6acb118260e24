"""``kvproof mutants``: what notices a mistake in the specification, the model or an engine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Annotated, get_args

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, renewing, show
from kvproof.fuzz.manifest import processor
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.files import renew
from kvproof.mutants.catalogue import ORACLES, Area, Layer, Mutant, Oracle, catalogue
from kvproof.mutants.matrix import Cell, Oracles, Progress, Row, Score, row_of, score_of

BEGIN = "<!-- kill matrix: made by `kvproof mutants --table`, do not edit -->"
END = "<!-- end of the kill matrix -->"

COLUMNS: tuple[Oracle, ...] = tuple(ORACLES)


class MutantsReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run.

    Attributes:
        good: nothing survived without a reason, and no mutant that is said to be equivalent was
            noticed.
    """

    good: bool
    score: Score
    by_layer: dict[str, Score]
    by_area: dict[str, Score]
    rows: tuple[Row, ...]
    seed: int
    seconds: float
    machine: str


def mutants(
    *,
    areas: Annotated[
        list[str] | None,
        typer.Option("--area", help=f"One of {', '.join(get_args(Area))}; repeatable."),
    ] = None,
    layers: Annotated[
        list[str] | None,
        typer.Option("--layer", help=f"One of {', '.join(get_args(Layer))}; repeatable."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="TEXT", help="With TEXT in their name; repeatable."),
    ] = None,
    oracles: Annotated[
        list[str] | None,
        typer.Option("--oracle", help=f"Ask {', '.join(ORACLES)} alone; repeatable."),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List them, and run nothing.")] = False,
    time: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="For one search.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn and of the solver.")] = 0,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Append each result there at once; what it has is not run again."
        ),
    ] = None,
    tables: Annotated[
        list[Path] | None,
        typer.Option("--table", metavar="FILE", help="Renew a document's kill matrix."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the kill matrix: each mutant against each oracle that may notice it.

    Mutants edit the specification, the model, the installed releases' own functions and their
    kernels, in memory. Exits with 1 if one survives that is not known to be equivalent.
    """
    chosen = _chosen(areas, layers, only, oracles)
    if list_only:
        show(_listed(chosen), [_entry(mutant) for mutant in chosen], as_json=as_json)
        return
    kept = Progress.at(resume)
    cells: dict[str, list[Cell]] = {mutant.key: [] for mutant in chosen}
    asked = [(m, oracle) for m in chosen for oracle in m.oracles if _asked(oracle, oracles)]
    with (
        progress("mutants") as report,
        closing(Oracles(seed=seed, seconds=time, report=lambda _: None)) as judges,
    ):
        for number, (mutant, oracle) in enumerate(sorted(asked, key=_order), start=1):
            cell = kept.find(mutant, oracle, judges.settings)
            if cell is None:
                cell = judges.judge(mutant, oracle)
                kept.add(cell)
            cells[mutant.key].append(cell)
            report(f"{number}/{len(asked)} {oracle}: {mutant.key}: {_cell(cell)}")
    made = _report([row_of(mutant, cells[mutant.key]) for mutant in chosen], seed, time)
    for document in tables or ():
        with renewing():
            renew(document, begin=BEGIN, end=END, table=markdown(made))
    show(_shown(made), made, as_json=as_json)
    if not made.good:
        raise typer.Exit(ExitCode.VIOLATION)


def _chosen(
    areas: Sequence[str] | None,
    layers: Sequence[str] | None,
    only: Sequence[str] | None,
    oracles: Sequence[str] | None,
) -> tuple[Mutant, ...]:
    for given, known in (
        (areas, get_args(Area)), (layers, get_args(Layer)), (oracles, tuple(ORACLES)),
    ):  # fmt: skip
        if unknown := set(given or ()) - set(known):
            raise EngineError(
                f"there is no {', '.join(sorted(unknown))}", fix=f"one of {', '.join(known)}"
            )
    chosen = tuple(
        mutant
        for mutant in catalogue()
        if (not areas or mutant.area in areas)
        and (not layers or mutant.layer in layers)
        and (not only or any(text in mutant.key for text in only))
        and any(_asked(oracle, oracles) for oracle in mutant.oracles)
    )
    if not chosen:
        raise EngineError("no mutant is like that", fix="see `kvproof mutants --list` for all")
    return chosen


def _asked(oracle: Oracle, oracles: Sequence[str] | None) -> bool:
    return not oracles or oracle in oracles


def _order(asked: tuple[Mutant, Oracle]) -> tuple[int, str]:
    """Those that need the same process one after another."""
    mutant, oracle = asked
    target = getattr(mutant.subject, "target", "")
    return (COLUMNS.index(oracle), f"{mutant.layer} {target}")


def _report(rows: Sequence[Row], seed: int, seconds: float) -> MutantsReport:
    def by(name: str) -> dict[str, Score]:
        groups = dict.fromkeys(getattr(row, name) for row in rows)
        return {
            group: score_of(row for row in rows if getattr(row, name) == group) for group in groups
        }

    return MutantsReport(
        good=all(row.good for row in rows),
        score=score_of(rows),
        by_layer=by("layer"),
        by_area=by("area"),
        rows=tuple(rows),
        seed=seed,
        seconds=seconds,
        machine=f"{os.cpu_count()} cores, {processor()}, Python {platform.python_version()}",
    )


def _entry(mutant: Mutant) -> dict[str, object]:
    return {
        name: getattr(mutant, name)
        for name in ("layer", "name", "area", "where", "change", "oracles", "equivalent")
    }


def _listed(chosen: Sequence[Mutant]) -> RenderableType:
    table = plain_table("layer", "area", "mutant", "where", "change", "oracles")
    for mutant in chosen:
        table.add_row(
            mutant.layer, mutant.area, Text(mutant.name), Text(mutant.where),
            Text(mutant.change), ", ".join(mutant.oracles),
        )  # fmt: skip
    return Group(table, Text(f"\n{len(chosen)} mutants"))


def _cell(cell: Cell | None) -> str:
    """One cell of the matrix in words."""
    if cell is None:
        return "-"
    tried = f", {cell.tried:,} tried" if cell.tried else ""
    if cell.state == "killed":
        return f"{cell.by} ({cell.seconds:.1f} s{tried})"
    if cell.state == "not run":
        return f"not run: {cell.reason}"
    return f"survives: {cell.reason} ({cell.seconds:.1f} s{tried})"


def _by_oracle(row: Row) -> list[str]:
    of = {cell.oracle: cell for cell in row.cells}
    return [_cell(of.get(oracle)) for oracle in COLUMNS]


def _shown(report: MutantsReport) -> RenderableType:
    table = plain_table("mutant", "area", *COLUMNS, "")
    for row in report.rows:
        style = {"killed": "green", "not run": "yellow"}.get(row.state, "")
        said = row.state if row.good else f"{row.state}, not as expected"
        table.add_row(
            Text(f"{row.layer}: {row.name}"), row.area, *map(Text, _by_oracle(row)),
            Text(said, style=style if row.good else "bold red"),
        )  # fmt: skip
    parts: list[RenderableType] = [table, Text("")]
    parts += [Text(line) for line in _scores(report)]
    for row in report.rows:
        if row.equivalent:
            parts.append(Text(f"equivalent: {row.layer}: {row.name}: {row.equivalent}"))
    return Group(*parts)


def _scores(report: MutantsReport) -> Iterable[str]:
    yield _score("all", report.score)
    for name, score in (*report.by_layer.items(), *report.by_area.items()):
        yield _score(name, score)


def _score(name: str, score: Score) -> str:
    percent = "nothing was judged" if score.percent is None else f"{score.percent:.1f} %"
    return (
        f"{name}: {score.killed} of {score.mutants} killed, {score.survived} survive, "
        f"{score.equivalent} equivalent, {score.not_run} not run: {percent}"
    )


def markdown(report: MutantsReport) -> str:
    """The scores, the survivors with their reasons, and a table a layer."""
    lines = ["| | mutants | killed | survive | equivalent | not run | score |", "|" + "---|" * 7]
    for name, score in (("all", report.score), *report.by_layer.items(), *report.by_area.items()):
        percent = "-" if score.percent is None else f"{score.percent:.1f} %"
        lines.append(
            f"| {name} | {score.mutants} | {score.killed} | {score.survived} | {score.equivalent} "
            f"| {score.not_run} | {percent} |"
        )
    lines += [
        "",
        f"Seed {report.seed}, at most {report.seconds:g} s for one search; {report.machine}.",
    ]
    equivalent = [row for row in report.rows if row.equivalent]
    if equivalent:
        lines += ["", "Equivalent, and why:", ""]
        lines += [f"- {row.layer}, {row.name}: {row.equivalent}." for row in equivalent]
    for layer, rows in groupby(report.rows, key=lambda row: row.layer):
        lines += ["", f"### {layer.capitalize()}", ""]
        titles = ("mutant", "area", "where", "change", *COLUMNS)
        lines += [_line(titles), "|" + "---|" * len(titles)]
        for row in rows:
            lines.append(
                _line((row.name, row.area, row.where, f"`{row.change}`", *_by_oracle(row)))
            )
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
