"""Speed and memory of ``kvproof check`` on logs of growing length, drawn ones and a recorded one.

Drawn logs have the lanes of forwards alone. A recorder's tells of locations too: one is recorded of
`kvproof.fuzz.busy` on the real objects of an installed engine.

Each log is written to a file, and read, decoded and judged in a process of its own, so that its
peak memory is that of one check. Facts a second are of CPU time, which a busy machine disturbs
less; the wall clock stands beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from kvproof.cli.check import imports_settled
from kvproof.fuzz.busy import busy_scenario
from kvproof.fuzz.chronicle import Chronicle
from kvproof.fuzz.drivers.recorded import record_play
from kvproof.fuzz.manifest import processor
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import LogReader, encode_fact
from kvproof.model.files import blocks, open_file
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import Geometry
from kvproof.model.traffic import Traffic

GEOMETRY = Geometry(window=128, page_size=64, slots=64, pool_tokens=64 * 4096)
TAILS = {"capped": None, "uncapped": 0}
"""Every decode is fresh, or the windows of most requests hold stale rows."""


def measure(file: Path) -> dict[str, float]:
    """Judge one log as the command does."""
    with imports_settled():
        return _measure(file)


def _measure(file: Path) -> dict[str, float]:
    began, wall = time.process_time(), time.perf_counter()
    monitor = Monitor()
    chronicle = Chronicle(monitor)
    with open_file(file) as source:
        reader = LogReader(blocks(source))
        for fact in reader:
            chronicle.note(fact)
            monitor.feed(fact)
    seconds, wall = time.process_time() - began, time.perf_counter() - wall
    return {
        "facts": reader.line,
        "bytes": file.stat().st_size,
        "facts_per_cpu_s": round(reader.line / seconds),
        "facts_per_s": round(reader.line / wall),
        "peak_memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "violations": sum(monitor.counts.values()),
    }


def in_child(file: Path) -> dict[str, float]:
    """`measure` in a process of its own."""
    child = subprocess.run(
        [sys.executable, __file__, "--judge", file], stdout=subprocess.PIPE, check=True
    )
    result: dict[str, float] = json.loads(child.stdout)
    return result


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="*", default=[500, 2_000, 8_000])
    parser.add_argument("--recorded", type=int, default=2_000, help="requests to record; 0: none")
    parser.add_argument("--engine", default="0.5.15", help="to record them on")
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.judge:
        sys.stdout.write(json.dumps(measure(arguments.judge)))
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, tail in TAILS.items():
            for requests in arguments.requests:
                file = Path(folder) / "log.jsonl"
                traffic = Traffic(geometry=GEOMETRY, requests=requests, reprefill_tail=tail)
                with file.open("wb") as out:
                    out.writelines(encode_fact(fact) for fact in traffic.log())
                results[f"{name}, {requests} requests"] = in_child(file)
        if arguments.recorded:
            engine = EngineStore().find(arguments.engine)
            busy = busy_scenario(requests=arguments.recorded)
            file = record_play(engine, busy, Path(folder) / "recorded")
            results[f"recorded on {engine.name}, {arguments.recorded} requests"] = in_child(file)
    machine = {
        "python": platform.python_version(),
        "msgspec": version("msgspec"),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "processor": processor(),
        "window": GEOMETRY.window,
        "slots": GEOMETRY.slots,
    }
    sys.stdout.write(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
