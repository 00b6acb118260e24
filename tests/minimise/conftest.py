"""Things to play scenarios on: the model without a cap, and engines that fail on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz.drivers.wire import Backend
from kvproof.model.facts import EngineError, Fact, Started, encode_fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Decode, Finish, Geometry, Piece, Prefill, Scenario, Submit
from kvproof.triage.cache import ResultCache
from kvproof.triage.subjects import Process

UNCAPPED = Policy(reprefill_tail=0)
CAPPED = Policy()

STALE = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 5),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 2), Piece("B", 3))), Prefill(request="B"), Decode(),
    ),
)  # fmt: skip
"""The shortest stale decode, without a cap."""

STALE_DECODE = "FRESH-DECODE/other-request"


def played(scenario: Scenario, policy: Policy = UNCAPPED) -> list[Fact]:
    return list(reference_player(scenario.geometry, policy).play(scenario))


def write_log(path: Path, facts: Iterator[Fact] | list[Fact]) -> Path:
    path.write_bytes(b"".join(map(encode_fact, facts)))
    return path


@dataclass
class FakeSubject:
    """The model under a name; ``spoil`` turns its log into what a bad engine says."""

    name: str = "fake:registry"
    code: str = "1"
    policy: Policy = UNCAPPED
    spoil: Callable[[list[Fact], Backend], list[Fact]] = field(default=lambda log, _: log)
    plays: int = 0
    started: int = 0
    closed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def process(self) -> Process:
        self.started += 1
        return _FakeProcess(self)


@dataclass
class _FakeProcess:
    subject: FakeSubject

    def start(self) -> None:
        """It runs."""

    def play(self, scenario: Scenario, *, timeout: float, backend: Backend) -> list[Fact]:
        assert timeout > 0
        log = played(scenario, self.subject.policy)
        assert isinstance(log[0], Started)
        log[0] = replace(log[0], target=self.subject.name, backend=backend)
        with self.subject._lock:
            self.subject.plays += 1
        return self.subject.spoil(log, backend)

    def interrupt(self) -> None:
        """A play ends by itself."""

    def close(self) -> None:
        self.subject.closed += 1


def fails_at(fact: type, message: str) -> Callable[[list[Fact], Backend], list[Fact]]:
    """An engine that raises as soon as a fact of that type is due."""

    def spoil(log: list[Fact], _: Backend) -> list[Fact]:
        for index, each in enumerate(log):
            if isinstance(each, fact):
                return [*log[:index], EngineError(cause="raised", message=message)]
        return log

    return spoil


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[ResultCache]:
    cache = ResultCache(tmp_path / "cache.sqlite3")
    yield cache
    cache.close()
