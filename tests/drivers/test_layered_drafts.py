"""Drafts through a stack of layers: what a verify keeps is what plain decodes compute, or is not.

The cold run that a request is compared with does not draft.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvproof.fuzz.drivers.wire import Backend, Layering
from kvproof.model.facts import Advanced, Compared, EngineError, Fact, Read, Skipped, Wrote
from kvproof.model.layers import Stack
from kvproof.model.monitor import Monitor, check
from kvproof.model.scenario import (
    Accepted,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.spec.ring import ring_stride

from .conftest import Start

RELEASES = ("0.5.15", "0.5.16", "0.5.23")
WINDOW, DRAFT = 3, 3
RATIOS = (0, 2)


def scenario(*operations: Operation, draft: int = DRAFT, **sizes: int) -> Scenario:
    geometry = Geometry(
        window=WINDOW, page_size=2, slots=3, pool_tokens=128, draft_tokens=draft, **sizes
    )
    return Scenario(geometry=geometry, operations=operations)


def submit(name: str, *pieces: tuple[str, int]) -> Submit:
    return Submit(request=name, prompt=tuple(Piece(text, until) for text, until in pieces))


def judged(facts: list[Fact], ratios: tuple[int, ...] = RATIOS) -> tuple[Monitor, list[Compared]]:
    """A log that is whole, and in which floats and taint agree."""
    assert not isinstance(facts[-1], EngineError), facts[-1]
    monitor = check(facts, stack=Stack(ratios=ratios))
    assert ("EXACT", "oracles-differ") not in monitor.violations, monitor.violations
    found = [fact for fact in facts if isinstance(fact, Compared)]
    assert all(fact.noise == 0 for fact in found)
    return monitor, found


def departs(fact: Compared) -> bool:
    return any(any(errors) for errors in (*fact.states, *fact.rows))


def kept(facts: list[Fact], request: str) -> list[int]:
    """Tokens that each verify kept."""
    ends = [fact.computed_len for fact in facts if isinstance(fact, Advanced) and
            fact.request == request and not fact.prefilling]  # fmt: skip
    return [end - start for start, end in pairwise(ends)]


MIXED = scenario(
    submit("A", ("A", 5)), Prefill(request="A", tokens=2), Prefill(request="A"),
    *(Verify(accepted=count) for count in (1, 2, 3, 1)),
    # Another request's chunks between the verifies; it reuses a page of A's.
    submit("B", ("A", 4), ("B", 9)), Prefill(request="B", tokens=2), Verify(accepted=2),
    Prefill(request="B"), Verify(accepted=3, others=(Accepted("B", 1),), pad=1),
    # A goes back, and comes again with its answer as part of its prompt.
    Retract(request="A"), Verify(accepted=1), Prefill(request="A"), Verify(accepted=2),
    Finish(request="A"), Finish(request="B"),
    # Nobody runs: the rank idles along, all rows padded.
    Verify(accepted=1, pad=2),
)  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
def test_every_accepted_count_on_the_kernels(release: str, start: Start) -> None:
    """Rollback, chunks in between, a retraction, padded and idle rows; both verify orders."""
    process = start(release, layering=Layering(ratios=RATIOS))
    # 0.5.16 has the order of 0.5.15; its kernels have their own test.
    backends: tuple[Backend, ...] = ("rules",) if release == "0.5.16" else ("rules", "interpreter")
    logs = {backend: process.play(MIXED, timeout=300, backend=backend) for backend in backends}
    outcome = {}
    for backend, facts in logs.items():
        assert not any(isinstance(fact, Skipped) for fact in facts)
        monitor, found = judged(facts)
        assert {*kept(facts, "A")[:4]} == {1, 2, 3}
        for witness in ("draft rejected", "rejected row rewritten", "wrap inside a verify"):
            assert monitor.witnesses[witness], witness
        assert monitor.checked["PADDING"]
        assert monitor.layers is not None
        assert monitor.layers.compared >= 60
        outcome[backend] = [(fact.request, fact.start, departs(fact)) for fact in found]
    assert all(outcome[backend] == outcome["rules"] for backend in backends)
    # A computed all of its own in its first life; B hit, and so did A in its second.
    assert outcome["rules"][0] == ("A", 0, False)
    assert {name for name, start, _ in outcome["rules"] if start} == {"A", "B"}
    idle = [fact for fact in logs[backends[-1]][-8:] if isinstance(fact, Read | Wrote)]
    assert idle
    assert {(fact.request, fact.slot) for fact in idle} == {(None, 0)}


@pytest.mark.parametrize("draft", [1, 2, 3])
@pytest.mark.parametrize("release", RELEASES)
def test_a_draft_computes_what_decodes_compute(release: str, draft: int, start: Start) -> None:
    """Theorems R6, R7 and R9 on numbers: nothing of a rejected draft is left in a state."""
    process = start(release, layering=Layering(ratios=(0, 2, 1)))
    counts = (1, draft, 1, 1, draft, max(1, draft - 1), draft)
    steps = [Verify(accepted=count) if draft > 1 else Decode() for count in counts]
    facts = process.play(
        scenario(submit("A", ("A", 4)), Prefill(request="A"), *steps, draft=draft),
        timeout=60, backend="rules",
    )  # fmt: skip
    _, [found] = judged(facts, (0, 2, 1))
    assert not departs(found)
    assert len(found.states[0]) == 4 + sum(counts if draft > 1 else [1] * len(counts))


@pytest.mark.parametrize(
    ("release", "rows_short", "breaks", "backend"),
    # R6: a verify that writes first has no row to spare. R7: one that reads first has one.
    [("0.5.23", 1, True, "interpreter"), ("0.5.15", 1, False, "interpreter"),
     ("0.5.15", 2, True, "rules")],
)  # fmt: skip
def test_a_ring_one_row_short(
    release: str, rows_short: int, breaks: bool, backend: Backend, start: Start
) -> None:
    """The rewind of a rejected draft finds its window overwritten, in floats and taint alike."""
    process = start(release, layering=Layering(ratios=(0, 0)), rows_short=rows_short)
    steps = [Verify(accepted=count) for count in (1, 3, 1)]
    facts = process.play(
        scenario(submit("A", ("A", 5)), Prefill(request="A"), *steps), timeout=120, backend=backend
    )
    assert facts[0].ring_stride == ring_stride(WINDOW, DRAFT) - rows_short  # type: ignore[union-attr]
    monitor, [found] = judged(facts, (0, 0))
    assert departs(found) == breaks
    assert (("EXACT", "stale-window") in monitor.violations) == breaks
    assert not any(invariant == "NON-INTERFERENCE" for invariant, _ in monitor.violations)


def test_overlapped_steps_are_refused(start: Start) -> None:
    process = start("0.5.23", layering=Layering(ratios=RATIOS))
    facts = process.play(
        scenario(submit("A", ("A", 4)), draft=1, overlap=1), timeout=60, backend="rules"
    )
    assert isinstance(facts[-1], EngineError)
    assert "overlapped steps do not go through the layers" in facts[-1].message
