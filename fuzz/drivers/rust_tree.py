"""Reads the tree out of 0.5.23's Rust core, which has no way to walk its nodes.

What the core's own interface offers is put together:

- node ids count up from the root's; `collect_path_info` tells an id's parent and span, and raises
  KeyError for one that is gone. The canary walk lists every location of the tree, so it is known
  when all nodes are found.
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

_MAX_GAP = 4096
"""Ids in a row that may be gone; one step of a scenario makes and drops a few nodes at most."""


class TreeReadError(RuntimeError):
    """What the core says about its tree does not fit together."""


class RustTreeReader:
    """Finds the nodes of one tree core; make a new one when the tree is reset."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._alive: list[int] = []
        self._next: int = core.root_node_handle() + 1

    def nodes(
        self, token_at: Mapping[int, int]
    ) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        """The nodes, parents first: parent, tokens, locations, locks, tombstone.

        Args:
            token_at: token that was last computed at each location.

        Raises:
            TreeReadError: nodes are missing, or a key is not what was computed there.
        """
        core = self._core
        locs = core.walk_for_kv_canary(False, False).slot_indices.tolist()
        if not locs:
            self._alive.clear()
            return
        paths = sorted(self._paths(len(locs)), key=len)
        unlocked = set(core.walk_for_kv_canary(True, False).slot_indices.tolist())
        resident = set(core.walk_for_kv_canary(False, True).slot_indices.tolist())
        swa_unlocked = set(core.walk_for_kv_canary(True, True).slot_indices.tolist())
        index: dict[int, int] = {}
        prefixes: dict[int, list[int]] = {}
        for path in paths:
            node = path[-1]
            value = core.get_component_device_value(node.node_id, ComponentType.FULL)
            at = value.tolist()
            tokens = [token_at[loc] for loc in at]
            prefix = prefixes.get(node.parent_id, []) + tokens
            if not node.num_children:
                self._check(node, prefix)
            yield (
                index.get(node.parent_id, -1),
                tokens,
                value,
                int(at[0] not in unlocked),
                int(at[0] in resident and at[0] not in swa_unlocked),
                at[0] not in resident,
            )
            index[node.node_id] = len(index)
            prefixes[node.node_id] = prefix

    def _paths(self, tokens: int) -> list[Sequence[Any]]:
        paths: list[Sequence[Any]] = []
        while self._alive:
            try:
                paths = list(self._core.collect_path_info(self._alive))
                break
            except KeyError as gone:
                self._alive.remove(gone.args[0])
        found = sum(path[-1].path_end - path[-1].path_start for path in paths)
        misses = 0
        while found < tokens:
            if misses > _MAX_GAP:
                raise TreeReadError(f"the tree holds {tokens} tokens, its nodes {found}")
            candidate, self._next = self._next, self._next + 1
            try:
                [path] = self._core.collect_path_info([candidate])
            except KeyError:
                misses += 1
                continue
            misses = 0
            self._alive.append(candidate)
            paths.append(path)
            found += path[-1].path_end - path[-1].path_start
        return paths

    def _check(self, node: Any, tokens: Sequence[int]) -> None:
        matched, node_id, _ = self._core.match_full_device_prefix(RadixKey(array("q", tokens)))
        if (matched, node_id) != (len(tokens), node.node_id):
            raise TreeReadError(
                f"tokens {list(tokens)} were computed at the locations of node {node.node_id}, "
                f"but the tree finds {matched} of them, at node {node_id}"
            )
