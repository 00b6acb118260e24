"""``kvproof check`` judges a log, while it is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from kvproof.cli.outcome import Outcome, outcome_of, refuse_unjudged, told
from kvproof.cli.output import ExitCode, JsonOption, errors, progress, show
from kvproof.cli.stack import LayersOption, RatiosOption, stack_of
from kvproof.fuzz.chronicle import Chronicle, facts_of
from kvproof.fuzz.chronicle import Group as Steps
from kvproof.model.facts import LogReader
from kvproof.model.files import blocks, open_file
from kvproof.model.monitor import Monitor
from kvproof.model.verdict import Cause, Invariant

REPORT_EACH = 100_000
"""Facts between two lines of progress."""


class Checked(Outcome, frozen=True, kw_only=True):
    """What a log file says.

    Attributes:
        facts: facts read.
        lines: line of the fact that showed each violation, by ``invariant/cause``.
        ended: whether the log is whole: it has its last fact.
    """

    facts: int
    lines: dict[str, int]
    ended: bool


@contextmanager
def imports_settled() -> Iterator[None]:
    """No collection looks at what was imported, meanwhile: it is far more than a monitor keeps."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def check(
    file: Annotated[Path, typer.Argument(help="A log, JSON Lines, gzipped or not; `-` for stdin.")],
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait at its end for more, until its last fact.")
    ] = False,
    layers: LayersOption = None,
    ratios: RatiosOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge a log: which invariants hold in it.

    It is read once, in bounded memory. What breaks is said at once, on stderr. Exit codes as for
    `replay`; 2 also for a log that is cut off, or has a gap, before
    anything broke.
    """
    monitor = Monitor(stack=stack_of(layers, ratios))
    chronicle = Chronicle(monitor)
    stories: dict[tuple[Invariant, Cause], list[Steps]] = {}
    lines: dict[str, int] = {}
    with (
        open_file(file) as source,
        progress(f"reading {file}", lines=False) as report,
        imports_settled(),
    ):
        reader = LogReader(blocks(source, follow=follow))
        for fact in reader:
            chronicle.note(fact)
            monitor.feed(fact)
            if len(monitor.violations) > len(stories):
                for broken, violation in monitor.violations.items():
                    if broken not in stories:
                        stories[broken] = chronicle.steps_of(violation)
                        lines["/".join(broken)] = reader.line
                        errors().print(
                            Text(
                                f"line {reader.line}, step {violation.step + 1}: "
                                f"{violation.invariant} ({violation.cause}): {violation.sentence}"
                            ),
                            soft_wrap=True,
                        )
            if not reader.line % REPORT_EACH:
                report(f"{reader.line} facts, {len(monitor.violations)} kinds of violation")
            if follow and (monitor.ended or monitor.engine_error is not None):
                break
        is_whole = monitor.ended or monitor.engine_error is not None
        refuse_unjudged(monitor)
    outcome = outcome_of(monitor)
    checked = Checked(
        **{name: getattr(outcome, name) for name in Outcome.__struct_fields__},
        facts=reader.line,
        lines=lines,
        ended=is_whole,
    )
    worst = monitor.worst()
    steps = facts_of(stories[worst.invariant, worst.cause], worst) if worst else []
    parts = told(checked.target, checked, steps)
    if not is_whole:
        parts.append(Text("The log is cut off: it has no last fact.", "yellow"))
    show(Group(*parts), checked, as_json=as_json)
    if not checked.is_clean:
        raise typer.Exit(ExitCode.VIOLATION)
