"""``kvproof kernels``: what a release's real kernels do, and for which GPUs they compile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, show
from kvproof.kernels.backends import KernelBackend, require
from kvproof.kernels.capture import TARGETS, Captured, KernelProcess, Order
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.kernels.inventory import inventory
from kvproof.kernels.width import ORDINARY, REFERENCE
from kvproof.model.text import encode_text
from kvproof.proofs.kernels.mutants import MUTANTS
from kvproof.proofs.kernels.report import KernelReport, examine
from kvproof.proofs.solver import DEFAULT_TIMEOUT_S, Prover

# Torch comes with these. It takes two seconds, for which no other command waits.
if TYPE_CHECKING:
    from kvproof.kernels.batch import Batched
    from kvproof.kernels.compare import Compared

commands = typer.Typer(
    name="kernels",
    no_args_is_help=True,
    help="Prove, compare and compile the releases' real kernels.",
)

EngineOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="NAME", help="An engine; repeatable. Default: all installed."),
]

BackendOption: TypeAlias = Annotated[
    KernelBackend, typer.Option(help="Where the kernels run: Triton's interpreter, or a GPU.")
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
    backend: Annotated[KernelBackend, typer.Option(help="Where these launches run.")] = (
        "interpreter"
    ),
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time for one question.")
    ] = DEFAULT_TIMEOUT_S,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the solver.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Prove what the kernels do for all inputs, and hold the models against real launches.

    Exits with 1 if something is not as expected, unknown, or not understood.
    """
    require(backend)
    reports = []
    with progress("proving", lines=False) as tell:
        for each in _engines(engine):
            with KernelProcess(each) as process:
                reports.append(
                    examine(
                        process,
                        prover=Prover(seed=seed, timeout_s=timeout),
                        launches=launches,
                        backend=backend,
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


@commands.command("list")
def list_(*, engine: EngineOption = None, as_json: JsonOption = False) -> None:
    """List the Triton functions in the catalogued modules, and what is not as recorded.

    Nothing is imported or proved. Exits with 1 if a release has a kernel that its family had not,
    lacks one, or changed one.
    """
    found = {each.name: inventory(each.root, family_of(each.root)) for each in _engines(engine)}
    table = plain_table("engine", "kernel", "module", "step", "change")
    for name, functions in found.items():
        for one in functions:
            module, _, kernel = one.place.partition(":")
            table.add_row(
                name, Text(kernel), Text(module),
                Text(", ".join(one.steps) or "not covered", style="" if one.steps else "dim"),
                Text(one.change, style="red"),
            )  # fmt: skip
    show(table, {"engines": found}, as_json=as_json)
    if any(one.change for functions in found.values() for one in functions):
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


@commands.command("compare")
def compare_(
    *,
    engine: EngineOption = None,
    backend: BackendOption = "interpreter",
    launches: Annotated[
        int, typer.Option(min=1, metavar="N", help="Random launches of each kernel.")
    ] = 20,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="TEXT", help="Kernels with TEXT in their name; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the launches.")] = 0,
    time: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Stop a kernel's launches after that."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Append each result as a line of JSON at once."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Launch the real kernels at random and compare with the specification, or with float64.

    Exits with 1 if a kernel differs or fails, with 2 if nothing could be compared.
    """
    from kvproof.kernels.compare import compare  # noqa: PLC0415

    found: list[Compared] = []
    with progress("comparing", lines=False) as tell:
        for each in _engines(engine):
            results = compare(
                each, backend=backend, launches=launches, seed=seed, time_limit=time, tell=tell,
                wanted=lambda one: not only or any(text in one.name for text in only),
            )  # fmt: skip
            for result in results:
                found.append(result)
                if out is not None:
                    with out.open("ab") as lines:
                        lines.write(msgspec.json.encode(result) + b"\n")
    if not found:
        raise EngineError(f"no kernel has {' or '.join(only or ())} in its name", fix="drop --only")
    table = plain_table("engine", "kernel", "backend", "launches", "cells", "worst", "s", "verdict")
    for one in found:
        verdict = Text(
            one.verdict
            + (f": {one.reason}" if one.reason else "")
            + (f" (known: {one.known})" if one.known else ""),
            _STYLES[one.verdict],
        )
        table.add_row(
            one.release, Text(one.name), one.backend, f"{one.launches:,}", f"{one.cells:,}",
            "-" if one.worst is None else f"{one.worst:.2f}", f"{one.seconds:.1f}", verdict,
        )  # fmt: skip
    note = Text("worst: largest error in units of its tolerance; 0 where all bits must be the same")
    bad = any(one.is_news for one in found)
    compared = any(one.verdict == "holds" for one in found)
    show(Group(table, note), {"ok": compared and not bad, "results": found}, as_json=as_json)
    if bad:
        raise typer.Exit(ExitCode.VIOLATION)
    if not compared:
        raise typer.Exit(ExitCode.SETUP)


@commands.command("batch")
def batch_(
    *,
    engine: EngineOption = None,
    backend: BackendOption = "interpreter",
    slots: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Scenarios in a launch. Default: 1048576, interpreter: 4."
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=1, metavar="W", help="Positions a query sees.")] = 4,
    page: Annotated[int, typer.Option(min=1, metavar="P", help="Page size of matches.")] = 2,
    draft: Annotated[
        int, typer.Option(min=1, metavar="D", help="Tokens that a verify writes; 1: decode.")
    ] = 1,
    tail: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Tokens that the cap holds back. Default: W."),
    ] = None,
    short: Annotated[
        int, typer.Option(min=0, metavar="N", help="Rows that a slot's ring lacks: a control.")
    ] = 0,
    time: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Play for that long.")
    ] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Everything is drawn from it.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write a stale decode's scenario there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play many independent scenarios in one launch: the real kernels at their own speed.

    Scatter and index kernels are the release's; every row that a query reads is checked. What the
    scheduler would decide is drawn, with the cap as --tail says. Exits with 1 if a property breaks
    that should hold, or holds that should break.
    """
    from kvproof.kernels.batch import Play, play_batch  # noqa: PLC0415
    from kvproof.triage.batch import scenario_of, shown_by_model  # noqa: PLC0415

    require(backend)
    if draft > window:
        raise EngineError(
            f"a draft of {draft} tokens is longer than the window of {window} (theorem R7)",
            fix="a smaller --draft",
        )
    default = 4 if backend == "interpreter" else 2**20
    order = Play(
        backend=backend, slots=slots or default, window=window, page_size=page, draft_tokens=draft,
        reprefill_tail=window if tail is None else tail, short=short, seconds=time, seed=seed,
    )  # fmt: skip
    found: list[Batched] = []
    with progress("playing", lines=False) as tell:
        for each in _engines(engine):
            found.append(
                play_batch(
                    each, order,
                    tell=lambda one: tell(f"{one.release}: {one.decodes:,} decodes checked"),
                )
            )  # fmt: skip
    good = all(one.as_expected for one in found)
    parts: list[RenderableType] = []
    for one in found:
        parts.append(_batched(one))
        stale = next((it.example for it in one.judged if it.name == "FRESH-DECODE"), None)
        if stale is not None:
            scenario = scenario_of(one, stale)
            same = shown_by_model(one, scenario, "FRESH-DECODE")
            said = "breaks it too" if same else "does not show it: an older request wrote the row"
            parts.append(Text(f"a stale decode alone, which on the model {said}:"))
            parts.append(Text(encode_text(scenario).decode()))
            if out is not None:
                out.write_bytes(encode_text(scenario))
    rates = {one.release: one.decodes_per_second for one in found}
    data = {"ok": good, "decodes_per_second": rates, "results": found}
    show(Group(*parts), data, as_json=as_json)
    if not good:
        raise typer.Exit(ExitCode.VIOLATION)


def _batched(one: Batched) -> RenderableType:
    rate = one.decodes_per_second
    title = Text(
        f"{one.release} on {one.backend}: {one.order.slots:,} slots of {one.stride} rows, "
        f"{one.decodes:,} decodes and {one.prefills:,} prefill queries checked in "
        f"{one.seconds:.1f} s" + (f", {rate:,.0f} decodes/s after the first round" if rate else ""),
        style="bold",
    )
    table = plain_table("property", "rows checked", "wrong", "of these past the match", "verdict")
    for it in one.judged:
        said = "violated" if it.broken else "holds" if it.checked else "nothing was checked"
        news = "" if it.as_expected else ", not as expected"
        table.add_row(
            it.name, f"{it.checked:,}", f"{it.broken:,}", f"{it.past_match:,}",
            Text(f"{said}{news} ({it.why})", style="green" if it.as_expected else "red"),
        )  # fmt: skip
    seen = Text(
        f"witnesses: {one.hits:,} hits, {one.wrapped:,} wrapped windows, {one.rejected:,} rejected "
        "draft tokens" + "".join(f"; {name} was not reached" for name in one.missing),
        style="red" if one.missing else "",
    )
    return Group(title, table, seen)


_STYLES = {"holds": "green", "violated": "red", "failed": "red", "skipped": "yellow"}


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
        verdict = (
            one.difference
            or f"{one.cells:,} cells of {one.launches} launches on {report.backend} as predicted"
        )
        parts.append(Text(f"{one.kernel}: {verdict}", style="red" if one.difference else ""))
    for function in report.changes:
        parts.append(
            Text(f"{function.change}: {function.place}; see `kvproof kernels list`", style="yellow")
        )
    parts += _widths(report)
    if report.mutants:
        mutants = plain_table("mutant", "noticed by", "s", "random launches", "s")
        for mutant in report.mutants:
            edit = f"{mutant.edit.kernel}: {mutant.edit.text} -> {mutant.edit.by}"
            fuzzed = f"none of {mutant.tried}" if mutant.launches is None else mutant.launches
            taken = "" if mutant.launch_seconds is None else f"{mutant.launch_seconds:.2f}"
            mutants.add_row(
                Text(edit), Text(mutant.killed_by or "nothing: " + mutant.why,
                                 style="" if mutant.killed_by else "red"),
                f"{mutant.seconds:.1f}", str(fuzzed), taken,
            )  # fmt: skip
        killed = sum(bool(one.killed_by) for one in report.mutants)
        fuzzed_too = sum(one.launches is not None for one in report.mutants)
        parts.append(
            Text(f"\n{len(report.mutants)} mutants: {killed} noticed by proofs, {fuzzed_too} by "
                 "random launches")
        )  # fmt: skip
        parts += [Text(""), mutants]
    parts.append(Text(f"{report.seconds:.0f} s\n"))
    return Group(*parts)


def _widths(report: KernelReport) -> list[RenderableType]:
    """For each kernel the largest safe size of each kind, and what lies beyond."""
    safe = plain_table("kernel", "largest safe sizes; others are not limited")
    whole = [one for one in report.widths if not one.access]
    for kernel in dict.fromkeys(one.kernel for one in whole):
        limited = [
            f"{one.smallest - 1:,} {one.size}"
            for one in whole
            if one.kernel == kernel and one.smallest is not None
        ]
        safe.add_row(Text(kernel), Text("; ".join(limited) or "not limited"))
    first = plain_table("kernel", "access", "breaks first at", "where it wraps", "configuration")
    for one in report.widths:
        if one.smallest is not None and one.smallest <= REFERENCE[one.size] and one.access:
            first.add_row(
                Text(one.kernel), Text(one.access), f"{one.smallest:,} {one.size}",
                one.wraps or "a step that later steps undo", one.configuration,
            )  # fmt: skip
    ordinary = ", ".join(f"{limit:,} {name}" for name, limit in ORDINARY.items())
    reference = ", ".join(f"{limit:,} {name}" for name, limit in REFERENCE.items())
    return [
        Text(""), Text(f"widths, while the other sizes are at most {ordinary}"), safe,
        Text(""), Text(f"what breaks within {reference}"), first,
    ]  # fmt: skip
