"""What a snapshot with an SWA pool is judged by: one reading, four invariants, the witnesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field

from kvproof.model.facts import Pools, Started
from kvproof.model.judges.cursors import Cursors
from kvproof.model.judges.locks import lock_breaks
from kvproof.model.judges.partition import swa_partition_breaks
from kvproof.model.judges.swa_map import SwaView, map_breaks, view_of
from kvproof.model.verdict import Cause, Invariant
from kvproof.model.witness import Witness
from kvproof.spec.indices import Occupancy

Judged = tuple[Invariant, Cause, str]


@dataclass(slots=True)
class SwaJudge:
    """Judges the snapshots of one log.

    Attributes:
        started: of the log.
        checked: how often each invariant was put to the test.
        witnesses: how often each interesting state was reached.
    """

    started: Started
    checked: MutableMapping[Invariant, int]
    witnesses: MutableMapping[Witness, int]
    _cursors: Cursors = field(default_factory=Cursors)
    _tombstones: set[int] = field(default_factory=set)
    _paths: dict[Occupancy, tuple[int, int]] = field(default_factory=dict)

    def snapshot(
        self, pools: Pools, *, computed: Mapping[str, int], occupancies: Mapping[str, Occupancy]
    ) -> Iterator[Judged]:
        """Each break of LOCK, MAP, CURSOR and the SWA half of PARTITION.

        Args:
            pools: the snapshot.
            computed: computed length of each live request.
            occupancies: number of each live request's occupancy.
        """
        geometry, locks = self.started.geometry, self.started.locks
        if locks != "untold":
            self.checked["LOCK"] += 1
            for cause, sentence in lock_breaks(
                pools, locks=locks, window=geometry.window, computed=computed
            ):
                yield "LOCK", cause, sentence
        view = view_of(pools, geometry.page_size)
        if view is None:
            return
        self.checked["MAP"] += 1
        self.checked["CURSOR"] += 1
        for cause, sentence in map_breaks(view):
            yield "MAP", cause, sentence
        for cause, sentence in swa_partition_breaks(view, self.started.geometry.swa_pool_tokens):
            yield "PARTITION", cause, sentence
        for cause, sentence in self._cursors.breaks(
            view, window=geometry.window, computed=computed, occupancies=occupancies
        ):
            yield "CURSOR", cause, sentence
        self._witness(view, occupancies)

    def _witness(self, view: SwaView, occupancies: Mapping[str, Occupancy]) -> None:
        seen, size, nodes = self.witnesses, view.page_size, view.pools.nodes
        if view.behind:
            seen["SWA page given back"] += 1
        if self._tombstones:
            live = {t for node in nodes if not node.tombstone for t in node.tokens[::size]}
            if not live.isdisjoint(self._tombstones):
                seen["tombstone recovered"] += 1
        self._tombstones = {t for node in nodes if node.tombstone for t in node.tokens[::size]}
        if self._tombstones:
            seen["tombstone made"] += 1
        paths: dict[Occupancy, tuple[int, int]] = {}
        for holding in view.pools.holdings:
            occupancy = occupancies.get(holding.request)
            if holding.locked is None or occupancy is None:
                continue
            if holding.swa_locked_from is None:
                seen["window lock given up"] += 1
            length, at = 0, holding.locked
            while at >= 0:
                length, at = length + 1, nodes[at].parent
            paths[occupancy] = (holding.protected_len, length)
            before = self._paths.get(occupancy)
            if before is not None and before[0] == holding.protected_len and before[1] < length:
                seen["node split under a lock"] += 1
        self._paths = paths
