"""``kvproof engine``: install, list, remove and diagnose engine releases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kvproof.cli.output import JsonOption, progress, show
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


def _table(engines: list[Engine] | tuple[Engine, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("engine", "version", "hash", "where", "state"):
        table.add_column(title, overflow="fold")
    for engine in engines:
        hashed = "-" if engine.sha256 is None else "pinned" if engine.pinned else "first seen"
        state = engine.problem or "ready"
        where = "PyPI" if engine.source == "pypi" else str(engine.root)
        table.add_row(engine.name, engine.version, hashed, where, state)
    return table
