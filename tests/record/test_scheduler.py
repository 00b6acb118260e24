"""The recorder in the release's own scheduler loop: whole batches, real admission, retraction."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.releases import RELEASES
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import (
    Admitted,
    Advanced,
    Answered,
    Gap,
    Ran,
    Released,
    Started,
    Step,
    read_log,
)
from kvproof.model.monitor import check
from kvproof.model.scenario import Geometry

from .conftest import CAPPED
from .scheduler import Arrival, Day, Launch

LOOP = Path(__file__).with_name("scheduler.py")
SHARED = tuple(range(100, 110))
LATE = tuple(range(200, 217))
DAY = Day(
    Geometry(window=4, page_size=4, slots=4, pool_tokens=64),
    (
        Arrival(0, (7, 8, 9, 10, 11), 14),
        Arrival(0, (6, 5, 4, 3, 2, 1), 14),
        Arrival(0, (*SHARED, *range(110, 119)), 12),
        Arrival(3, (*SHARED, 1, 2, 3), 13),
        Arrival(30, (*SHARED, *range(110, 116), 5, 6), 4),
        Arrival(60, LATE, 2),
        Arrival(64, tuple(range(300, 306)), 2),
        Arrival(68, (*LATE, 5), 4),
    ),
)
"""Chunked prompts, a shared prefix, and more tokens than the pool holds.

When all is quiet, the last request reuses all but two of its tokens, fewer than the window, in a
slot that another had in between.
"""


DRAFTS = (1, 3)

RETRACT_NONE = ("0.5.22", "0.5.23")
"""Releases that never retract a request of this day; all others do."""


def progress(facts):
    """Slot, and computed tokens before and after, of each request in each launch."""
    at = {}
    for fact in facts:
        if isinstance(fact, Admitted):
            at[fact.request] = fact.slot, fact.matched_len
        elif isinstance(fact, Advanced):
            slot, start = at[fact.request]
            at[fact.request] = slot, fact.computed_len
            yield slot, start, fact.computed_len


@pytest.fixture(scope="module", params=RELEASES)
def played(request, tmp_path_factory):
    """A release, and launches and log of the day with each number of draft tokens."""
    try:
        env = engine_env(EngineStore().find(request.param))
    except EngineError as error:
        pytest.skip(str(error))
    days = [Day(replace(DAY.geometry, draft_tokens=count), DAY.arrivals) for count in DRAFTS]
    folder = tmp_path_factory.mktemp("loop")
    result = subprocess.run(
        [sys.executable, "-P", str(LOOP), msgspec.json.encode(days).decode(), str(folder)],
        env=env, capture_output=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr.decode()[-2000:]
    seen = msgspec.json.decode(result.stdout.rpartition(b"\n")[2], type=list[list[Launch]])
    told = []
    for number, _ in enumerate(days):
        [log] = (folder / str(number)).glob("*.jsonl")
        with log.open("rb") as lines:
            told.append(list(read_log(lines)))
    return request.param, dict(zip(DRAFTS, zip(seen, told, strict=True), strict=True))


@pytest.mark.parametrize("draft_tokens", DRAFTS)
def test_a_scheduler_loop_is_recorded(played, draft_tokens):
    release, days = played
    launches, facts = days[draft_tokens]

    # What the batches carry is what was recorded, launch by launch.
    started = facts[0]
    assert isinstance(started, Started)
    lanes = [(launch.mode, *lane) for launch in launches for lane in launch.lanes]
    ran = [(fact.mode, fact.slot, fact.start, fact.end) for fact in facts if isinstance(fact, Ran)]
    assert ran == (lanes if started.ring_stride is not None else [])
    told_of = [*progress(facts)]
    assert [lane[:2] for lane in told_of] == [lane[1:3] for lane in lanes]
    if draft_tokens == 1:  # a verify keeps less than it writes
        assert told_of == [lane[1:] for lane in lanes]
    assert any(len(launch.lanes) > 1 for launch in launches if launch.mode == "prefill")

    # Every request gets its answer, and whoever was retracted came again.
    kinds = Counter(type(fact.operation).__name__ for fact in facts if isinstance(fact, Step))
    told = Counter(type(fact) for fact in facts)
    requests = len(DAY.arrivals)
    assert kinds["Submit"] == kinds["Finish"] == told[Answered] == requests
    assert bool(kinds["Retract"]) == (release not in RETRACT_NONE)
    assert told[Admitted] == told[Released] == requests + kinds["Retract"]
    assert not told[Gap]

    # Its allocations are in order, and its prefix hits are seen.
    monitor = check(facts)
    assert monitor.worst_of("PARTITION") is None
    assert monitor.worst_of("REFINES") is None
    assert monitor.checked["PARTITION"] > len(launches)
    assert monitor.witnesses["prefix hit"]

    # So is the stale decode of a release that does not cap its hits.
    stale = ("FRESH-DECODE", "other-request") in monitor.counts
    assert stale == (started.ring_stride is not None and release not in CAPPED)
