"""``kvproof fuzz``: fuzz engines, print the matrix, tell the story of what breaks."""

from __future__ import annotations

import os
import secrets
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, errors, renewing, show
from kvproof.cli.verdicts import VerdictMatrix, paint
from kvproof.fuzz.campaign import (
    Break,
    Campaign,
    Fault,
    Finding,
    Listener,
    Survey,
    TargetResult,
)
from kvproof.fuzz.expected import Comparison, Expected, compare, load_expected
from kvproof.fuzz.manifest import manifest_of, processor
from kvproof.fuzz.matrix import BEGIN, END, markdown
from kvproof.fuzz.profiles import PROFILES, Profile
from kvproof.fuzz.run_folder import DEFAULT_ROOT, RunFolder
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.files import renew
from kvproof.model.redact import Redactor
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import Family
from kvproof.triage.slices import slices

Switch: TypeAlias = Literal["on", "off"]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run.

    Attributes:
        comparisons: each cell of the matrix against the table of expected results.
        vacuous: targets that missed a witness: their run shows nothing, whatever the cells say.
    """

    seed: int
    profile: str
    folder: str
    targets: tuple[TargetResult, ...]
    comparisons: tuple[Comparison, ...]
    vacuous: tuple[str, ...]
    as_expected: bool


class _Watcher(Listener):
    """Shows progress and keeps what is found on disk."""

    def __init__(self, progress: Progress, folder: RunFolder) -> None:
        self.progress = progress
        self.folder = folder
        self.scenarios: dict[tuple[str, str], Path] = {}
        self.findings: dict[tuple[str, str], Finding] = {}
        self._task: TaskID | None = None

    def began(self, target: Target, sequences: int) -> None:
        self._task = self.progress.add_task(target.name, total=sequences, note="")

    def played(self, target: Target, survey: Survey) -> None:
        if self._task is not None:
            rate = survey.operations / survey.seconds if survey.seconds else 0.0
            broken = {invariant for invariant, _ in survey.first}
            note = f"{rate:.0f} operations/s"
            if broken:
                note += f", broken: {', '.join(sorted(broken))}"
            self.progress.update(self._task, completed=survey.sequences, note=note)

    def broke(self, target: Target, broken: Break, scenario: Scenario) -> None:
        self.folder.seen(target, broken, scenario)

    def shrinking(self, target: Target, broken: Break, operations: int) -> None:
        if self._task is not None:
            note = f"shrinking {broken[0]}: {operations} operations"
            self.progress.update(self._task, note=note)

    def ended(self, result: TargetResult) -> None:
        """Say in the progress line how the target's campaign ended."""
        if self._task is not None:
            broken = [v.invariant for v in result.verdicts if v.status == "violated"]
            note = f"broken: {', '.join(broken)}" if broken else "nothing broke"
            self.progress.update(self._task, note=note)

    def found(self, target: Target, finding: Finding, log: list[Fact]) -> None:
        path = self.folder.found(target, finding, log)
        self.scenarios[target.name, finding.name] = path
        self.findings[target.name, finding.name] = self.folder.redacted(finding, log)

    def kept(self, result: TargetResult) -> TargetResult:
        """The result with its findings as they are on disk."""
        findings = tuple(self.findings[result.target, f.name] for f in result.findings)
        kept = {finding.name: finding.violation for finding in findings}
        verdicts = tuple(
            msgspec.structs.replace(verdict, violation=kept[verdict.violation.name])
            if verdict.violation is not None
            else verdict
            for verdict in result.verdicts
        )
        faults = result.faults
        if self.folder.redactor is not None:
            faults = tuple(map(self.folder.redactor.struct, faults))
        return msgspec.structs.replace(result, findings=findings, verdicts=verdicts, faults=faults)

    def faulted(self, target: Target, fault: Fault, log: list[Fact]) -> None:
        self.folder.faulted(target, fault, log)


