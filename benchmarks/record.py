"""What the recorder costs: operations a second of the real caches, with it off and on.

Run it with ``make bench``, or alone: ``python benchmarks/record.py``. The operations are those of
`kvproof.fuzz.busy`, without a model: on a server, a step of the model comes on top of each, so the
share of the recorder there is smaller. The time is the processor's, of all threads, so that the
writer's is in it and what else runs on the machine is not. Rounds alternate between the levels, and
the quickest of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, get_args

from throughput import ENGINES

from kvproof.fuzz.busy import busy_scenario
from kvproof.fuzz.manifest import processor
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.player import Player
from kvproof.model.scenario import Scenario, decode_scenario, encode_scenario
from kvproof.record.locs import Level

OFF = "off"
WAYS: tuple[str, ...] = (OFF, *get_args(Level))


def measure_engine(scenario: Scenario, rounds: int) -> dict[str, Any]:
    """All ways of recording, on the engine of this process."""
    from kvproof.fuzz.drivers.recorded import Unwatched
    from kvproof.fuzz.drivers.wire import Options, Play
    from kvproof.fuzz.drivers.worker import load
    from kvproof.kernels.engines import shims
    from kvproof.record.hooks import Instrumentation

    ready, build = load(Options())
    requests = sum(type(operation).__name__ == "Submit" for operation in scenario.operations)
    best: dict[str, float] = {}
    size: dict[str, int] = {}

    def play(way: str, folder: Path) -> float:
        recorder = None
        if way != OFF:
            recorder = Instrumentation(
                shims.engine_family(),
                folder=folder,
                level=way,  # type: ignore[arg-type]  # one of WAYS
            )
            recorder.install()
        player = build(Play(scenario=scenario, backend="none"))
        assert isinstance(player, Player)
        player.engine = Unwatched(player.engine)
        began = time.process_time()
        for _ in player.play(scenario):
            pass
        if recorder is not None:
            recorder.close()  # what waits for the disk is part of the cost
            recorder.remove()
        return time.process_time() - began

    for number in range(rounds + 1):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                seconds = play(way, Path(folder))
                size[way] = sum(path.stat().st_size for path in Path(folder).iterdir())
            if number:  # the first round warms up
                best[way] = min(seconds, best.get(way, seconds))
    operations = len(scenario.operations)
    return {
        "engine": ready.version,
        "operations": operations,
        "requests": requests,
        "ways": {
            way: {
                "operations_per_s": round(operations / best[way], 1),
                "microseconds_an_operation": round((best[way] - best[OFF]) / operations * 1e6, 1),
                "percent": round((best[way] / best[OFF] - 1) * 100, 1),
                "bytes_a_request": round(size[way] / requests),
            }
            for way in WAYS
        },
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", nargs="*", default=ENGINES)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        # A child: the engine is importable here. The scenario comes in through stdin.
        scenario = decode_scenario(sys.stdin.buffer.read())
        sys.stdout.write(json.dumps(measure_engine(scenario, arguments.rounds)))
        return
    busy = encode_scenario(busy_scenario(requests=arguments.requests))
    results = []
    for name in arguments.engine:
        child = subprocess.run(
            [sys.executable, __file__, "--inside", "--rounds", str(arguments.rounds)],
            input=busy,
            env=engine_env(EngineStore().find(name)) | {"PYTHONSAFEPATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        results.append(json.loads(child.stdout))
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": processor(),
    }
    sys.stdout.write(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
