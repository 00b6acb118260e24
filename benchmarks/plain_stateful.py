"""Time to the first stale decode on 0.5.15: these strategies beside plain stateful testing.

The baseline is what one would write otherwise: a `RuleBasedStateMachine` with a rule for each
operation, requests in bundles, and preconditions that keep most rules meaningful. It knows nothing
of windows, pages and tails. It is measured in two forms: with prompts that are lists of tokens, as
a cache's interface takes them, and with prompts that are prefixes of three texts, as somebody
writes who knows that a cache is about shared prefixes. All else is the same for all: geometries,
engine process, backend (``rules``), monitor, what counts as found, and the limits, in one run, seed
by seed. The engine is imported before the first clock starts, and each search has run once by then,
uncounted: what is built at first use is there for all. Nothing is shrunk.

A search that finds nothing counts with the time at which it gave up, so that a ratio is not
flattered; how many those are is said beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from hypothesis import seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.manifest import processor
from kvproof.fuzz.profiles import search_settings
from kvproof.fuzz.seek import seek
from kvproof.fuzz.strategies import MAX_TOKENS, Sizes, scenarios
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Abort,
    Complete,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
    Verify,
)

Shows = Callable[[Scenario], bool]
TEXTS = ("x", "y", "z")


class _EndError(Exception):
    """Ends a search: found, or given up."""


PREFIXES: SearchStrategy[Prompt] = st.builds(
    lambda text, length: (Piece(text, length),),
    st.sampled_from(TEXTS),
    st.integers(1, MAX_TOKENS),
)
TOKENS: SearchStrategy[Prompt] = st.lists(
    st.sampled_from(TEXTS), min_size=1, max_size=MAX_TOKENS
).map(lambda tokens: tuple(Piece(text, end) for end, text in enumerate(tokens, start=1)))
"""Each token is one of three at its position."""


def machine_of(
    sizes: Sizes, prompts: SearchStrategy[Prompt], act: Callable[[Scenario], None]
) -> type[RuleBasedStateMachine]:
    """A state machine that hands each finished sequence to ``act``."""

    class Cache(RuleBasedStateMachine):
        """Requests that come, run and go."""

        waiting: Bundle[str] = Bundle("waiting")
        running: Bundle[str] = Bundle("running")

        def __init__(self) -> None:
            super().__init__()
            self.geometry: Geometry | None = None
            self.operations: list[Operation] = []
            self.names = 0
            self.alive = 0

        @initialize(
            window=st.sampled_from(sizes.windows),
            page_size=st.sampled_from(sizes.page_sizes),
            slots=st.sampled_from(sizes.slots),
            pool_tokens=st.sampled_from(sizes.pool_tokens),
            drafts_and_overlap=st.sampled_from(sizes.drafts_and_overlaps()),
        )
        def build(
            self,
            window: int,
            page_size: int,
            slots: int,
            pool_tokens: int,
            drafts_and_overlap: tuple[int, int],
        ) -> None:
            draft_tokens, overlap = drafts_and_overlap
            self.geometry = Geometry(
                window=window,
                page_size=page_size,
                slots=slots,
                pool_tokens=pool_tokens,
                draft_tokens=min(window, draft_tokens),
                overlap=overlap,
            )

        def is_drafting(self) -> bool:
            return self.geometry is not None and self.geometry.draft_tokens > 1

        def has_room(self) -> bool:
            return self.geometry is not None and self.alive < self.geometry.slots

        @rule(target=waiting, prompt=prompts)
        def submit(self, prompt: Prompt) -> str:
            self.names += 1
            name = f"r{self.names}"
            self.operations.append(Submit(request=name, prompt=prompt))
            return name

        @precondition(has_room)
        @rule(target=running, request=consumes(waiting))
        def prefill(self, request: str) -> str:
            self.alive += 1
            self.operations.append(Prefill(request=request))
            return request

        @precondition(has_room)
        @rule(target=running, request=consumes(waiting), tokens=st.integers(1, MAX_TOKENS))
        def prefill_in_two_chunks(self, request: str, tokens: int) -> str:
            self.alive += 1
            self.operations += [Prefill(request=request, tokens=tokens), Prefill(request=request)]
            return request

        @precondition(lambda self: self.alive > 0 and not self.is_drafting())
        @rule(pad=st.integers(0, 3))
        def decode(self, pad: int) -> None:
            self.operations.append(Decode(pad=pad))

        @precondition(lambda self: self.alive > 0 and self.is_drafting())
        @rule(accepted=st.integers(1, 4), pad=st.integers(0, 3))
        def verify(self, accepted: int, pad: int) -> None:
            self.operations.append(Verify(accepted=accepted, pad=pad))

        @rule(request=consumes(running))
        def finish(self, request: str) -> None:
            self.alive -= 1
            self.operations.append(Finish(request=request))

        @rule(request=consumes(running))
        def abort(self, request: str) -> None:
            self.alive -= 1
            self.operations.append(Abort(request=request))

        @rule(target=waiting, request=consumes(running))
        def retract(self, request: str) -> str:
            self.alive -= 1
            self.operations.append(Retract(request=request))
            return request

        @rule(target=waiting, request=consumes(waiting))
        def drop(self, request: str) -> Any:
            self.operations.append(Abort(request=request))
            return multiple()

        @rule(tokens=st.integers(1, MAX_TOKENS))
        def evict(self, tokens: int) -> None:
            self.operations.append(Evict(tokens=tokens))

        @precondition(lambda self: self.alive == 0)
        @rule()
        def flush(self) -> None:
            self.operations.append(Flush())

        @precondition(lambda self: self.geometry is not None and self.geometry.overlap == 1)
        @rule()
        def complete(self) -> None:
            self.operations.append(Complete())

        def teardown(self) -> None:
            if self.geometry is not None and self.operations:
                act(Scenario(geometry=self.geometry, operations=tuple(self.operations)))

    return Cache


def seek_plainly(
    prompts: SearchStrategy[Prompt],
    shows: Shows,
    sizes: Sizes,
    *,
    seed_number: int,
    sequences: int,
    seconds: float,
) -> dict[str, Any]:
    """The baseline's search; as `seek`, which is the other's."""
    began = time.monotonic()
    drawn = operations = 0
    spent: float | None = None

    def look(scenario: Scenario) -> None:
        nonlocal drawn, operations, spent
        if spent is not None or time.monotonic() - began > seconds:
            raise _EndError
        drawn += 1
        operations += len(scenario.operations)
        if shows(scenario):
            spent = time.monotonic() - began
            raise _EndError

    machine = seed(seed_number)(machine_of(sizes, prompts, look))
    with suppress(_EndError):
        run_state_machine_as_test(machine, settings=search_settings(sequences))
    gave_up = time.monotonic() - began
    return {
        "found": spent is not None,
        "sequences": drawn,
        "operations": operations,
        "seconds": round(gave_up if spent is None else spent, 3),
    }


def seek_with_strategies(
    shows: Shows, sizes: Sizes, *, seed_number: int, sequences: int, seconds: float
) -> dict[str, Any]:
    """The search of `kvproof`'s strategies."""
    run = seek(
        shows, scenarios(sizes), seed_number=seed_number, sequences=sequences, seconds=seconds,
        shrink=False,
    )  # fmt: skip
    return {
        "found": run.scenario is not None,
        "sequences": run.sequences,
        "operations": run.operations,
        "seconds": round(run.seconds, 3),
    }


