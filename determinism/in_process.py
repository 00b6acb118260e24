"""The harness in process: a cell is one scenario, played on a release's real caches and kernels.

The outputs are those of layers that run on the release's own kernels (`fuzz.drivers.layered`), or
of a layered run in digests (`kvproof.model.digests`) along the reads that the log shows. Neither
rounds, so neither has non-determinism of its own: the floor is zero, and what differs was read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kvproof.determinism.plan import COLD, Cell, Settings, cell_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.digests import outputs_of
from kvproof.model.facts import Admitted, Compared, Fact
from kvproof.model.facts import EngineError as EngineFailure
from kvproof.model.layers import Stack
from kvproof.model.scenario import (
    Decode,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
)
from kvproof.spec.pages import page_ceil

SMALL = Settings(
    window=4, tails=(1, 2, 3, 4, 6, 8), prefix_len=16, requests=16, churn=32, churn_len=8, rounds=1,
    output_len=3,
)  # fmt: skip
"""A run that takes seconds in Triton's interpreter."""

PAGE_SIZE = 8
MOST_SLOTS = 17

Play = Callable[[Scenario], Iterable[Fact]]

IDENTICAL = "R"
"""How the names of the identical requests begin."""


def scenario_of(
    settings: Settings, *, round_number: int, tail: int, page_size: int, slots: int
) -> Scenario:
    """A cell as a scenario: warm, churn, and the identical requests, as many at once as fit.

    In the cold control the cache is cleared before each.
    """
    prompt = (Piece(f"prompt {round_number} {tail}", settings.prompt_len(tail)),)
    operations = [] if tail == COLD else [*_together({"warm": prompt}, settings.output_len)]
    # At once, so that all slots are recycled in whatever order they are lent. One stays free:
    # 0.5.23 counts free slots as free memory, and would evict the prefix to make room.
    for first in range(0, settings.churn, slots - 1):
        others = {
            f"churn-{number}": (Piece(f"churn {round_number} {number}", settings.churn_len),)
            for number in range(first, min(first + slots - 1, settings.churn))
        }
        operations += _together(others, 1)
    names = [f"{IDENTICAL}{number}" for number in range(settings.requests)]
    at_once = 1 if tail == COLD else slots - 1
    for first in range(0, len(names), at_once):
        operations += [Flush()] if tail == COLD else []
        same = dict.fromkeys(names[first : first + at_once], prompt)
        operations += _together(same, settings.output_len)
    longest = page_ceil(settings.prompt_len(tail) + settings.output_len + 1, page_size)
    churned = page_ceil(settings.churn_len + 2, page_size)
    geometry = Geometry(
        window=settings.window,
        page_size=page_size,
        slots=slots,
        # Nothing need be evicted, so that the prefix stays.
        pool_tokens=(slots + 2) * longest + settings.churn * churned,
    )
    return Scenario(geometry=geometry, operations=tuple(operations))


def _together(prompts: Mapping[str, Prompt], output_len: int) -> Iterator[Operation]:
    """Requests, by name, that run at the same time."""
    for name, prompt in prompts.items():
        yield Submit(request=name, prompt=prompt)
        yield Prefill(request=name)
    # The last prompt token gives the first output.
    yield from [Decode()] * (output_len - 1)
    for name in prompts:
        yield Finish(request=name)


def _outputs(log: Sequence[Fact], stack: Stack, prompt_len: int) -> Iterator[tuple[str, str]]:
    """Requests and their outputs: of layers on the real kernels if the log has them, or digests."""
    compared = [fact for fact in log if isinstance(fact, Compared)]
    if compared:
        # How far the last layer's states are from those of a cold run: equal if the states are.
        for fact in compared:
            errors = fact.states[-1][prompt_len - 1 - fact.start :]
            yield fact.request, " ".join(f"{error:.9g}" for error in errors)
        return
    for name, outputs in outputs_of(log, stack):
        yield name, " ".join(output.hex() for output in outputs)


def run_cell(
    play: Play,
    settings: Settings,
    stack: Stack,
    *,
    round_number: int,
    tail: int,
    page_size: int = PAGE_SIZE,
    slots: int | None = None,
) -> Cell:
    """One cell. By default all identical requests run at once, up to a number.

    Raises:
        EngineError: the engine failed while it played.
    """
    began = time.perf_counter()
    slots = slots or min(MOST_SLOTS, settings.requests + 1)
    scenario = scenario_of(
        settings, round_number=round_number, tail=tail, page_size=page_size, slots=slots
    )
    log = list(play(scenario))
    if isinstance(log[-1], EngineFailure):
        raise EngineError(
            f"the engine failed with a tail of {tail} tokens: {log[-1].message}",
            fix="run `kvproof engine doctor` for what it lacks",
        )
    cached = [
        fact.matched_len
        for fact in log
        if isinstance(fact, Admitted) and fact.request.startswith(IDENTICAL)
    ]
    outputs = [
        output for name, output in _outputs(log, stack, settings.prompt_len(tail))
        if name.startswith(IDENTICAL)
    ]  # fmt: skip
    return cell_of(
        round_number=round_number,
        tail=tail,
        prompt_len=settings.prompt_len(tail),
        outputs=outputs,
        cached=cached,
        failed=settings.requests - len(outputs),
        seconds=time.perf_counter() - began,
    )
