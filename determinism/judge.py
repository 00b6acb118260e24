"""From cells to a verdict: which tails diverge more than the run's own floor.

The floor is measured in the same run: tails of a window or more, whose decodes cannot reach into
the reused prefix. A tail exceeds it if its answers outside the majority are too many to come from
the floor's rate: Fisher's exact test, one-sided, corrected for the number of tails by Holm's
procedure. The floor's rows are tested against each other in the same way; a floor that is not one
rate is none, and then there is no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from kvproof.determinism.plan import Cell, Settings
from kvproof.determinism.statistics import fisher_greater, holm, least_excess

ALPHA = 0.01
"""Chance, over all tails of a run together, of calling one in excess that is not."""

MOST_FAILED = 0.25
"""Share of a row's requests that may fail; with more it has no verdict."""

RowVerdict: TypeAlias = Literal["exceeds the floor", "within the floor", "floor", "no verdict"]
Status: TypeAlias = Literal["holds", "violated", "unknown"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One tail over all rounds.

    Attributes:
        exposed: the tail is shorter than the window.
        off_by_round: answers outside the majority, a number a round.
        distinct: most different outputs of a round.
        cached: tokens that requests reused, least and most; None if the server does not say.
        p: chance of so many off at the floor's rate; ``p_adjusted`` for all tails together.
        why: why there is no verdict.
    """

    tail: int
    exposed: bool
    answered: int
    off: int
    off_by_round: tuple[int, ...]
    distinct: int
    failed: int
    cached: tuple[int, int] | None
    p: float | None = None
    p_adjusted: float | None = None
    verdict: RowVerdict = "no verdict"
    why: str | None = None


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says.

    Attributes:
        floor_off: answers outside the majority in all rows of the floor.
        least_excess: fewest answers off with which a row of this run would exceed the floor.
        cells: cells that are done, of ``planned``.
    """

    status: Status
    says: str
    rows: tuple[Row, ...]
    floor_off: int
    floor_answered: int
    least_excess: int | None
    alpha: float
    cells: int
    planned: int


def judge(settings: Settings, cells: Iterable[Cell]) -> Judgement:
    """Judge the cells of a run, all or those that are done."""
    done = list(cells)
    rows = [_row(settings, tail, done) for tail in settings.tails]
    usable = [row for row in rows if row.why is None]
    floor = [row for row in usable if not row.exposed]
    exposed = [row for row in usable if row.exposed]
    off, answered = sum(row.off for row in floor), sum(row.answered for row in floor)
    unsteady = _unsteady(floor)
    tested: dict[int, Row] = {row.tail: row for row in floor}
    if floor and not unsteady:
        p_values = [fisher_greater(row.off, row.answered, off, answered) for row in exposed]
        for row, p, adjusted in zip(exposed, p_values, holm(p_values), strict=True):
            tested[row.tail] = msgspec.structs.replace(
                row, p=p, p_adjusted=adjusted,
                verdict="exceeds the floor" if adjusted <= ALPHA else "within the floor",
            )  # fmt: skip
    rows = [tested.get(row.tail, row) for row in rows]
    planned = len(settings.tails) * settings.rounds
    status, says = _verdict(rows, floor=bool(floor), unsteady=unsteady, done=len(done) == planned)
    smallest = min((row.answered for row in exposed), default=0)
    return Judgement(
        status=status,
        says=says,
        rows=tuple(rows),
        floor_off=off,
        floor_answered=answered,
        least_excess=least_excess(smallest, off, answered, alpha=ALPHA, rows=max(1, len(exposed)))
        if floor and smallest
        else None,
        alpha=ALPHA,
        cells=len(done),
        planned=planned,
    )


def _row(settings: Settings, tail: int, cells: Sequence[Cell]) -> Row:
    mine = sorted((cell for cell in cells if cell.tail == tail), key=lambda cell: cell.round)
    answered, failed = sum(c.answered for c in mine), sum(c.failed for c in mine)
    reused = [tokens for cell in mine for tokens in cell.cached]
    hits = [cell.hits for cell in mine if cell.hits is not None]
    exposed = settings.is_exposed(tail)
    why = None
    if not mine:
        why = "not done"
    elif failed > MOST_FAILED * (answered + failed):
        why = f"{failed} of {answered + failed} requests failed"
    elif hits and 2 * sum(hits) < answered:
        why = f"only {sum(hits)} of {answered} requests reused anything"
    return Row(
        tail=tail,
        exposed=exposed,
        answered=answered,
        off=sum(cell.off_majority for cell in mine),
        off_by_round=tuple(cell.off_majority for cell in mine),
        distinct=max((len(cell.outputs) for cell in mine), default=0),
        failed=failed,
        cached=(min(reused), max(reused)) if reused else None,
        verdict="no verdict" if why or exposed else "floor",
        why=why,
    )


def _unsteady(floor: Sequence[Row]) -> str | None:
    """Why the rows of the floor do not have one rate; None if they may."""
    p_values = []
    for row in floor:
        others = [other for other in floor if other is not row]
        off, answered = sum(o.off for o in others), sum(o.answered for o in others)
        p_values.append(fisher_greater(row.off, row.answered, off, answered) if others else 1.0)
    for row, adjusted in zip(floor, holm(p_values), strict=True):
        if adjusted <= ALPHA:
            return (
                f"the floor is not one rate: {row.off} of {row.answered} are off with a tail of "
                f"{row.tail}, more than with the other long tails"
            )
    return None


def _verdict(
    rows: Sequence[Row], *, floor: bool, unsteady: str | None, done: bool
) -> tuple[Status, str]:
    if not floor:
        return "unknown", "no tail of a window or more has a result, so there is no floor"
    if unsteady:
        return "unknown", unsteady
    excess = [row.tail for row in rows if row.verdict == "exceeds the floor"]
    if excess:
        tails = ", ".join(map(str, excess))
        return "violated", f"identical requests diverge more than the floor with tails of {tails}"
    without = [row for row in rows if row.verdict == "no verdict"]
    if without:
        return "unknown", f"no verdict for a tail of {without[0].tail}: {without[0].why}"
    if not done:
        return "unknown", "not all cells are done"
    if any(row.cached is None for row in rows if row.exposed):
        return "unknown", (
            "no excess, but the server does not say how many tokens it reused, so the prefixes may "
            "not have been reused at all"
        )
    if not any(row.exposed for row in rows):
        return "unknown", "no tail is shorter than the window"
    return "holds", "no tail below the window diverges more than the floor"
