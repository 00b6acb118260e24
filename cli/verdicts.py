"""Verdicts on the console: the matrix of a run, and stories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kvproof.cli.output import plain_table
from kvproof.fuzz.campaign import TargetResult
from kvproof.fuzz.expected import Comparison
from kvproof.fuzz.story import STALE
from kvproof.model.verdict import NEEDS_SWA, Invariant, Verdict

STATUS_STYLES = {
    "holds": "green",
    "violated": "red",
    "engine error": "magenta",
    "unknown": "yellow",
    "skipped": "yellow",
}

_UNFOLDED = 10_000
"""A console so wide that nothing is folded."""


@dataclass(frozen=True, kw_only=True)
class VerdictMatrix:
    """Status by invariant and target, and whether the table of expected results agrees.

    A target is a column. As many stand beside each other as the console is wide; the others follow
    below.

    Attributes:
        results: of the targets that ran.
        comparisons: each of their verdicts against the table of expected results.
    """

    results: Sequence[TargetResult]
    comparisons: Sequence[Comparison]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables."""
        # Of the families that ran, in the ladder's order. What no target tells is left to
        # the report, which has the reason.
        asked = list(
            dict.fromkeys(
                verdict.invariant
                for result in self.results
                for verdict in result.verdicts
                if verdict.status != "skipped" or verdict.invariant not in NEEDS_SWA
            )
        )
        agreement = {(c.target, c.invariant): c.agreement for c in self.comparisons}
        columns = [_column(result, asked, agreement) for result in self.results]
        while columns:
            fit = len(columns)
            while fit > 1 and _width(_table(asked, columns[:fit]), console) > options.max_width:
                fit -= 1
            yield _table(asked, columns[:fit])
            columns = columns[fit:]
            if columns:
                yield ""


def _width(table: Table, console: Console) -> int:
    unfolded = console.options.update(max_width=_UNFOLDED)
    return Measurement.get(console, unfolded, table).maximum


def _table(asked: Sequence[Invariant], columns: Sequence[tuple[str, Sequence[Text]]]) -> Table:
    table = plain_table("invariant", *[title for title, _ in columns])
    for row in zip(asked, *[cells for _, cells in columns], strict=True):
        table.add_row(*row)
    return table


def _column(
    result: TargetResult,
    asked: Sequence[Invariant],
    agreement: Mapping[tuple[str, Invariant], str],
) -> tuple[str, list[Text]]:
    """A target's name, and a cell for each invariant."""
    verdicts = {verdict.invariant: verdict for verdict in result.verdicts}
    cells = []
    for invariant in asked:
        cells.append(cell := Text())
        verdict = verdicts.get(invariant)
        if verdict is None:
            continue
        cell.append(verdict.status, style=STATUS_STYLES[verdict.status])
        if verdict.status == "violated":
            cell.append(f"\nin {verdict.scope.replace('operations', 'steps')}", style="dim")
        if verdict.status == "skipped":
            cell.append(f"\n{_short(verdict)}", style="dim")
        agrees = agreement[result.target, invariant]
        if agrees != "as expected":
            cell.append(f"\n{agrees}", style="bold red")
    return result.target.replace(":", ":\n"), cells


def _short(verdict: Verdict) -> str:
    """Why an invariant was skipped, in two words; the report has the reason."""
    if verdict.invariant in NEEDS_SWA:
        return "not told"
    return "no ring" if "no ring" in verdict.reason else "not played"


def paint(story: str) -> Text:
    """A story with its stale rows in red."""
    text = Text(story)
    text.highlight_regex(rf"(?m)^.*{STALE}$", "red")
    text.highlight_regex(r"(?m)^.*<- breaks here$", "bold")
    return text
