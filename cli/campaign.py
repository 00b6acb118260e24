"""``kvproof campaign``: fuzz all targets for a time, on many cores or machines."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, errors, plain_table, show
from kvproof.cli.verdicts import VerdictMatrix
from kvproof.fuzz.campaign import TargetResult
from kvproof.fuzz.expected import Comparison, compare, load_expected
from kvproof.fuzz.fleet.coordinator import Coordinator, View
from kvproof.fuzz.fleet.lanes import Lanes, ProcessLane
from kvproof.fuzz.fleet.ledger import FILE, Begun, Entry, Ledger, read_ledger
from kvproof.fuzz.fleet.ray_lane import ray_lanes
from kvproof.fuzz.fleet.subjects import CANARIES, find_subjects
from kvproof.fuzz.fleet.tally import Tallies, Tally
from kvproof.fuzz.fleet.units import Lost, Plan, Searched, Shrink, Shrunk, Unit
from kvproof.fuzz.manifest import manifest_of
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.run_folder import RunFolder
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.verdict import Cause, Invariant

ROOT = Path(".kvproof/campaigns")
EXAMPLES = "examples"
LINE_EVERY_S = 30.0
"""Seconds between two lines of progress where there is no terminal."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, by invariant and cause.

    Attributes:
        operations: of its smallest scenario.
        seed: of the search that came upon it soonest, after ``found_after`` sequences; None if that
            search went on from shared examples.
        occurrences: sequences that broke so.
        confirmed: the real kernels repeat it; None until it was made small.
    """

    target: str
    invariant: Invariant
    cause: Cause
    operations: int
    seed: int | None
    found_after: int
    occurrences: int
    confirmed: bool | None


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """A target whose verdict is known; ``problem`` is empty if it behaved."""

    target: str
    must_break: Invariant | None
    sequences: int
    problem: str


class CampaignReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a campaign.

    Attributes:
        sessions: how often it was begun or resumed.
        seconds: that it took, all sessions together.
        behaviours: different ones by target; see `fuzz.fleet.units.behaviour_of`.
        lost: units that came to nothing, their workers having died, hung or raised.
        given_up: targets whose units were lost again and again.
    """

    folder: str
    seed: int
    lanes: str
    sessions: int
    seconds: float
    sequences: int
    operations: int
    sequences_per_s: float
    targets: tuple[TargetResult, ...]
    behaviours: dict[str, int]
    failures: tuple[Kept, ...]
    lost: tuple[Lost, ...]
    given_up: tuple[str, ...]
    canaries: tuple[Canary, ...]
    comparisons: tuple[Comparison, ...]
    vacuous: tuple[str, ...]
    as_expected: bool


