"""The table of theorems as Markdown, written between markers of a document."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvproof.proofs.prove import TheoremResult

BEGIN = "<!-- theorems: made by `kvproof prove --table`, do not edit -->"
END = "<!-- end of theorems -->"


class NoMarkersError(ValueError):
    """The document has no place for the table."""


def markdown(results: Iterable[TheoremResult]) -> str:
    """One row a theorem. No times: the same proofs give the same text."""
    lines = ["| | statement | scope | status |", "|---|---|---|---|"]
    for result in results:
        status = result.status.replace("|", "\\|")
        lines.append(f"| {result.identifier} | {result.statement} | {result.scope} | {status} |")
    return "\n".join(lines)


def update(document: Path, results: Iterable[TheoremResult]) -> bool:
    """Put the table between the document's markers; True if that changed it.

    Raises:
        NoMarkersError: the document has no markers.
    """
    text = document.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoMarkersError(f"{document} lacks the lines {BEGIN!r} and {END!r}")
    new = f"{before}{BEGIN}\n{markdown(results)}\n{END}{after}"
    if new != text:
        document.write_text(new, encoding="utf-8")
    return new != text
