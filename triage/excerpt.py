"""The part of a log that a page draws, found by reading the log again, never held in memory.

So the steps before and after the violation can be chosen in full knowledge of it, and the state
after each can be drawn. A log that is read once, as it comes, has `fuzz.chronicle` instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvproof.model.facts import Fact, Started, Step
from kvproof.model.forward import spelled_out
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import Abort, Finish, Prefill, Retract, Submit
from kvproof.model.verdict import Violation
from kvproof.triage.timeline import Frame, frames

MOST_STEPS = 60
"""A log of no more steps is shown whole."""

BEFORE, AFTER = 10, 3
"""Steps before and after the violation that are shown of a longer one, whatever they do."""

MOST_NAMED = 30
"""Steps that are shown because they are about a request of the story; the latest ones."""

MOST_ROWS = 96
"""A ring of no more rows is shown whole, else the slots of the story."""

MOST_SLOT_ROWS = 512
"""Rows of a slot that are shown; of a longer one, those around the stale read."""

Log = Callable[[], Iterable[Fact]]
"""Begins to read a log, as often as it is called."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Excerpt:
    """The steps and rows of a log that tell its worst violation.

    Attributes:
        monitor: what the whole log says.
        violation: the one to tell; None if nothing broke.
        facts: the excerpt as a log: `Started`, and the kept steps with what happened in them.
        frames: the state after each kept step.
        requests: those of the story; of a busy log the facts are theirs only. None for all.
    """

    monitor: Monitor
    violation: Violation | None
    facts: tuple[Fact, ...]
    frames: tuple[Frame, ...]
    requests: frozenset[str] | None

    @property
    def started(self) -> Started:
        """What was run."""
        assert self.monitor.started is not None
        return self.monitor.started

    @property
    def is_whole(self) -> bool:
        """Whether every step of the log is shown."""
        return len(self.frames) == self.monitor.steps


def excerpt(log: Log) -> Excerpt:
    """Judge a log and keep what its worst violation needs.

    The log is read three times and never held: its violation first, then which steps are about it,
    then the state after those.

    Raises:
        BadFileError: the facts are no log.
    """
    monitor = Monitor()
    for fact in log():
        monitor.feed(fact)
    violation = monitor.worst()
    steps = _steps(log, monitor, violation)
    rows = _rows(monitor, violation)
    requests = _requests(violation) if len(steps) < monitor.steps else None
    return Excerpt(
        monitor=monitor,
        violation=violation,
        facts=tuple(spelled_out(_facts(log(), steps, requests))),
        frames=tuple(frames(log(), rows=rows, wanted=steps.__contains__)),
        requests=requests,
    )


def _steps(log: Log, monitor: Monitor, violation: Violation | None) -> frozenset[int]:
    if monitor.steps <= MOST_STEPS:
        return frozenset(range(monitor.steps))
    if violation is None:
        return frozenset(range(monitor.steps - MOST_STEPS, monitor.steps))
    steps = set(range(violation.step - BEFORE, violation.step + AFTER + 1))
    evidence = violation.evidence
    if evidence is None:
        return frozenset(steps)
    steps |= {lease.step for lease in evidence.leases}
    written = {cell.writer.step for cell in evidence.ring if cell.writer}
    steps |= set(sorted(written)[-MOST_NAMED:])
    if evidence.writer:
        steps.add(evidence.writer.step)
    steps |= set(_named(log(), {lease.request for lease in evidence.leases}, violation.step))
    return frozenset(steps)


def _named(log: Iterable[Fact], names: set[str], until: int) -> deque[int]:
    """The last steps up to a step that are about a request of one of these names."""
    found: deque[int] = deque(maxlen=MOST_NAMED)
    for fact in log:
        if isinstance(fact, Step):
            if fact.index > until:
                break
            operation = fact.operation
            if (
                isinstance(operation, Submit | Prefill | Finish | Abort | Retract)
                and operation.request in names
            ):
                found.append(fact.index)
    return found


def _rows(monitor: Monitor, violation: Violation | None) -> range:
    started, stride = monitor.started, monitor.ghost.stride
    assert started is not None
    everything = range((started.geometry.slots + 1) * stride)
    if len(everything) <= MOST_ROWS:
        return everything
    if violation is None or violation.evidence is None:
        return everything[stride : stride + max(MOST_ROWS, min(stride, MOST_SLOT_ROWS))]
    row, slot = violation.evidence.row, violation.evidence.reader.slot
    first = slot * stride
    if stride > MOST_SLOT_ROWS:
        first = max(first, min(row - MOST_SLOT_ROWS // 2, first + stride - MOST_SLOT_ROWS))
    return range(first, first + min(stride, MOST_SLOT_ROWS))


def _requests(violation: Violation | None) -> frozenset[str] | None:
    evidence = violation.evidence if violation else None
    if evidence is None:
        return None
    writer = {evidence.writer.request} if evidence.writer else set()
    return frozenset({lease.request for lease in evidence.leases} | writer)


def concerns(fact: Fact, requests: frozenset[str] | None) -> bool:
    """Whether a fact is about one of the requests, or about none at all."""
    request = getattr(fact, "request", None)
    return requests is None or request is None or request in requests


def _facts(
    log: Iterable[Fact], steps: frozenset[int], requests: frozenset[str] | None
) -> Iterator[Fact]:
    wanted = False
    for fact in log:
        if isinstance(fact, Step):
            wanted = fact.index in steps
        elif isinstance(fact, Started):
            yield fact
            wanted = True  # what comes before the first step
            continue
        if wanted and concerns(fact, requests):
            yield fact
