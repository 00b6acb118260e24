"""What a request is given when it is admitted: a slot (PARTITION), a match (REFINES, USEFUL)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvproof.model.facts import Admitted, Started
from kvproof.model.findings import Break, Findings
from kvproof.model.judges.published import Published
from kvproof.model.scenario import Prompt
from kvproof.model.verdict import Lease
from kvproof.spec.cap import (
    capped_bigram_match,
    capped_match,
    computed_limit,
    reprefill_bound,
)
from kvproof.spec.indices import PADDING_SLOT


def slot_breaks(fact: Admitted, leases: Iterable[Lease]) -> Iterator[Break]:
    """Whether the slot is one that may be lent and that nobody holds."""
    if fact.slot == PADDING_SLOT:
        yield "lent-twice", f"slot 0 was lent to request {fact.request}"
    for other in leases:
        if other.slot == fact.slot:
            yield (
                "lent-twice",
                f"slot {fact.slot} was lent to request {fact.request} while request "
                f"{other.request} holds it",
            )


@dataclass(slots=True)
class Matches:
    """Judges what requests reuse."""

    started: Started
    published: Published
    findings: Findings

    def admitted(self, fact: Admitted, prompt: Prompt) -> None:
        """A request comes with a match."""
        self.findings.checked["REFINES"] += 1
        if self.published.is_shown:
            self._beside_tree(fact, prompt)
        else:
            self._alone(fact)

    def _alone(self, fact: Admitted) -> None:
        """A recorder takes no snapshots, so nothing is known of the tree: USEFUL stays untested."""
        size = self.started.geometry.page_size
        if fact.matched_len >= fact.prompt_len or fact.matched_len % size:
            self.findings.broken(
                "REFINES",
                "match",
                f"request {fact.request} reuses {fact.matched_len} of {fact.prompt_len} tokens, "
                f"in pages of {size}",
            )
        if fact.matched_len:
            self.findings.witnesses["prefix hit"] += 1

    def _beside_tree(self, fact: Admitted, prompt: Prompt) -> None:
        size = self.started.geometry.page_size
        # The last token is computed whatever is cached, so no match ends behind it. One that ends
        # before it is shorter by more than that where its window reaches into a tombstone.
        limit = computed_limit(fact.prompt_len)
        cached = self.published.cached_len(prompt, limit, self.started)
        if fact.loaded_len:
            # The host's part of the tree is not told; the marks of what came from there are.
            self.findings.witnesses["loaded back"] += 1
            cached = max(cached, fact.matched_len)
        if fact.matched_len > cached or fact.matched_len % size:
            self.findings.broken(
                "REFINES",
                "match",
                f"request {fact.request} reuses {fact.matched_len} tokens, the tree holds "
                f"{cached} of its prompt in pages of {size}",
            )
        if cached:
            self._useful(fact, cached)
            self._witness(fact, cached)

    def _useful(self, fact: Admitted, cached: int) -> None:
        geometry = self.started.geometry
        self.findings.checked["USEFUL"] += 1
        tail = fact.prompt_len - fact.matched_len
        bound = reprefill_bound(
            fact.prompt_len,
            cached,
            geometry.window,
            geometry.page_size,
            bigram=self.started.bigram_keys,
        )
        if tail > bound:
            self.findings.broken(
                "USEFUL",
                "no-reuse",
                f"request {fact.request} prefills {tail} of {fact.prompt_len} tokens though "
                f"{cached} are cached; {bound} would do",
            )

    def _witness(self, fact: Admitted, cached: int) -> None:
        geometry, witnesses = self.started.geometry, self.findings.witnesses
        if fact.matched_len:
            witnesses["prefix hit"] += 1
        match = capped_bigram_match if self.started.bigram_keys else capped_match
        uncapped = match(cached, fact.prompt_len, 0, geometry.page_size)
        capped = match(cached, fact.prompt_len, geometry.window, geometry.page_size)
        if capped < uncapped:
            witnesses["cap would bind"] += 1
        if fact.matched_len < uncapped:
            witnesses["cap bound"] += 1
