"""``kvproof gate``: whether everything that a release ships is covered, or exempt for a reason."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, show
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.coverage import Shipped, gate
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore

_STYLES = {"covered": "green", "exempt": "dim", "new": "bold red", "changed": "bold red"}


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate says of each engine, and whether it lets all of them through."""

    good: bool
    engines: dict[str, tuple[Shipped, ...]]


def gate_(
    *,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="NAME", help="An engine; repeatable. Default: all."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="List what passes too, with what covers or exempts it.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say whether each cache class and index kernel of a release is covered or exempt.

    Nothing is imported. Exits with 1 if a release has a class or kernel that coverage.toml does not
    know, or changed or dropped a kernel that is covered; it is named.
    """
    store = EngineStore()
    engines = [store.find(name) for name in engine] if engine else store.list()
    if not engines:
        raise EngineError("no engine is installed", fix="run: kvproof engine add sglang==0.5.15")
    found = {each.name: gate(each.root, family_of(each.root)) for each in engines}
    report = GateReport(
        good=all(one.passes for shipped in found.values() for one in shipped), engines=found
    )
    table = plain_table("engine", "kind", "name", "module", "", "why")
    counts = []
    for name, shipped in found.items():
        for one in shipped:
            if everything or not one.passes:
                table.add_row(
                    name, one.kind, Text(one.name), Text(one.place.partition(":")[0]),
                    Text(one.status, style=_STYLES.get(one.status, "bold red")), Text(one.why),
                )  # fmt: skip
        counts.append(_count(name, shipped))
    show(Group(*([table] if table.row_count else []), *counts), report, as_json=as_json)
    if not report.good:
        raise typer.Exit(ExitCode.VIOLATION)


def _count(name: str, shipped: tuple[Shipped, ...]) -> Text:
    said = [
        f"{sum(one.kind == kind and one.status == status for one in shipped)} {words} {status}"
        for kind, words in (("class", "classes"), ("kernel", "kernels"))
        for status in ("covered", "exempt")
    ]
    bad = sum(not one.passes for one in shipped)
    verdict = f"{bad} not let through" if bad else "passes"
    return Text(f"{name}: {', '.join(said)}: {verdict}", style="bold red" if bad else "green")
