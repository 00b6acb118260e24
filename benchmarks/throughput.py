"""Operations a second: the model alone, the real caches, the real caches with interpreter kernels.

Run it with ``make bench``. Each number is for one core: engine and judge run in one process, one
after the other, without pipes. The mix of operations is that of a campaign.

Beside it, by length of history: histories are played on one engine each, without a restart, and
judged after every operation; ``by_length`` are the operations a second of each tenth, all of them
together. Flat numbers say that an operation costs no more late than early. An operation that is
refused or skipped costs little, though a snapshot is taken after it all the same: the others alone,
in the time of all, are ``executed_per_s``.

``paged-swa`` is the cache with an index-addressed SWA pool, where snapshots tell both pools, the
map, locks and cursors after every operation. Times are of the processor: other work on the machine
disturbs them less than the clock.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.constructions import PAGED_SWA, REGISTRY, has_ring
from kvproof.fuzz.drivers.wire import Backend, Options
from kvproof.fuzz.drivers.wire import Play as Order
from kvproof.fuzz.manifest import processor
from kvproof.fuzz.strategies import Sizes, histories, likely_scenarios
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.facts import Fact, Step
from kvproof.model.monitor import Monitor, check
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario, decode_scenario

ENGINES = ("0.5.15", "0.5.16", "0.5.23")
Play = Callable[[Scenario], Iterable[Fact]]

PAGED = Sizes(swa_shares=(1, 2, 4))
"""What `fuzz.targets` draws for `PAGED_SWA`, on the releases that take every window."""

LONG = 1000
"""Operations from which on a scenario is measured as a history."""


def draw(strategy: SearchStrategy[Scenario], count: int) -> list[Scenario]:
    """The scenarios that a campaign with seed 0 draws first."""
    drawn: list[Scenario] = []

    def keep(scenario: Scenario) -> None:
        drawn.append(scenario)

    seed(0)(
        settings(
            max_examples=count,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )(given(strategy)(keep))
    )()
    return drawn


def measure(play: Play, scenarios: list[Scenario], *, judge: bool) -> dict[str, float]:
    """Operations a second over all scenarios, after one scenario to warm up."""
    list(play(scenarios[0]))
    operations = sum(len(scenario.operations) for scenario in scenarios)
    began = time.process_time()
    for scenario in scenarios:
        facts = list(play(scenario))
        if judge:
            check(facts)
    seconds = time.process_time() - began
    return {"operations": operations, "operations_per_s": round(operations / seconds, 1)}


TENTHS = 10


def measure_history(play: Play, scenarios: list[Scenario]) -> dict[str, object]:
    """Operations a second with every invariant on, of each tenth of the histories."""
    spent = [0.0] * TENTHS
    skipped = 0
    for scenario in scenarios:
        monitor = Monitor()
        length = len(scenario.operations)
        began, tenth = time.process_time(), 0
        for fact in play(scenario):
            if isinstance(fact, Step) and fact.index * TENTHS // length > tenth:
                now = time.process_time()
                spent[tenth] += now - began
                began, tenth = now, tenth + 1
            monitor.feed(fact)
        spent[tenth] += time.process_time() - began
        skipped += monitor.skipped
    operations = sum(len(scenario.operations) for scenario in scenarios)
    return {
        "operations": operations,
        "skipped": skipped,
        "operations_per_s": round(operations / sum(spent), 1),
        "executed_per_s": round((operations - skipped) / sum(spent), 1),
        "by_length": [round(operations / TENTHS / seconds) for seconds in spent],
    }


def measure_engine(
    backend: Backend, scenarios: list[Scenario], *, construction: str, profile: bool
) -> dict[str, object]:
    """One backend of the engine of this process."""
    from kvproof.fuzz.drivers.worker import load

    _, build = load(Options(construction=construction, rocm_gate=has_ring(construction)))
    gc.freeze()  # as the worker of a campaign does

    def play(scenario: Scenario) -> Iterable[Fact]:
        return build(Order(scenario=scenario, backend=backend)).play(scenario)

    if any(len(scenario.operations) >= LONG for scenario in scenarios):
        return measure_history(play, scenarios)
    judge = construction == PAGED_SWA  # nothing names rows there: the snapshots are what it costs
    result: dict[str, object] = dict(measure(play, scenarios, judge=judge))
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        for scenario in scenarios:
            list(play(scenario))
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)
    return result


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", type=int, default=150)
    parser.add_argument("--histories", type=int, default=8)
    parser.add_argument("--operations", type=int, default=10_000, help="Of each history.")
    parser.add_argument("--profile", action="store_true", help="Where the time goes, on stderr.")
    parser.add_argument("--engine", nargs="*", default=ENGINES)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("--construction", default=REGISTRY, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        # A child: the engine is importable here. Scenarios come in through stdin.
        drawn = [decode_scenario(line) for line in sys.stdin.buffer]
        result = measure_engine(
            arguments.inside,
            drawn,
            construction=arguments.construction,
            profile=arguments.profile,
        )
        sys.stdout.write(json.dumps(result))
        return
    drawn = draw(likely_scenarios(), arguments.scenarios)
    # The first one that Hypothesis draws is the simplest there is, and says little.
    long = draw(histories(operations=arguments.operations), arguments.histories + 1)[1:]
    paged = draw(likely_scenarios(PAGED), arguments.scenarios)
    paged_long = draw(histories(PAGED, operations=arguments.operations), arguments.histories + 1)
    model: Play = lambda scenario: reference_player(scenario.geometry).play(scenario)  # noqa: E731
    results: dict[str, object] = {
        "model": measure(model, drawn, judge=False),
        "model and monitor": measure(model, drawn, judge=True),
    }
    for name in arguments.engine:
        engine = EngineStore().find(name)
        for backend in ("none", "rules", "interpreter"):
            key = f"{engine.name}, {backend}"
            results[key] = _in_child(engine, backend, drawn, arguments)
        results[f"{engine.name}, history"] = _in_child(engine, "rules", long, arguments)
        for key, scenarios in (("paged-swa", paged), ("paged-swa, history", paged_long[1:])):
            results[f"{engine.name}, {key}"] = _in_child(
                engine, "none", scenarios, arguments, construction=PAGED_SWA
            )
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": processor(),
        "scenarios": len(drawn),
    }
    sys.stdout.write(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


def _in_child(
    engine: Engine,
    backend: Backend,
    scenarios: list[Scenario],
    arguments: argparse.Namespace,
    *,
    construction: str = REGISTRY,
) -> object:
    child = subprocess.run(
        [sys.executable, __file__, "--inside", backend, "--construction", construction]
        + (["--profile"] if arguments.profile else []),
        input=b"".join(msgspec.json.encode(scenario) + b"\n" for scenario in scenarios),
        env=engine_env(engine),
        stdout=subprocess.PIPE,
        stderr=None if arguments.profile else subprocess.DEVNULL,
        check=True,
    )
    return json.loads(child.stdout)


if __name__ == "__main__":
    main()
