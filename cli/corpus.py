"""``kvproof corpus``: the counterexamples that `pytest fuzz/` replays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.output import JsonOption, plain_table, progress, show
from kvproof.cli.stack import LayersOption, RatiosOption, stack_of
from kvproof.fuzz.corpus import (
    DEFAULT_CORPUS,
    LOG_VERDICTS_SUFFIX,
    VERDICTS_SUFFIX,
    Case,
    LogCase,
    Verdicts,
    load_corpus,
    load_logs,
    what_breaks,
    write_case,
    write_log_case,
)
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Started, Step
from kvproof.model.files import STDIN, load_scenario
from kvproof.model.layers import Stack
from kvproof.model.scenario import Scenario, family_of_operations
from kvproof.triage.case import holds_a_log, until_it_breaks
from kvproof.triage.symptoms import refuse_unknown

commands = typer.Typer(
    name="corpus", no_args_is_help=True, help="Keep counterexamples and their verdicts."
)

CorpusOption = Annotated[Path, typer.Option(help="The corpus' folder.")]

SMALL = 12
"""Operations of the largest case that is replayed on the real kernels each time."""

MOST_FACTS = 2_000
"""Facts of the longest log that is kept as a case: some 250 kB."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@commands.command()
def add(
    file: Annotated[
        Path,
        typer.Argument(help="A scenario; `-` for standard input. Or a log that no scenario shows."),
    ],
    name: Annotated[str, typer.Option(help="Name of the case: small letters, digits, hyphens.")],
    why: Annotated[str, typer.Option(help="What it shows, in a sentence.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Renew the verdicts of a case that is there.")
    ] = False,
    invariant: Annotated[
        str | None, typer.Option(help="Of a log: what it is kept for. Default: the worst.")
    ] = None,
    layers: LayersOption = None,
    ratios: RatiosOption = None,
    corpus: CorpusOption = DEFAULT_CORPUS,
    as_json: JsonOption = False,
) -> None:
    """Add a case: replay it on every installed engine and write down what breaks.

    A scenario that breaks nothing anywhere is refused, and so is one that the rules and the real
    kernels do not agree on.

    A log is not played: it is kept up to the step that breaks, and judged again by each run of the
    tests. Make a scenario of it with `kvproof minimise` if that can be done.
    """
    if not _NAME.fullmatch(name):
        raise EngineError(f"{name!r} is no name of a case", fix="use small letters and hyphens")
    is_log = file != STDIN and holds_a_log(file)
    suffix = LOG_VERDICTS_SUFFIX if is_log else VERDICTS_SUFFIX
    if (corpus / f"{name}{suffix}").exists() and not replace:
        raise EngineError(f"{corpus} has a case {name}", fix="use another --name, or --replace")
    if is_log:
        refuse_unknown(invariant)
        _add_log(file, name, why, corpus, wanted=invariant, as_json=as_json)
        return
    scenario = load_scenario(file)
    if family_of_operations(scenario.operations) == "translation":
        raise EngineError(
            "the corpus is replayed on caches, and the scenario is of forwards",
            fix="keep it as a test: fuzz/tests/test_translation.py has those of forwards",
        )
    stack = stack_of(layers, ratios)
    breaks = _replay(scenario, stack)
    if not any(breaks.values()):
        raise EngineError(
            f"{file} breaks nothing on {', '.join(sorted(breaks))}",
            fix="give a counterexample, or install the engine that it breaks on",
        )
    small = len(scenario.operations) <= SMALL
    case = Case(
        name=name,
        scenario=scenario,
        verdicts=Verdicts(
            why=why, kernels=small, breaks=breaks, ratios=stack.ratios if stack else ()
        ),
    )
    with _written_to(corpus):
        paths = write_case(corpus, case)
    _show(case, paths, as_json=as_json)


def _add_log(
    file: Path, name: str, why: str, corpus: Path, *, wanted: str | None, as_json: bool
) -> None:
    facts = until_it_breaks(file, wanted=wanted)
    if len(facts) > MOST_FACTS:
        raise EngineError(
            f"{file} has {len(facts):,} facts up to the step that breaks, and a case has up to "
            f"{MOST_FACTS:,}",
            fix="record a shorter run, or make a scenario of it with kvproof minimise",
        )
    started = facts[0]
    assert isinstance(started, Started)
    verdicts = Verdicts(why=why, kernels=False, breaks={started.target: what_breaks(facts)})
    case = LogCase(name=name, facts=facts, verdicts=verdicts)
    with _written_to(corpus):
        paths = write_log_case(corpus, case)
    _show(case, paths, as_json=as_json)


@contextmanager
def _written_to(corpus: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EngineError(
            f"{corpus} cannot be written: {error.strerror}", fix="give another --corpus"
        ) from error


def _show(case: Case | LogCase, paths: Iterable[Path], *, as_json: bool) -> None:
    table = plain_table("target", "breaks")
    for target, broken in case.verdicts.breaks.items():
        table.add_row(target, ", ".join(broken) or "nothing")
    show(Group(table, "", *(Text(f"wrote {path}") for path in paths)), case, as_json=as_json)


@commands.command(name="list")
def list_cases(corpus: CorpusOption = DEFAULT_CORPUS, as_json: JsonOption = False) -> None:
    """List the cases."""
    cases: tuple[Case | LogCase, ...] = (*load_corpus(corpus), *load_logs(corpus))
    table = plain_table("case", "steps", "breaks on", "why")
    for case in cases:
        targets = [target for target, broken in case.verdicts.breaks.items() if broken]
        if isinstance(case, LogCase):
            name, steps = f"{case.name} (log)", sum(isinstance(fact, Step) for fact in case.facts)
        else:
            name, steps = case.name, len(case.scenario.operations)
        table.add_row(name, str(steps), "\n".join(targets), case.verdicts.why)
    show(table, cases, as_json=as_json)


def _replay(scenario: Scenario, stack: Stack | None) -> dict[str, tuple[str, ...]]:
    breaks: dict[str, tuple[str, ...]] = {}
    backends: tuple[Backend, ...] = ("rules", "interpreter")
    with progress("replaying", lines=False) as report:
        for target in find_targets((), EngineStore()):
            report(f"replaying on {target.name}")
            with target.process() as process:
                found = [
                    what_breaks(process.play(scenario, timeout=120, backend=backend), stack)
                    for backend in backends
                ]
            if found[0] != found[1]:
                raise EngineError(
                    f"on {target.name} {', '.join(found[0]) or 'nothing'} breaks by the rules and "
                    f"{', '.join(found[1]) or 'nothing'} on the real kernels",
                    fix="that is a finding of its own: kvproof replay it with either --backend",
                )
            breaks[target.name] = found[1]
    return breaks
