"""The table of expected results, and how a run compares with it."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from kvproof.fuzz.campaign import Fault, TargetResult
from kvproof.fuzz.targets import released_targets
from kvproof.model.files import read_file
from kvproof.model.scenario import BadFileError
from kvproof.model.toml import decode_toml
from kvproof.model.verdict import Cause, Invariant, Verdict

TABLE = Path(__file__).with_name("expected.toml")

Agreement: TypeAlias = Literal["as expected", "changed", "not expected"]
"""``changed`` is news about a known release; ``not expected`` a violation without an entry."""


class Expected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A violation that is expected of a target, and why; or an end that leaves nothing to judge.

    Two entries may differ in the cause alone: then either is as expected, whichever is met first.

    Attributes:
        error: what an engine that raises says, in part.
        rare: a short run seldom meets it, so that it was not found is no news.
    """

    target: str
    invariant: Invariant
    cause: Cause | Literal["engine error"]
    reason: str
    reference: str
    error: str = ""
    rare: bool = False


class _Entry(Expected, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry as it is written: targets may share it, and a defect may show in several ways.

    Attributes:
        target: names, or shell patterns of the names of the supported releases' targets.
    """

    target: str | tuple[str, ...]  # type: ignore[assignment]
    invariant: Invariant | tuple[Invariant, ...]  # type: ignore[assignment]
    cause: Cause | Literal["engine error"] | tuple[Cause, ...]  # type: ignore[assignment]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expected: tuple[_Entry, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the matrix against the table."""

    target: str
    invariant: Invariant
    agreement: Agreement
    note: str


def load_expected(path: Path = TABLE) -> tuple[Expected, ...]:
    """Entries of the table; raises BadFileError."""
    data = read_file(path)
    try:
        return decode_expected(data)
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error


def decode_expected(data: bytes) -> tuple[Expected, ...]:
    """Entries from TOML; raises BadFileError."""
    table = decode_toml(data, _Table, part="table of expected results")
    return tuple(
        Expected(
            target=target,
            invariant=invariant,
            cause=cause,
            reason=entry.reason,
            reference=entry.reference,
            error=entry.error,
            rare=entry.rare,
        )
        for entry in table.expected
        for pattern in ((entry.target,) if isinstance(entry.target, str) else entry.target)
        for target in _targets(pattern)
        for invariant in (
            (entry.invariant,) if isinstance(entry.invariant, str) else entry.invariant
        )
        for cause in ((entry.cause,) if isinstance(entry.cause, str) else entry.cause)
    )


def _targets(pattern: str) -> list[str]:
    """The targets that an entry means.

    Raises:
        BadFileError: no release has such a target.
    """
    if not any(character in pattern for character in "*?["):
        return [pattern]
    if found := fnmatch.filter(released_targets(), pattern):
        return found
    raise BadFileError(f"no supported release has a target like {pattern!r}")


def compare(
    result: TargetResult, table: tuple[Expected, ...], *, baseline: str | None = None
) -> tuple[Comparison, ...]:
    """Compare a target's verdicts with the table's entries for it, or for ``baseline``."""
    entries = [entry for entry in table if entry.target == (baseline or result.target)]
    raised = next((f.error.message for f in result.faults if not _is_known(f, entries)), None)
    verdicts = {verdict.invariant: verdict for verdict in result.verdicts}
    cells = []
    for invariant, verdict in verdicts.items():
        entry = _entry_for(verdict, entries)
        agreement: Agreement = "as expected"
        note = entry.reason if entry else ""
        if entry is None and verdict.status == "violated":
            agreement, note = "not expected", "no entry of the table expects this violation"
        elif entry is not None and entry.rare and verdict.status in {"holds", "skipped"}:
            note = f"known to break ({entry.reference}), seldom met and not in this run"
        elif entry is not None and _ends_as_expected(verdict, entry):
            pass
        elif entry is not None and verdict.status != "violated":
            agreement = "changed"
            note = f"the table expects a violation ({entry.reference}); the run says: " + (
                verdict.reason or verdict.status
            )
        elif entry is not None and verdict.violation and verdict.violation.cause != entry.cause:
            agreement = "changed"
            note = f"the table expects the cause {entry.cause}, found {verdict.violation.cause}"
        elif verdict.status in {"unknown", "engine error"}:
            agreement, note = "changed", verdict.reason
        elif verdict.status == "violated" and raised is not None:
            # Where a violation is known the engine's end would go unnoticed.
            agreement, note = "changed", f"broken as expected, and the engine failed: {raised}"
        cells.append(
            Comparison(target=result.target, invariant=invariant, agreement=agreement, note=note)
        )
    return tuple(cells)


def _is_known(fault: Fault, entries: Iterable[Expected]) -> bool:
    return any(e.cause == "engine error" and e.error in fault.error.message for e in entries)


def _ends_as_expected(verdict: Verdict, entry: Expected) -> bool:
    return entry.cause == verdict.status == "engine error" and entry.error in verdict.reason


def _entry_for(verdict: Verdict, entries: Iterable[Expected]) -> Expected | None:
    """What is expected of an invariant: the entry with the cause that was found, if any."""
    meant = [entry for entry in entries if entry.invariant == verdict.invariant]
    found = verdict.violation.cause if verdict.violation else verdict.status
    return next((entry for entry in meant if entry.cause == found), meant[0] if meant else None)
