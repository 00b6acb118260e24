"""A stale decode, as the releases without a cap show it, and hand-made logs."""

from __future__ import annotations

import pytest

from kvproof.model.facts import Fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Scenario,
    Submit,
)


def stale_decode(*, reader: str = "B", slots: int = 1) -> Scenario:
    """Six operations: ``reader`` reuses A's page and decodes in the slot that A held."""
    return Scenario(
        geometry=Geometry(window=5, page_size=4, slots=slots, pool_tokens=64),
        operations=(
            Submit(request="A", prompt=(Piece("A", 7),)),
            Prefill(request="A"),
            Finish(request="A"),
            Submit(request=reader, prompt=(Piece("A", 4), Piece("B", 5))),
            Prefill(request=reader),
            Decode(),
        ),
    )


def uncapped() -> Policy:
    """The reference engine without the cap, as 0.5.15 has none."""
    return Policy(reprefill_tail=0)


def log_of(scenario: Scenario, policy: Policy | None = None) -> list[Fact]:
    """What the reference engine observes."""
    return list(reference_player(scenario.geometry, policy).play(scenario))


@pytest.fixture
def stale_log() -> list[Fact]:
    """The log of `stale_decode` on an engine without a cap."""
    return log_of(stale_decode(), uncapped())


def busy(*, rounds: int) -> Scenario:
    """Many requests that come and go, and then a stale decode in a slot that A held long ago."""
    end = stale_decode()
    noise: list[Operation] = []
    for number in range(rounds):
        name = f"n{number}"
        noise += [
            Submit(request=name, prompt=(Piece(name, 6),)),
            Prefill(request=name),
            Decode(),
            Finish(request=name),
        ]
    return Scenario(geometry=end.geometry, operations=(*noise, *end.operations))
