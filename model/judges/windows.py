"""WINDOW: every key of a query's window is in the SWA pool when it is read, and is that key.

The SWA pool has no marks of who wrote a location, so the writers are kept here, as `Ghost` does for
ring rows. A location of the tree is written by one request and read by others: right is whoever
wrote it for the same position of the same prefix. Where a driver marks rows (a hierarchical cache,
which copies them behind the map's back) the marks say who wrote them, in the full pool too.
Where nothing slides there is no SWA pool, and the marks of the full pool are all that is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvproof.model.facts import Mark, Windowed
from kvproof.model.findings import Break
from kvproof.model.scenario import Prompt, same_prefix
from kvproof.model.verdict import Cause, Lease
from kvproof.spec.translate import RESERVED_LOC


@dataclass(frozen=True, slots=True)
class Key:
    """Whose key a location holds; a mark does not say in which step it was written."""

    lease: Lease
    prompt: Prompt
    position: int
    step: int | None


@dataclass(slots=True)
class Windows:
    """Newest key of each SWA location; where rows are marked, who was admitted so far."""

    keys: dict[int, Key] = field(default_factory=dict)
    _writers: dict[int, tuple[Lease, Prompt]] = field(default_factory=dict)

    def windowed(self, fact: Windowed, lease: Lease, prompt: Prompt, step: int) -> Iterator[Break]:
        """One request's share of a forward: its own keys are written, then all are read."""
        if fact.seen is not None:
            yield from self._take_marks(fact, fact.seen, lease, prompt)
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
                yield cause, _sees(fact, position, f"SWA location {loc}", key)

    def _take_marks(
        self, fact: Windowed, marks: Sequence[Mark | None], lease: Lease, prompt: Prompt
    ) -> Iterator[Break]:
        """What the rows themselves say; those of the full pool are judged at once."""
        self._writers[lease.occupancy] = lease, prompt
        for loc, mark in zip(fact.locs, marks, strict=False):
            key = self._marked(mark)
            if key is None:
                self.keys.pop(loc, None)
            else:
                self.keys[loc] = key
        for position, mark in enumerate(fact.prefix_seen or ()):
            key = self._marked(mark)
            cause = _cause(key, lease, prompt, position)
            if cause is not None:
                yield cause, _sees(fact, position, "its location of the full pool", key)

    def _marked(self, mark: Mark | None) -> Key | None:
        if mark is None or mark[0] not in self._writers:
            return None
        lease, prompt = self._writers[mark[0]]
        return Key(lease, prompt, mark[1], None)

    def _unmapped(self, fact: Windowed, position: int, what: str) -> Break:
        return "unmapped", (
            f"the {fact.mode} of request {fact.request} at position {fact.start} {what} of the SWA "
            "pool"
        )


def _sees(fact: Windowed, position: int, place: str, key: Key | None) -> str:
    written = "" if key is None or key.step is None else f", written in step {key.step + 1}"
    held = (
        "which nobody has written"
        if key is None
        else f"which holds position {key.position} of request {key.lease.request}{written}"
    )
    return (
        f"the {fact.mode} of request {fact.request} at position {fact.start} sees position "
        f"{position} at {place}, {held}"
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
