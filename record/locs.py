"""Locations out of an engine's tensors, as spans. No torch is imported: tensors bring their own.

Reading a tensor on a device waits for the device, so `readable` says first whether to.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from kvproof.model.facts import Span

Level: TypeAlias = Literal["requests", "host", "full"]
"""How much is recorded: no locations, those that the host knows, or all, waiting for the device."""


def readable(locs: Any, level: Level) -> bool:
    """Whether this level reads this tensor."""
    return level == "full" or (level == "host" and locs.device.type == "cpu")


def spans_of(locs: Any) -> tuple[Span, ...]:
    """Spans of a one-dimensional integer tensor, in its own order."""
    values = locs.tolist()
    # Most are one run, which is told quicker by a comparison than by a loop.
    if values and values == list(range(values[0], values[0] + len(values))):
        return ((values[0], values[-1] + 1),)
    return merged((loc, loc + 1) for loc in values)


def spans_of_pages(pages: Iterable[int], page_size: int) -> tuple[Span, ...]:
    """Spans of whole pages."""
    return merged((page * page_size, (page + 1) * page_size) for page in pages)


def merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same locations in the same order, with spans joined where one follows on another."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def parallel_spans(full: list[int], swa: list[int]) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Spans of two parallel lists, cut so that they stay parallel.

    Pairs whose SWA location is reserved (0) or none (negative) name no location and are left out.
    """
    pairs = [(one, other) for one, other in zip(full, swa, strict=True) if one > 0 and other > 0]
    if not pairs:
        return (), ()
    cuts = [
        at
        for at, (before, after) in enumerate(pairwise(pairs), start=1)
        if (after[0] - before[0], after[1] - before[1]) != (1, 1)
    ]
    runs = list(pairwise((0, *cuts, len(pairs))))
    return (
        tuple((pairs[start][0], pairs[end - 1][0] + 1) for start, end in runs),
        tuple((pairs[start][1], pairs[end - 1][1] + 1) for start, end in runs),
    )
