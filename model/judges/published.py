"""What the tree is known to hold: by the last snapshot, and by whom each page was published.

A recorder takes no snapshots. Then nothing is known of the tree, and nothing of it is judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvproof.model.facts import Pools, Started
from kvproof.model.findings import Break
from kvproof.model.requests import NOBODY, Requests
from kvproof.model.scenario import Prompt, number_texts, token_ids
from kvproof.model.snapshot import cached_len, last_cached_page
from kvproof.model.verdict import Lease


@dataclass(slots=True)
class Published:
    """The tree of one log.

    Attributes:
        pools: the last snapshot.
        texts: number of each text in token ids, where there are snapshots to compare with.
        is_shown: whether there are snapshots from the start, so that tokens can be told apart.
        tells_swa: whether the last snapshot tells of an SWA pool.
        publishers: occupancy that published each page, by the page and its first token: one
            operation may evict a page and publish it again for another.
    """

    pools: Pools | None = None
    texts: dict[str, int] = field(default_factory=dict)
    is_shown: bool = False
    tells_swa: bool = False
    publishers: dict[tuple[int, int], int] = field(default_factory=dict)

    def begin(self) -> None:
        """The first step begins."""
        self.is_shown = self.pools is not None

    def read(self, prompt: Prompt) -> None:
        """Tokens appear in the log that the tree may hold."""
        if self.is_shown:  # nothing else has tokens to compare with
            number_texts(self.texts, prompt)

    def snapshot(self, pools: Pools, requests: Requests, page_size: int) -> bool:
        """Take in the next snapshot; whether a page left the tree."""
        evicted = self._publish(pools, requests, page_size)
        self.pools = pools
        self.tells_swa = pools.swa is not None
        holders = requests.leases.keys() | {holding.request for holding in pools.holdings}
        for name in requests.newest.keys() - holders:
            del requests.newest[name]
        return evicted

    def _publish(self, pools: Pools, requests: Requests, page_size: int) -> bool:
        """Note who published the pages that are new in the tree; whether others left it."""
        if self.pools is not None and pools.nodes == self.pools.nodes:
            return False
        in_tree = {
            (loc // page_size, token)
            for node in pools.nodes
            for loc, token in zip(node.locs[::page_size], node.tokens[::page_size], strict=False)
        }
        evicted = self.publishers.keys() - in_tree
        for page_and_token in evicted:
            del self.publishers[page_and_token]
        for page, token in in_tree - self.publishers.keys():
            self.publishers[page, token] = self._holder(page, pools, requests, page_size)
        return bool(evicted)

    def _holder(self, page: int, pools: Pools, requests: Requests, page_size: int) -> int:
        """Occupancy that held a page as its own before the tree took it; 0 if none is known."""
        for snapshot in (self.pools, pools):
            for holding in snapshot.holdings if snapshot else ():
                if page in [loc // page_size for loc in holding.locs]:
                    return requests.newest.get(holding.request, NOBODY)
        return NOBODY

    def cached_len(self, prompt: Prompt, length: int, started: Started) -> int:
        """Tokens of a prompt's first ``length`` that the tree can give."""
        assert self.pools is not None
        # No more than the pool can be cached, whatever length the log names.
        comparable = min(length, started.geometry.pool_tokens)
        return cached_len(
            self.pools,
            token_ids(self.texts, prompt, 0, comparable),
            started.geometry,
            tombstones_gate=started.tombstones_gate,
            bigram_keys=started.bigram_keys,
        )

    def publisher(self, lease: Lease, prompt: Prompt, started: Started) -> int:
        """Occupancy that computed the last page of a lease's reused prefix; 0 if none is known."""
        if not (lease.matched_len and self.is_shown):
            return NOBODY
        assert self.pools is not None
        size = started.geometry.page_size
        reused = min(lease.matched_len, started.geometry.pool_tokens)
        tokens = token_ids(self.texts, prompt, 0, reused + started.bigram_keys)
        page = last_cached_page(self.pools, tokens, size, bigram_keys=started.bigram_keys)
        if page is None:
            return NOBODY
        return self.publishers.get((page, tokens[reused - size]), NOBODY)


def uncomputed_breaks(pools: Pools, requests: Requests) -> Iterator[Break]:
    """Where the tree answers for more of a request than it has computed (REFINES)."""
    for holding in pools.holdings:
        computed = requests.computed.get(holding.request)
        if computed is not None and holding.protected_len > computed:
            yield (
                "uncomputed",
                f"the tree answers for {holding.protected_len} tokens of request "
                f"{holding.request}, which has computed {computed}",
            )
