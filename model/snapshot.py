"""What a snapshot of the tree says about a prompt: how much of it is cached, and in which page."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.model.facts import Pools
from kvproof.model.scenario import Geometry
from kvproof.spec.indices import FullLoc, Page
from kvproof.spec.pages import page_of
from kvproof.spec.radix import cached_pages, window_match


def cached_len(
    pools: Pools, tokens: Sequence[int], geometry: Geometry, *, tombstones_gate: bool
) -> int:
    """Tokens of the longest match of ``tokens`` that the tree can give.

    ``tombstones_gate`` is that of `Started`.
    """
    size = geometry.page_size
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
        depth.append(start + len(node.tokens))
        agreed = 0
        for mine, theirs in zip(tokens[start:], node.tokens, strict=False):
            if mine != theirs:
                break
            agreed += 1
        path += [not node.tombstone] * (agreed // size)
        if agreed == len(node.tokens):
            matched.add(number)
    if tombstones_gate:
        return window_match(path, size, geometry.window) * size
    return len(path) * size


def last_cached_page(pools: Pools, tokens: Sequence[int], page_size: int) -> Page | None:
    """Page that holds the end of the longest cached prefix of ``tokens``; None if none does."""
    pages = {}
    starts: list[tuple[int, ...]] = []
    for node in pools.nodes:
        prefix = (starts[node.parent] if node.parent >= 0 else ()) + node.tokens
        starts.append(prefix)
        base = len(prefix) - len(node.tokens)
        for at in range(0, len(node.locs) - page_size + 1, page_size):
            pages[prefix[: base + at + page_size]] = page_of(FullLoc(node.locs[at]), page_size)
    found = cached_pages(pages, tokens, page_size)
    return found[-1] if found else None
