"""LOCK: each node is locked by exactly those who say so, and a reader's window is among it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvproof.model.facts import Holding, Locks, Pools
from kvproof.model.findings import Break
from kvproof.spec.indices import Position
from kvproof.spec.window import window_start


class LockWalk:
    """The locks that the holdings of a snapshot add up to.

    Attributes:
        starts: position of each node's first token.
        full: holdings whose lock's path each node lies on.
        swa: those of them whose sliding-window lock covers it.
        broken: holdings whose own words do not fit the tree.
    """

    def __init__(self, pools: Pools) -> None:
        nodes = pools.nodes
        self.pools = pools
        self.starts: list[int] = []
        for node in nodes:
            parent = node.parent
            self.starts.append(0 if parent < 0 else self.starts[parent] + len(nodes[parent].locs))
        self.full = [0] * len(nodes)
        self.swa = [0] * len(nodes)
        self.broken: list[Break] = []
        for holding in pools.holdings:
            self._add(holding)

    def _add(self, holding: Holding) -> None:
        at, last = holding.locked, holding.swa_locked_from
        if at is None:
            return
        nodes = self.pools.nodes
        if at >= len(nodes):
            self.broken.append(
                ("unlocked", f"request {holding.request} locks node {at}, which the tree has not")
            )
            return
        covered = last is not None
        while at >= 0:
            self.full[at] += 1
            if covered:
                self.swa[at] += 1
                covered = at != last
            at = nodes[at].parent
        if covered:
            self.broken.append(
                (
                    "unlocked",
                    f"the sliding-window lock of request {holding.request} is to end at node "
                    f"{last}, which is not above node {holding.locked}",
                )
            )

    def end(self, number: int) -> int:
        """Position behind a node's last token."""
        return self.starts[number] + len(self.pools.nodes[number].locs)

    def names(self, number: int, *, swa: bool) -> str:
        """Requests that lock a node, for a message."""
        found = []
        for holding in self.pools.holdings:
            at = holding.locked
            if (
                at is None
                or at >= len(self.pools.nodes)
                or (swa and holding.swa_locked_from is None)
            ):
                continue
            while at >= 0:
                if at == number:
                    found.append(holding.request)
                    break
                if swa and at == holding.swa_locked_from:
                    break
                at = self.pools.nodes[at].parent
        return f" ({', '.join(found)})" if found else ""


def lock_breaks(
    pools: Pools, *, locks: Locks, window: int, computed: Mapping[str, int]
) -> Iterator[Break]:
    """Each way in which the locks of a snapshot are not those of its holdings.

    Args:
        pools: the snapshot.
        locks: what it tells; ``untold`` is for the caller to leave out.
        window: positions that a query sees.
        computed: computed length of each live request.
    """
    walk = LockWalk(pools)
    yield from walk.broken
    for number, node in enumerate(pools.nodes):
        full, swa = walk.full[number], walk.swa[number]
        if (node.full_lock != full) if locks == "counted" else (node.full_lock > 0) != (full > 0):
            yield (
                "lock-count",
                f"node {number} has {node.full_lock} locks, {full} requests hold one on it or "
                f"below it{walk.names(number, swa=False)}",
            )
        if locks == "counted" and node.swa_lock != swa:
            yield (
                "swa-lock-count",
                f"node {number} has {node.swa_lock} sliding-window locks, {swa} requests hold one "
                f"that covers it{walk.names(number, swa=True)}",
            )
        if not node.full_lock >= node.swa_lock >= 0:
            yield (
                "lock-order",
                f"node {number} has {node.full_lock} locks and {node.swa_lock} of the sliding "
                "window",
            )
        # Behind rings nobody reads SWA halves, so a match, and a lock, may end on a tombstone.
        if pools.swa is not None and node.tombstone and node.swa_lock:
            yield (
                "tombstone-locked",
                f"node {number} is a tombstone and has {node.swa_lock} sliding-window locks"
                f"{walk.names(number, swa=True)}",
            )
    for holding in pools.holdings:
        yield from _reader_breaks(walk, holding, locks, window, computed.get(holding.request))


def _reader_breaks(
    walk: LockWalk, holding: Holding, locks: Locks, window: int, computed: int | None
) -> Iterator[Break]:
    """What a request reads of the tree is locked, its window with the SWA half."""
    protected, at, nodes = holding.protected_len, holding.locked, walk.pools.nodes
    end = walk.end(at) if at is not None and at < len(nodes) else 0
    if protected > end:
        yield (
            "unlocked",
            f"request {holding.request} reads {protected} tokens of the tree and locks "
            + (f"{end}, up to node {at}" if end else "none"),
        )
        return
    if walk.pools.swa is None or computed is None or at is None:
        return
    first = window_start(Position(computed), window)
    covered = locks == "seen" or holding.swa_locked_from is not None
    while at >= 0 and walk.end(at) > first:
        if walk.starts[at] < protected and not (covered and nodes[at].swa_lock):
            yield (
                "window-unlocked",
                f"the window of request {holding.request}, which has computed {computed} tokens, "
                f"begins at {first}; node {at} holds positions from {walk.starts[at]} to "
                f"{walk.end(at) - 1} of it and "
                + ("is not locked" if covered else "the request gave its lock on it up"),
            )
            return
        if locks == "counted" and at == holding.swa_locked_from:
            covered = False
        at = nodes[at].parent
