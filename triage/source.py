"""What a user hands in: a scenario, to be played, or a log, to be read as often as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import EngineError, Fact, Started, Step, read_log
from kvproof.model.files import STDIN, is_log, load_scenario, open_file
from kvproof.model.monitor import check
from kvproof.model.reference import reference_player
from kvproof.model.scenario import BadFileError, Scenario
from kvproof.triage.excerpt import Log

MODEL = "model"
"""Name of the reference engine as a target."""

PLAY_TIMEOUT_S = 60.0
"""Seconds that one play of a scenario may take."""

HEAD_BYTES = 2**16
"""What is read of a file to tell a log from a scenario."""


def holds_a_log(file: Path) -> bool:
    """Whether a file is a log, not a scenario.

    Raises:
        BadFileError: the file cannot be read.
    """
    if file == STDIN:
        raise BadFileError("standard input can be read once only: write it to a file")
    with open_file(file) as data:
        return is_log(data.read(HEAD_BYTES))


def log_file(file: Path) -> Log:
    """A log on disk, read anew each time; raises BadFileError with the path when it is read."""

    def facts() -> Iterator[Fact]:
        with open_file(file) as lines:
            yield from read_log(lines)

    return facts


def play_on(target: Target, scenario: Scenario, *, report: Callable[[str], None]) -> list[Fact]:
    """The log of a scenario on a target, with the real kernels; ``report`` is told of it.

    Raises:
        kernels.engines.errors.EngineError: the engine cannot be started, or cannot be built with
            the scenario's geometry.
    """
    report(f"playing on {target.name}")
    with target.process() as process:
        facts = process.play(scenario, timeout=PLAY_TIMEOUT_S)
    if isinstance(facts[0], EngineError):
        raise SetupError(
            f"{target.name} failed before it said what it is: {facts[0].message}",
            fix="run `kvproof engine doctor` for what it lacks",
        )
    return facts


def played_log(scenario: Scenario, engines: Sequence[str], *, report: Callable[[str], None]) -> Log:
    """The log of a scenario on the first target on which something breaks, else on the last.

    Args:
        scenario: what to play.
        engines: names of engines or targets, or `MODEL`; none for all that are installed.
        report: told of each play.

    Raises:
        kernels.engines.errors.EngineError: no such engine, or it cannot be played on.
    """
    facts: list[Fact] = []
    if MODEL in engines:
        facts = list(reference_player(scenario.geometry).play(scenario))
    others = [name for name in engines if name != MODEL]
    for target in find_targets(others, EngineStore()) if others or not engines else ():
        if facts and (isinstance(facts[-1], EngineError) or check(facts).violations):
            break
        facts = play_on(target, scenario, report=report)
    return lambda: iter(facts)


def scenario_of(file: Path) -> Scenario:
    """The scenario in a file; of a log, its geometry and the operations of its steps.

    Raises:
        BadFileError: the file is neither, or cannot be read.
    """
    if not holds_a_log(file):
        return load_scenario(file)
    started: Started | None = None
    operations = []
    for fact in log_file(file)():
        if isinstance(fact, Started):
            started = fact
        elif isinstance(fact, Step):
            operations.append(fact.operation)
    assert started is not None, "read_log refuses a log without it"
    return Scenario(geometry=started.geometry, operations=tuple(operations))
