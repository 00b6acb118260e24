"""Campaigns on the reference engine, in this process: lanes that obey, and those that do not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from kvproof.fuzz.fleet.coordinator import Coordinator, View
from kvproof.fuzz.fleet.ledger import Entry, Ledger
from kvproof.fuzz.fleet.subjects import CANARIES, FAULTY, Subject
from kvproof.fuzz.fleet.tally import Tallies
from kvproof.fuzz.fleet.units import Plan, Told, Unit, Worker
from kvproof.fuzz.run_folder import RunFolder

FAULT = next(subject for subject in FAULTY if subject.name.startswith("model-never-reuse"))


class DiedError(Exception):
    """What a lane raises whose worker is gone."""


@dataclass
class Clock:
    """Goes on by itself: a second whenever somebody looks."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@dataclass
class HereLane:
    """Works in this process. ``spoil`` may do something else with a unit."""

    spoil: Callable[[Unit], Future[Told] | None] = lambda _unit: None
    worker: Worker = field(default_factory=Worker)
    killed: int = 0
    pending: list[Future[Told]] = field(default_factory=list)

    def submit(self, unit: Unit, plan: Plan) -> Future[Told]:
        future = self.spoil(unit)
        if future is None:
            future = Future()
            future.set_result(self.worker.work(unit, plan))
        self.pending.append(future)
        return future

    def kill(self) -> None:
        self.killed += 1
        for future in self.pending:
            if not future.done():
                future.set_exception(DiedError("killed"))

    def is_death(self, error: Exception) -> bool:
        return isinstance(error, DiedError)


@dataclass
class Keeper(View):
    """Keeps what it was told."""

    entries: list[Entry] = field(default_factory=list)

    def kept(self, tallies: Tallies, entry: Entry) -> None:
        self.entries.append(entry)


@dataclass
class Session:
    """One session of a campaign on some subjects."""

    root: Path
    subjects: tuple[Subject, ...] = (*CANARIES, FAULT)
    seconds: float = 30.0
    sequences: int = 25
    grace: float = 1000.0
    seed: int = 0
    lane: Callable[[], HereLane] = HereLane
    lanes: list[HereLane] = field(default_factory=list)
    view: Keeper = field(default_factory=Keeper)

    def run(
        self, past: tuple[Entry, ...] = (), clock: Callable[[], float] | None = None
    ) -> Tallies:
        tallies = Tallies(self.subjects)
        tallies.extend(past)
        self.root.mkdir(exist_ok=True)
        with Ledger(self.root) as ledger:
            Coordinator(
                tallies=tallies,
                ledger=ledger,
                folder=RunFolder(self.root),
                plan=Plan(
                    examples=str(self.root / "examples"),
                    sequences=self.sequences,
                    seconds=1000.0,
                    shrink_sequences=5,
                    shrink_seconds=1000.0,
                    grace=self.grace,
                ),
                seed=self.seed,
                seconds=self.seconds,
                lanes=self._make,
                workers=1,
                view=self.view,
                clock=clock or Clock(),
            ).run()
        return tallies

    def _make(self) -> HereLane:
        self.lanes.append(self.lane())
        return self.lanes[-1]
