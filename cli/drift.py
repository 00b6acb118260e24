"""``kvproof drift`` says what changed between two releases, and what to look at."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, progress, show
from kvproof.kernels.engines.store import EngineStore
from kvproof.triage.drift import Change, Drift
from kvproof.triage.drift import drift as compare

SHORT = 90
"""Characters of a side that is shown; a longer one is in the JSON."""


def drift(
    before: Annotated[str, typer.Argument(help="The earlier engine, e.g. sglang==0.5.16.")],
    after: Annotated[str, typer.Argument(help="The later engine, e.g. sglang==0.5.23.")],
    *,
    sources_only: Annotated[
        bool,
        typer.Option("--sources-only", help="Start no engine: sources and recorded verdicts."),
    ] = False,
    fuzz: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Play N sequences on each construction of both. Default: recorded verdicts.",
        ),
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is played.")] = 0,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if there are changes, as git diff.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two installed engines: kernels, signatures, constructions, docstrings, verdicts.

    Exit code 0 whatever changed, unless --exit-code asks for 1; 2 for a set-up error.
    """
    store = EngineStore()
    with progress("comparing") as tell:
        found = compare(
            store.find(before),
            store.find(after),
            sources_only=sources_only,
            sequences=fuzz,
            seed=seed,
            tell=tell,
        )
    show(_told(found), found, as_json=as_json)
    if exit_code and found.changes:
        raise typer.Exit(ExitCode.VIOLATION)


def _told(found: Drift) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"{found.before} against {found.after}", "bold"),
        Text(f"Verdicts come from {found.verdicts}."),
    ]
    for kind, same in found.same.items():
        changes = [change for change in found.changes if change.kind == kind]
        counts = Counter(change.what for change in changes)
        said = ", ".join([f"{same} the same", *(f"{n} {what}" for what, n in counts.items())])
        parts += ["", Text(f"{kind}s: {said}", "bold")]
        # Where something went is in the JSON; that it went is seldom news.
        moved = [change.name for change in changes if change.what == "moved"]
        parts += [line for each in changes if each.what != "moved" for line in _lines(each)]
        parts += [Text(f"  moved    {', '.join(moved)}")] * bool(moved)
    if found.doubts:
        parts += ["", Text(f"Docstrings of {found.after} that its kernel does not do", "bold")]
        parts += [
            Text(f"  {each.place}: `{each.text}` is no {each.subject}: {each.says}")
            for each in found.doubts
        ]
    if found.left_out:
        parts += ["", Text("Not compared", "bold"), *(Text(f"  {one}") for one in found.left_out)]
    return Group(*parts)


def _lines(change: Change) -> list[Text]:
    lines = [Text(f"  {change.what:<8} {change.name}", "bold" if change.look else "")]
    sides = [change.before or "nothing", change.after or "nothing"]
    if change.what == "changed" and max(map(len, sides)) <= SHORT:
        lines.append(Text(f"           {' -> '.join(sides)}"))
    elif change.what != "changed" and len(change.before + change.after) <= SHORT:
        lines.append(Text(f"           {change.before}{change.after}"))
    lines += [Text(f"           look: {change.look}")] * bool(change.look)
    return [line for line in lines if line.plain.strip()]
