"""What a user hands in: a scenario, to be played, or a log, to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import EngineError, Fact, Started, Step, read_log
from kvproof.model.monitor import check
from kvproof.model.reference import reference_player
from kvproof.model.scenario import BadFileError, Scenario, load_scenario
from kvproof.triage.excerpt import Log

MODEL = "model"
"""Name of the reference engine as a target."""

PLAY_TIMEOUT_S = 60.0
"""Seconds that one play of a scenario may take."""


class _Head(msgspec.Struct):
    fact: str


_head_decoder = msgspec.json.Decoder(_Head)


def is_log(file: Path) -> bool:
    """Whether a file is a log: its first line is a fact. A scenario is one object over all lines.

    Raises:
        BadFileError: the file cannot be read.
    """
    try:
        with file.open("rb") as lines:
            _head_decoder.decode(lines.readline())
    except OSError as error:
        raise BadFileError(f"{file}: {error.strerror or error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def log_file(file: Path) -> Log:
    """A log on disk, read anew each time; raises BadFileError with the path when it is read."""

    def facts() -> Iterator[Fact]:
        try:
            with file.open("rb") as lines:
                yield from read_log(lines)
        except OSError as error:
            raise BadFileError(f"{file}: {error.strerror or error}") from error
        except BadFileError as error:
            raise BadFileError(f"{file}: {error}") from error

    return facts


def played_log(scenario: Scenario, engines: Sequence[str], *, report: Callable[[str], None]) -> Log:
    """The log of a scenario on the first of the engines on which something breaks, else the last.

    Args:
        scenario: what to play.
        engines: names of engines or targets, or `MODEL`; none for all that are installed.
        report: told of each play.

    Raises:
        kernels.engines.errors.EngineError: no such engine, or it cannot be started.
    """
    facts: list[Fact] = []
    if MODEL in engines:
        facts = list(reference_player(scenario.geometry).play(scenario))
    others = [name for name in engines if name != MODEL]
    targets = find_targets(others, EngineStore()) if others or not engines else ()
    for target in targets:
        if facts and _breaks(facts):
            break
        report(f"playing on {target.name}")
        with target.process() as process:
            facts = process.play(scenario, timeout=PLAY_TIMEOUT_S)
        [first, *_] = facts
        if isinstance(first, EngineError):
            raise SetupError(
                f"{target.name} failed before it said what it is: {first.message}",
                fix="run `kvproof engine doctor` for what it lacks",
            )
    return lambda: iter(facts)


def _breaks(facts: Sequence[Fact]) -> bool:
    return isinstance(facts[-1], EngineError) or bool(check(facts).violations)


def scenario_of(file: Path) -> Scenario:
    """The scenario in a file; of a log, its geometry and the operations of its steps.

    Raises:
        BadFileError: the file is neither, or cannot be read.
    """
    if not is_log(file):
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
