"""Time from a busy server's log to the smallest scenario of the one stale decode hidden in it.

A run of 2,000 requests in 64 slots is played on a target, written as a recorder writes it (some
100,000 facts), and given to the code behind ``kvproof minimise`` with an empty cache. ``load_s`` is
reading, judging and lifting the log, ``minimise_s`` the rest, engine starts and the confirmation on
the real kernels included. Run it with ``python benchmarks/minimise.py --engine 0.5.15:registry``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact, Pools, encode_fact
from kvproof.model.forward import RuleForward
from kvproof.model.player import Player
from kvproof.model.reference import MODEL, Policy, ReferenceEngine
from kvproof.model.scenario import Scenario
from kvproof.triage.cache import ResultCache
from kvproof.triage.case import load_case
from kvproof.triage.minimise import Minimiser
from kvproof.triage.rehearse import BUSY, as_recorded, busy_run
from kvproof.triage.subjects import find_subjects

UNCAPPED = Policy(reprefill_tail=0)
_NO_POOLS = Pools(free=(), free_slots=(), nodes=(), holdings=(), counters={})


class _Unseen(ReferenceEngine):
    """The model without snapshots, which a recorder does not take either."""

    def pools(self) -> Pools:
        return _NO_POOLS


def play(scenario: Scenario, target: str) -> Iterable[Fact]:
    """The run on a target; nobody holds all of its facts."""
    if target == MODEL:
        geometry = scenario.geometry
        rules = RuleForward(
            window=geometry.window, stride=geometry.ring_stride, verify_order=UNCAPPED.verify_order
        )
        yield from Player(_Unseen(geometry=geometry, policy=UNCAPPED), rules).play(scenario)
        return
    [found] = find_targets([target], EngineStore())
    with found.process() as process:
        yield from process.stream(scenario, timeout=3600, backend="rules")


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default=MODEL, help="a target, or `model` without a cap")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--log", type=Path, help="keep the log here, or take it if it is there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = arguments.log or Path(folder) / "run.jsonl"
        began = time.monotonic()
        if not log.exists():
            geometry = BUSY
            if arguments.engine == MODEL:
                # The model looks through its whole tree to evict a page.
                geometry = replace(BUSY, pool_tokens=2**20)
            scenario = busy_run(requests=arguments.requests, seed=arguments.seed, geometry=geometry)
            with log.open("wb") as file:
                for fact in as_recorded(play(scenario, arguments.engine)):
                    file.write(encode_fact(fact))
        generated = time.monotonic()
        case = load_case(log)
        loaded = time.monotonic()
        [subject] = find_subjects((), EngineStore(), started=case.started)
        minimiser = Minimiser(
            cache=ResultCache(Path(folder) / "cache.sqlite3"), workers=arguments.jobs
        )
        result = minimiser.run(case, subject).result
        ended = time.monotonic()
    report = {
        "target": result.target,
        "requests": arguments.requests,
        "facts": result.facts,
        "symptom": result.symptom,
        "operations_before": result.operations_before,
        "operations": result.operations,
        "tokens": result.tokens,
        "tries": result.tries,
        "confirmed": result.confirmed and result.deterministic,
        "generate_s": round(generated - began, 1),
        "load_s": round(loaded - generated, 1),
        "minimise_s": round(ended - loaded, 1),
        "total_s": round(ended - generated, 1),
        "jobs": arguments.jobs,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    sys.stdout.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
