"""What a story needs of a log that can be read only once: a pipe, or a file that still grows.

Which steps those are is not known before something breaks, so what may be needed is kept on the way
and the rest is lost. Where a log can be read again, `triage.excerpt` looks for them afterwards.

A chronicle is shown the facts beside the monitor. It keeps the last steps, and of each occupancy
that the monitor still knows the steps that name its request: how it came, what it was given, how it
ended. Decode steps name nobody and are not kept beyond the last ones. So its size is bounded too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Fact,
    Freed,
    Mapped,
    Pools,
    Ran,
    Released,
    Started,
    Step,
    Translated,
)
from kvproof.model.forwards import Release
from kvproof.model.monitor import FORGET_AT, Monitor
from kvproof.model.scenario import Abort, Finish, names_of
from kvproof.model.verdict import Violation

RECENT = 24
"""Last steps that are kept. A log that is no longer is told whole."""

MOST_FACTS = 2000
"""Facts that are kept of one step."""

MOST_STEPS = 8
"""Steps that are kept of one request: the first half and the last half of them."""

_UNTOLD = (Pools, Allocated, Freed, Translated, Mapped)

_MANY = (Ran, Advanced)
"""Most of a recorder's log."""

Group = list[Fact]
"""A `Step` and the facts that follow it."""


@dataclass(slots=True)
class Chronicle:
    """Show it every fact with `note`, before the monitor sees it."""

    monitor: Monitor
    _started: list[Fact] = field(default_factory=list)
    _now: Group = field(default_factory=list)
    _recent: deque[Group] = field(default_factory=lambda: deque(maxlen=RECENT))
    _steps: int = 0
    _by_request: dict[str, list[Group]] = field(default_factory=dict)
    _by_occupancy: dict[int, list[Group]] = field(default_factory=dict)
    _occupancy: int = 0
    _forget_at: int = FORGET_AT

    def note(self, fact: Fact) -> None:
        """Take in the next fact."""
        if isinstance(fact, _MANY):
            if len(self._now) < MOST_FACTS:
                self._now.append(fact)
        elif isinstance(fact, Step):
            self._begin(fact)
        elif isinstance(fact, Started):
            self._started = [fact]
        elif not isinstance(fact, _UNTOLD) and len(self._now) < MOST_FACTS:
            self._now.append(fact)
            if isinstance(fact, Admitted):
                self._admitted(fact)
            elif isinstance(fact, Released):
                self._released(fact)

    def _begin(self, step: Step) -> None:
        self._steps += 1
        self._now = [step]
        self._recent.append(self._now)
        operation = step.operation
        for name in names_of(operation):
            groups = self._by_request.setdefault(name, [])
            if len(groups) == MOST_STEPS:
                del groups[MOST_STEPS // 2]
            groups.append(self._now)
        if isinstance(operation, Abort) and operation.request not in self.monitor.leases:
            del self._by_request[operation.request]

    def _admitted(self, fact: Admitted) -> None:
        self._occupancy += 1
        self._by_occupancy[self._occupancy] = self._by_request.get(fact.request, [])
        if len(self._by_occupancy) > self._forget_at:
            known = self.monitor.ghost.tenants
            self._by_occupancy = {at: g for at, g in self._by_occupancy.items() if at in known}
            self._forget_at = max(FORGET_AT, 2 * len(self._by_occupancy))

    def _released(self, fact: Released) -> None:
        operation = self._now[0].operation if isinstance(self._now[0], Step) else None
        if isinstance(operation, Finish | Abort | Release):
            self._by_request.pop(fact.request, None)

    def steps_of(self, violation: Violation) -> list[Group]:
        """The steps that tell of a violation that the last fact shows. The last may still grow."""
        evidence = violation.evidence
        groups = [*self._recent]
        # A forward is planned shortly before it is used: the last steps tell of that.
        if self._steps > RECENT and violation.invariant != "CURRENT":
            told = {lease.occupancy for lease in evidence.leases} if evidence else set()
            if evidence is not None and evidence.writer is not None:
                told.add(evidence.writer.occupancy)
            groups = [group for at in told for group in self._by_occupancy.get(at, ())]
            names = {fact.request for fact in self._now if isinstance(fact, Admitted)}
            groups += [group for name in names for group in self._by_request.get(name, ())]
            groups.append(self._now)
        by_step = {group[0].index: group for group in groups if isinstance(group[0], Step)}
        return [self._started, *(by_step[index] for index in sorted(by_step))]


def facts_of(groups: Iterable[Group], violation: Violation) -> list[Fact]:
    """A story's steps as a log, without what other requests did in the step of the violation."""
    evidence = violation.evidence
    reader = evidence.reader.request if evidence is not None else None
    return [
        fact
        for group in groups
        for fact in group
        if reader is None or len(group) <= RECENT or getattr(fact, "request", reader) == reader
    ]
