"""Time to the smallest FRESH-DECODE counterexample on 0.5.15, over several seeds.

Run it with ``make bench``. The engine is imported once, before the first clock starts. ``wall``
runs from a campaign's first sequence to the end of shrinking, the whole survey included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

from kvproof.fuzz.campaign import Campaign
from kvproof.fuzz.profiles import PROFILES
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.verdict import SEVERITY


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="0.5.15:registry")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--profile", default="default", choices=PROFILES)
    arguments = parser.parse_args()
    [target] = find_targets([arguments.engine], EngineStore())
    runs: list[dict[str, Any]] = []
    with target.process() as process:
        process.start()
        for seed in range(arguments.seeds):
            campaign = Campaign(
                target=target, process=process, profile=PROFILES[arguments.profile], seed=seed
            )
            began = time.monotonic()
            survey = campaign.survey()
            broken = min(survey.first, key=SEVERITY.__getitem__, default=None)
            if broken is None or broken[0] != "FRESH-DECODE":
                runs.append({"seed": seed, "found": False})
                continue
            found, backend, seen = survey.smallest[broken]
            smallest = campaign.shrink(broken, found, backend, seen)
            wall = time.monotonic() - began
            violation, _, same = campaign.confirm(broken, smallest)
            runs.append(
                {
                    "seed": seed,
                    "found": True,
                    "cause": broken[1],
                    "find_s": round(survey.first[broken][1], 2),
                    "wall_s": round(wall, 2),
                    "operations": len(smallest.operations),
                    "confirmed": violation is not None and same,
                }
            )
            sys.stderr.write(json.dumps(runs[-1]) + "\n")
    hits = [run for run in runs if run["found"]]
    summary = {
        "target": target.name,
        "seeds": len(runs),
        "found": len(hits),
        "confirmed": sum(bool(run["confirmed"]) for run in hits),
        "median_find_s": statistics.median(run["find_s"] for run in hits),
        "median_wall_s": statistics.median(run["wall_s"] for run in hits),
        "max_operations": max(run["operations"] for run in hits),
    }
    sys.stdout.write(json.dumps({"summary": summary, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