def summary_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over all seeds, those that gave up included."""
    return {
        "found": sum(run["found"] for run in runs),
        "median_s": round(statistics.median(run["seconds"] for run in runs), 3),
        "median_sequences": statistics.median(run["sequences"] for run in runs),
        "median_operations": statistics.median(run["operations"] for run in runs),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="0.5.15:registry")
    parser.add_argument("--invariant", default="FRESH-DECODE")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--sequences", type=int, default=20_000, help="after so many, give up")
    parser.add_argument("--seconds", type=float, default=60.0, help="after so long too")
    arguments = parser.parse_args()
    [target] = find_targets([arguments.engine], EngineStore())
    limits = {"sequences": arguments.sequences, "seconds": arguments.seconds}
    searches: dict[str, Callable[..., dict[str, Any]]] = {
        "strategies": seek_with_strategies,
        "plain stateful, lists of tokens": partial(seek_plainly, TOKENS),
        "plain stateful, shared texts": partial(seek_plainly, PREFIXES),
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in searches}
    with target.process() as process:
        process.start()

        def shows(scenario: Scenario) -> bool:
            broken = check(process.play(scenario, timeout=60, backend="rules")).violations
            return any(invariant == arguments.invariant for invariant, _ in broken)

        for search in searches.values():  # not counted: what is loaded at first use is loaded
            search(shows, target.sizes, seed_number=arguments.seeds, **limits)
        for number in range(arguments.seeds):
            for name, search in searches.items():
                run = search(shows, target.sizes, seed_number=number, **limits)
                runs[name].append(run)
                sys.stderr.write(f"seed {number}, {name}: {json.dumps(run)}\n")
    summaries = {name: summary_of(each) for name, each in runs.items()}
    ours = summaries["strategies"]["median_s"]
    summary = {
        "target": target.name,
        "invariant": arguments.invariant,
        "seeds": arguments.seeds,
        **summaries,
        "times_faster": {
            name: round(each["median_s"] / ours, 2)
            for name, each in summaries.items()
            if name != "strategies"
        },
    }
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "processor": processor(),
        **limits,
    }
    result = {"machine": machine, "summary": summary, "runs": runs}
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
