"""Trials: many scenarios played on one target, in parallel, each at most once ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import LifoQueue

import msgspec

from kvproof.fuzz.confirm import play_twice
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.simplify import Breaks
from kvproof.model.facts import Fact
from kvproof.model.monitor import check
from kvproof.model.scenario import Scenario
from kvproof.triage.cache import ResultCache, key_of
from kvproof.triage.subjects import Process, Subject
from kvproof.triage.symptoms import TIMED_OUT, Symptom, symptoms_of

_decode = msgspec.json.Decoder(tuple[Symptom, ...]).decode


@dataclass(slots=True)
class Trials:
    """Plays on one target with one backend. Use it as a context manager.

    Each worker has an engine's process of its own; a thread waits for it. More than the cores of
    the machine are of no use, and the model, which plays in this process, needs no more than one.

    Attributes:
        code: what plays depend on besides scenario and backend.
        played: scenarios that were played; ``recalled`` had been before, in this run or another.
        tick: called after each play in whatever thread it was.
    """

    subject: Subject
    backend: Backend
    cache: ResultCache
    workers: int = 1
    timeout: float = 60.0
    tick: Callable[[], None] = field(default=lambda: None)
    played: int = 0
    recalled: int = 0
    code: str = ""
    _processes: list[Process] = field(default_factory=list)
    _idle: LifoQueue[Process] = field(default_factory=LifoQueue)
    _threads: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        """Processes are started when they are first used."""
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="trial")
        self.code = f"{self.subject.name} {self.subject.code}"
        for _ in range(self.workers):
            process = self.subject.process()
            self._processes.append(process)
            self._idle.put(process)

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, whatever they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.interrupt()
        self._threads.shutdown()
        for process in self._processes:
            process.close()

    def play(self, scenario: Scenario) -> list[Fact]:
        """The log of a scenario.

        Raises:
            EngineError: the engine cannot be started.
        """
        with self._process() as process:
            facts = process.play(scenario, timeout=self.timeout, backend=self.backend)
        self.played += 1
        self.tick()
        return facts

    @contextmanager
    def _process(self) -> Iterator[Process]:
        process = self._idle.get()
        try:
            yield process
        finally:
            self._idle.put(process)

    def symptoms(self, scenario: Scenario) -> tuple[Symptom, ...]:
        """What is wrong with a scenario's log, from the cache if it was ever played before."""
        key = key_of("play", self.code, self.backend, msgspec.json.encode(scenario))
        known = self.cache.get(key)
        if known is not None:
            self.recalled += 1
            return _decode(known)
        symptoms = symptoms_of(check(self.play(scenario)))
        if TIMED_OUT not in symptoms:  # another day it may have the time
            self.cache.put(key, msgspec.json.encode(symptoms))
        return symptoms

    def confirm(self, scenario: Scenario) -> tuple[list[Fact], bool]:
        """Play on the real kernels twice: the log, and whether both gave the same bytes."""
        with self._process() as process:
            return play_twice(process, scenario, timeout=self.timeout)

    def search(self, breaks: Breaks, candidates: Iterable[Scenario]) -> Scenario | None:
        """The first candidate that breaks: `kvproof.fuzz.simplify.Search`.

        As many are tried ahead as there are workers. What is found does not depend on how many.
        """
        waiting = iter(candidates)
        running: deque[tuple[Scenario, Future[bool]]] = deque()
        try:
            while True:
                while len(running) < self.workers:
                    candidate = next(waiting, None)
                    if candidate is None:
                        break
                    running.append((candidate, self._threads.submit(breaks, candidate)))
                if not running:
                    return None
                first, future = running.popleft()
                if future.result():
                    return first
        finally:
            for _, future in running:
                future.cancel()
