"""``kvproof explain`` tells and draws what broke; ``kvproof export`` makes a test of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.outcome import Outcome, outcome_of, refuse_unjudged, told
from kvproof.cli.output import ExitCode, JsonOption, progress, show
from kvproof.fuzz.story import tell
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import EngineError as EngineFault
from kvproof.model.facts import Fact
from kvproof.model.files import load_scenario
from kvproof.model.scenario import BadFileError, Scenario, family_of_operations
from kvproof.model.text import encode_text
from kvproof.model.verdict import INVARIANTS
from kvproof.triage.case import holds_a_log, log_of, scenario_of
from kvproof.triage.excerpt import Log, excerpt
from kvproof.triage.export import (
    Run,
    case_of,
    example_patch,
    kvproof_test,
    with_safe_names,
)
from kvproof.triage.export_sglang import import_stubs, sglang_test, sglang_test_name
from kvproof.triage.page import render
from kvproof.triage.subjects import (
    EngineSubject,
    Subject,
    find_subjects,
    play_on,
    play_until_broken,
)

FileArgument = Annotated[
    Path, typer.Argument(help="A scenario, or a log (JSON Lines); gzipped or not.")
]

MOST_OPERATIONS = 200
"""A test of more operations tells nobody anything."""


class Explained(Outcome, frozen=True, kw_only=True):
    """What was explained.

    Attributes:
        shown: those that the story and the page show, from 0.
        story: the text; empty if nothing broke.
        html: the page, if one was asked for.
    """

    shown: tuple[int, ...]
    story: str
    html: Path | None


def explain(
    file: FileArgument,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Where to play a scenario: an engine or target, e.g. 0.5.16:registry, or `model`. "
            "Default: the first installed one on which it breaks."
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the page here: one file, which opens from disk.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what broke, where and how it came to that, as text and as a page.

    Of a long log only the steps around the violation and those that led to it are shown. Exit code
    0 if every invariant holds, 1 if one breaks or the engine failed, 2 for a set-up error.
    """
    shown = excerpt(_log(file, engine or []))
    monitor = shown.monitor
    try:
        refuse_unjudged(monitor)
    except BadFileError as error:
        raise BadFileError(f"{file}: {error}") from error
    if html is not None:
        _write(html, render(shown), option="--html")
    outcome = outcome_of(monitor)
    explained = Explained(
        **{name: getattr(outcome, name) for name in Outcome.__struct_fields__},
        shown=tuple(frame.index for frame in shown.frames),
        story=tell(shown.violation, shown.facts) if shown.violation else "",
        html=html,
    )
    parts = told(explained.target, explained, shown.facts)
    if not shown.is_whole:
        parts.append(Text(f"{len(shown.frames)} of {monitor.steps:,} steps are shown."))
    if html is not None:
        parts.append(Text(f"page: {html}"))
    show(Group(*parts), explained, as_json=as_json)
    if not explained.is_clean:
        raise typer.Exit(ExitCode.VIOLATION)


def _log(file: Path, engines: list[str]) -> Log:
    if holds_a_log(file):
        if engines:
            raise EngineError(
                f"{file} is a log: it says on what it was made",
                fix="leave --engine out, or give a scenario",
            )
        return log_of(file)
    scenario = load_scenario(file)
    family = family_of_operations(scenario.operations)
    subjects = find_subjects(engines, EngineStore(), family=family)
    with progress("playing", lines=False) as report:
        subject, facts = play_until_broken(subjects, scenario, report=report)
    _refuse_unbuilt(subject, facts)
    return lambda: iter(facts)


def _refuse_unbuilt(subject: Subject, facts: Sequence[Fact]) -> None:
    """Raise EngineError for a log that does not even say what was played."""
    if isinstance(facts[0], EngineFault):
        raise EngineError(
            f"{subject.name} failed before it said what it is: {facts[0].message}",
            fix="run `kvproof engine doctor` for what it lacks",
        )


