"""The coordinator: gives out units until the time is up, and keeps what they come to.

It decides what is worth doing next, not where: executors and Ray do that. Each lane stays with a
target for a while, since an engine takes seconds to start, and then goes to the one that had the
least time so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

import msgspec

from kvproof.fuzz.campaign import Break
from kvproof.fuzz.fleet.lanes import Lane, Lanes
from kvproof.fuzz.fleet.ledger import Closed, Entry, Ledger
from kvproof.fuzz.fleet.tally import Tallies, Tally
from kvproof.fuzz.fleet.units import (
    Lost,
    Plan,
    Search,
    Searched,
    Shrink,
    Shrunk,
    Told,
    Unit,
    lost,
    seed_of,
)
from kvproof.fuzz.run_folder import RunFolder
from kvproof.model.facts import Fact

STRETCH_S = 60.0
"""Seconds that a lane may be ahead with one target before it turns to another."""

TICK_S = 0.5
"""Seconds between two looks at what runs."""


@dataclass(slots=True)
class View:
    """What a caller may watch; every method does nothing here."""

    def kept(self, tallies: Tallies, entry: Entry) -> None:
        """An entry is on the disk."""

    def passed(self, tallies: Tallies, running: Sequence[Unit], elapsed: float) -> None:
        """Some time passed; ``elapsed`` seconds of the campaign so far."""


@dataclass(slots=True)
class _Running:
    lane: int
    unit: Unit
    until: float
    overdue: bool = False


@dataclass(slots=True)
class Coordinator:
    """Runs one session of a campaign.

    Attributes:
        tallies: what is known already; it is added to.
        seconds: that the whole campaign is to take; what is found by then is still made small.
        lanes: makes a lane.
        workers: lanes at a time.
        folder: where findings go.
    """

    tallies: Tallies
    ledger: Ledger
    folder: RunFolder
    plan: Plan
    seed: int
    seconds: float
    lanes: Lanes
    workers: int
    view: View = field(default_factory=View)
    clock: Callable[[], float] = time.monotonic
    _began: float = 0.0
    _lanes: list[Lane | None] = field(default_factory=list)
    _on: list[str] = field(default_factory=list)
    _running: dict[Future[Told], _Running] = field(default_factory=dict)

    def run(self) -> None:
        """Give out units until the time is up and what was found is small."""
        self._began = self.clock() - self.tallies.elapsed
        self._lanes = [None] * self.workers
        self._on = [""] * self.workers
        try:
            self._give_out()
            while self._running:
                done, _ = wait(self._running, timeout=TICK_S, return_when=FIRST_COMPLETED)
                for future in done:
                    self._take(future, self._running.pop(future))
                self._end_what_hangs()
                self._give_out()
                units = [each.unit for each in self._running.values()]
                self.view.passed(self.tallies, units, self._elapsed)
            self._keep(Closed(elapsed=self._elapsed))
        finally:
            for lane in self._lanes:
                if lane is not None:
                    lane.kill()

    @property
    def _elapsed(self) -> float:
        return self.clock() - self._began

    # Giving out

    def _give_out(self) -> None:
        busy = {running.lane for running in self._running.values()}
        for number in range(self.workers):
            if number not in busy and (unit := self._next(self._on[number])) is not None:
                lane = self._lanes[number]
                if lane is None:
                    lane = self._lanes[number] = self.lanes()
                self._on[number] = unit.target
                until = self.clock() + self.plan.grace + self._seconds_of(unit)
                self._running[self._submit(lane, unit)] = _Running(number, unit, until)

    def _submit(self, lane: Lane, unit: Unit) -> Future[Told]:
        """A worker may have died while it had nothing to do: that is seen only now."""
        try:
            return lane.submit(unit, self.plan)
        except Exception as error:
            future: Future[Told] = Future()
            future.set_exception(error)
            return future

    def _seconds_of(self, unit: Unit) -> float:
        return self.plan.shrink_seconds if isinstance(unit, Shrink) else self.plan.seconds

    def _next(self, last: str) -> Unit | None:
        """What a lane that was at the target ``last`` does next; None for nothing."""
        time_is_up = self._elapsed >= self.seconds
        shrinking = self._shrinking()
        if self.plan.shrinks and (time_is_up or len(shrinking) < max(1, self.workers // 2)):
            for tally in self._tallies:
                for unit in tally.to_shrink(self.seed):
                    if (unit.target, _broken(unit)) not in shrinking and not tally.is_given_up:
                        return unit
        for tally in self._tallies:
            if self._is_owed(tally):
                return self._search(tally)
        open_ = [t for t in self._tallies if not t.subject.is_canary and not t.is_given_up]
        if time_is_up or not open_:
            return None
        return self._search(self._due(open_, last))

    def _is_owed(self, tally: Tally) -> bool:
        """Whether a search of it is owed, however short the time: each has one, canaries too."""
        at_work = any(unit.target == tally.subject.name for unit in self._units)
        return not tally.done and not tally.is_given_up and not at_work

    def _due(self, tallies: Sequence[Tally], last: str) -> Tally:
        """The target that had the least time, or the last one if it is not far ahead."""
        times = {
            tally.subject.name: tally.survey.seconds
            + self.plan.seconds * sum(u.target == tally.subject.name for u in self._units)
            for tally in tallies
        }
        stretch = min(STRETCH_S, self.seconds * self.workers / len(tallies) / 2)
        if last in times and times[last] < min(times.values()) + stretch:
            return self.tallies.by_name[last]
        return min(tallies, key=lambda tally: times[tally.subject.name])

    def _search(self, tally: Tally) -> Search:
        """The first search that is neither kept nor being made."""
        name = tally.subject.name
        taken = tally.done | {
            u.number for u in self._units if isinstance(u, Search) and u.target == name
        }
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        return Search(
            target=name,
            number=number,
            seed=seed_of(self.seed, name, number),
            known=tuple(tally.survey.first),
        )

    @property
    def _units(self) -> list[Unit]:
        return [running.unit for running in self._running.values()]

    def _shrinking(self) -> set[tuple[str, Break]]:
        return {(u.target, _broken(u)) for u in self._units if isinstance(u, Shrink)}

    @property
    def _tallies(self) -> Sequence[Tally]:
        return [*self.tallies.by_name.values()]

    # Taking

    def _take(self, future: Future[Told], running: _Running) -> None:
        log: list[Fact] = []
        try:
            entry, log = future.result()
        except Exception as error:  # whatever a worker ends with is recorded, and it is replaced
            entry = self._lost(running, error)
            self._replace(running.lane)
        if isinstance(entry, Lost):
            self._on[running.lane] = ""
        self._keep(msgspec.structs.replace(entry, elapsed=self._elapsed), log)

    def _lost(self, running: _Running, error: Exception) -> Lost:
        lane = self._lanes[running.lane]
        if running.overdue:
            seconds = self.plan.grace + self._seconds_of(running.unit)
            return lost(running.unit, "hung", f"no end within {seconds:g} s")
        if lane is not None and lane.is_death(error):
            return lost(running.unit, "died", " ".join(str(error).split()))
        return lost(running.unit, "raised", f"{type(error).__name__}: {error}")

    def _keep(self, entry: Entry, log: Sequence[Fact] = ()) -> None:
        """First the files, then the ledger, which names them; nothing is told before that."""
        if isinstance(entry, Searched):
            tally = self.tallies.by_name[entry.target]
            entry = tally.news(entry)
            target = tally.subject.target
            for failure in entry.failures:
                if failure.broken not in tally.findings:
                    self.folder.seen(target, failure.broken, failure.scenario)
            for fault in entry.faults:
                if fault.error.message not in tally.survey.faults:
                    self.folder.faulted(target, fault, ())
        elif isinstance(entry, Shrunk):
            target = self.tallies.by_name[entry.target].subject.target
            self.folder.found(target, entry.finding, log)
        self.ledger.append(entry)
        self.tallies.add(entry)
        self.view.kept(self.tallies, entry)

    def _replace(self, number: int) -> None:
        lane = self._lanes[number]
        if lane is not None:
            lane.kill()
        self._lanes[number] = None

    def _end_what_hangs(self) -> None:
        for running in self._running.values():
            lane = self._lanes[running.lane]
            if lane is not None and not running.overdue and self.clock() > running.until:
                running.overdue = True
                lane.kill()


def _broken(unit: Shrink) -> Break:
    return unit.violation.invariant, unit.violation.cause
