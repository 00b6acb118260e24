"""What an operation costs by the length of a history and by the number of request slots.

Histories are played with every invariant on, on the model and on a release's real caches with the
rules for its rows. Operations a second that stay flat over the lengths say that nothing is carried
along; those over the slots say what a larger batch costs, since a decode step is one operation for
all requests that run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from functools import partial

from throughput import draw, measure_history

from kvproof.fuzz.manifest import processor
from kvproof.fuzz.strategies import Sizes, histories
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario

POOL_TOKENS_A_SLOT = 64
"""Room for a few requests more than there are slots, as in a campaign."""


def scenarios_of(*, slots: int, operations: int, count: int) -> list[Scenario]:
    """The same for every target."""
    sizes = Sizes(slots=(slots,), pool_tokens=(max(64, slots * POOL_TOKENS_A_SLOT),))
    # The first one that Hypothesis draws is the simplest there is, and says little.
    return draw(histories(sizes, operations=operations), count + 1)[1:]


def on_model(scenario: Scenario) -> Iterable[Fact]:
    """The log of the reference engine."""
    return reference_player(scenario.geometry).play(scenario)


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="0.5.23:registry")
    parser.add_argument("--lengths", type=int, nargs="*", default=[500, 2000, 8000])
    parser.add_argument("--slots", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--histories", type=int, default=3)
    arguments = parser.parse_args()
    [target] = find_targets([arguments.engine], EngineStore())
    results: dict[str, dict[str, object]] = {"model": {}, target.name: {}}
    shapes = [
        *((f"{length} operations, 3 slots", 3, length) for length in arguments.lengths),
        *((f"{slots} slots, 1000 operations", slots, 1000) for slots in arguments.slots),
    ]
    with target.process() as process:
        process.start()
        play = partial(process.stream, timeout=3600.0, backend="rules")
        for name, slots, operations in shapes:
            drawn = scenarios_of(slots=slots, operations=operations, count=arguments.histories)
            results["model"][name] = measure_history(on_model, drawn)["operations_per_s"]
            results[target.name][name] = measure_history(play, drawn)["operations_per_s"]
            sys.stderr.write(f"{name}: {results[target.name][name]} operations/s\n")
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "processor": processor(),
        "histories": arguments.histories,
    }
    results_json = {"machine": machine, "operations_per_s": results}
    sys.stdout.write(json.dumps(results_json, indent=1) + "\n")


if __name__ == "__main__":
    main()
