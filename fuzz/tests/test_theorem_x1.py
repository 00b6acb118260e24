"""Theorem X1 on the real index kernel: how many ring rows a prefill behind a hit reads stale."""

from __future__ import annotations

import pytest

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.targets import Target
from kvproof.model.facts import Admitted, Ended, Started
from kvproof.model.monitor import check
from kvproof.model.scenario import Finish, Geometry, Piece, Prefill, Scenario, Submit
from kvproof.spec.pages import page_ceil

SLOTS = 8
"""More than are ever lent at once: 0.5.23 gives window memory back only while slots are free."""


def hit(*, window: int, page_size: int) -> Scenario:
    """A leaves a prefix in the tree, B recycles its slot, C reuses the prefix and adds a tail.

    Prefix and tail are a window each, rounded up to a page, so that every release reuses all of it,
    with its cap or without.
    """
    length = page_ceil(window, page_size)
    return Scenario(
        geometry=Geometry(
            window=window, page_size=page_size, slots=SLOTS, pool_tokens=8 * length
        ),
        operations=(
            Submit(request="A", prompt=(Piece("A", length),)), Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("B", length),)), Prefill(request="B"),
            Finish(request="B"),
            Submit(request="C", prompt=(Piece("A", length), Piece("C", 2 * length))),
            Prefill(request="C"),
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("window", "page_size"), [(4, 1), (4, 4), (8, 4), (128, 128)])
def test_a_hit_leaves_half_a_window_squared(
    target: Target, process: EngineProcess, window: int, page_size: int
) -> None:
    log = process.play(hit(window=window, page_size=page_size), timeout=60)
    assert isinstance(log[-1], Ended), log[-1]
    started = log[0]
    assert isinstance(started, Started)
    assert started.target == target.name
    assert started.backend.partition(":")[0] == process.backend
    *_, reader = [fact for fact in log if isinstance(fact, Admitted)]
    assert reader.matched_len >= window - 1
    assert reader.prompt_len - reader.matched_len >= window - 1
    counts = check(log).counts
    stale = sum(count for (invariant, _), count in counts.items() if invariant == "FRESH-PREFILL")
    assert stale == window * (window - 1) // 2
    assert {invariant for invariant, _ in counts} == {"FRESH-PREFILL"}
