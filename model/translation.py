"""Transition rules of a forward's translated locations: planned once, taken at the store.

And of those that a captured graph reads, which finds what lies in the storage of its capture.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.spec.indices import SwaLoc
from kvproof.spec.terms import select
from kvproof.spec.translate import RESERVED_LOC, replayed_loc


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """One entry of a tensor that a captured graph reads.

    Attributes:
        storage: the location in the storage that the capture fixed: the graph reads there.
        in_place: whether the backend's name for the tensor still stands for that storage.
    """

    storage: SwaLoc
    in_place: bool


NEW_CAPTURE = Captured(storage=RESERVED_LOC, in_place=True)
"""A capture fills its buffer with the reserved location."""


def refreshed(entry: Captured, *, at: int, tokens: int, loc: SwaLoc) -> Captured:
    """The backend prepares a replay: it fills what its name for the tensor stands for."""
    due = replayed_loc(at, tokens, loc)
    return Captured(storage=select(entry.in_place, due, entry.storage), in_place=entry.in_place)
