"""Findings: what the judges of one log put to the test, reached and found broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from msgspec import UNSET

from kvproof.model.verdict import SEVERITY, Cause, Departure, Invariant, StaleRead, Violation
from kvproof.model.witness import Witness

Break: TypeAlias = tuple[Cause, str]
"""Why an invariant is broken, and the sentence that says where."""

K = TypeVar("K")


class Tally(dict[K, int]):
    """Counts, 0 for what was not counted. Several times as quick as a Counter to count up."""

    def __missing__(self, key: K) -> int:
        return 0


@dataclass(slots=True)
class Findings:
    """The judges' common book.

    Attributes:
        violations: the first violation of each (invariant, cause), in the order found.
        counts: how often each (invariant, cause) occurred: reads for FRESH-*, else places.
        checked: how often each invariant was put to the test.
        witnesses: how often each interesting state was reached.
        step: index of the step that is judged; -1 before the first.
    """

    violations: dict[tuple[Invariant, Cause], Violation] = field(default_factory=dict)
    counts: Counter[tuple[Invariant, Cause]] = field(default_factory=Counter)
    checked: Tally[Invariant] = field(default_factory=Tally)
    witnesses: Tally[Witness] = field(default_factory=Tally)
    step: int = -1

    def broken(
        self,
        invariant: Invariant,
        cause: Cause,
        sentence: str,
        *,
        evidence: StaleRead | None = None,
        departure: Departure | None = None,
        times: int = 1,
    ) -> None:
        """An invariant is broken in this step, so many times."""
        if self.again(invariant, cause, times=times):
            return
        self.counts[invariant, cause] += times
        self.violations[invariant, cause] = Violation(
            invariant=invariant,
            cause=cause,
            step=self.step,
            sentence=sentence,
            evidence=evidence,
            departure=UNSET if departure is None else departure,
        )

    def broken_by(self, invariant: Invariant, breaks: Iterable[Break]) -> None:
        """Each way in which a judge saw it broken."""
        for cause, sentence in breaks:
            self.broken(invariant, cause, sentence)

    def again(self, invariant: Invariant, cause: Cause, *, times: int) -> bool:
        """Whether this was found before; then it is only counted, and needs no evidence."""
        if (invariant, cause) not in self.violations:
            return False
        self.counts[invariant, cause] += times
        return True

    def by_severity(self) -> list[Violation]:
        """Violations in the ladder's order, then by how bad their cause is."""
        return sorted(self.violations.values(), key=lambda v: SEVERITY[v.invariant, v.cause])

    def worst(self, invariant: Invariant | None = None) -> Violation | None:
        """The violation to report first, of one invariant or of all."""
        return next((v for v in self.by_severity() if invariant in (None, v.invariant)), None)
