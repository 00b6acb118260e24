"""Transition rules of a forward's translated locations: planned once, taken at the store."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.spec.terms import select


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One forward's plan for one pool and one token.

    Attributes:
        translations: how often the token was translated.
        kept: what it was translated to; meaningless before the first time.
    """

    translations: int
    kept: int


NEW_PLAN = Plan(translations=0, kept=0)
"""A forward starts with nothing translated."""


def asked(plan: Plan, now: int) -> Plan:
    """A reader or writer asks for the token's location; ``now`` is what the map gives."""
    first = plan.translations == 0
    return Plan(
        translations=plan.translations + select(first, 1, 0), kept=select(first, now, plan.kept)
    )
