"""Swarm testing on and off: sequences and seconds to the first failure, over several seeds.

Each known defect is sought with the same seeds, in one run, on the model with a fault or on a
release (``--target 0.5.12:paged-swa --symptom PARTITION/leak``). A search that finds nothing counts
with all its sequences, so medians are not flattered by what was given up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kvproof.fuzz.manifest import processor
from kvproof.fuzz.seek import seek
from kvproof.fuzz.strategies import Sizes, scenarios
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.monitor import check
from kvproof.model.policy import SwaFault
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Scenario
from kvproof.triage.symptoms import shows, symptoms_of

PAGED = Sizes(swa_shares=(1, 2, 4))

_FAULTS: tuple[tuple[SwaFault, str, str], ...] = (
    ("recover under a lock", "#29352", "PARTITION/leak"),
    ("cursor left out of insert", "#29350", "MAP/unmapped"),
    ("lock pins the prefix", "#27210", "PROGRESS/pinned"),
    ("cursor never moves", "#33404", "PROGRESS/hoarded"),
    ("split drops a lock", "#24153", "LOCK/swa-lock-count"),
)

SOUGHT: dict[str, tuple[Policy, Sizes, str]] = {
    "stale decode (#30339)": (Policy(reprefill_tail=0), Sizes(), "FRESH-DECODE/other-request"),
    **{
        f"{fault} ({report})": (
            Policy(paged_swa=True, faults=frozenset({fault})), PAGED, symptom,
        )
        for fault, report, symptom in _FAULTS
    },
}  # fmt: skip
"""Faults of the model that few sequences reach."""

Play = Callable[[Scenario], Iterable[Fact]]


def compare(
    play: Play, sizes: Sizes, symptom: str, *, seeds: int, sequences: int
) -> dict[str, object]:
    """Both ways to draw, over the same seeds."""

    def shown(scenario: Scenario) -> bool:
        return shows(symptoms_of(check(play(scenario))), symptom)

    result: dict[str, object] = {"symptom": symptom}
    for name, swarm in (("swarm", True), ("everything on", False)):
        runs = [
            seek(
                shown, scenarios(sizes, swarm=swarm), seed_number=seed, sequences=sequences,
                seconds=float("inf"), shrink=False,
            )
            for seed in range(seeds)
        ]  # fmt: skip
        result[name] = {
            "found": sum(run.scenario is not None for run in runs),
            "median_sequences": statistics.median(run.sequences for run in runs),
            "mean_sequences": round(statistics.mean(run.sequences for run in runs), 1),
            "median_s": round(statistics.median(run.seconds for run in runs), 2),
        }
    return result


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sequences", type=int, default=2000, help="After so many it gives up.")
    parser.add_argument("--target", help="A release instead of the model, with --symptom.")
    parser.add_argument("--symptom", default="")
    arguments = parser.parse_args()
    limits: dict[str, Any] = {"seeds": arguments.seeds, "sequences": arguments.sequences}
    results: dict[str, object] = {}
    if arguments.target:
        [target] = find_targets([arguments.target], EngineStore())
        with target.process() as process:
            process.start()
            play = partial(process.play, timeout=60, backend="rules")
            results[target.name] = compare(play, target.sizes, arguments.symptom, **limits)
    else:
        for name, (policy, sizes, symptom) in SOUGHT.items():

            def on_model(scenario: Scenario, policy: Policy = policy) -> Iterable[Fact]:
                return reference_player(scenario.geometry, policy).play(scenario)

            results[name] = compare(on_model, sizes, symptom, **limits)
            sys.stderr.write(f"{name}: {json.dumps(results[name])}\n")
    machine = {"cores": os.cpu_count(), "processor": processor(), **limits}
    sys.stdout.write(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
