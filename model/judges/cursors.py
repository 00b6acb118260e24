"""CURSOR: what a request has given back of its own SWA pages, and what it says of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvproof.model.findings import Break
from kvproof.model.judges.swa_map import SwaView
from kvproof.spec.indices import Occupancy, Position
from kvproof.spec.window import window_start


@dataclass(slots=True)
class Cursors:
    """Cursors of the live occupancies, from snapshot to snapshot."""

    furthest: dict[Occupancy, int] = field(default_factory=dict)

    def breaks(
        self,
        view: SwaView,
        *,
        window: int,
        computed: Mapping[str, int],
        occupancies: Mapping[str, Occupancy],
    ) -> Iterator[Break]:
        """Each way in which the cursors of a snapshot are wrong.

        Args:
            view: the snapshot.
            window: positions that a query sees.
            computed: computed length of each live request.
            occupancies: number of each live request's occupancy.
        """
        furthest: dict[Occupancy, int] = {}
        for holding in view.pools.holdings:
            name, cursor = holding.request, holding.swa_evicted_len
            if name not in computed:
                continue
            before = self.furthest.get(occupancies[name], 0)
            furthest[occupancies[name]] = max(before, cursor)
            if cursor < before:
                yield "went-back", f"the cursor of request {name} went from {before} to {cursor}"
            if cursor % view.page_size:
                yield (
                    "misaligned",
                    f"the cursor of request {name} stands at {cursor}, within a page of "
                    f"{view.page_size}",
                )
            first = window_start(Position(computed[name]), window)
            if cursor > max(holding.protected_len, first):
                yield (
                    "too-far",
                    f"request {name} has given its first {cursor} tokens back; its next query, at "
                    f"{computed[name]}, sees positions from {first} on, and the tree keeps "
                    f"{holding.protected_len} for it",
                )
            kept = [page for page in view.behind.get(name, ()) if page in view.to]
            if kept:
                yield (
                    "not-given-back",
                    f"the cursor of request {name} stands at {cursor}, and its page {kept[0]} "
                    f"before that still maps to SWA page {view.to[kept[0]]}",
                )
        self.furthest = furthest
