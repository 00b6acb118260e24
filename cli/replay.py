"""``kvproof replay`` plays a scenario file; ``kvproof check`` judges a log file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.fuzz import STATUS_STYLES, paint
from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, show
from kvproof.fuzz.story import tell
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import EngineError as EngineFault
from kvproof.model.facts import Fact, encode_fact, read_log
from kvproof.model.files import load_scenario
from kvproof.model.monitor import Monitor, statuses
from kvproof.model.monitor import check as judge
from kvproof.model.reference import reference_player
from kvproof.model.scenario import BadFileError, Scenario
from kvproof.model.verdict import Violation

MODEL = "model"
"""Name of the reference engine as a target."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one log says.

    Attributes:
        statuses: status word by invariant.
        violations: the first of each invariant and cause, worst first.
        engine_error: what the engine raised, or that it hung or died.
    """

    target: str
    backend: str
    statuses: dict[str, str]
    violations: tuple[Violation, ...]
    engine_error: EngineFault | None

    @property
    def is_clean(self) -> bool:
        """Whether nothing broke."""
        return not self.violations and self.engine_error is None


def _outcome(monitor: Monitor, target: str = "", backend: str = "") -> Outcome:
    """``target`` and ``backend`` are for an engine that failed before it said what it is."""
    started = monitor.started
    return Outcome(
        target=started.target if started else target,
        backend=started.backend if started else backend,
        statuses={str(name): word for name, word in statuses(monitor).items()},
        violations=tuple(monitor.by_severity()),
        engine_error=monitor.engine_error,
    )


def replay(
    file: Annotated[Path, typer.Argument(help="A scenario file.")],
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
    timeout: Annotated[float, typer.Option(help="Seconds that one play may take.")] = 60.0,
    log: Annotated[Path | None, typer.Option(help="Write the log of the last target here.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Play a scenario again.

    Exit code 0 if every invariant holds on every target, 1 if one breaks or the engine fails,
    2 for a set-up error.
    """
    scenario = load_scenario(file)
    outcomes: list[Outcome] = []
    parts: list[RenderableType] = []
    for name, facts in _plays(scenario, engine or [], backend, timeout):
        outcome = _outcome(judge(facts), name, backend)
        outcomes.append(outcome)
        parts += _told(name, outcome, facts)
        if log is not None:
            _write(log, facts)
    show(Group(*parts), {"outcomes": outcomes}, as_json=as_json)
    if not all(outcome.is_clean for outcome in outcomes):
        raise typer.Exit(ExitCode.VIOLATION)


def _write(path: Path, facts: list[Fact]) -> None:
    try:
        path.write_bytes(b"".join(encode_fact(fact) for fact in facts))
    except OSError as error:
        raise EngineError(
            f"{path} cannot be written: {error.strerror}", fix="give another file with --log"
        ) from error


def _plays(
    scenario: Scenario, engines: list[str], backend: Literal["interpreter", "rules"], timeout: float
) -> list[tuple[str, list[Fact]]]:
    plays: list[tuple[str, list[Fact]]] = []
    if MODEL in engines:
        plays.append((MODEL, list(reference_player(scenario.geometry).play(scenario))))
    others = [name for name in engines if name != MODEL]
    if others or not engines:
        with progress("replaying", lines=False) as report:
            for target in find_targets(others, EngineStore()):
                report(f"replaying on {target.name}")
                with target.process() as process:
                    facts = process.play(scenario, timeout=timeout, backend=backend)
                plays.append((target.name, facts))
    return plays


def check(
    file: Annotated[Path, typer.Argument(help="A log file, JSON Lines.")],
    as_json: JsonOption = False,
) -> None:
    """Judge a log: which invariants hold in it. Exit codes as for `replay`."""
    monitor = Monitor()
    try:
        with file.open("rb") as lines:
            for fact in read_log(lines):
                monitor.feed(fact)
    except OSError as error:
        raise BadFileError(f"{file}: {error.strerror or error}") from error
    except BadFileError as error:
        raise BadFileError(f"{file}: {error}") from error
    if not monitor.ended and monitor.engine_error is None:
        raise BadFileError(f"{file}: the log is cut off: it has no last fact")
    outcome = _outcome(monitor)
    with file.open("rb") as lines:
        parts = _told(outcome.target, outcome, list(read_log(lines)))
    show(Group(*parts), outcome, as_json=as_json)
    if not outcome.is_clean:
        raise typer.Exit(ExitCode.VIOLATION)


def _told(name: str, outcome: Outcome, facts: list[Fact]) -> list[RenderableType]:
    table = plain_table("invariant", "verdict")
    for invariant, status in outcome.statuses.items():
        table.add_row(invariant, Text(status, STATUS_STYLES[status]))
    parts: list[RenderableType] = [
        Text(f"{name} (backend {outcome.backend})", "bold"), table, ""
    ]  # fmt: skip
    if outcome.engine_error is not None:
        error = outcome.engine_error
        parts += [Text(f"engine error: the engine {error.cause}: {error.message}", "magenta"), ""]
    if outcome.violations:
        parts.append(paint(tell(outcome.violations[0], facts)))
        for violation in outcome.violations[1:]:
            parts.append(
                Text(
                    f"also {violation.invariant} ({violation.cause}) in step "
                    f"{violation.step + 1}: {violation.sentence}"
                )
            )
        parts.append("")
    return parts
