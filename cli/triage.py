"""``kvproof minimise`` makes a failing case small; ``kvproof bisect`` says where it came in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import (
    ExitCode,
    JsonOption,
    Reporter,
    errors,
    plain_table,
    progress,
    show,
)
from kvproof.cli.verdicts import paint
from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.run_folder import DEFAULT_ROOT, RunFolder
from kvproof.fuzz.simplify import scenario_tokens
from kvproof.fuzz.story import tell
from kvproof.fuzz.targets import TRANSLATIONS
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import encode_fact
from kvproof.model.scenario import Scenario, encode_scenario, family_of_operations
from kvproof.model.text import spell_operation
from kvproof.triage.bisect import (
    Bisection,
    Change,
    Player,
    bisect_releases,
    releases_named,
)
from kvproof.triage.cache import ResultCache
from kvproof.triage.case import Case, load_case
from kvproof.triage.commits import bisect_commits
from kvproof.triage.minimise import Kept, Minimiser, NotBrokenError, Watcher
from kvproof.triage.subjects import PLAY_TIMEOUT_S, Subject, find_subjects
from kvproof.triage.symptoms import Symptom, refuse_unknown
from kvproof.triage.trials import Trials

FileArgument = Annotated[Path, typer.Argument(help="A scenario file, or a log of any length.")]
InvariantOption = Annotated[
    str | None,
    typer.Option(
        help="What has to break: an invariant, or FRESH-DECODE/other-request with its cause. "
        "Default: the worst that breaks."
    ),
]
TimeoutOption = Annotated[float, typer.Option(help="Seconds that one play may take.")]

REPORT_EVERY_S = 1.0


class _Best(Watcher):
    """Keeps the smallest scenario on disk, and says how far it has come."""

    def __init__(self, path: Path, report: Reporter) -> None:
        self.path = path
        self.report = report
        self.scenario: Scenario | None = None
        self._began = time.monotonic()
        self._reported = self._began
        self._tries = 0

    def looking_for(self, symptom: Symptom, target: str) -> None:
        self.report(f"looking for the smallest scenario that breaks {symptom} on {target}")

    def tried(self, trials: Trials) -> None:
        self._tries += 1
        self._say()

    def better(self, scenario: Scenario) -> None:
        self.scenario = scenario
        _write(self.path, encode_scenario(scenario))
        self._say()

    def confirming(self) -> None:
        self._say(now=True)
        self.report("playing it on the real kernels, twice")

    def _say(self, *, now: bool = False) -> None:
        moment = time.monotonic()
        if self.scenario is None or not (now or moment - self._reported >= REPORT_EVERY_S):
            return
        self._reported = moment
        self.report(
            f"{len(self.scenario.operations)} operations, {scenario_tokens(self.scenario)} tokens, "
            f"{self._tries} tries, {moment - self._began:.0f} s"
        )


def minimise(
    file: FileArgument,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Where it has to break, e.g. 0.5.16:registry, or `model`. Default: the target "
            "of the log; for a scenario the first installed one that it breaks on."
        ),
    ] = None,
    invariant: InvariantOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Engine processes. Default: one a core.")
    ] = None,
    timeout: TimeoutOption = PLAY_TIMEOUT_S,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = DEFAULT_ROOT,
    as_json: JsonOption = False,
) -> None:
    """Make a failing scenario or log small: the same invariant, broken for the same cause.

    Fewer requests, operations and tokens, smaller sizes, simpler names. The smallest so far is on
    disk at any time; Ctrl-C keeps it. What was played before is not played again.

    Exit code 0 if the result is confirmed on the real kernels, 1 if they do not repeat it, 2 for a
    set-up error or a file that breaks nothing.
    """
    refuse_unknown(invariant)
    with progress("minimising") as report:
        report(f"reading {file}")
        case = load_case(file, wanted=invariant)
        if case.gap is not None:
            report(f"what follows a gap in the log is left out: {case.gap.words}")
        subjects = find_subjects(
            engine or (),
            EngineStore(),
            started=case.started,
            family=family_of_operations(case.scenario.operations),
        )
        folder = RunFolder.create(out).path
        best = _Best(folder / "minimised.scenario.json", report)
        with _cache() as cache, _kept_if_interrupted(best):
            minimiser = Minimiser(
                cache=cache, workers=jobs or os.cpu_count() or 1, timeout=timeout, watcher=best
            )
            kept = _first_that_breaks(minimiser, case, subjects, invariant)
    result = kept.result
    _write(folder / "minimised.log.jsonl", b"".join(map(encode_fact, kept.log)))
    if result.violation is not None:
        _write(folder / "minimised.txt", tell(result.violation, kept.log).encode())
    show(_told(kept, best.path), {"file": best.path, "result": result}, as_json=as_json)
    if not (result.confirmed and result.deterministic):
        raise typer.Exit(ExitCode.VIOLATION)


def _first_that_breaks(
    minimiser: Minimiser, case: Case, subjects: tuple[Subject, ...], invariant: str | None
) -> Kept:
    for subject in subjects[:-1]:
        try:
            return minimiser.run(case, subject, wanted=invariant)
        except NotBrokenError:
            continue
    return minimiser.run(case, subjects[-1], wanted=invariant)


@contextmanager
def _cache() -> Iterator[ResultCache]:
    cache = ResultCache()
    try:
        yield cache
    finally:
        cache.close()


@contextmanager
def _kept_if_interrupted(best: _Best) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        if best.scenario is not None:
            errors().print(
                f"interrupted; the smallest so far, {len(best.scenario.operations)} operations: "
                f"{best.path}",
                soft_wrap=True,
            )
        raise


def _told(kept: Kept, path: Path) -> RenderableType:
    result = kept.result
    parts: list[RenderableType] = []
    if result.violation is not None:
        parts.append(paint(tell(result.violation, kept.log)))
    else:
        parts += [
            Text(f"{result.symptom} on {result.target}", "bold"),
            *(
                Text(f"  {number:>3}  {spell_operation(operation)}")
                for number, operation in enumerate(result.scenario.operations, 1)
            ),
            "",
        ]
    of_log = f" of a log of {result.facts} facts" if result.facts else ""
    parts.append(
        f"From {result.operations_before} operations{of_log} to {result.operations}, from "
        f"{result.tokens_before} tokens to {result.tokens}, "
        + (
            f"in {result.seconds:.1f} s and {result.tries} tries ({result.recalled} played before)."
            if result.tries
            else "known from an earlier run."
        )
    )
    if not result.confirmed:
        parts.append(Text("The real kernels do not repeat it.", "bold red"))
    elif not result.deterministic:
        parts.append(Text("Two plays on the real kernels differ.", "bold red"))
    parts.append(Text(f"replay: kvproof replay {path} --engine {result.target}"))
    return Group(*parts)


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise EngineError(
            f"{path} cannot be written: {error.strerror}", fix="give another folder with --out"
        ) from error


def bisect(
    file: FileArgument,
    engines: Annotated[
        str | None,
        typer.Option(
            help="Releases, e.g. 0.5.12..0.5.23 or 0.5.15,0.5.23. All are played; missing ones are "
            "installed."
        ),
    ] = None,
    checkout: Annotated[
        Path | None, typer.Option(help="A git checkout of the engine instead; it is only read.")
    ] = None,
    good: Annotated[str | None, typer.Option(help="A revision that holds.")] = None,
    bad: Annotated[str | None, typer.Option(help="A revision that breaks.")] = None,
    construction: Annotated[
        str,
        typer.Option(
            help="How the radix cache is built; `registry` is a release's own way. Or what plays "
            "forwards, e.g. `triton`."
        ),
    ] = REGISTRY,
    invariant: InvariantOption = None,
    backend: Annotated[
        Literal["interpreter", "rules"],
        typer.Option(help="Who names the ring rows: the real kernels, or the specification."),
    ] = "interpreter",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Engine processes. Default: one a core.")
    ] = None,
    timeout: TimeoutOption = PLAY_TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Say in which release, or at which commit, a scenario began to break and where it stopped.

    What cannot be played there is skipped with its reason, and is neither good nor bad.

    Exit code 0 if the question is answered, 2 for a set-up error or if nothing could be played.
    """
    refuse_unknown(invariant)
    if (engines is None) == (checkout is None) or (checkout is None) != (
        good is None or bad is None
    ):
        raise EngineError(
            "it is not said what to search",
            fix="give --engines 0.5.12..0.5.23, or --checkout FOLDER --good REVISION "
            "--bad REVISION",
        )
    scenario = load_case(file, wanted=invariant).scenario
    if family_of_operations(scenario.operations) == "translation" and construction == REGISTRY:
        raise EngineError(
            "the scenario is of forwards, which no cache plays",
            fix=f"give --construction with one of {', '.join(TRANSLATIONS)}",
        )
    with progress("bisecting") as report, _cache() as cache:
        store = EngineStore(report=report)
        player = Player(
            scenario=scenario,
            cache=cache,
            construction=construction,
            backend=backend,
            timeout=timeout,
            report=report,
        )
        if engines is not None:
            found = bisect_releases(
                player,
                releases_named(engines, store),
                store,
                wanted=invariant,
                jobs=jobs or os.cpu_count() or 1,
            )
        else:
            assert checkout is not None
            assert good is not None
            assert bad is not None
            found = bisect_commits(player, checkout, store, good=good, bad=bad, wanted=invariant)
    show(_bisected(found), found, as_json=as_json)


