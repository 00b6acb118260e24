"""Reads the tree out of the Rust core of 0.5.21 to 0.5.23, which has no way to walk its nodes.

What the core's own interface offers is put together:

- node ids count up from the root's, and asking for the value of one that is gone raises KeyError.
  The locations from a node up to the root say where it hangs. The canary walk lists every location
  of the tree, so it is known when all nodes are found.
- the canary walk also filters by lock and by SWA residency. It says whether a component is
  locked, not how often, so a lock count is 0 or 1 here.
- a node's tokens cannot be read back. They are taken from what was computed at its locations, and
  the core's own read-only match must then lead to that very node.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from kvproof.fuzz.drivers.tree import SeenNode

_MAX_GAP = 4096
"""Ids in a row that may be gone; one step of a scenario makes and drops a few nodes at most."""

_GONE = object()


class TreeReadError(RuntimeError):
    """What the core says about its tree does not fit together."""


class RustTreeReader:
    """Finds the nodes of one tree core; make a new one when the tree is reset."""

    def __init__(self, core: Any, *, bigram: bool) -> None:
        self._core = core
        self._bigram = bigram
        self._root: int = core.root_node_handle()
        self._alive: list[int] = []
        self._next = self._root + 1

    def nodes(self, computed: Mapping[int, tuple[int, int]]) -> Iterator[SeenNode]:
        """The nodes, parents first.

        Args:
            computed: token that was last computed at each location, and the one after it.

        Raises:
            TreeReadError: nodes are missing, or a key is not what was computed there.
        """
        core = self._core
        locs = core.walk_for_kv_canary(False, False).slot_indices.tolist()
        if not locs:
            return
        paths = {
            tuple(core.collect_full_device_indices(node_id, self._root).tolist()): (node_id, value)
            for node_id, value in self._values(len(locs))
        }
        unlocked = set(core.walk_for_kv_canary(True, False).slot_indices.tolist())
        swa_unlocked = set(core.walk_for_kv_canary(True, True).slot_indices.tolist())
        index: dict[tuple[int, ...], int] = {(): -1}
        inner = {path[: -len(value)] for path, (_, value) in paths.items()}
        for path in sorted(paths, key=len):
            node_id, value = paths[path]
            first = path[-len(value)]
            if path not in inner:
                self._check(node_id, self._tokens(path, computed))
            swa_locs = core.get_component_device_value(node_id, ComponentType.SWA)
            yield SeenNode(
                node_id,
                index[path[: -len(value)]],
                self._tokens(path[-len(value) :], computed),
                value,
                int(first not in unlocked),
                int(swa_locs is not None and first not in swa_unlocked),
                swa_locs is None,
                swa_locs,
            )
            index[path] = len(index) - 1

    def _tokens(self, locs: Sequence[int], computed: Mapping[int, tuple[int, int]]) -> list[int]:
        """What a key of these locations holds; a bigram key ends in the second of its last pair."""
        tokens = [computed[loc][0] for loc in locs]
        return [*tokens, computed[locs[-1]][1]] if self._bigram else tokens

    def _values(self, tokens: int) -> list[tuple[int, Any]]:
        """Nodes and their locations, `tokens` locations in all."""
        self._alive = [node_id for node_id in self._alive if self._value(node_id) is not _GONE]
        values = [
            (node_id, value)
            for node_id in self._alive
            if (value := self._value(node_id)) is not None
        ]
        found = sum(len(value) for _, value in values)
        misses = 0
        while found < tokens:
            if misses > _MAX_GAP:
                raise TreeReadError(f"the tree holds {tokens} tokens, its nodes {found}")
            candidate, self._next = self._next, self._next + 1
            value = self._value(candidate)
            if value is _GONE:
                misses += 1
                continue
            misses = 0
            self._alive.append(candidate)
            if value is not None:
                values.append((candidate, value))
                found += len(value)
        return values

    def _value(self, node_id: int) -> Any:
        """Locations of a node; None for one that is in the host's memory alone."""
        try:
            return self._core.get_component_device_value(node_id, ComponentType.FULL)
        except KeyError:
            return _GONE

    def _check(self, node_id: int, tokens: Sequence[int]) -> None:
        key = RadixKey(array("q", tokens), is_bigram=self._bigram)
        matched, at, _ = self._core.match_full_device_prefix(key)
        if (matched, at) != (len(key), node_id):
            raise TreeReadError(
                f"tokens {list(tokens)} were computed at the locations of node {node_id}, "
                f"but the tree finds {matched} of them, at node {at}"
            )
