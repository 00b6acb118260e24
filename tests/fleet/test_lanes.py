"""Lanes that are processes: here, and in a Ray cluster where Ray is installed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import fakeredis
import pytest
from hypothesis.database import ExampleDatabase, InMemoryExampleDatabase
from msgspec.structs import replace

from kvproof.fuzz.campaign import Break
from kvproof.fuzz.fleet import units
from kvproof.fuzz.fleet.lanes import Lane, ProcessLane
from kvproof.fuzz.fleet.ray_lane import LOCAL, ray_lanes
from kvproof.fuzz.fleet.units import Lost, Plan, Search, Searched, Told, Worker, database_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore

from .conftest import FAULT

START_S = 300.0
"""Seconds that a worker's start may take on a busy machine."""


def search(number: int = 0) -> Search:
    return Search(target=FAULT.name, number=number, seed=number)


def pid_of(future: Future[Told]) -> int:
    entry, _ = future.result(timeout=START_S)
    assert isinstance(entry, Searched)
    assert entry.sequences > 0
    return int(entry.worker.rpartition(":")[2])


def check_that_a_death_is_seen(lane: Lane, plan: Plan) -> None:
    pid = pid_of(lane.submit(search(), plan))
    assert pid != os.getpid()
    assert pid_of(lane.submit(search(1), plan)) == pid  # it keeps its worker, and its engine
    endless = Plan(examples=plan.examples, seconds=1000.0, sequences=1_000_000)
    known: tuple[Break, ...] = (("USEFUL", "no-reuse"),)
    future = lane.submit(Search(target=FAULT.name, number=2, seed=2, known=known), endless)
    os.kill(pid, signal.SIGKILL)
    error = future.exception(timeout=START_S)
    assert isinstance(error, Exception)
    assert lane.is_death(error)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(examples=str(tmp_path / "examples"), sequences=10)


@pytest.fixture
def lane() -> Iterator[ProcessLane]:
    one = ProcessLane()
    yield one
    one.kill()


def test_a_process_that_is_killed_is_seen_to_be_dead(lane: ProcessLane, plan: Plan) -> None:
    check_that_a_death_is_seen(lane, plan)


def test_an_actor_that_is_killed_is_seen_to_be_dead(plan: Plan) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with ray_lanes(LOCAL) as (lanes, cpus, nodes):
        assert cpus >= 1
        assert nodes == 1
        lane = lanes()
        check_that_a_death_is_seen(lane, plan)
        lane.kill()


def test_searches_of_a_target_share_examples_and_no_other_does(plan: Plan) -> None:
    mine = database_of(plan, "mine")
    mine.save(b"key", b"value")
    assert [*database_of(plan, "mine").fetch(b"key")] == [b"value"]
    assert [*database_of(plan, "other").fetch(b"key")] == []
    mine.delete(b"key", b"value")
    assert [*database_of(plan, "mine").fetch(b"key")] == []


def test_what_a_search_learned_is_there_for_the_next(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = InMemoryExampleDatabase()
    owners: list[str] = []

    def database(_plan: Plan, owner: str) -> ExampleDatabase:
        owners.append(owner)
        return shared

    monkeypatch.setattr(units, "database_of", database)
    seeded = Search(target=FAULT.name, number=0, seed=0)
    Worker().work(seeded, plan)
    assert (shared.data, owners) == ({}, [])  # Hypothesis takes a seed or a database
    known: tuple[Break, ...] = (("USEFUL", "no-reuse"),)
    Worker().work(Search(target=FAULT.name, number=1, seed=None, known=known), plan)
    assert owners == [FAULT.name]
    assert any(shared.data.values())
    before = {value for values in shared.data.values() for value in values}
    fetched: list[bytes] = []
    monkeypatch.setattr(shared, "fetch", lambda key: fetched.append(key) or [*before])
    Worker().work(Search(target=FAULT.name, number=3, seed=None, known=known), plan)
    assert fetched


def test_an_engine_that_is_out_of_memory_is_lost_with_the_reason(
    lane: ProcessLane, plan: Plan
) -> None:
    try:
        engine = EngineStore().find("0.5.15")
    except EngineError as error:
        pytest.skip(str(error))
    small = Plan(examples=plan.examples, sequences=10, memory_gib=0.01)
    unit = Search(target=f"{engine.name}:registry", number=0, seed=0)
    lost, followed = lane.submit(unit, small).result(timeout=START_S)
    assert isinstance(lost, Lost)
    assert (lost.cause, followed) == ("engine", [])
    assert "its memory is limited to 0.01 GiB" in lost.message


def test_searches_share_examples_through_redis(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = fakeredis.FakeServer()
    monkeypatch.setattr("redis.Redis.from_url", lambda _url: fakeredis.FakeRedis(server=server))
    here = database_of(replace(plan, redis="redis://one"), "target")
    there = database_of(Plan(examples=str(tmp_path / "there"), redis="redis://two"), "target")
    here.save(b"key", b"value")
    assert [*here.fetch(b"key")] == [b"value"]  # which waits for what is being written
    assert [*there.fetch(b"key")] == [b"value"]
    assert [*database_of(replace(plan, redis="redis://one"), "other").fetch(b"key")] == []


def test_redis_without_its_client_says_what_to_install(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    monkeypatch.delitem(__import__("sys").modules, "hypothesis.extra.redis", raising=False)
    with pytest.raises(EngineError) as caught:
        database_of(replace(plan, redis="redis://nobody"), "mine")
    assert "kvproof[redis]" in caught.value.fix
