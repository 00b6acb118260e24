"""The draft model's layer on the real kernels: its steps, its extends, and a ring too short."""

from __future__ import annotations

import pytest

from kvproof.model.facts import EngineError, Fact, Read, Skipped, Wrote
from kvproof.model.monitor import Monitor, check
from kvproof.model.scenario import (
    Accepted,
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

from .conftest import Start

WINDOW, DRAFT = 4, 4


def scenario(*operations: Operation) -> Scenario:
    geometry = Geometry(
        window=WINDOW, page_size=2, slots=3, pool_tokens=128, draft_tokens=DRAFT
    )  # fmt: skip
    return Scenario(geometry=geometry, operations=operations)


def submit(name: str, *pieces: tuple[str, int]) -> Submit:
    return Submit(request=name, prompt=tuple(Piece(text, until) for text, until in pieces))


def judged(start: Start, release: str, played: Scenario, *, rows_short: int = 0) -> Monitor:
    process = start(release, draft_worker=True, rows_short=rows_short)
    facts = process.play(played, timeout=300)
    assert not isinstance(facts[-1], EngineError), facts[-1]
    assert not any(isinstance(fact, Skipped) for fact in facts)
    assert facts[0].backend == "interpreter, draft worker"  # type: ignore[union-attr]
    _has_steps(facts)
    return check(facts)


def _has_steps(facts: list[Fact]) -> None:
    """A request's draft takes two steps, each writes before it reads; then comes the extend."""
    modes = [(type(fact), fact.mode) for fact in facts
             if isinstance(fact, Read | Wrote) and fact.request == "A"
             and fact.mode != "prefill"]  # fmt: skip
    assert modes[:4] == [(Wrote, "decode"), (Read, "decode")] * (DRAFT - 2)
    assert modes[4] == (Read, "verify")


MIXED = scenario(
    submit("A", ("A", 5)), Prefill(request="A", tokens=2), Prefill(request="A"),
    *(Verify(accepted=count) for count in (1, 2, 3, 4, 1)),
    # Another request's chunks between the rounds; it reuses pages of A's.
    submit("B", ("A", 4), ("B", 11)), Prefill(request="B", tokens=2), Verify(accepted=2),
    Prefill(request="B"), Verify(accepted=3, others=(Accepted("B", 1),), pad=1),
    # A's slot is lent again.
    Retract(request="A"), Prefill(request="A"), Verify(accepted=1), Finish(request="A"),
)  # fmt: skip


def test_a_draft_reads_its_own_rows(start: Start) -> None:
    """Every accepted count, rollback, a chunk in between, a slot lent again after a capped hit."""
    monitor = judged(start, "0.5.23", MIXED)
    assert {invariant for invariant, _ in monitor.violations} <= {"FRESH-PREFILL"}
    for witness in ("draft rejected", "rejected row rewritten", "wrap inside a verify"):
        assert monitor.witnesses[witness], witness


ALONE = scenario(
    submit("A", ("A", 5)), Prefill(request="A"), *(Verify(accepted=n) for n in (1, 3, 1))
)


def test_the_steps_of_older_releases_do_not_see_the_draft(start: Start) -> None:
    """Up to 0.5.19 every step is planned for the committed length: no step sees its own key."""
    monitor = judged(start, "0.5.15", ALONE)
    assert {*monitor.violations} == {("REFINES", "window")}
    [found] = monitor.violations.values()
    assert "at position 5 reads positions 1 to 4; the rule gives 2 to 5" in found.sentence


@pytest.mark.parametrize(("rows_short", "breaks"), [(1, False), (2, True)])
def test_a_ring_too_short(rows_short: int, breaks: bool, start: Start) -> None:
    """Extends read first, so the draft's ring has a row to spare (theorem R7), and not two."""
    monitor = judged(start, "0.5.23", ALONE, rows_short=rows_short)
    stale = {invariant for invariant, _ in monitor.violations if invariant == "FRESH-DECODE"}
    assert bool(stale) == breaks