def fuzz(
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine or target, e.g. 0.5.16 or 0.5.16:registry. Default: all."),
    ] = None,
    family: Annotated[
        Family,
        typer.Option(help="`cache`: requests in a cache. `translation`: forwards over two pools."),
    ] = "cache",
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = "default",
    history: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Operations of each scenario, on one engine that is not restarted. Default: the "
            "profile's; short scenarios but for `history`.",
        ),
    ] = None,
    seed: Annotated[str, typer.Option(help="A number, or `random`.")] = "0",
    time: Annotated[
        float | None, typer.Option(help="Draw scenarios for so many seconds a target at most.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="Expect what this target does, e.g. sglang-0.5.23:registry."),
    ] = None,
    rocm_gate: Annotated[
        Switch, typer.Option(help="`off` is the negative control: such a run must fail.")
    ] = "on",
    allocator: Annotated[
        Literal["twins", "kernels"],
        typer.Option(
            help="Allocate pages by the kernels' rule in Python, or by the release's kernels."
        ),
    ] = "twins",
    redact: Annotated[
        bool, typer.Option("--redact", help="Hide the names of requests and texts in all files.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = DEFAULT_ROOT,
    stories: Annotated[
        bool, typer.Option("--stories", help="Tell the story of every violation.")
    ] = False,
    tables: Annotated[
        list[Path] | None,
        typer.Option("--table", metavar="FILE", help="Renew a document's matrix of this run."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fuzz engines against the specification.

    Exit code 0 if all is as expected, 1 if not (a violation that is not a known one, a known one
    that is gone, a run that reached too little to mean anything), 2 for a set-up error.
    """
    if profile not in PROFILES:
        raise EngineError(f"no profile {profile!r}", fix=f"choose one of {', '.join(PROFILES)}")
    if seed != "random" and not seed.isdecimal():
        raise EngineError(f"{seed!r} is no seed", fix="give a number, or `random`")
    bounds = PROFILES[profile]
    if history is not None:
        bounds = replace(bounds, history=history)
    number = secrets.randbelow(2**32) if seed == "random" else int(seed)
    targets = find_targets(engine or (), EngineStore(), family=family)
    table = load_expected()
    if baseline is not None and baseline not in {entry.target for entry in table}:
        raise EngineError(
            f"the table of expected results has no target {baseline!r}",
            fix=f"choose one of {', '.join(sorted({entry.target for entry in table}))}",
        )
    folder = RunFolder.create(out, redactor=Redactor(secrets.token_bytes()) if redact else None)
    manifest = manifest_of(
        targets,
        profile=bounds,
        seed=number,
        time_limit=time,
        redacted=redact,
        store=EngineStore(),
    )
    folder.begun(manifest)
    results: list[TargetResult] = []
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}"),
        console=errors(),
    ) as progress:
        watcher = _Watcher(progress, folder)
        for target in targets:
            with target.process(
                rocm_gate=rocm_gate == "on", allocator_twins=allocator == "twins"
            ) as process:
                result = Campaign(
                    target=target,
                    process=process,
                    profile=bounds,
                    seed=number,
                    time_limit=time,
                    listener=watcher,
                    parts=slices,
                ).run()
            results.append(watcher.kept(result))
            watcher.ended(results[-1])
            folder.index(manifest, tuple(results))
            folder.result(_report(results, table, baseline, number, profile, folder))
    report = _report(results, table, baseline, number, profile, folder)
    for document in tables or ():
        _renew(document, report, bounds)
    asked = {target.name: shlex.quote(target.asked) for target in targets}
    show(_print(report, watcher.scenarios, asked, stories=stories), report, as_json=as_json)
    if not report.as_expected:
        raise typer.Exit(ExitCode.VIOLATION)


def _renew(document: Path, report: Report, profile: Profile) -> None:
    note = (
        f"Made with profile {report.profile} ({profile.sequences} sequences a target"
        + (f", histories of {profile.history} operations" if profile.history else "")
        + f"), seed {report.seed}, on {os.cpu_count()} cores, {processor()}."
    )
    with renewing():
        renew(document, begin=BEGIN, end=END, table=markdown(report.targets, note=note))


def _report(
    results: list[TargetResult],
    table: tuple[Expected, ...],
    baseline: str | None,
    seed: int,
    profile: str,
    folder: RunFolder,
) -> Report:
    comparisons = tuple(
        cell for result in results for cell in compare(result, table, baseline=baseline)
    )
    # Where an engine fails nothing counts as held, so there is nothing that could be vacuous.
    vacuous = tuple(result.target for result in results if result.missing and not result.faults)
    return Report(
        seed=seed,
        profile=profile,
        folder=str(folder.path),
        targets=tuple(results),
        comparisons=comparisons,
        vacuous=vacuous,
        as_expected=not vacuous and all(c.agreement == "as expected" for c in comparisons),
    )


def _print(
    report: Report,
    scenarios: dict[tuple[str, str], Path],
    asked: dict[str, str],
    *,
    stories: bool,
) -> RenderableType:
    parts: list[RenderableType] = [
        VerdictMatrix(results=report.targets, comparisons=report.comparisons), "",
    ]  # fmt: skip
    told = False
    for result in report.targets:
        kernel = f"{result.kernel_sequences} of them on the real kernels"
        parts.append(
            f"{result.target}: {result.sequences} sequences ({kernel}), {result.operations} "
            f"operations, {result.operations / max(result.seconds, 1e-9):.0f} operations/s, "
            f"seed {result.seed}"
        )
        for finding in result.findings:
            path = scenarios[result.target, finding.name]
            if not finding.confirmed:
                parts.append(
                    Text(f"  {finding.name} was seen but is not repeated by the real kernels")
                )
                continue
            parts.append(
                f"  {finding.name}: {len(finding.scenario.operations)} operations, found in "
                f"{finding.find_seconds:.1f} s, shrunk in {finding.shrink_seconds:.1f} s, "
                "confirmed on the real kernels"
            )
            if stories or not told:
                told = True
                story = path.with_name(path.name.replace(".scenario.json", ".txt")).read_text()
                parts += ["", paint(story)]
            parts.append(Text(f"    replay: kvproof replay {path} --engine {asked[result.target]}"))
        for fault in result.faults:
            parts.append(
                Text(
                    f"  engine error ({fault.error.cause}, {fault.occurrences} times): "
                    f"{fault.error.message}",
                    style="magenta",
                )
            )
        if result.missing:
            parts.append(
                Text(f"  vacuous: never reached: {', '.join(result.missing)}", style="bold yellow")
            )
    parts.append("")
    changed = [c for c in report.comparisons if c.agreement != "as expected"]
    parts += [
        Text(f"{c.target} {c.invariant}: {c.agreement}: {c.note}", style="red") for c in changed
    ]
    parts.append(f"Files: {escape(report.folder)}")
    parts.append(
        Text("All as expected.", style="green")
        if report.as_expected
        else Text("Not as expected.", style="bold red")
    )
    return Group(*parts)
