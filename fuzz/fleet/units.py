"""Units of a campaign's work, and what each comes to. A unit runs in a worker, on one engine."""

from __future__ import annotations

import os
import platform
import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from hypothesis import event, target
from hypothesis.database import (
    BackgroundWriteDatabase,
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    MultiplexedDatabase,
)

from kvproof.fuzz.campaign import Break, Campaign, Fault, Finding, Listener, Process, Survey
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.fleet.subjects import Subject, find_subjects
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import Cause, Invariant, Violation
from kvproof.model.witness import Witness


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What all units of a campaign share.

    Attributes:
        asked: by its name, what a subject is found by where that is another word.
        examples: folder where Hypothesis shares examples; all workers must reach it.
        redis: URL of a Redis server that shares them too; empty for none.
        seconds: that one search may take; it ends before, after its ``sequences``, of which
            Hypothesis draws the first tenth small.
        memory_gib: memory that a worker and its engine may each have; 0 for no limit.
        grace: seconds that a unit may take beyond what it was given, an engine's start included,
            before its worker counts as hung; ``shrink_seconds`` are given to a shrinking.
        shrinks: whether what is found is made small and confirmed.
        shrink_sequences: that Hypothesis draws to come upon a failure again and shrink it, the same
            ones as the search drew if that had a seed and these are as many; where it does not come
            upon it, what was found is simplified alone.
    """

    examples: str
    asked: dict[str, str] = {}
    redis: str = ""
    seconds: float = 30.0
    sequences: int = 200
    kernel_share: int = 8
    play_timeout: float = 20.0
    memory_gib: float = 0.0
    grace: float = 240.0
    shrinks: bool = True
    shrink_sequences: int = 200
    shrink_seconds: float = 900.0


class Search(msgspec.Struct, frozen=True, kw_only=True, tag="search"):
    """Survey a target for some seconds.

    Attributes:
        number: of this search among the target's.
        seed: of what is drawn; None to draw anew, and to go on from the examples that all searches
            without a seed share. Hypothesis takes one or the other.
        known: what broke before; anything else that breaks ends the search, so that it is kept at
            once.
    """

    target: str
    number: int
    seed: int | None
    known: tuple[Break, ...] = ()


class Shrink(msgspec.Struct, frozen=True, kw_only=True, tag="shrink"):
    """Make one failure small and confirm it on the real kernels."""

    target: str
    seed: int
    scenario: Scenario
    backend: Backend
    violation: Violation
    occurrences: int
    found_after: int
    find_seconds: float


Unit: TypeAlias = Search | Shrink


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest scenario of one search that breaks an invariant for a cause.

    Attributes:
        found_after: sequences of the search when it first broke; ``seconds`` is the same in time.
    """

    scenario: Scenario
    backend: Backend
    violation: Violation
    found_after: int
    seconds: float

    @property
    def broken(self) -> Break:
        """What breaks, and why."""
        return self.violation.invariant, self.violation.cause


class Searched(msgspec.Struct, frozen=True, kw_only=True, tag="searched"):
    """What one search came to; as in `Survey`, of this search alone.

    Attributes:
        behaviours: digests of what plays did, see `behaviour_of`.
        worker: host and process id.
        elapsed: seconds of the campaign when this was kept.
    """

    target: str
    number: int
    seed: int | None
    sequences: int
    kernel_sequences: int
    operations: int
    skipped: int
    seconds: float
    witnesses: dict[Witness, int]
    counts: tuple[tuple[Invariant, Cause, int], ...]
    checked: dict[Invariant, int]
    told: tuple[Invariant, ...]
    kernels: str
    has_ring: bool
    has_cap: bool
    versions: dict[str, str]
    classes: dict[str, str]
    behaviours: tuple[str, ...]
    failures: tuple[Failure, ...]
    faults: tuple[Fault, ...]
    worker: str
    elapsed: float = 0.0