def campaign(
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Engine or target, e.g. 0.5.16 or 0.5.16:registry. Default: all."),
    ] = None,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long to search: 90s, 10m, 8h.")
    ] = "10m",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Lanes at a time. Default: one a core.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run in a Ray cluster; `local` makes one here."),
    ] = None,
    redis: Annotated[
        str, typer.Option(metavar="URL", help="Share examples through a Redis server too.")
    ] = "",
    memory: Annotated[
        float, typer.Option(metavar="GIB", help="Memory that each process may have. 0: no limit.")
    ] = 0.0,
    unit: Annotated[
        float, typer.Option(help="Seconds that one search may take, of 200 sequences at most.")
    ] = 30.0,
    seed: Annotated[str, typer.Option(help="A number, or `random`.")] = "0",
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Go on with a campaign; --for is its whole time."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the folders of campaigns go.")] = ROOT,
    as_json: JsonOption = False,
) -> None:
    """Fuzz all targets for a time, on one core, many, or a cluster.

    What happened is in the campaign's ledger before it is shown, so a campaign can be killed at any
    moment and resumed. Exit code 0 if all is as expected, 1 if not, or if a canary did not behave,
    2 for a set-up error.
    """
    seconds = parse_duration(duration)
    if seed != "random" and not seed.isdecimal():
        raise EngineError(f"{seed!r} is no seed", fix="give a number, or `random`")
    number = secrets.randbelow(2**32) if seed == "random" else int(seed)
    past: list[Entry] = []
    if resume is not None:
        past, begun = _past(resume)
        number, names, asked = begun.seed, begun.names, begun.plan.asked
        store = EngineStore()
        subjects = [found for n in names for found in find_subjects([asked.get(n, n)], store)]
        folder = RunFolder(resume)
    else:
        subjects = [*CANARIES, *find_subjects(engine or (), EngineStore())]
        folder = RunFolder.create(out)
    tallies = Tallies(list(dict.fromkeys(subjects)))
    tallies.extend(past)
    plan = Plan(
        asked={s.name: s.asked for s in tallies.subjects if s.asked != s.name},
        examples=str((folder.path / EXAMPLES).resolve()),
        redis=redis,
        memory_gib=memory,
        seconds=unit,
    )
    with _lanes(ray, workers) as (lanes, count, words), Ledger(folder.path) as ledger:
        begun = Begun(
            names=tuple(tallies.by_name),
            seed=number,
            seconds=seconds,
            lanes=words,
            plan=plan,
            manifest=manifest_of(
                [s.target for s in tallies.subjects if s.policy is None],
                profile=Profile(sequences=plan.sequences, kernel_share=plan.kernel_share),
                seed=number,
                time_limit=seconds,
                redacted=False,
                store=EngineStore(),
            ),
            elapsed=tallies.elapsed,
        )
        ledger.append(begun)
        tallies.add(begun)
        with _watching(seconds) as view:
            Coordinator(
                tallies=tallies,
                ledger=ledger,
                folder=folder,
                plan=plan,
                seed=number,
                seconds=seconds,
                lanes=lanes,
                workers=count,
                view=view,
            ).run()
    report = report_of(tallies, folder=folder, seed=number, lanes=words)
    show(_print(report), report, as_json=as_json)
    if not report.as_expected:
        raise typer.Exit(ExitCode.VIOLATION)


