"""A fork of a process that has imported an engine is what a process of its own is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.fuzz.constructions import PAGED_SWA_HICACHE
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options
from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import EngineError, encode_fact
from kvproof.model.scenario import Decode, Finish, Geometry, Piece, Prefill, Scenario, Submit

from .conftest import Start

HIT = Scenario(
    geometry=Geometry(window=4, page_size=4, slots=2, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 12),)), Prefill(request="A"), Decode(),
        Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 8), Piece("B", 18))), Prefill(request="B"),
        *[Decode()] * 8, Finish(request="B"),
    ),
)  # fmt: skip


def fresh(release: str, options: Options) -> EngineProcess:
    """Whatever the session does."""
    return EngineProcess(
        name=release,
        command=engine_command(
            "kvproof.fuzz.drivers.worker", msgspec.json.encode(options).decode()
        ),
        env=engine_env(EngineStore().find(release)),
    )


@pytest.fixture
def forked(start: Start, pytestconfig: pytest.Config) -> Callable[..., EngineProcess]:
    if pytestconfig.getoption("--fresh-engines"):
        pytest.skip("--fresh-engines: nothing is forked")
    return start


@pytest.mark.parametrize(
    ("release", "options"),
    [
        ("0.5.15", Options()),
        ("0.5.23", Options(construction=PAGED_SWA_HICACHE, pages_rolled=1)),
    ],
)
def test_a_fork_says_and_plays_the_same(forked: Start, release: str, options: Options) -> None:
    """Its shims and stubs, and every byte of a log, also when its server has served another."""
    others = replace(options, held_back=3, pages_rolled=0)
    forked(release, **msgspec.structs.asdict(others)).play(HIT, timeout=60)
    fork = forked(release, **msgspec.structs.asdict(options))
    with fresh(release, options) as own:
        assert fork.start() == own.start()
        told, again = ([*map(encode_fact, one.play(HIT, timeout=60))] for one in (fork, own))
    assert told == again


def workers() -> set[int]:
    """Processes whose stdin is a pipe that this process writes into."""
    ours, theirs = set(), {}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if int(link.parts[2]) == os.getpid():
                ours.add(os.readlink(link))
            elif link.name == "0":
                theirs[int(link.parts[2])] = os.readlink(link)
    return {pid for pid, pipe in theirs.items() if pipe in ours and pipe.startswith("pipe:")}


def test_a_fork_whose_client_is_killed_is_killed(forked: Start) -> None:
    process = forked("0.5.15")
    before = process.play(HIT, timeout=60)
    running = workers()
    [lost] = process.play(HIT, timeout=0)
    assert isinstance(lost, EngineError)
    assert lost.cause == "timed out"
    end = time.monotonic() + 30
    while running <= workers():
        assert time.monotonic() < end, "it plays on"
        time.sleep(0.1)
    assert process.play(HIT, timeout=60) == before