class Shrunk(msgspec.Struct, frozen=True, kw_only=True, tag="shrunk"):
    """What a shrinking came to. The finding's log goes into the campaign's folder."""

    target: str
    finding: Finding
    worker: str
    elapsed: float = 0.0


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag="lost"):
    """A unit that came to nothing; it is given out again, and its worker replaced.

    Attributes:
        number: of the search; None for a shrinking, of ``broken``.
        cause: the worker died, took too long, or raised; or the engine would not start.
    """

    target: str
    cause: Literal["died", "hung", "raised", "engine"]
    message: str
    number: int | None = None
    broken: Break | None = None
    elapsed: float = 0.0


Told: TypeAlias = tuple[Searched | Shrunk | Lost, list[Fact]]
"""What a unit came to, with the log of a finding."""


def seed_of(campaign: int, target_name: str, number: int) -> int | None:
    """The seed of a target's search: another for each, the same whoever works on it.

    Every other one has none: a campaign should be told by its seed as far as may be, and it should
    go on from what it learned.
    """
    if number % 2:
        return None
    digest = sha256(f"{campaign} {target_name} {number}".encode()).digest()
    return int.from_bytes(digest[:4])


def lost(unit: Unit, cause: Literal["died", "hung", "raised", "engine"], message: str) -> Lost:
    """The record of a unit that came to nothing."""
    if isinstance(unit, Search):
        return Lost(target=unit.target, cause=cause, message=message, number=unit.number)
    broken = (unit.violation.invariant, unit.violation.cause)
    return Lost(target=unit.target, cause=cause, message=message, broken=broken)


# In a worker

_CAPPED = 4


def behaviour_of(monitor: Monitor) -> str:
    """Digest of what a play did: which marks it reached, about how often, and what broke.

    Counts are taken by powers of two, as AFL takes those of branches.
    """
    marks = (f"{m} {min(n.bit_length(), _CAPPED)}" for m, n in monitor.witnesses.items())
    broken = map("/".join, monitor.violations)
    return sha256("\n".join(sorted((*marks, *broken))).encode()).hexdigest()[:12]


def guide(monitor: Monitor) -> None:
    """Tell Hypothesis what a play reached: it goes on from what reached most."""
    for mark in monitor.witnesses:
        event(mark)
    for broken in monitor.violations:
        event("/".join(broken))
    target(len(monitor.witnesses), label="marks")
    target(len(monitor.violations), label="causes")


