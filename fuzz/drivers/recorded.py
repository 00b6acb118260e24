"""Plays a scenario on an engine's real objects with the recorder on: a server without clients.

Nothing is said of it but what the recorder writes. ``python -m kvproof.fuzz.drivers.recorded
FOLDER LEVEL`` with the scenario on stdin, in the environment of one engine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from kvproof.fuzz.drivers.wire import Options, Play
from kvproof.kernels.engines import shims
from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine
from kvproof.model.facts import Pools
from kvproof.model.player import Player
from kvproof.model.scenario import Scenario, decode_scenario, encode_scenario
from kvproof.record.hooks import Instrumentation
from kvproof.record.locs import Level

_NOTHING = Pools(free=(), free_slots=(), nodes=(), holdings=(), counters={})


class Unwatched:
    """An engine that nobody takes snapshots of; they would cost more than everything else."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def pools(self) -> Pools:
        """The same for ever."""
        return _NOTHING

    def complaint(self) -> str:
        """Nothing: a server does not check its tree after each step either."""
        return ""


def record_play(engine: Engine, scenario: Scenario, folder: Path, *, level: Level = "host") -> Path:
    """Play a scenario in a process of the engine, and return the recorder's log of it.

    Args:
        engine: from the store.
        scenario: prefills something, else there is no log.
        folder: new or without logs.
        level: how much is recorded of locations.

    Raises:
        EngineError: the engine failed, or nothing was recorded.
    """
    played = subprocess.run(
        engine_command(__name__, str(folder), level),
        env=engine_env(engine),
        input=encode_scenario(scenario),
        capture_output=True,
        check=False,
    )
    logs = sorted(folder.glob("*.jsonl"))
    if played.returncode or len(logs) != 1:
        last = played.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise EngineError(
            f"engine {engine.name} left {len(logs)} logs (exit code {played.returncode}): {last}",
            fix="play the scenario with `kvproof replay` to see what fails",
        )
    return logs[0]


def main(folder: Path, level: Level) -> None:
    """Play the scenario that comes in through stdin."""
    from kvproof.fuzz.drivers.worker import load

    scenario = decode_scenario(sys.stdin.buffer.read())
    _, build = load(Options())
    recorder = Instrumentation(shims.engine_family(), folder=folder, level=level)
    recorder.install()
    player = build(Play(scenario=scenario, backend="none"))
    assert isinstance(player, Player)
    player.engine = Unwatched(player.engine)
    for _ in player.play(scenario):
        pass
    recorder.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), cast(Level, sys.argv[2]))
