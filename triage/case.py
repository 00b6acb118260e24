"""A case: what a file shows, be it a scenario or a log.

Every command of triage reads its file here. A log is streamed, as often as it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from msgspec.structs import replace

from kvproof.model.facts import Ended, EngineError, Fact, Gap, LogReader, Started, Step
from kvproof.model.files import STDIN, blocks, is_log, load_scenario, open_file
from kvproof.model.monitor import Monitor, check
from kvproof.model.scenario import BadFileError, Scenario
from kvproof.model.verdict import Violation
from kvproof.triage.excerpt import Log
from kvproof.triage.lift import Lifter, lift
from kvproof.triage.symptoms import Symptom, choose, symptoms_of, violations_of

_HEAD_BYTES = 1 << 16
"""What is read of a file to tell a log from a scenario."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A scenario, and what is known to be wrong with it.

    Attributes:
        scenario: where something is known, it ends with the step that shows it.
        started: how the log begins; None for a scenario file.
        found: what is wrong, the worst first; empty if it was not played yet.
        violations: the violations among those.
        facts: length of the log; 0 for a scenario file.
        gap: where facts are missing in the log; what is there is known of what comes before.
    """

    scenario: Scenario
    started: Started | None = None
    found: tuple[Symptom, ...] = ()
    violations: dict[Symptom, Violation] = field(default_factory=dict)
    facts: int = 0
    gap: Gap | None = None


def holds_a_log(path: Path) -> bool:
    """Whether a file is a log, not a scenario.

    Raises:
        BadFileError: the file cannot be read, or not twice.
    """
    if path == STDIN:
        raise BadFileError(
            "standard input can be read only once, which is not enough: write it to a file"
        )
    with open_file(path) as file:
        return is_log(file.read(_HEAD_BYTES))


def log_of(path: Path) -> Log:
    """A log on disk, read anew each time; raises BadFileError with the path when it is read."""

    def facts() -> Iterator[Fact]:
        with open_file(path) as file:
            yield from LogReader(blocks(file))

    return facts


def scenario_of(path: Path) -> Scenario:
    """The scenario in a file, or that of the whole log in it.

    Raises:
        BadFileError: it is neither.
    """
    return lift(log_of(path)()) if holds_a_log(path) else load_scenario(path)


def load_case(path: Path, *, wanted: str | None = None) -> Case:
    """The case in a file. The scenario of a log ends with the step that breaks.

    Args:
        path: a scenario, or a log of any length, which is streamed.
        wanted: a symptom, or an invariant; None for the worst.

    Raises:
        BadFileError: it is neither, or nothing that is wanted is wrong in the log.
    """
    if holds_a_log(path):
        return _case_of_log(path, wanted)
    return Case(scenario=load_scenario(path))


def _case_of_log(path: Path, wanted: str | None) -> Case:
    monitor, lifter, count = Monitor(), Lifter(), 0
    for fact in log_of(path)():
        monitor.feed(fact)
        lifter.feed(fact)
        count += 1
    found = symptoms_of(monitor)
    symptom = choose(found, wanted)
    if symptom is None:
        what = f"breaks {wanted}" if wanted else "is wrong"
        others = f"; it shows {', '.join(found)}" if found else ""
        if monitor.gap is not None:
            others += f"; it cannot be judged after step {monitor.steps}: {monitor.gap.words}"
        raise BadFileError(f"{path}: nothing in the log {what}{others}")
    violations = violations_of(monitor)
    until = violations[symptom].step if symptom in violations else None
    return Case(
        scenario=lifter.scenario(until=until),
        started=monitor.started,
        found=found,
        violations=violations,
        facts=count,
        gap=monitor.gap,
    )


def until_it_breaks(path: Path, *, wanted: str | None = None) -> tuple[Fact, ...]:
    """The log in a file up to the step that breaks, as a log of its own.

    All that comes before stays: what was lent long ago can be what a page is judged by. An engine's
    failure is the end of its log, which is then kept whole.

    Raises:
        BadFileError: it is no log, or nothing that is wanted is wrong in it.
    """
    case = _case_of_log(path, wanted)
    shown = case.violations.get(choose(case.found, wanted) or "")
    if shown is None:
        return tuple(log_of(path)())
    last = shown.step
    beginning = takewhile(
        lambda fact: (
            not (
                isinstance(fact, Gap | Ended | EngineError)
                or (isinstance(fact, Step) and fact.index > last)
            )
        ),
        log_of(path)(),
    )
    kept = tuple(beginning)
    return (*kept, Ended(steps=sum(isinstance(fact, Step) for fact in kept)))


def case_of_play(scenario: Scenario, log: Sequence[Fact], wanted: str | None) -> Case:
    """What a scenario shows where it was played."""
    monitor = check(log)
    found = symptoms_of(monitor)
    violations = violations_of(monitor)
    shown = violations.get(choose(found, wanted) or "")
    # An engine that failed did so in the last step that it began.
    end = monitor.steps if shown is None else shown.step + 1
    return Case(
        scenario=replace(scenario, operations=scenario.operations[:end]),
        found=found,
        violations=violations,
    )
