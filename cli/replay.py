"""``kvproof replay`` plays a scenario file, at once or step by step."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.outcome import Outcome, outcome_of, told
from kvproof.cli.output import ExitCode, JsonOption, console, progress, show
from kvproof.cli.stack import LayersOption, RatiosOption, stack_of
from kvproof.fuzz.compare import Difference, difference
from kvproof.fuzz.drivers.wire import Layering
from kvproof.fuzz.state import Walked, walk
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact, encode_fact
from kvproof.model.files import load_scenario
from kvproof.model.layers import Stack
from kvproof.model.monitor import check as judge
from kvproof.model.scenario import Scenario, family_of_operations
from kvproof.triage.subjects import PLAY_TIMEOUT_S, find_subjects, play_on


def replay(
    file: Annotated[
        Path, typer.Argument(help="A scenario, as text or JSON; `-` for standard input.")
    ],
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine or target, e.g. 0.5.16:registry, or `model`. Default: all installed."
        ),
    ] = None,
    backend: Annotated[
        Literal["interpreter", "rules"],
        typer.Option(help="Who names the ring rows: the real kernels, or the specification."),
    ] = "interpreter",
    timeout: Annotated[
        float, typer.Option(help="Seconds that one play may take.")
    ] = PLAY_TIMEOUT_S,
    log: Annotated[Path | None, typer.Option(help="Write the log of the last target here.")] = None,
    until: Annotated[
        int | None, typer.Option(min=1, help="Play no more than the first so many steps.")
    ] = None,
    step: Annotated[
        bool,
        typer.Option("--step", help="Draw the state after each step; on a terminal, wait there."),
    ] = False,
    layers: LayersOption = None,
    ratios: RatiosOption = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare each target with this one, e.g. 0.5.23:python-core; memory's numbers "
            "aside."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Play a scenario again.

    With --layers or --ratios a stack of layers runs on the real kernels, or by the rules, with the
    cache and without, and EXACT and PURE are judged. On the model they are judged by the log alone.

    Exit code 0 if every invariant holds on every target, 1 if one breaks, the engine fails, or a
    target differs from the one that it is compared with; 2 for a set-up error.
    """
    if step and as_json:
        raise EngineError("a walk is drawn, not printed as JSON", fix="give --step or --json")
    scenario = load_scenario(file)
    stack = stack_of(layers, ratios)
    if stack is not None:
        _refuse_misfit(stack, scenario)
    if until is not None:
        scenario = msgspec.structs.replace(scenario, operations=scenario.operations[:until])
    outcomes: list[Outcome] = []
    parts: list[RenderableType] = []
    differences: dict[str, Difference | None] = {}
    plays = _plays(scenario, engine or [], backend, timeout, stack)
    [(_, beside)] = _plays(scenario, [against], backend, timeout, stack) if against else [("", [])]
    for name, facts in plays:
        if against:
            differences[name] = difference(facts, beside)
        outcome = outcome_of(judge(facts, stack=stack), name, backend)
        outcomes.append(outcome)
        if step:
            _walk(name, facts)
        parts += told(name, outcome, facts)
        if log is not None:
            _write(log, facts)
    for name, found in differences.items():
        words = "does the same" if found is None else f"differs at {found.sentence}"
        parts.append(Text(f"{name}, compared with {against}: {words}"))
    result = {"outcomes": outcomes} | ({"differences": differences} if against else {})
    show(Group(*parts), result, as_json=as_json)
    if any(differences.values()) or not all(outcome.is_clean for outcome in outcomes):
        raise typer.Exit(ExitCode.VIOLATION)


def _refuse_misfit(stack: Stack, scenario: Scenario) -> None:
    if family_of_operations(scenario.operations) == "translation":
        raise EngineError(
            "the scenario is of forwards: they have no layers",
            fix="leave --layers and --ratios out",
        )
    if scenario.geometry.overlap:
        raise EngineError(
            "the scenario overlaps steps, and those do not go through the layers",
            fix="set overlap to 0, or leave --layers and --ratios out",
        )
    page_size = scenario.geometry.page_size
    ratio = stack.misfit(page_size)
    if ratio is not None:
        raise EngineError(
            f"compressed rows of {ratio} tokens do not fill pages of {page_size}",
            fix="give --ratios that divide the page size",
        )


def _walk(name: str, facts: Sequence[Fact]) -> None:
    """Print the steps; on a terminal one by one, as asked for."""
    is_asked = sys.stdin.isatty() and sys.stdout.isatty()
    out = console()
    out.print(Text(name, "bold"))
    steps = [*walk(facts)]
    at = 0
    while at < len(steps):
        out.print(_drawn(steps[at]), soft_wrap=True)
        at += 1
        if not is_asked:
            continue
        answer = out.input("Enter: next step, a number: that step, b: back, q: leave  ").strip()
        if answer == "q":
            return
        if answer == "b":
            at = max(0, at - 2)
        elif answer.isdecimal():
            at = min(max(int(answer), 1), len(steps)) - 1


def _drawn(walked: Walked) -> Text:
    text = Text("\n".join([*walked.lines(), ""]))
    text.highlight_regex(r"(?m)^step .*$", "bold")
    text.highlight_regex(r"(?m)^  breaks .*$", "red")
    return text


def _write(path: Path, facts: list[Fact]) -> None:
    try:
        path.write_bytes(b"".join(encode_fact(fact) for fact in facts))
    except OSError as error:
        raise EngineError(
            f"{path} cannot be written: {error.strerror}", fix="give another file with --log"
        ) from error


def _plays(
    scenario: Scenario,
    engines: list[str],
    backend: Literal["interpreter", "rules"],
    timeout: float,
    stack: Stack | None,
) -> list[tuple[str, list[Fact]]]:
    with progress("replaying", lines=False) as report:
        return [
            (
                subject.name,
                play_on(subject, scenario, report=report, timeout=timeout, backend=backend),
            )
            for subject in find_subjects(
                engines,
                EngineStore(),
                family=family_of_operations(scenario.operations),
                layering=None if stack is None else Layering(ratios=stack.ratios),
            )
        ]
