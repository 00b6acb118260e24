"""The table of theorems as Markdown, written between markers of a document."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvproof.model.files import renew
from kvproof.proofs.prove import TheoremResult

BEGIN = "<!-- theorems: made by `kvproof prove --table`, do not edit -->"
END = "<!-- end of theorems -->"


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
    return renew(document, begin=BEGIN, end=END, table=markdown(results))
