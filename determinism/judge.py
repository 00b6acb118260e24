"""From cells to a verdict: which tails diverge more than the run's own floor.

The floor is measured in the same run. As in PR #30339 it is the tails of a window or more, whose
decodes cannot reach into the reused prefix. A shorter tail exceeds it if its answers outside the
majority are too many to come from the floor's rate: Fisher's exact test, one-sided, corrected for
the number of tails by Holm's procedure.

Through several layers the long tails read what is stale too (theorem X3), so their floor may itself
be raised. The cold control shows it: identical requests that reuse nothing. Long tails are tested
against it in the same way, and where they exceed it, no excess of the short ones means nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from kvproof.determinism.plan import COLD, Cell, Settings
from kvproof.determinism.statistics import fisher_greater, holm, least_excess

ALPHA = 0.01
"""Chance, over all tails of a run together, of calling one in excess that is not."""

MOST_FAILED = 0.25
"""Share of a row's requests that may fail; with more it has no verdict."""

Kind: TypeAlias = Literal["cold", "short", "long"]
Floor: TypeAlias = Literal["long", "cold"]
RowVerdict: TypeAlias = Literal[
    "exceeds the floor", "within the floor", "floor", "exceeds the cold control", "no verdict"
]
Status: TypeAlias = Literal["holds", "violated", "unknown"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One tail over all rounds.

    Attributes:
        kind: below the window, or not, or the cold control.
        off_by_round: answers outside the majority, a number a round.
        distinct: most different outputs of a round.
        cached: tokens that requests reused, least and most; None if the server does not say.
        p: chance of so many off at the rate that it was tested against.
        p_adjusted: the same for all tails together.
        why: why there is no verdict.
    """

    tail: int
    kind: Kind
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
        floor: which rows are the floor.
        floor_off: answers outside the majority in all of them.
        least_excess: fewest answers off with which a row of this run would exceed the floor.
        cells: cells that are done, of ``planned``.
    """

    status: Status
    says: str
    rows: tuple[Row, ...]
    floor: Floor
    floor_off: int
    floor_answered: int
    least_excess: int | None
    alpha: float
    cells: int
    planned: int


def judge(settings: Settings, cells: Iterable[Cell], *, floor: Floor = "long") -> Judgement:
    """Judge the cells of a run, all or those that are done.

    Args:
        settings: the run's.
        cells: what came back.
        floor: ``long`` as in PR #30339; ``cold`` tests the long tails too, which is right where
            cold requests are no steadier than others, as in process.
    """
    done = list(cells)
    rows = {tail: _row(settings, tail, done) for tail in settings.all_tails}
    usable = [row for row in rows.values() if row.why is None]
    cold = [row for row in usable if row.kind == "cold"]
    long = [row for row in usable if row.kind == "long"]
    tested = [row for row in usable if row.kind == "short"]
    floor_rows = long
    if floor == "cold":
        floor_rows, tested = cold, [*tested, *long]
    off, answered = sum(row.off for row in floor_rows), sum(row.answered for row in floor_rows)
    for row in _tested(tested, off, answered, "exceeds the floor", "within the floor"):
        rows[row.tail] = row
    if floor == "long" and cold:
        of_cold = sum(row.off for row in cold), sum(row.answered for row in cold)
        for row in _tested(long, *of_cold, "exceeds the cold control", "floor"):
            rows[row.tail] = row
    planned = len(settings.all_tails) * settings.rounds
    status, says = _verdict([*rows.values()], floor=floor, done=len(done) == planned)
    smallest = min((row.answered for row in tested), default=0)
    return Judgement(
        status=status,
        says=says,
        rows=tuple(rows.values()),
        floor=floor,
        floor_off=off,
        floor_answered=answered,
        least_excess=least_excess(smallest, off, answered, alpha=ALPHA, rows=len(tested))
        if answered and smallest
        else None,
        alpha=ALPHA,
        cells=len(done),
        planned=planned,
    )


def _row(settings: Settings, tail: int, cells: Sequence[Cell]) -> Row:
    mine = sorted((cell for cell in cells if cell.tail == tail), key=lambda cell: cell.round)
    answered, failed = sum(c.answered for c in mine), sum(c.failed for c in mine)
    reused = [tokens for cell in mine for tokens in cell.cached]
    kind: Kind = "cold" if tail == COLD else "short" if settings.is_exposed(tail) else "long"
    why = _why_unusable(mine, kind)
    return Row(
        tail=tail,
        kind=kind,
        answered=answered,
        off=sum(cell.off_majority for cell in mine),
        off_by_round=tuple(cell.off_majority for cell in mine),
        distinct=max((len(cell.outputs) for cell in mine), default=0),
        failed=failed,
        cached=(min(reused), max(reused)) if reused else None,
        verdict="no verdict" if why or kind == "short" else "floor",
        why=why,
    )


def _why_unusable(cells: Sequence[Cell], kind: Kind) -> str | None:
    answered, failed = sum(c.answered for c in cells), sum(c.failed for c in cells)
    hits = [cell.hits for cell in cells if cell.hits is not None]
    if not cells:
        return "not done"
    if failed > MOST_FAILED * (answered + failed):
        return f"{failed} of {answered + failed} requests failed"
    reusing = sum(hits)
    if kind == "cold" and not hits:
        return "the server does not say whether it reused anything"
    if kind == "cold" and reusing:
        return f"{reusing} of {answered} requests reused something: the server ignores salts"
    if kind != "cold" and hits and 2 * reusing < answered:
        return f"only {reusing} of {answered} requests reused anything"
    return None


def _tested(
    rows: Sequence[Row], off: int, answered: int, above: RowVerdict, within: RowVerdict
) -> Iterable[Row]:
    """Rows with their chance of being so far off at the rate of ``off`` in ``answered``."""
    if not answered:
        return
    p_values = [fisher_greater(row.off, row.answered, off, answered) for row in rows]
    for row, p, adjusted in zip(rows, p_values, holm(p_values), strict=True):
        verdict = above if adjusted <= ALPHA else within
        yield msgspec.structs.replace(row, p=p, p_adjusted=adjusted, verdict=verdict)


def _verdict(rows: Sequence[Row], *, floor: Floor, done: bool) -> tuple[Status, str]:
    excess = [row for row in rows if row.verdict == "exceeds the floor"]
    raised = [row for row in rows if row.verdict == "exceeds the cold control"]
    if excess:
        says = f"identical requests diverge more than the floor with tails of {_tails(excess)}"
        if any(row.kind == "long" for row in excess):
            says += ", some of them as long as the window: it reaches further through the layers"
        return "violated", says
    without = [row for row in rows if row.why and row.kind != "cold"]
    if without:
        return "unknown", f"no verdict for a tail of {without[0].tail}: {without[0].why}"
    if not any(row.kind == ("cold" if floor == "cold" else "long") and not row.why for row in rows):
        return "unknown", "no row of the floor has a result"
    if raised:
        return "unknown", (
            f"the floor is no floor: with tails of {_tails(raised)} requests diverge more than "
            "cold ones"
        )
    if not done:
        return "unknown", "not all cells are done"
    if any(row.cached is None for row in rows if row.kind == "short"):
        return "unknown", (
            "no excess, but the server does not say how many tokens it reused, so perhaps it "
            "reused none"
        )
    if not any(row.kind == "short" for row in rows):
        return "unknown", "no tail is shorter than the window"
    return "holds", "no tail diverges more than the floor"


def _tails(rows: Sequence[Row]) -> str:
    return ", ".join(str(row.tail) for row in rows)
