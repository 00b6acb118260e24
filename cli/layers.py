"""``kvproof layers`` measures how long a tail makes a hit exact, on the real kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, show
from kvproof.cli.stack import parse_ratios
from kvproof.fuzz import sweep
from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.sweep import Point
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.backends import require
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.layers import Stack


def layers(
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine or target; repeatable. Default: all installed with a ring."),
    ] = None,
    layers: Annotated[str, typer.Option(metavar="L,L,...", help="Numbers of layers.")] = "1,2,4,8",
    ratios: Annotated[
        list[str] | None,
        typer.Option(
            metavar="R,R,...",
            help="Tokens of a compressed row, repeated over the layers; repeatable. Default: 0.",
        ),
    ] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(metavar="W,P", help="Window and page size; repeatable. Default: a few."),
    ] = None,
    heads: Annotated[int, typer.Option(min=1, max=256, help="Query heads.")] = 2,
    dim: Annotated[int, typer.Option(min=16, max=1024, help="Width of a key.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    backend: Annotated[
        Literal["rules", "interpreter", "cuda", "hip"],
        typer.Option(help="Where the kernels run; or the rules, behind the real caches."),
    ] = "interpreter",
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Add each point to a file of JSON lines when it is done. What is there already is "
            "told, not measured again.",
        ),
    ] = None,
    tables: Annotated[
        list[Path] | None,
        typer.Option("--table", metavar="FILE", help="Renew a document's table of what is told."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the smallest tail with which a hit computes what a cold run computes.

    A stack of layers runs on the release's own scatter, index and attention kernels, with the cache
    and, for each request, on an empty one; floats, taint and payloads are held against each other.
    Exits with 1 where the smallest tail is not the theorem's (X3, X4) or the oracles disagree.
    """
    if backend != "rules":
        require(backend)
    depths = parse_ratios(layers)
    if not all(depths):
        raise EngineError("a stack has at least one layer", fix="give --layers 1,2,4")
    stacks = tuple(
        Stack.repeating(layers=depth, ratios=parse_ratios(pattern)).ratios
        for pattern in ratios or ["0"]
        for depth in depths
    )
    sizes = [_size(one) for one in size or ["2,1", "3,1", "3,2", "4,4"]]
    found = [
        target
        for target in find_targets(engine or (), EngineStore())
        if target.has_ring and (engine or target.construction == REGISTRY)
    ]
    measured = sweep.load(save) if save else []
    with progress("measuring", lines=False) as tell:
        for point in sweep.points(
            found, stacks=stacks, sizes=sizes, heads=heads, dim=dim, seed=seed, backend=backend,
            known={point.key for point in measured}, tell=tell,
        ):  # fmt: skip
            measured.append(point)
            if save:
                sweep.save(save, point)
    for document in tables or ():
        sweep.update(document, measured)
    if not measured:
        raise EngineError(
            "nothing was measured: no ratio divides a page size",
            fix="give other --ratios or --size",
        )
    good = all(point.as_expected for point in measured)
    show(_report(measured), {"ok": good, "points": measured}, as_json=as_json)
    if not good:
        raise typer.Exit(ExitCode.VIOLATION)


def _size(text: str) -> tuple[int, int]:
    numbers = parse_ratios(text)
    if len(numbers) != 2 or not all(numbers):
        raise EngineError(f"{text!r} is no size", fix="give window and page size, e.g. --size 4,2")
    return numbers[0], numbers[1]


def _report(measured: list[Point]) -> Group:
    table = plain_table(
        "target", "L", "ratios", "W", "P", "bound", "exact from", "shorter", "compared", "noise",
        "as proved",
    )  # fmt: skip
    for point in measured:
        table.add_row(
            point.target,
            str(len(point.ratios)),
            ",".join(map(str, sorted(set(point.ratios)))),
            str(point.window),
            str(point.page_size),
            str(point.bound),
            f"none to {point.longest}" if point.exact_from is None else str(point.exact_from),
            ",".join(map(str, point.exact_below)) or "none",
            str(point.states),
            f"{point.noise:g}",
            Text("yes", "green") if point.as_expected else Text("NO", "red"),
        )
    backend = ", ".join(sorted({point.backend for point in measured}))
    return Group(
        Text(f"Smallest tail with exact logits (backend {backend})", "bold"), table, "",
        Text("L layers, window W, pages of P tokens; bound L(W - 1) + 1. shorter: exact tails "
             "below an inexact one. compared: states and rows whose floats and taint were held "
             "against each other."),
    )  # fmt: skip
