"""``kvproof corpus``: the counterexamples that `pytest fuzz/` replays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.output import JsonOption, plain_table, progress, show
from kvproof.cli.stack import LayersOption, RatiosOption, stack_of
from kvproof.fuzz.corpus import (
    DEFAULT_CORPUS,
    VERDICTS_SUFFIX,
    Case,
    Verdicts,
    load_corpus,
    what_breaks,
    write_case,
)
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.files import load_scenario
from kvproof.model.layers import Stack
from kvproof.model.scenario import Scenario, family_of_operations

commands = typer.Typer(
    name="corpus", no_args_is_help=True, help="Keep counterexamples and their verdicts."
)

CorpusOption = Annotated[Path, typer.Option(help="The corpus' folder.")]

SMALL = 12
"""Operations of the largest case that is replayed on the real kernels each time."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


@commands.command()
def add(
    file: Annotated[Path, typer.Argument(help="A scenario; `-` for standard input.")],
    name: Annotated[str, typer.Option(help="Name of the case: small letters, digits, hyphens.")],
    why: Annotated[str, typer.Option(help="What it shows, in a sentence.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Renew the verdicts of a case that is there.")
    ] = False,
    layers: LayersOption = None,
    ratios: RatiosOption = None,
    corpus: CorpusOption = DEFAULT_CORPUS,
    as_json: JsonOption = False,
) -> None:
    """Add a case: replay it on every installed engine and write down what breaks.

    A scenario that breaks nothing anywhere is refused, and so is one that the rules and the real
    kernels do not agree on.
    """
    if not _NAME.fullmatch(name):
        raise EngineError(f"{name!r} is no name of a case", fix="use small letters and hyphens")
    if (corpus / f"{name}{VERDICTS_SUFFIX}").exists() and not replace:
        raise EngineError(f"{corpus} has a case {name}", fix="use another --name, or --replace")
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
    try:
        paths = write_case(corpus, case)
    except OSError as error:
        raise EngineError(
            f"{corpus} cannot be written: {error.strerror}", fix="give another --corpus"
        ) from error
    table = plain_table("target", "breaks")
    for target, broken in breaks.items():
        table.add_row(target, ", ".join(broken) or "nothing")
    show(Group(table, "", *(Text(f"wrote {path}") for path in paths)), case, as_json=as_json)


@commands.command(name="list")
def list_cases(corpus: CorpusOption = DEFAULT_CORPUS, as_json: JsonOption = False) -> None:
    """List the cases."""
    cases = load_corpus(corpus)
    table = plain_table("case", "steps", "breaks on", "why")
    for case in cases:
        targets = [target for target, broken in case.verdicts.breaks.items() if broken]
        table.add_row(
            case.name, str(len(case.scenario.operations)), "\n".join(targets), case.verdicts.why
        )
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