class _OwnKeys(ExampleDatabase):
    """A database in which a target has keys of its own: to Hypothesis all are one test."""

    def __init__(self, database: ExampleDatabase, owner: str) -> None:
        super().__init__()
        self._database = database
        self._owner = owner.encode() + b"\0"

    def save(self, key: bytes, value: bytes) -> None:
        self._database.save(self._owner + key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        return self._database.fetch(self._owner + key)

    def delete(self, key: bytes, value: bytes) -> None:
        self._database.delete(self._owner + key, value)


def database_of(plan: Plan, owner: str) -> ExampleDatabase:
    """Where the searches of a target share examples.

    Raises:
        EngineError: a Redis server is named and its client is not installed.
    """
    return _OwnKeys(_shared(plan.examples, plan.redis), owner)


@cache  # a database that writes in the background has a thread
def _shared(examples: str, redis: str) -> ExampleDatabase:
    database: ExampleDatabase = DirectoryBasedExampleDatabase(Path(examples))
    if redis:
        try:
            from hypothesis.extra.redis import RedisExampleDatabase  # noqa: PLC0415  # an extra
            from redis import Redis  # noqa: PLC0415
        except ImportError as error:
            raise EngineError(
                "the client of Redis is not installed", fix="pip install 'kvproof[redis]'"
            ) from error
        # Nobody waits for what is written over a network.
        shared = BackgroundWriteDatabase(RedisExampleDatabase(Redis.from_url(redis)))
        database = MultiplexedDatabase(database, shared)
    return database


class Worker:
    """Works on units, one at a time, and keeps the engine of the last one running."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._subject: Subject | None = None
        self._process: Process | None = None

    def work(self, unit: Unit, plan: Plan) -> Told:
        """What a unit comes to."""
        if plan.memory_gib:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (int(plan.memory_gib * 2**30), hard))
        try:
            subject, process = self._engine(unit.target, plan.asked)
            if isinstance(unit, Shrink):
                return _shrink(unit, plan, subject, process)
            return _search(unit, plan, subject, process), []
        except EngineError as error:
            # Out of memory, an engine's last words need not say so.
            limit = f"; its memory is limited to {plan.memory_gib} GiB" if plan.memory_gib else ""
            return lost(unit, "engine", f"{error}{limit}"), []

    def _engine(self, name: str, asked: Mapping[str, str]) -> tuple[Subject, Process]:
        if self._subject is None or self._subject.name != name or self._process is None:
            self._open.close()  # one engine at a time: each takes half a gigabyte
            [self._subject] = find_subjects([asked.get(name, name)], EngineStore())
            self._process = self._open.enter_context(self._subject.open())
        self._process.start()
        return self._subject, self._process


def _me() -> str:
    return f"{platform.node()}:{os.getpid()}"


def _campaign(
    unit: Unit, plan: Plan, subject: Subject, process: Process, *, sequences: int
) -> Campaign:
    return Campaign(
        target=subject.target,
        process=process,
        profile=Profile(
            sequences=sequences, kernel_share=plan.kernel_share, play_timeout=plan.play_timeout
        ),
        seed=unit.seed or 0,
    )


def _search(unit: Search, plan: Plan, subject: Subject, process: Process) -> Searched:
    behaviours: set[str] = set()
    known = {*unit.known}

    def look(monitor: Monitor) -> None:
        behaviours.add(behaviour_of(monitor))
        guide(monitor)

    sequences = subject.sequences if subject.is_canary else plan.sequences
    campaign = _campaign(unit, plan, subject, process, sequences=sequences)
    campaign.feedback = look
    if subject.is_canary:
        # Neither time nor what others found has a part in it, so that its verdict means something.
        campaign.enough = lambda survey: subject.must_break in {i for i, _ in survey.first}
    else:
        campaign.time_limit = plan.seconds
        campaign.enough = lambda survey: not survey.first.keys() <= known
        campaign.database = None if unit.seed is not None else database_of(plan, subject.name)
    survey = campaign.survey()
    return _searched(unit, survey, behaviours)


def _searched(unit: Search, survey: Survey, behaviours: set[str]) -> Searched:
    return Searched(
        target=unit.target,
        number=unit.number,
        seed=unit.seed,
        sequences=survey.sequences,
        kernel_sequences=survey.kernel_sequences,
        operations=survey.operations,
        skipped=survey.skipped,
        seconds=survey.seconds,
        witnesses=dict(survey.witnesses),
        counts=tuple((*broken, count) for broken, count in survey.counts.items()),
        checked=dict(survey.checked),
        told=tuple(sorted(survey.told)),
        kernels=survey.kernels,
        has_ring=survey.has_ring,
        has_cap=survey.has_cap,
        versions=survey.versions,
        classes=survey.classes,
        behaviours=tuple(sorted(behaviours)),
        failures=tuple(
            Failure(
                scenario=scenario,
                backend=backend,
                violation=violation,
                found_after=survey.first[broken][0],
                seconds=survey.first[broken][1],
            )
            for broken, (scenario, backend, violation) in survey.smallest.items()
        ),
        faults=tuple(survey.faults.values()),
        worker=_me(),
    )


class _Log(Listener):
    """Keeps the log of the one finding."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []

    def found(self, target: Target, finding: Finding, log: list[Fact]) -> None:
        self.facts = log


def _shrink(unit: Shrink, plan: Plan, subject: Subject, process: Process) -> Told:
    campaign = _campaign(unit, plan, subject, process, sequences=plan.shrink_sequences)
    campaign.listener = log = _Log()
    broken = (unit.violation.invariant, unit.violation.cause)
    survey = Survey(
        counts=Counter({broken: unit.occurrences}),
        first={broken: (unit.found_after, unit.find_seconds)},
        smallest={broken: (unit.scenario, unit.backend, unit.violation)},
    )
    finding = campaign.finding(survey, broken)
    return Shrunk(target=unit.target, finding=finding, worker=_me()), log.facts
