"""Checked decodes a second of the real ring kernels: on a GPU, if there is one, and interpreted.

Each run is what ``kvproof kernels batch`` does: one launch plays a scenario in every slot, and
every row that a query reads is checked. Prefills and checks are part of the time, the first round,
in which kernels are compiled, is not. The median of the runs counts. A run in which a property
does not come out as the theorems say ends the benchmark: its speed would mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import Any

import torch

from kvproof.fuzz.manifest import processor
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.batch import Batched, Play, play_batch
from kvproof.kernels.engines.store import Engine, EngineStore

ENGINES = ("0.5.15", "0.5.16", "0.5.23")
SLOTS: dict[KernelBackend, int] = {"interpreter": 4, "cuda": 2**20}


def measure(engine: Engine, backend: KernelBackend, *, seconds: float, seed: int) -> Batched:
    """One run."""
    order = Play(
        backend=backend, slots=SLOTS[backend], window=4, page_size=2, draft_tokens=1,
        reprefill_tail=4, short=0, seconds=seconds, seed=seed,
    )  # fmt: skip
    one = play_batch(engine, order)
    if not one.as_expected:
        sys.exit(f"{one.release} on {backend}, seed {seed}: a property is not as expected")
    return one


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", metavar="NAME", help="default: all three")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    backends: list[KernelBackend] = ["interpreter"]
    if torch.cuda.is_available():
        backends.append("cuda")
    store = EngineStore()
    decodes_per_s: dict[str, dict[str, Any]] = {}
    for name in arguments.engine or ENGINES:
        engine = store.find(name)
        for backend in backends:
            runs = [
                measure(engine, backend, seconds=arguments.seconds, seed=number)
                for number in range(arguments.repeat)
            ]
            rates = [round(run.decodes_per_second or 0) for run in runs]
            decodes_per_s.setdefault(engine.name, {})[backend] = {
                "slots": SLOTS[backend],
                "median": statistics.median(rates),
                "each": rates,
                "decodes": sum(run.decodes for run in runs),
            }
            sys.stderr.write(f"{engine.name} on {backend}: {rates} decodes a second\n")
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "processor": processor()}
    result = {"machine": machine, "decodes_per_s": decodes_per_s}
    if "cuda" not in backends:
        result["left_out"] = "no GPU: torch.cuda.is_available() is false"
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
