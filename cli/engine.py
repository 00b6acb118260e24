"""``kvproof engine``: install, list, remove and diagnose engine releases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, show
from kvproof.kernels.engines.doctor import LIMIT_S, Diagnosis, diagnose
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore

commands = typer.Typer(
    name="engine", no_args_is_help=True, help="Install and check the engines under test."
)


@commands.command()
def add(
    releases: Annotated[
        list[str] | None, typer.Argument(help="Releases, e.g. sglang==0.5.15.")
    ] = None,
    path: Annotated[
        Path | None, typer.Option(help="The folder `python` of a checkout.", metavar="FOLDER")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call the checkout.")] = None,
    unpinned: Annotated[
        bool, typer.Option("--unpinned", help="Accept releases whose hash is not pinned.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Install releases from PyPI, or register a checkout."""
    if not releases and path is None:
        raise EngineError("nothing to add", fix="name a release, or give --path FOLDER")
    if path is None and name is not None:
        raise EngineError("--name is for checkouts; a release has its name", fix="leave it out")
    with progress("adding engines") as report:
        store = EngineStore(report=report)
        engines = [store.add(release, unpinned=unpinned) for release in releases or ()]
        if path is not None:
            engines.append(store.add_path(path, name=name))
    show(_table(engines), {"engines": engines}, as_json=as_json)


@commands.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the installed engines."""
    store = EngineStore()
    engines = store.list()
    table = _table(engines) if engines else "No engines. Run: kvproof engine add sglang==0.5.15"
    show(table, {"cache": store.cache, "engines": engines}, as_json=as_json)


@commands.command()
def remove(
    names: Annotated[list[str], typer.Argument(help="Engines, as `list` names them.")],
    as_json: JsonOption = False,
) -> None:
    """Remove engines. A checkout's own files are left alone."""
    store = EngineStore()
    removed = [store.remove(name).name for name in names]
    show(f"removed: {', '.join(removed)}", {"removed": removed}, as_json=as_json)


@commands.command()
def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(help="Engines; all that are installed by default.")
    ] = None,
    limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Time for a probe to answer.")
    ] = LIMIT_S,
    log: Annotated[
        bool, typer.Option("--log", help="Show what an engine printed where it does not work.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what works in each engine on this machine, what does not and why, and what is not real.

    Exits with 0 if everything works, else with 2.
    """
    store = EngineStore()
    engines = [store.find(name) for name in names] if names else store.list()
    if not engines:
        raise EngineError("no engine is installed", fix="run: kvproof engine add sglang==0.5.15")
    with progress("asking engines", lines=False) as report:
        diagnoses = [diagnose(engine, limit_s=limit, report=report) for engine in engines]
    show(
        Group(*(_diagnosis(each, log=log) for each in diagnoses)),
        {"ok": all(each.ok for each in diagnoses), "engines": diagnoses},
        as_json=as_json,
    )
    if not all(each.ok for each in diagnoses):
        raise typer.Exit(ExitCode.SETUP)


def _diagnosis(diagnosis: Diagnosis, *, log: bool) -> RenderableType:
    engine = diagnosis.engine
    failed = sum(result.status == "not ok" for result in diagnosis.results)
    verdict = "[green]everything works[/]" if diagnosis.ok else f"[red]{failed} not ok[/]"
    parts: list[RenderableType] = [f"[bold]{escape(engine.name)}[/]: {verdict}"]
    titles = ("probe", "status", "found, or why not")
    results = plain_table(*titles) if diagnosis.ok else plain_table(*titles, "next step")
    for result in diagnosis.results:
        style = {"ok": "green", "not ok": "bold red", "skipped": "dim"}[result.status]
        cells = [Text(result.probe), Text(result.status, style=style), Text(result.detail)]
        if not diagnosis.ok:
            cells.append(Text(result.next_step))
        results.add_row(*cells)
    parts.append(results)
    for result in diagnosis.results:
        if log and result.log:
            parts.append(Text(f"\nprinted during {result.probe}:\n{result.log}"))
    parts.append("\nNot the engine's own (everything else in its process is real):")
    shims = plain_table("shim", "stands in for", "because")
    for shim in diagnosis.shims:
        shims.add_row(shim.name, Text(shim.replaces), Text(shim.reason))
    parts.append(shims)
    tops = dict.fromkeys(name.partition(".")[0] for name in diagnosis.stubs)
    parts.append(Text(f"stubbed modules: {', '.join(tops) or 'none'}\n"))
    return Group(*parts)


def _table(engines: list[Engine] | tuple[Engine, ...]) -> Table:
    table = plain_table("engine", "version", "hash", "where", "state")
    for engine in engines:
        hashed = "-" if engine.sha256 is None else "pinned" if engine.pinned else "first seen"
        state = engine.problem or "ready"
        where = "PyPI" if engine.source == "pypi" else str(engine.root)
        table.add_row(engine.name, engine.version, hashed, where, state)
    return table
