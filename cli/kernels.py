"""``kvproof kernels``: what a release's real kernels do, and for which GPUs they compile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, show
from kvproof.kernels.capture import TARGETS, Captured, KernelProcess, Order
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.kernels.width import REFERENCE
from kvproof.proofs.kernels.mutants import MUTANTS
from kvproof.proofs.kernels.report import KernelReport, examine
from kvproof.proofs.solver import DEFAULT_TIMEOUT_S, Prover

commands = typer.Typer(
    name="kernels", no_args_is_help=True, help="Prove and compile the releases' real kernels."
)

EngineOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="NAME", help="An engine; repeatable. Default: all installed."),
]


@commands.command()
def prove(
    *,
    engine: EngineOption = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Edit the kernels in memory; a theorem must notice.")
    ] = False,
    launches: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Compare models with N random launches of each."),
    ] = 3,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time for one question.")
    ] = DEFAULT_TIMEOUT_S,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the solver.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prove what the kernels do for all inputs, and hold the models against real launches.

    Exits with 1 if something is not as expected, unknown, or not understood.
    """
    reports = []
    with progress("proving", lines=False) as tell:
        for each in _engines(engine):
            with KernelProcess(each) as process:
                reports.append(
                    examine(
                        process,
                        prover=Prover(seed=seed, timeout_s=timeout),
                        launches=launches,
                        edits=MUTANTS if mutants else (),
                        tell=tell,
                    )
                )
    good = all(report.good for report in reports)
    show(
        Group(*(_report(report) for report in reports)),
        {"ok": good, "seed": seed, "engines": reports},
        as_json=as_json,
    )
    if not good:
        raise typer.Exit(ExitCode.VIOLATION)


@commands.command("compile")
def compile_(
    *,
    engine: EngineOption = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="GPU", help=f"Of {', '.join(TARGETS)}; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compile the kernels to machine code as the releases launch them; no GPU is needed.

    Exits with 1 if one does not compile.
    """
    targets = tuple(target or TARGETS)
    unknown = set(targets) - set(TARGETS)
    if unknown:
        raise EngineError(
            f"there is no target {', '.join(sorted(unknown))}", fix=f"one of {', '.join(TARGETS)}"
        )
    found: dict[str, tuple[Captured, ...]] = {}
    with progress("compiling", lines=False) as tell:
        for each in _engines(engine):
            tell(each.name)
            with KernelProcess(each) as process:
                found[each.name] = process.ask(Order(work="capture", targets=targets)).captured
    table = plain_table("engine", "kernel", *targets)
    for name, captured in found.items():
        for one in captured:
            cells = [
                Text(compiled.error, style="red") if compiled.error
                else Text(f"{compiled.bytes:,} B" + ("" if compiled.same_ttir else " *"))
                for compiled in one.compiled
            ]  # fmt: skip
            table.add_row(name, Text(one.name), *cells)
    note = Text("* this target's compiler got other code than the one that is proved")
    show(Group(table, note), {"targets": targets, "engines": found}, as_json=as_json)
    if any(one.error for captured in found.values() for each in captured for one in each.compiled):
        raise typer.Exit(ExitCode.VIOLATION)


def _engines(names: Sequence[str] | None) -> Sequence[Engine]:
    store = EngineStore()
    engines = [store.find(name) for name in names] if names else store.list()
    if not engines:
        raise EngineError("no engine is installed", fix="run: kvproof engine add sglang==0.5.15")
    return engines


def _report(report: KernelReport) -> RenderableType:
    parts: list[RenderableType] = [Text(f"{report.release}", style="bold")]
    table = plain_table("", "theorem", "status", "s")
    for result in report.theorems:
        style = "green" if result.verdict == "as expected" else "red"
        table.add_row(
            result.identifier, result.title, Text(result.status, style=style),
            f"{result.seconds:.1f}",
        )  # fmt: skip
    parts += [table, Text("")]
    for note in report.kernels:
        if note.abstained:
            parts.append(Text(f"not understood: {note.name}: {note.abstained}", style="red"))
    for one in report.comparisons:
        verdict = one.difference or f"{one.cells:,} cells of {one.launches} launches as predicted"
        parts.append(Text(f"{one.kernel}: {verdict}", style="red" if one.difference else ""))
    sizes = ", ".join(f"{limit:,} {name}" for name, limit in REFERENCE.items())
    widths = plain_table("kernel", "breaks first at", "line", "where it wraps")
    for width in report.widths:
        if width.smallest is not None:
            widths.add_row(
                Text(width.kernel), f"{width.smallest:,} {width.size}", str(width.line),
                width.wraps or "a step that later steps undo",
            )  # fmt: skip
    parts += [Text(""), Text(f"widths; the other sizes being at most {sizes}"), widths]
    if report.mutants:
        mutants = plain_table("mutant", "noticed by", "s", "random launches")
        for mutant in report.mutants:
            edit = f"{mutant.edit.kernel}: {mutant.edit.text} -> {mutant.edit.by}"
            fuzzed = f"none of {mutant.tried}" if mutant.launches is None else mutant.launches
            mutants.add_row(
                edit, Text(mutant.killed_by or "nothing: " + mutant.why,
                           style="" if mutant.killed_by else "red"),
                f"{mutant.seconds:.1f}", str(fuzzed),
            )  # fmt: skip
        parts += [Text(""), mutants]
    parts.append(Text(f"{report.seconds:.0f} s\n"))
    return Group(*parts)
