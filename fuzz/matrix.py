"""The matrix of a run as Markdown: release and construction by invariant.

Releases of one construction that came to the same stand in one row; its rows stand together.
The same run gives the same text, so that a document says when it has to be renewed.

Variants are many and mostly unbroken. Their table says for each what broke, in any of several runs,
since they are fuzzed release by release.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvproof.fuzz.campaign import TargetResult
from kvproof.fuzz.constructions import CONSTRUCTIONS
from kvproof.model.verdict import IN_WORDS, Verdict

BEGIN = "<!-- matrix: made by `kvproof fuzz --table`, do not edit -->"
END = "<!-- end of the matrix -->"

VARIANTS_BEGIN = "<!-- variants: made by `kvproof runs --table`, do not edit -->"
VARIANTS_END = "<!-- end of the variants -->"


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


def variants(results: Iterable[TargetResult], *, note: str) -> str:
    """What broke of constructions that are played by name.

    Args:
        results: of several runs; those of one target count together.
        note: how they were made.
    """
    by_target: dict[tuple[str, str], list[TargetResult]] = {}
    for result in results:
        release, construction = _split(result)
        known = CONSTRUCTIONS.get(_base(construction))
        if known is None or known.by_name:
            by_target.setdefault((construction, release), []).append(result)
    rows: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for (construction, release), played in sorted(
        by_target.items(), key=lambda target: _parts(target[0][1])
    ):
        drawn = sum(result.sequences for result in played)
        rows.setdefault((construction, _broke(played)), []).append((release, drawn))
    order = sorted({release for _, release in by_target}, key=_parts)
    names = [*CONSTRUCTIONS, *dict.fromkeys(_base(construction) for construction, _ in rows)]
    return "\n".join(
        [
            "| construction | releases | sequences of each | broken |",
            "|---|---|---|---|",
            *(
                f"| {construction} | {_spans([release for release, _ in cells], order)} | "
                f"{_range([drawn for _, drawn in cells])} | {broke} |"
                for (construction, broke), cells in sorted(
                    rows.items(), key=lambda row: names.index(_base(row[0][0]))
                )
            ),
            "",
            note,
        ]
    )


def _parts(release: str) -> list[tuple[int, str]]:
    """What sorts releases: 0.5.9 before 0.5.12, and that before 0.5.12.post1."""
    return [(int(part) if part.isdecimal() else -1, part) for part in release.split(".")]


def _spans(releases: Sequence[str], order: Sequence[str]) -> str:
    """Releases by name; three or more that follow each other as the first to the last."""
    spans: list[list[str]] = []
    for release in releases:
        if spans and order.index(release) == order.index(spans[-1][-1]) + 1:
            spans[-1].append(release)
        else:
            spans.append([release])
    return ", ".join(
        ", ".join(span) if len(span) < 3 else f"{span[0]} to {span[-1]}" for span in spans
    )


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def _broke(results: Sequence[TargetResult]) -> str:
    """What broke in any run of a target; what none of them could say; or nothing."""
    status: dict[str, set[str]] = {}
    causes: dict[str, set[str]] = {}
    for verdict in (verdict for result in results for verdict in result.verdicts):
        status.setdefault(verdict.invariant, set()).add(verdict.status)
        if verdict.status == "violated" and verdict.violation is not None:
            causes.setdefault(verdict.invariant, set()).add(verdict.violation.cause)
    faults = ["engine error"] if any(result.faults for result in results) else []
    said = [
        f"{invariant}: {', '.join(sorted(causes[invariant]))}"
        if invariant in causes
        else f"{invariant}: unknown"
        for invariant in IN_WORDS
        if invariant in causes
        or ("unknown" in status.get(invariant, ()) and "holds" not in status[invariant])
    ]
    return "; ".join(faults + said) or "nothing"


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
