"""Witnesses of speculation: drafts that were verified, thrown away in part, and written over."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.model.facts import Advanced
from kvproof.model.witness import Witness


@dataclass(slots=True)
class Drafts:
    """Follows the drafts of each request.

    Attributes:
        draft_tokens: tokens that a verify looks at.
        stride: rows of a slot's ring; 0 where there is none.
        witnesses: where reached states are counted.
    """

    draft_tokens: int
    stride: int
    witnesses: dict[Witness, int]
    # Where the draft ended of which a request's last verify rejected a part.
    _rejected_end: dict[str, int] = field(default_factory=dict)

    def verified(self, fact: Advanced, start: int) -> None:
        """A verify step of a draft from ``start`` on is over."""
        end, stride = start + self.draft_tokens, self.stride
        self.witnesses["verify"] += 1
        if stride and start % stride + end - start > stride:
            self.witnesses["wrap inside a verify"] += 1
        if stride and self._rejected_end.pop(fact.request, 0) > start:
            self.witnesses["rejected row rewritten"] += 1
        if fact.computed_len < end:
            self.witnesses["draft rejected"] += 1
            self._rejected_end[fact.request] = end

    def released(self, request: str) -> None:
        """A request gave its slot back."""
        self._rejected_end.pop(request, None)
