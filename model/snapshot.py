"""What a snapshot of the tree says about a prompt: how much of it is cached, and in which page."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.model.facts import Pools
from kvproof.model.scenario import Geometry
from kvproof.spec.indices import FullLoc, Page
from kvproof.spec.pages import page_of
from kvproof.spec.radix import cached_pages, key_entries, window_match


def cached_len(
    pools: Pools,
    tokens: Sequence[int],
    geometry: Geometry,
    *,
    tombstones_gate: bool,
    bigram_keys: bool,
) -> int:
    """Tokens of the longest match of ``tokens`` that the tree can give.

    ``tombstones_gate`` and ``bigram_keys`` are those of `Started`.
    """
    size = geometry.page_size
    key = key_entries(tokens, bigram=bigram_keys)
    depth: list[int] = []
    matched: set[int] = set()
    path: list[bool] = []
    for number, node in enumerate(pools.nodes):
        start = 0
        if node.parent >= 0:
            if node.parent not in matched:
                depth.append(0)
                continue
            start = depth[node.parent]
        edge = key_entries(node.tokens, bigram=bigram_keys)
        depth.append(start + len(edge))
        agreed = 0
        for mine, theirs in zip(key[start:], edge, strict=False):
            if mine != theirs:
                break
            agreed += 1
        path += [not node.tombstone] * (agreed // size)
        if agreed == len(edge):
            matched.add(number)
    if tombstones_gate:
        return window_match(path, size, geometry.window) * size
    return len(path) * size


def last_cached_page(
    pools: Pools, tokens: Sequence[int], page_size: int, *, bigram_keys: bool
) -> Page | None:
    """Page that holds the end of the longest cached prefix of ``tokens``; None if none does."""
    pages = {}
    starts: list[tuple[int, ...]] = []
    for node in pools.nodes:
        edge = key_entries(node.tokens, bigram=bigram_keys)
        base = len(starts[node.parent]) if node.parent >= 0 else 0
        prefix = (*(starts[node.parent] if node.parent >= 0 else ()), *edge)
        starts.append(prefix)
        for at in range(0, len(node.locs) - page_size + 1, page_size):
            pages[prefix[: base + at + page_size]] = page_of(FullLoc(node.locs[at]), page_size)
    found = cached_pages(pages, key_entries(tokens, bigram=bigram_keys), page_size)
    return found[-1] if found else None
