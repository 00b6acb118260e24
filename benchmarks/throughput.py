"""Operations a second: the model alone, the real caches, the real caches with interpreter kernels.

Run it with ``make bench``. Each number is for one core: engine and judge run in one process, one
after the other, without pipes. The mix of operations is that of a campaign.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings

from kvproof.fuzz.drivers.wire import Backend, Options
from kvproof.fuzz.drivers.wire import Play as Order
from kvproof.fuzz.strategies import likely_scenarios
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.monitor import check
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario, decode_scenario

ENGINES = ("0.5.15", "0.5.16", "0.5.23")
Play = Callable[[Scenario], Iterable[Fact]]


def draw(count: int) -> list[Scenario]:
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
        )(given(likely_scenarios())(keep))
    )()
    return drawn


def measure(play: Play, scenarios: list[Scenario], *, judge: bool) -> dict[str, float]:
    """Operations a second over all scenarios, after one scenario to warm up."""
    list(play(scenarios[0]))
    operations = sum(len(scenario.operations) for scenario in scenarios)
    began = time.perf_counter()
    for scenario in scenarios:
        facts = list(play(scenario))
        if judge:
            check(facts)
    seconds = time.perf_counter() - began
    return {"operations": operations, "operations_per_s": round(operations / seconds, 1)}


def measure_engine(
    backend: Backend, scenarios: list[Scenario], *, profile: bool
) -> dict[str, object]:
    """One backend of the engine of this process."""
    from kvproof.fuzz.drivers.worker import load

    _, build = load(Options())

    def play(scenario: Scenario) -> Iterable[Fact]:
        return build(Order(scenario=scenario, backend=backend)).play(scenario)

    result: dict[str, object] = dict(measure(play, scenarios, judge=False))
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
    parser.add_argument("--profile", action="store_true", help="Where the time goes, on stderr.")
    parser.add_argument("--engine", nargs="*", default=ENGINES)
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        # A child: the engine is importable here. Scenarios come in through stdin.
        drawn = [decode_scenario(line) for line in sys.stdin.buffer]
        result = measure_engine(arguments.inside, drawn, profile=arguments.profile)
        sys.stdout.write(json.dumps(result))
        return
    drawn = draw(arguments.scenarios)
    model: Play = lambda scenario: reference_player(scenario.geometry).play(scenario)  # noqa: E731
    results: dict[str, object] = {
        "model": measure(model, drawn, judge=False),
        "model and monitor": measure(model, drawn, judge=True),
    }
    lines = b"".join(msgspec.json.encode(scenario) + b"\n" for scenario in drawn)
    for name in arguments.engine:
        engine = EngineStore().find(name)
        for backend in ("none", "rules", "interpreter"):
            child = subprocess.run(
                [sys.executable, __file__, "--inside", backend]
                + (["--profile"] if arguments.profile else []),
                input=lines,
                env=engine_env(engine),
                stdout=subprocess.PIPE,
                stderr=None if arguments.profile else subprocess.DEVNULL,
                check=True,
            )
            results[f"{engine.name}, {backend}"] = json.loads(child.stdout)
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": processor(),
        "scenarios": len(drawn),
    }
    sys.stdout.write(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")


def processor() -> str:
    """What the machine calls its processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


if __name__ == "__main__":
    main()
