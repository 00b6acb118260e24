"""How the memory of an engine is read: a snapshot of its real objects, in the log's terms.

Nothing here asks the engine what it believes, but for its counters, which are compared with what
its objects hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from kvproof.fuzz.drivers.memory import ReleaseMemory
from kvproof.fuzz.drivers.pool import MapReader, free_pages
from kvproof.fuzz.drivers.tree import NO_TREE, SeenLock, SeenTree, lock_indices
from kvproof.model.facts import Holding, Locks, Pools, SwaPool


class ReadableMemory(ReleaseMemory):
    """Memory whose every page can be accounted for.

    Attributes:
        held: requests that hold memory, by name.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: dict[str, Any] = {}
        self.map_reader = MapReader()

    # --- how a release family differs -----------------------------------------------------

    def _slot(self, req: Any) -> int | None:
        raise NotImplementedError

    def _protected_len(self, req: Any) -> int:
        raise NotImplementedError

    def _allocated_len(self, req: Any) -> int:
        raise NotImplementedError

    def _seen_tree(self) -> SeenTree:
        """The tree as it is; asked only where the construction has one."""
        raise NotImplementedError

    def _held_lock(self, req: Any) -> SeenLock | None:
        """What a request locks in the tree; None for nothing."""
        raise NotImplementedError

    def _lock(self, req: Any) -> SeenLock | None:
        """What can be told of it."""
        lock = self._held_lock(req)
        if lock is None or self.choice.slides:
            return lock
        return SeenLock(node=lock.node, has_swa=False, boundary=None)

    def _swa_evicted_len(self, req: Any) -> int:
        """The cursor: leading tokens of a request whose SWA locations were given back."""
        raise NotImplementedError

    def _locks(self) -> Locks:
        """What snapshots tell of locks."""
        return "counted" if self.choice.reuses else "untold"

    # --- snapshots ------------------------------------------------------------------------

    def pools(self) -> Pools:
        """Snapshot of pools and tree, read from the real objects."""
        tree = self._seen_tree() if self.choice.reuses else NO_TREE
        full = self.allocator.full_attn_allocator if self.choice.slides else self.allocator
        return Pools(
            free=free_pages(full),
            free_slots=tuple(self.requests.free_slots),
            nodes=tree.nodes,
            holdings=tuple(self._holdings(tree)),
            counters=self._counters("full" if self.choice.slides else None),
            swa=self._swa_pool() if self.has_swa_pool else None,
        )

    def _counters(self, kind: Literal["full", "swa"] | None) -> dict[str, int]:
        """What the engine counts of one pool; of the only one where there are no kinds."""
        # SchedulerInvariantChecker asks by these names, too.
        prefix = f"{kind}_" if kind else ""
        return {
            "available": int(getattr(self.allocator, f"{prefix}available_size")()),
            "evictable": int(getattr(self.tree, f"{prefix}evictable_size")()),
            "protected": int(getattr(self.tree, f"{prefix}protected_size")()),
        }

    def complaint(self) -> str:
        """What the tree's own check finds wrong; empty for nothing."""
        # SchedulerInvariantChecker._check_tree_cache: when idle, since it expects no locks, and
        # of a model that slides
        if self.held or not self.choice.reuses or not self.choice.slides:
            return ""
        try:
            self.tree.sanity_check()
        except Exception as error:  # releases raise various kinds, one of them plain Exception
            return " ".join(str(error).split())
        return ""

    def swa_locs(self, slot: int, start: int, end: int) -> Sequence[int] | None:
        """SWA locations of a slot's positions by the map as it is now; None without such a pool."""
        if not self.has_swa_pool:
            return None
        full = self.requests.req_to_token.numpy()[slot, start:end]
        locs: list[int] = self.allocator.full_to_swa_index_mapping.numpy()[full].tolist()
        return locs

    def _swa_pool(self) -> SwaPool:
        return SwaPool(
            free=free_pages(self.allocator.swa_attn_allocator),
            full_to_swa=self.map_reader.runs(self.allocator.full_to_swa_index_mapping),
            counters=self._counters("swa"),
        )

    def _holdings(self, tree: SeenTree) -> Iterator[Holding]:
        table = self.requests.req_to_token.numpy()  # no copy; indexed several times as fast
        for name, req in self.held.items():
            slot = self._slot(req)
            if slot is None:
                continue
            lock = self._lock(req) if tree.nodes else None
            locked, swa_from = (None, None) if lock is None else lock_indices(lock, tree)
            row = table[slot, : self._allocated_len(req)]
            yield Holding(
                request=name,
                slot=slot,
                protected_len=self._protected_len(req),
                locs=tuple(row.tolist()),
                locked=locked,
                swa_locked_from=swa_from,
                swa_evicted_len=self._swa_evicted_len(req) if self.has_swa_pool else 0,
            )
