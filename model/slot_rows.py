"""What the rows of one slot hold: runs of positions, and by themselves the rows that fit in none.

A request writes one position after the other, so a slot's rows hold a few runs: that of its newest
tenant, and what is left of those before it. A run is kept by its two ends, so what a window of 128
rows holds is found without a look at 128 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec


class Written(msgspec.Struct, frozen=True, gc=False):
    """Provenance of one row. ``rejected`` marks a draft token that verification threw away."""

    occupancy: int
    position: int
    step: int
    rejected: bool = False


class Run(msgspec.Struct, gc=False):
    """Keys of one occupancy at positions ``[start, end)``, each in its row; a slot's at most."""

    occupancy: int
    start: int
    end: int
    rejected: bool = False


class Found(msgspec.Struct, frozen=True, gc=False):
    """Rows of positions ``[start, end)`` that hold keys of one run.

    Attributes:
        laps: by how many strides the positions lie past those of the keys.
    """

    start: int
    end: int
    run: Run
    laps: int


@dataclass(slots=True)
class SlotRows:
    """Rows of one slot by offset: ``position % stride`` where the rules are kept.

    Attributes:
        stride: number of rows.
        runs: what they hold, each row in one run at most; the newest is the last.
        odd: rows whose key has its place elsewhere, or no request. They are in no run.
    """

    stride: int
    runs: list[Run] = field(default_factory=list)
    odd: dict[int, Written] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)

    def put(self, occupancy: int, start: int, end: int, step: int) -> None:
        """Keys at positions ``[start, end)`` went each to its row, one after the other."""
        stride = self.stride
        if end - start == 1:
            self._steps[start % stride] = step
        else:
            start = max(start, end - stride)  # of more than a stride only the last stride stays
            if start >= end:
                return
            first = start % stride
            last = first + end - start
            self._steps.update(dict.fromkeys(range(first, min(last, stride)), step))
            self._steps.update(dict.fromkeys(range(last - stride), step))
        if self.odd:
            for position in range(start, end):
                self.odd.pop(position % stride, None)
        runs = self.runs
        if runs and _continues(newest := runs[-1], occupancy, start):
            newest.end = end
            if end - newest.start > stride:
                newest.start = end - stride
            if len(runs) > 1:
                runs[:] = [*self._left(runs[:-1], start, end), newest]
            return
        runs[:] = self._left(runs, start, end)
        if runs and _continues(runs[-1], occupancy, start):  # only a rejected draft lay between
            runs[-1].end = end
        else:
            runs.append(Run(occupancy, start, end))

    def put_odd(self, offset: int, written: Written) -> None:
        """A key went to a row that is not its own."""
        self.runs[:] = self._left(self.runs, offset, offset + 1)
        self.odd[offset] = written

    def _left(self, runs: list[Run], start: int, end: int) -> Iterator[Run]:
        """What is left of runs once something else was written at ``[start, end)``."""
        stride = self.stride
        for run in runs:
            # The first lap of what was written that ends behind the run's start.
            by = ((run.start - end) // stride + 1) * stride
            first, last = start + by, min(end + by, run.end)
            if first >= run.end:
                yield run
                continue
            if run.start < first:
                yield Run(run.occupancy, run.start, first, run.rejected)
            if last < (until := min(run.end, first + stride)):
                yield Run(run.occupancy, last, until, run.rejected)

    def reject_from(self, occupancy: int, computed_len: int) -> None:
        """Mark the occupancy's keys at and past a position as rejected drafts."""
        marked: list[Run] = []
        for run in self.runs:
            if run.occupancy != occupancy or run.end <= computed_len or run.rejected:
                marked.append(run)
                continue
            if run.start < computed_len:
                marked.append(Run(occupancy, run.start, computed_len))
            marked.append(Run(occupancy, max(run.start, computed_len), run.end, True))
        self.runs[:] = marked
        for offset, held in self.odd.items():
            if held.occupancy == occupancy and held.position >= computed_len:
                self.odd[offset] = Written(occupancy, held.position, held.step, True)

    def find(self, start: int, end: int) -> list[Found]:
        """What the rows of positions ``[start, end)`` hold, in order; odd rows are left out."""
        found: list[Found] = []
        for run in self.runs:
            laps = (start - run.end) // self.stride + 1
            while (first := run.start + laps * self.stride) < end:
                last = run.end + laps * self.stride
                found.append(Found(max(first, start), min(last, end), run, laps))
                laps += 1
        found.sort(key=_start)
        return found

    def get(self, offset: int) -> Written | None:
        """What a row holds; None where nobody wrote."""
        if offset in self.odd:
            return self.odd[offset]
        for run in self.runs:
            position = run.start + (offset - run.start) % self.stride
            if position < run.end:
                return Written(run.occupancy, position, self._steps[offset], run.rejected)
        return None

    def occupancies(self) -> Iterator[int]:
        """Those that a row names."""
        yield from (run.occupancy for run in self.runs)
        yield from (held.occupancy for held in self.odd.values())


def _continues(run: Run, occupancy: int, start: int) -> bool:
    return run.end == start and run.occupancy == occupancy and not run.rejected


def _start(found: Found) -> int:
    return found.start
