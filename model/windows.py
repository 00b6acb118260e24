"""WINDOW: every key of a query's window is in the SWA pool when it is read, and is that key.

The SWA pool has no marks of who wrote a location, so the writers are kept here, as `Ghost` does for
ring rows. A location of the tree is written by one request and read by others: right is whoever
wrote it for the same position of the same prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvproof.model.allocation import Break
from kvproof.model.facts import Windowed
from kvproof.model.scenario import Prompt, same_prefix
from kvproof.model.verdict import Cause, Lease
from kvproof.spec.translate import RESERVED_LOC


@dataclass(frozen=True, slots=True)
class Key:
    """Whose key a location holds."""

    lease: Lease
    prompt: Prompt
    position: int
    step: int


@dataclass(slots=True)
class Windows:
    """Newest key of each SWA location."""

    keys: dict[int, Key] = field(default_factory=dict)

    def windowed(self, fact: Windowed, lease: Lease, prompt: Prompt, step: int) -> Iterator[Break]:
        """One request's share of a forward: its own keys are written, then all are read."""
        query = fact.start - fact.first
        for position, loc in enumerate(fact.locs[query:], fact.start):
            if loc > RESERVED_LOC:
                self.keys[loc] = Key(lease, prompt, position, step)
            else:
                yield self._unmapped(fact, position, f"writes its key {position} to no location")
        for position, loc in enumerate(fact.locs[:query], fact.first):
            if loc <= RESERVED_LOC:
                yield self._unmapped(fact, position, f"sees position {position} at no location")
                continue
            key = self.keys.get(loc)
            cause = _cause(key, lease, prompt, position)
            if cause is not None:
                held = (
                    "which nobody has written"
                    if key is None
                    else f"which holds position {key.position} of request {key.lease.request}, "
                    f"written in step {key.step + 1}"
                )
                yield (
                    cause,
                    f"the {fact.mode} of request {fact.request} at position {fact.start} sees "
                    f"position {position} at SWA location {loc}, {held}",
                )

    def _unmapped(self, fact: Windowed, position: int, what: str) -> Break:
        return "unmapped", (
            f"the {fact.mode} of request {fact.request} at position {fact.start} {what} of the SWA "
            "pool"
        )


def _cause(key: Key | None, lease: Lease, prompt: Prompt, position: int) -> Cause | None:
    """Why what a location holds is not the reader's key of a position; None if it is."""
    if key is None:
        return "never-written"
    if key.lease is lease:
        return None if key.position == position else "own-other-position"
    if key.position != position or not same_prefix(key.prompt, prompt, position + 1):
        return "other-request"
    return None
