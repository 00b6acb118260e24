"""Context parallelism's sliced metadata, by the releases' own functions, rank by rank."""

from __future__ import annotations

import subprocess

import msgspec
import pytest

from kvproof.kernels.context_parallel import Rank, Report
from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_each_rank_gives_the_rows_of_the_undivided_forward(release: str) -> None:
    """Bit for bit, and leaves the ring that it leaves: with compressed rows and padding too."""
    try:
        engine = EngineStore().find(release)
    except EngineError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        engine_command("kvproof.kernels.context_parallel"),
        env=engine_env(engine, interpret=True), capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    report = msgspec.json.decode(done.stdout.splitlines()[-1], type=Report)
    assert report.version == release
    assert [rank for rank in report.ranks if not good(rank)] == []
    assert {(rank.ranks, rank.rank) for rank in report.ranks} == {
        (ranks, rank) for ranks in (2, 4) for rank in range(ranks)
    }
    assert {(rank.ratio, bool(rank.padding)) for rank in report.ranks} == {
        (ratio, padded) for ratio in (0, 128) for padded in (False, True)
    }


def good(rank: Rank) -> bool:
    return rank.positions and rank.attention and rank.ring and not rank.raised
