"""Seek one violation: draw scenarios until it is there, then make that one small.

A campaign plays all its scenarios and reports on every invariant. This stops at the first scenario
that shows what is sought, and says how long that took.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import given, seed
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.profiles import search_settings
from kvproof.fuzz.simplify import simplify
from kvproof.model.scenario import Scenario

Shows: TypeAlias = Callable[[Scenario], bool]
"""Plays a scenario; whether it shows what is sought."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sought:
    """What a search came to.

    Attributes:
        scenario: the smallest that shows it; None if no sequence does.
        sequences: that were drawn.
        operations: of them all.
        seconds: until the first that shows it, or until the search gave up.
        shrink_seconds: that making it small took.
    """

    scenario: Scenario | None
    sequences: int
    operations: int
    seconds: float
    shrink_seconds: float = 0.0


class _EndError(BaseException):
    """Ends the drawing at once. A failure Hypothesis would draw, play and report a second time."""


def seek(
    shows: Shows,
    scenarios: SearchStrategy[Scenario],
    *,
    seed_number: int = 0,
    sequences: int = 20_000,
    seconds: float = 60.0,
    shrink: bool = True,
) -> Sought:
    """Draw scenarios until one shows what is sought.

    Args:
        shows: plays a scenario.
        scenarios: where they are drawn from.
        seed_number: of the drawing.
        sequences: after so many it gives up.
        seconds: after so long too.
        shrink: make what is found small.
    """
    began = time.monotonic()
    drawn = operations = 0
    found: Scenario | None = None

    def look(scenario: Scenario) -> None:
        nonlocal drawn, operations, found
        if time.monotonic() - began > seconds:
            raise _EndError
        drawn += 1
        operations += len(scenario.operations)
        if shows(scenario):
            found = scenario
            raise _EndError

    drawing = search_settings(sequences)(given(scenarios)(look))
    with suppress(_EndError):
        seed(seed_number)(drawing)()
    spent = time.monotonic() - began
    if found is not None and shrink:
        found = simplify(found, shows)
    return Sought(
        scenario=found,
        sequences=drawn,
        operations=operations,
        seconds=spent,
        shrink_seconds=time.monotonic() - began - spent,
    )
