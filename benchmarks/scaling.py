"""Sequences a second of a campaign on one core, on two, and in a Ray cluster of two nodes.

Each runs the coordinator of ``kvproof campaign`` on one target, with nothing shrunk, for the same
time. Counted are the searches between the moment at which every lane's engine ran and the moment at
which the first lane stopped. With ``--repeat`` the three take turns, and the median counts. The
cluster is two `ray` nodes of one CPU each on this machine; without the extra ``ray`` it is left
out, and said so. The load of the machine stands beside the figures: scaling means nothing on a busy
one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvproof.fuzz.fleet.coordinator import Coordinator
from kvproof.fuzz.fleet.lanes import Lanes, ProcessLane
from kvproof.fuzz.fleet.ledger import FILE, Ledger, read_ledger
from kvproof.fuzz.fleet.ray_lane import ray_lanes
from kvproof.fuzz.fleet.subjects import find_subjects
from kvproof.fuzz.fleet.tally import Tallies
from kvproof.fuzz.fleet.units import Plan, Searched
from kvproof.fuzz.manifest import processor
from kvproof.fuzz.run_folder import RunFolder
from kvproof.kernels.engines.store import EngineStore


class TooShortError(Exception):
    """A lane came to too little: its engine took most of the time to start."""


def rate(searches: list[Searched], lanes: int) -> dict[str, float]:
    """Sequences a second while all lanes searched.

    Raises:
        TooShortError: one of them hardly did.
    """
    by_worker: dict[str, list[Searched]] = defaultdict(list)
    for search in searches:
        by_worker[search.worker].append(search)
    if len(by_worker) != lanes:
        raise TooShortError(f"of {lanes} lanes {len(by_worker)} came to something")
    began = max(each[0].elapsed for each in by_worker.values())
    ended = min(each[-1].elapsed for each in by_worker.values())
    counted = [s for s in searches if s.elapsed - s.seconds >= began - 1e-3 and s.elapsed <= ended]
    # By lane, from its first counted search to its last: searches do not begin together.
    total = 0.0
    for each in by_worker.values():
        own = [search for search in each if search in counted]
        if not own:
            raise TooShortError("a lane has no whole search; give more --seconds")
        total += sum(s.sequences for s in own) / (
            own[-1].elapsed - each[each.index(own[0]) - 1].elapsed
        )
    return {"sequences_per_s": round(total, 2), "searches": len(counted)}


def measure(
    engine: str, lanes: Lanes, *, workers: int, seconds: float, unit: float, seed: int
) -> dict[str, float]:
    """One campaign's rate."""
    [subject] = find_subjects([engine], EngineStore())
    with tempfile.TemporaryDirectory() as root, Ledger(Path(root)) as ledger:
        Coordinator(
            tallies=Tallies([subject]),
            ledger=ledger,
            folder=RunFolder(Path(root)),
            plan=Plan(examples=f"{root}/examples", seconds=unit, shrinks=False),
            seed=seed,
            seconds=seconds,
            lanes=lanes,
            workers=workers,
        ).run()
        searches = [e for e in read_ledger(Path(root) / FILE) if isinstance(e, Searched)]
    return rate(searches, workers)


@contextmanager
def two_nodes() -> Iterator[str]:
    """A Ray cluster of two nodes with a CPU each; its address."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "include_dashboard": False,
            # Other lanes are not nice: whatever else runs would count against Ray alone.
            "_system_config": {"worker_niceness": 0},
        },
    )
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call,unused-ignore]


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--engine", default="0.5.15:registry", help="or model-miscount, which is quick"
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of each campaign")
    parser.add_argument("--unit", type=float, default=5.0, help="seconds of one search")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    has_ray = importlib.util.find_spec("ray") is not None
    rates: dict[str, list[float]] = {"1 core": [], "2 cores": []}
    loads = [os.getloadavg()[0]]
    too_short: list[str] = []

    def run(name: str, lanes: Lanes, *, workers: int, number: int) -> None:
        try:
            one = measure(
                arguments.engine, lanes, workers=workers, seconds=arguments.seconds,
                unit=arguments.unit, seed=number,
            )  # fmt: skip
        except TooShortError as error:
            too_short.append(f"{name}: {error}")
            return
        loads.append(os.getloadavg()[0])
        rates.setdefault(name, []).append(one["sequences_per_s"])
        sys.stderr.write(f"{name}: {json.dumps(one)}, load {loads[-1]:.1f}\n")

    for number in range(arguments.repeat):
        run("1 core", ProcessLane, workers=1, number=number)
        run("2 cores", ProcessLane, workers=2, number=number)
        if has_ray:
            with two_nodes() as address, ray_lanes(address) as (lanes, _, nodes):
                if nodes != 2:
                    sys.exit(f"the cluster has {nodes} nodes")
                run("Ray, 2 nodes", lanes, workers=2, number=number)
    medians = {name: statistics.median(each) for name, each in rates.items() if each}
    result: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "processor": processor(),
            "loads": [round(load, 1) for load in loads],
        },
        "target": arguments.engine,
        "seconds": arguments.seconds,
        "sequences_per_s": medians,
        "scaling": {
            name: round(median / medians["1 core"], 2)
            for name, median in medians.items()
            if name != "1 core" and "1 core" in medians
        },
        "too_short": too_short,
        "runs": rates,
    }
    if not has_ray:
        result["left_out"] = "Ray is not installed: pip install 'kvproof[ray]'"
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(too_short))


if __name__ == "__main__":
    main()
