"""Redacted files: no name is left, every verdict stays."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import scenarios
from kvproof.model.facts import EngineError, Fact, Skipped, encode_fact
from kvproof.model.monitor import Monitor, check
from kvproof.model.redact import HIDDEN, Redactor
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Scenario
from kvproof.model.traffic import Traffic

from .samples import SCENARIO

REDACTOR = Redactor(b"a key")


def summary(monitor: Monitor) -> object:
    """All that a verdict says, but for names."""
    return (
        {
            broken: (
                violation.step,
                violation.evidence
                and (
                    violation.evidence.row, violation.evidence.position,
                    violation.evidence.reader.occupancy,
                    violation.evidence.writer and violation.evidence.writer.occupancy,
                    [cell.cause for cell in violation.evidence.ring],
                ),
            )
            for broken, violation in monitor.violations.items()
        },
        monitor.counts, monitor.checked, monitor.witnesses,
    )  # fmt: skip


def redacted(log: Sequence[Fact]) -> list[Fact]:
    return [*REDACTOR.log(log)]


@settings(max_examples=60, deadline=None)
@given(scenario=scenarios(), tail=st.sampled_from((0, None)))
def test_verdicts_stay_the_same(scenario: Scenario, tail: int | None) -> None:
    policy = Policy(reprefill_tail=tail)
    log = [*reference_player(scenario.geometry, policy).play(scenario)]
    assert summary(check(redacted(log))) == summary(check(log))
    again = REDACTOR.scenario(scenario)
    played = [*reference_player(scenario.geometry, policy).play(again)]
    assert summary(check(played)) == summary(check(log))


def test_no_name_is_left() -> None:
    traffic = Traffic(geometry=SCENARIO.geometry, requests=4, answer=3, reprefill_tail=0)
    log = [*traffic.log(), Skipped(reason="request-1 is alive"),
           EngineError(cause="raised", message="KeyError: 'request-1'")]  # fmt: skip
    data = b"".join(map(encode_fact, redacted(log)))
    for word in (b"request-", b"conversation-", b"KeyError", b"alive"):
        assert word in b"".join(map(encode_fact, log))
        assert word not in data
    assert data.count(HIDDEN.encode()) == 2
    scenario = msgspec.json.encode(REDACTOR.scenario(SCENARIO))
    assert b'"A"' not in scenario
    assert b"name" not in scenario


def test_names_depend_on_the_key_and_on_nothing_else() -> None:
    assert REDACTOR.name("A") == Redactor(b"a key").name("A") != Redactor(b"other").name("A")
    assert len({REDACTOR.name(str(number)) for number in range(10_000)}) == 10_000
