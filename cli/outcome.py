"""What a log says, as commands print it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import RenderableType
from rich.text import Text

from kvproof.cli.output import plain_table
from kvproof.cli.verdicts import STATUS_STYLES, paint
from kvproof.fuzz.story import tell
from kvproof.model.facts import EngineError as EngineFault
from kvproof.model.facts import Fact, Gap
from kvproof.model.monitor import Monitor, statuses
from kvproof.model.scenario import BadFileError
from kvproof.model.verdict import Departure, Violation


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one log says.

    Attributes:
        statuses: status word by invariant.
        violations: the first of each invariant and cause, worst first.
        engine_error: what the engine raised, or that it hung or died.
        gap: where facts are missing: nothing after it was judged.
        steps: steps that were judged.
        departures: how occupancies depart from a run on an empty cache, the first thousand, where a
            stack of layers was named.
        compared: states and compressed rows of which floats and taint were held against each other.
    """

    target: str
    backend: str
    statuses: dict[str, str]
    violations: tuple[Violation, ...]
    engine_error: EngineFault | None
    gap: Gap | None
    steps: int
    departures: tuple[Departure, ...] | msgspec.UnsetType = msgspec.UNSET
    compared: int | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_clean(self) -> bool:
        """Whether nothing broke."""
        return not self.violations and self.engine_error is None


def outcome_of(monitor: Monitor, target: str = "", backend: str = "") -> Outcome:
    """``target`` and ``backend`` are for an engine that failed before it said what it is."""
    started = monitor.started
    return Outcome(
        target=started.target if started else target,
        backend=started.backend if started else backend,
        statuses={str(name): word for name, word in statuses(monitor).items()},
        violations=tuple(monitor.by_severity()),
        engine_error=monitor.engine_error,
        gap=monitor.gap,
        steps=monitor.steps,
        departures=monitor.layers.departures() if monitor.layers else msgspec.UNSET,
        compared=monitor.layers.compared if monitor.layers else msgspec.UNSET,
    )


def refuse_unjudged(monitor: Monitor) -> None:
    """Raise BadFileError for a log in which nothing broke, but of which a part is missing."""
    if monitor.violations or monitor.engine_error is not None:
        return
    if monitor.gap is not None:
        raise BadFileError(
            f"the log cannot be judged after step {monitor.steps}: {monitor.gap.words}; "
            "nothing broke before"
        )
    if not monitor.ended:
        raise BadFileError("the log is cut off: it has no last fact")


def told(name: str, outcome: Outcome, facts: Sequence[Fact]) -> list[RenderableType]:
    """The verdicts, and the story of the worst violation from ``facts``, which hold its steps."""
    table = plain_table("invariant", "verdict")
    for invariant, status in outcome.statuses.items():
        table.add_row(invariant, Text(status, STATUS_STYLES[status]))
    parts: list[RenderableType] = [
        Text(f"{name} (backend {outcome.backend})", "bold"), table, ""
    ]  # fmt: skip
    if outcome.engine_error is not None:
        error = outcome.engine_error
        parts += [Text(f"engine error: the engine {error.cause}: {error.message}", "magenta"), ""]
    if outcome.gap is not None:
        parts += [
            Text(f"Not judged after step {outcome.steps}: {outcome.gap.words}.", "yellow"),
            "",
        ]
    if outcome.departures is not msgspec.UNSET:
        parts += _departures(outcome, outcome.departures)
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


def _departures(outcome: Outcome, departures: tuple[Departure, ...]) -> list[RenderableType]:
    """How far each occupancy departs from a run on an empty cache."""
    parts: list[RenderableType] = []
    if outcome.compared:
        parts += [
            Text(
                f"{outcome.compared} states and compressed rows were held against runs on an empty "
                "cache, number by number, and against the taint of the log."
            ),
            "",
        ]
    if departures:
        table = plain_table(
            "request", "slot", "reuses", "departs at", "last", "states by layer", "pages", "heirs"
        )
        for one in departures:
            table.add_row(
                one.request,
                str(one.slot),
                str(one.matched_len),
                f"layer {one.layer}, position {one.position}",
                str(one.last),
                " ".join(map(str, one.states)),
                str(one.pages),
                ", ".join(one.heirs) or "none",
            )
        parts += [table, ""]
    return parts