VERDICT_STYLES = {"good": "green", "bad": "red", "skipped": "yellow"}


def _bisected(found: Bisection) -> RenderableType:
    titled = any(each.title for each in found.versions)
    table = plain_table("version", *["title"] * titled, "verdict", "")
    for each in found.versions:
        verdict = Text(each.verdict, VERDICT_STYLES[each.verdict])
        table.add_row(each.version, *[Text(each.title)] * titled, verdict, Text(each.reason))
    if found.symptom is None:
        return Group(table, "", "Nothing breaks in any of them.")
    parts: list[RenderableType] = [
        Text(f"{found.symptom} (construction {found.construction}, backend {found.backend})"),
        table,
        "",
    ]
    parts += [Text(_change(change)) for change in found.changes]
    if not found.changes:
        parts.append("There is no change between those that could be judged.")
    if found.first_bad is not None:
        after = found.first_good_after or "none"
        parts.append(Text(f"First bad: {found.first_bad}. First good after it: {after}.", "bold"))
        if all(each.verdict != "good" for each in found.versions_before_bad):
            parts.append("No good one comes before it: it may have come in earlier.")
    if found.assumes_one_change:
        parts.append("Not every commit was played: that there is only one change is assumed.")
    return Group(*parts)


def _change(change: Change) -> str:
    words = {"bad": "broke", "good": "was mended"}
    at = f"in {change.after}"
    if change.skipped:
        at = f"in one of {', '.join((*change.skipped, change.after))}"
    other = "good" if change.verdict == "bad" else "bad"
    return f"It {words[change.verdict]} {at}: {change.before} is {other}, {change.after} " + (
        change.verdict + "."
    )
