"""The matrix of a run as Markdown: release and construction by invariant.

Releases of one construction that came to the same stand in one row; its rows stand together.
The same run gives the same text, so that a document says when it has to be renewed.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.fuzz.campaign import TargetResult
from kvproof.model.verdict import Verdict

BEGIN = "<!-- matrix: made by `kvproof fuzz --table`, do not edit -->"
END = "<!-- end of the matrix -->"


def markdown(results: Sequence[TargetResult], *, note: str) -> str:
    """The table.

    Args:
        results: of one run.
        note: how it was made: profile, seed, machine.
    """
    asked = list(dict.fromkeys(v.invariant for result in results for v in result.verdicts))
    rows: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for result in results:
        release, construction = _split(result)
        verdicts = {verdict.invariant: verdict for verdict in result.verdicts}
        cells = tuple(_cell(verdicts.get(invariant)) for invariant in asked)
        rows.setdefault((construction, cells), []).append(release)
    constructions = list(dict.fromkeys(_base(construction) for construction, _ in rows))
    grouped = sorted(rows.items(), key=lambda row: constructions.index(_base(row[0][0])))
    lines = [
        f"| release | construction | {' | '.join(asked)} |",
        "|" + "---|" * (len(asked) + 2),
        *(
            f"| {', '.join(releases)} | {construction} | {' | '.join(cells)} |"
            for (construction, cells), releases in grouped
        ),
    ]
    return "\n".join([*lines, "", note])


def _base(construction: str) -> str:
    """A construction without what narrows it."""
    return construction.partition(",")[0]


def _split(result: TargetResult) -> tuple[str, str]:
    engine, _, construction = result.target.partition(":")
    narrowed = any("page_size >= window" in verdict.scope for verdict in result.verdicts)
    return (
        result.versions.get("sglang", engine),
        f"{construction}, page >= window" if narrowed else construction,
    )


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    if verdict.status == "skipped":
        return "no ring" if "no ring" in verdict.reason else "skipped"
    if verdict.status == "violated" and verdict.violation is not None:
        return f"violated: {verdict.violation.cause}"
    return verdict.status
