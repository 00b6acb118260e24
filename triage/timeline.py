"""Facts to frames: what each ring row, slot and pool holds after each step of a log.

The state of a step is a pure function of the facts up to it. Whatever draws it (a page, a terminal)
asks here, and the monitor's ghost state is the one place that knows who wrote which row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from kvproof.model.facts import (
    Allocated,
    Fact,
    Freed,
    Mode,
    Pool,
    Pools,
    Ran,
    Read,
    Skipped,
    Started,
    Step,
    Wrote,
)
from kvproof.model.forward import spelled_out
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import Operation
from kvproof.model.verdict import CAUSES, Cause, Lease, Writer


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """One query's read of one row.

    Attributes:
        request: None for a padded row of the batch.
        position: the query's own.
        stands_for: position that the query takes the row for.
        held: who had written what the query found; None if nobody had.
        cause: why that is not the reader's own; None if it is.
    """

    request: str | None
    mode: Mode
    position: int
    stands_for: int
    held: Writer | None
    cause: Cause | None


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One ring row in one step.

    Attributes:
        holds: who wrote what it holds after the step; None if nobody ever wrote it.
        written: whether it was written in this step.
        looks: number of reads of it in this step.
        look: the worst of them, the first of several; None if nobody read it.
    """

    row: int
    holds: Writer | None
    written: bool = False
    looks: int = 0
    look: Look | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A request that holds a slot, and how many of its tokens are computed."""

    lease: Lease
    computed_len: int


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """The state after one step, and what the step did.

    Attributes:
        index: the step's number in the log, from 0.
        skipped: why the operation did nothing; None if it did.
        facts: what was observed in the step, `Ran` spelled out as reads and writes.
        tenants: by slot number.
        cells: the rows that were asked for.
        pools: the latest snapshot; None if the log had none so far.
        lent: tokens of each pool that an allocator has lent, where the log says so.
    """

    index: int
    operation: Operation
    skipped: str | None
    facts: tuple[Fact, ...]
    tenants: tuple[Tenant, ...]
    cells: tuple[Cell, ...]
    pools: Pools | None
    lent: dict[Pool, int]


def frames(
    log: Iterable[Fact],
    *,
    rows: Collection[int] | None = None,
    wanted: Callable[[int], bool] = lambda _: True,
) -> Iterator[Frame]:
    """State after each step of a log, one at a time.

    Args:
        log: facts from `Started` on.
        rows: ring rows that the frames hold; None for all.
        wanted: whether the step of an index gets a frame. The others are played, not drawn.

    Raises:
        BadFileError: the facts are no log.
    """
    monitor = Monitor()
    draft: _Draft | None = None
    lent: dict[Pool, int] = {}
    started: list[Fact] = []
    for fact in log:
        if isinstance(fact, Started):
            started = [fact]
        elif isinstance(fact, Step):
            if draft is not None:
                yield draft.frame(monitor, lent, rows)
            draft = _Draft(step=fact) if wanted(fact.index) else None
        elif isinstance(fact, Allocated | Freed):
            tokens = sum(end - start for start, end in fact.locs)
            sign = 1 if isinstance(fact, Allocated) else -1
            lent[fact.pool] = lent.get(fact.pool, 0) + sign * tokens
        if draft is not None and isinstance(fact, Ran):
            # Row by row, which takes long, only where it is looked at.
            for spelled in list(spelled_out([*started, fact]))[len(started) :]:
                draft.take(spelled, monitor)
                monitor.feed(spelled)
            continue
        if draft is not None:
            draft.take(fact, monitor)
        monitor.feed(fact)
    if draft is not None:
        yield draft.frame(monitor, lent, rows)


_WORSE = {cause: rank for rank, cause in enumerate((*CAUSES, None))}
"""Order of causes from worst to none."""


@dataclass(slots=True)
class _Draft:
    """The frame of the step that is being played."""

    step: Step
    skipped: str | None = None
    facts: list[Fact] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    looks: dict[int, int] = field(default_factory=dict)
    worst: dict[int, Look] = field(default_factory=dict)

    def take(self, fact: Fact, before: Monitor) -> None:
        """Note what a fact did; ``before`` has not seen it yet."""
        if fact is not self.step:
            self.facts.append(fact)
        if isinstance(fact, Skipped):
            self.skipped = fact.reason
        elif isinstance(fact, Wrote):
            self.written.update(fact.rows)
        elif isinstance(fact, Read):
            lease = before.leases.get(fact.request) if fact.request is not None else None
            for stands_for, row in enumerate(fact.rows, fact.first):
                look = Look(
                    request=fact.request,
                    mode=fact.mode,
                    position=fact.position,
                    stands_for=stands_for,
                    held=before.ghost.writer(row),
                    cause=before.ghost.stale_cause(lease, stands_for, row) if lease else None,
                )
                self.looks[row] = self.looks.get(row, 0) + 1
                worst = self.worst.get(row)
                if worst is None or _WORSE[look.cause] < _WORSE[worst.cause]:
                    self.worst[row] = look

    def frame(self, monitor: Monitor, lent: dict[Pool, int], rows: Collection[int] | None) -> Frame:
        """The frame of the step, which has ended."""
        return Frame(
            index=self.step.index,
            operation=self.step.operation,
            skipped=self.skipped,
            facts=tuple(self.facts),
            tenants=tuple(
                Tenant(lease=lease, computed_len=monitor.computed_len(lease.request))
                for lease in sorted(monitor.leases.values(), key=lambda lease: lease.slot)
            ),
            cells=tuple(
                Cell(
                    row=row,
                    holds=monitor.ghost.writer(row),
                    written=row in self.written,
                    looks=self.looks.get(row, 0),
                    look=self.worst.get(row),
                )
                for row in (_all_rows(monitor) if rows is None else rows)
            ),
            pools=monitor.pools,
            lent=dict(lent),
        )


def _all_rows(monitor: Monitor) -> range:
    assert monitor.started is not None
    return range((monitor.started.geometry.slots + 1) * monitor.ghost.stride)