def parse_duration(text: str) -> float:
    """Seconds of ``90s``, ``10m``, ``8h`` or ``1d``; raises EngineError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None:
        raise EngineError(f"{text!r} is no time", fix="give seconds, or e.g. 90s, 10m, 8h")
    return float(match[1]) * _UNITS[match[2] or "s"]


def _past(folder: Path) -> tuple[list[Entry], Begun]:
    """What the ledger of a folder holds, and how it began."""
    path = folder / FILE
    entries = list(read_ledger(path)) if path.exists() else []
    if not entries or not isinstance(entries[0], Begun):
        raise EngineError(
            f"there is no campaign in {folder}", fix="name a folder that `kvproof campaign` made"
        )
    return entries, entries[0]


@contextmanager
def _lanes(ray: str | None, workers: int | None) -> Iterator[tuple[Lanes, int, str]]:
    """What makes lanes, how many, and both in words."""
    if ray is None:
        count = workers or os.cpu_count() or 1
        yield ProcessLane, count, f"{count} on this machine"
        return
    with ray_lanes(ray) as (lanes, cpus, nodes):
        count = workers or cpus
        if count > cpus:
            raise EngineError(
                f"the cluster has {cpus} CPUs, and {count} lanes were asked for",
                fix="give fewer --workers, or add nodes",
            )
        yield lanes, count, f"{count} in a Ray cluster of {nodes} nodes"


# While it runs


class _Watcher(View):
    """Shows a table that lives on a terminal, and a line for what is found, wherever that goes."""

    def __init__(self, live: Live | None, seconds: float) -> None:
        self.live = live
        self.console = errors() if live is None else live.console
        self.seconds = seconds
        self.shown = 0.0
        self.told: set[tuple[str, str]] = set()

    def kept(self, tallies: Tallies, entry: Entry) -> None:
        for line in self._lines(tallies, entry):
            self.console.print(line, soft_wrap=True)

    def passed(self, tallies: Tallies, running: Sequence[Unit], elapsed: float) -> None:
        if self.live is not None:
            self.live.update(_progress(tallies, running, elapsed, self.seconds))
        elif elapsed - self.shown >= LINE_EVERY_S:
            self.shown = elapsed
            self.console.print(_head(tallies, elapsed, self.seconds), soft_wrap=True)

    def _lines(self, tallies: Tallies, entry: Entry) -> Iterator[Text]:
        match entry:
            case Searched():
                for failure in entry.failures:
                    name = failure.violation.name
                    if tallies.by_name[entry.target].subject.is_canary:
                        continue
                    if (entry.target, name) not in self.told:
                        self.told.add((entry.target, name))
                        size = len(failure.scenario.operations)
                        words = f"{entry.target}: {name} broke, in {size} operations"
                        of = "" if entry.seed is None else f", seed {entry.seed}"
                        yield Text(words + of, "red")
                for fault in entry.faults:
                    error = fault.error
                    yield Text(
                        f"{entry.target}: the engine {error.cause}: {error.message}", "magenta"
                    )
            case Shrunk(finding=finding):
                size = len(finding.scenario.operations)
                how = "confirmed" if finding.confirmed else "not repeated by the real kernels"
                yield Text(f"{entry.target}: {finding.name} in {size} operations, {how}")
            case Lost():
                what = "a search" if entry.broken is None else "a shrinking"
                yield Text(
                    f"{entry.target}: {what} was lost: {entry.cause}: {entry.message}", "magenta"
                )


@contextmanager
def _watching(seconds: float) -> Iterator[View]:
    out = errors()
    if not out.is_terminal:
        yield _Watcher(None, seconds)
        return
    with Live(console=out, refresh_per_second=4) as live:
        yield _Watcher(live, seconds)


def _head(tallies: Tallies, elapsed: float, seconds: float) -> str:
    total = sum(tally.survey.sequences for tally in tallies.by_name.values())
    rate = total / elapsed if elapsed else 0.0
    return f"{elapsed:.0f} s of {seconds:.0f}: {total} sequences, {rate:.1f} a second"


def _progress(
    tallies: Tallies, running: Sequence[Unit], elapsed: float, seconds: float
) -> RenderableType:
    table = plain_table(
        "target", "sequences", "a second", "marks", "behaviours", "broken", "lost", "now"
    )
    at_work = {
        unit.target: "shrinks" if isinstance(unit, Shrink) else "searches" for unit in running
    }
    for name, tally in tallies.by_name.items():
        survey = tally.survey
        required = survey.required
        reached = sum(bool(survey.witnesses[mark]) for mark in required)
        table.add_row(
            name + (" (canary)" if tally.subject.is_canary else ""),
            str(survey.sequences),
            f"{survey.sequences / survey.seconds:.1f}" if survey.seconds else "",
            f"{reached} of {len(required)}",
            str(len(tally.behaviours)),
            str(len(survey.first)),
            str(len(tally.lost) + sum(f.occurrences for f in survey.faults.values())),
            at_work.get(name, ""),
        )
    return Group(Text(_head(tallies, elapsed, seconds), "bold"), table)


# At the end


def report_of(tallies: Tallies, *, folder: RunFolder, seed: int, lanes: str) -> CampaignReport:
    """What a campaign came to."""
    table = load_expected()
    real = [tally for tally in tallies.by_name.values() if not tally.subject.is_canary]
    canaries = tuple(
        Canary(
            target=tally.subject.name,
            must_break=tally.subject.must_break,
            sequences=tally.survey.sequences,
            problem=tally.canary_problem,
        )
        for tally in tallies.by_name.values()
        if tally.subject.is_canary
    )
    results = tuple(tally.result(seed) for tally in real)
    comparisons = tuple(cell for result in results for cell in compare(result, table))
    vacuous = tuple(result.target for result in results if result.missing)
    given_up = tuple(tally.subject.name for tally in real if tally.is_given_up)
    sequences = sum(tally.survey.sequences for tally in tallies.by_name.values())
    return CampaignReport(
        folder=str(folder.path),
        seed=seed,
        lanes=lanes,
        sessions=tallies.sessions,
        seconds=round(tallies.elapsed, 2),
        sequences=sequences,
        operations=sum(tally.survey.operations for tally in tallies.by_name.values()),
        sequences_per_s=round(sequences / max(tallies.elapsed, 1e-9), 2),
        targets=results,
        behaviours={name: len(tally.behaviours) for name, tally in tallies.by_name.items()},
        failures=tuple(kept for tally in real for kept in _kept(tally)),
        lost=tuple(lost for tally in tallies.by_name.values() for lost in tally.lost),
        given_up=given_up,
        canaries=canaries,
        comparisons=comparisons,
        vacuous=vacuous,
        as_expected=not vacuous
        and not given_up
        and not any(canary.problem for canary in canaries)
        and all(cell.agreement == "as expected" for cell in comparisons),
    )


def _kept(tally: Tally) -> Iterator[Kept]:
    for broken, (scenario, _, _) in tally.survey.smallest.items():
        finding = tally.findings.get(broken)
        found_after, seed = tally.quickest[broken]
        yield Kept(
            target=tally.subject.name,
            invariant=broken[0],
            cause=broken[1],
            operations=len((finding.scenario if finding else scenario).operations),
            seed=seed,
            found_after=found_after,
            occurrences=tally.survey.counts[broken],
            confirmed=None if finding is None else finding.confirmed,
        )


def _print(report: CampaignReport) -> RenderableType:
    parts: list[RenderableType] = [
        VerdictMatrix(results=report.targets, comparisons=report.comparisons), "",
        f"{report.sequences} sequences, {report.operations} operations in {report.seconds:.0f} s "
        f"({report.sequences_per_s:.1f} sequences a second, lanes: {report.lanes}, "
        f"{report.sessions} sessions, seed {report.seed})",
    ]  # fmt: skip
    if report.failures:
        parts += ["", _failures(report)]
    parts += [""] + [
        Text(f"{target}: never reached what a run must reach", "bold yellow")
        for target in report.vacuous
    ]
    parts += [
        Text(f"{target}: given up, its workers were lost", "bold red") for target in report.given_up
    ]
    parts += [
        Text(f"canary {c.target}: {c.problem}", "bold red")
        if c.problem
        else Text(
            f"canary {c.target} behaved: "
            + (f"{c.must_break} broke" if c.must_break else "nothing broke")
        )
        for c in report.canaries
    ]
    if report.lost:
        parts.append(f"{len(report.lost)} units were lost and given out again; see the ledger")
    parts += [
        Text(f"{c.target} {c.invariant}: {c.agreement}: {c.note}", "red")
        for c in report.comparisons
        if c.agreement != "as expected"
    ]
    parts += [
        Text(f"Files: {report.folder}"),
        Text("All as expected.", "green")
        if report.as_expected
        else Text("Not as expected.", "bold red"),
    ]
    return Group(*parts)


def _failures(report: CampaignReport) -> Table:
    table = plain_table("target", "broken", "operations", "times", "soonest", "real kernels")
    words = {None: "not small yet", True: "confirmed", False: "do not repeat it"}
    for failure in report.failures:
        table.add_row(
            failure.target,
            f"{failure.invariant}/{failure.cause}",
            str(failure.operations),
            str(failure.occurrences),
            f"sequence {failure.found_after}"
            + ("" if failure.seed is None else f" of seed {failure.seed}"),
            words[failure.confirmed],
        )
    return table