Form = Literal["sglang-test", "pytest", "text", "patch"]


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was exported.

    Attributes:
        invariant: what the export shows broken; empty for ``text``, which shows all.
        seen_on: the target on which it breaks.
        files: what was written, with ``--out``.
        content: the export, by file name.
    """

    form: Form
    invariant: str
    seen_on: str
    files: tuple[Path, ...]
    content: dict[str, str]


def export(
    file: FileArgument,
    form: Annotated[
        Form,
        typer.Option(
            "--as",
            help="`sglang-test`: a test of the release, without kvproof. `pytest`: a test for "
            "kvproof's fuzz/tests. `patch`: a diff that adds an example there. `text`: the "
            "scenario as people read and edit it.",
        ),
    ],
    engine: Annotated[
        str | None,
        typer.Option(
            help="For sglang-test: the release that the test is for. Default: the first installed "
            "one on which the scenario breaks."
        ),
    ] = None,
    invariant: Annotated[
        str | None, typer.Option(help="What the test is about. Default: the worst that breaks.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; without it, the export is printed.")
    ] = None,
    repository: Annotated[
        Path, typer.Option(help="For patch: a checkout of kvproof.", file_okay=False)
    ] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Make a regression test, a patch or a readable scenario of a failure.

    The scenario is played on the installed engines first, so that what the export says was seen.
    Names that source code could not hold are replaced. Exit code 0 if there is an export, 2 if not.
    """
    scenario = scenario_of(file)
    if form == "text":
        exported = Exported(
            form=form, invariant="", seen_on="", files=(),
            content={f"{file.name.partition('.')[0]}.txt": encode_text(scenario).decode()},
        )  # fmt: skip
    else:
        exported = _test(scenario, form, engine, invariant, repository)
    if out is not None:
        exported = msgspec.structs.replace(exported, files=_write_all(out, exported.content))
    if as_json or out is not None:
        lines = [Text(str(path)) for path in exported.files]
        show(Group(*lines), exported, as_json=as_json)
    else:
        # As it is, so that it can go into a pipe: a console would wrap it.
        typer.echo(next(iter(exported.content.values())), nl=False)


def _test(
    scenario: Scenario, form: Form, engine: str | None, invariant: str | None, repository: Path
) -> Exported:
    if family_of_operations(scenario.operations) == "translation":
        raise EngineError(
            "there are no exported tests of forwards",
            fix="give --as text, or replay the scenario with kvproof replay",
        )
    if len(scenario.operations) > MOST_OPERATIONS:
        raise EngineError(
            f"{len(scenario.operations)} operations are too many for a test",
            fix="make the scenario smaller first",
        )
    if invariant not in (None, *INVARIANTS):
        raise EngineError(
            f"there is no invariant {invariant!r}", fix=f"choose one of {', '.join(INVARIANTS)}"
        )
    scenario = with_safe_names(scenario)
    store = EngineStore()
    wanted = find_targets([engine], store)[0] if engine else None
    runs: dict[str, Run] = {}
    with progress("playing", lines=False) as report:
        for target in dict.fromkeys([*([wanted] if wanted else []), *find_targets((), store)]):
            subject = EngineSubject(target)
            run = Run(target=target, log=play_on(subject, scenario, report=report))
            _refuse_unbuilt(subject, run.log)
            runs[target.name] = run
            # A test of kvproof says what each target does; the others need one that breaks.
            if form != "pytest" and run.shows(invariant) is not None:
                break
    case = case_of(scenario, [*runs.values()], invariant)
    match form:
        case "sglang-test":
            run = runs[wanted.name if wanted else case.seen_on]
            content = {
                sglang_test_name(case): sglang_test(case, run),
                "import_stubs.py": import_stubs(),
            }
        case "pytest":
            content = {f"test_{case.name}.py": kvproof_test(case, [*runs.values()])}
        case _:
            content = {f"{case.name}.patch": example_patch(case, repository)}
    return Exported(
        form=form,
        invariant=case.violation.invariant,
        seen_on=case.seen_on,
        files=(),
        content=content,
    )


def _write_all(folder: Path, content: dict[str, str]) -> tuple[Path, ...]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EngineError(
            f"{folder} cannot be made: {error.strerror}", fix="give another folder with --out"
        ) from error
    for name, text in content.items():
        _write(folder / name, text, option="--out")
    return tuple(folder / name for name in content)


def _write(path: Path, text: str, *, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EngineError(
            f"{path} cannot be written: {error.strerror}", fix=f"give another place with {option}"
        ) from error
