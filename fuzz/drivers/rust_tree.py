"""Reads the tree out of the Rust core of 0.5.21 to 0.5.23, which has no way to walk its nodes.

What the core's own interface offers is put together:

- node ids count up from the root's, and asking for the value of one that is gone raises KeyError.
  The canary walk lists every location of the tree, so it is known when all nodes are found, and
  before each location the one that it follows, which says where a node hangs. Should two nodes hold
  one location that is ambiguous: then each node is asked for its locations up to the root.
- the canary walk also filters by lock and by SWA residency. It says whether a component is
  locked, not how often, so a lock count is 0 or 1 here.
- a node's tokens cannot be read back. They are taken from what was computed at its locations, and
  the core's own read-only match must then lead to that very node.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from kvproof.fuzz.drivers.tree import SeenNode

_MAX_GAP = 4096
"""Ids in a row that may be gone; one step of a scenario makes and drops a few nodes at most."""

_GONE = object()

_NO_LOC = -1
"""What the canary walk says that the first location of a path follows."""


class TreeReadError(RuntimeError):
    """What the core says about its tree does not fit together."""


class _Seen(NamedTuple):
    """All that the core says of its tree, as it says it.

    Attributes:
        values: each node's number and locations.
        locs: every location of the tree, in the order of the walk.
        follows: the location that each of those follows on its path.
        paths: locations from the root to each node's end, where ``follows`` does not tell.
        swa: each node's SWA locations; None for a tombstone, none where nothing slides.
        unlocked: locations whose node no request locks.
        swa_unlocked: the same of the window's locks.
        computed: what was computed at the locations, in the order of the walk.
    """

    values: list[tuple[int, list[int]]]
    locs: list[int]
    follows: list[int]
    paths: list[list[int]] | None
    swa: list[list[int] | None]
    unlocked: list[int]
    swa_unlocked: list[int]
    computed: list[tuple[int, int]]


class RustTreeReader:
    """Finds the nodes of one tree core; make a new one when the tree is reset."""

    def __init__(self, core: Any, *, bigram: bool, has_swa: bool) -> None:
        self._core = core
        self._has_swa = has_swa
        self._bigram = bigram
        self._root: int = core.root_node_handle()
        self._alive: list[int] = []
        self._next = self._root + 1
        self._seen: _Seen | None = None
        self._nodes: tuple[SeenNode, ...] = ()
        self._leaves: tuple[tuple[int, Any], ...] = ()

    def nodes(self, computed: Mapping[int, tuple[int, int]]) -> tuple[SeenNode, ...]:
        """The nodes, parents first.

        All is read each time, and all keys are asked for; only where something differs from the
        last time is it put together anew.

        Args:
            computed: token that was last computed at each location, and the one after it.

        Raises:
            TreeReadError: nodes are missing, or a key is not what was computed there.
        """
        seen = self._look(computed)
        if seen != self._seen:
            self._seen = None  # in case this raises
            self._nodes, self._leaves = self._put_together(seen, computed)
            self._seen = seen
        for node_id, key in self._leaves:
            self._check(node_id, key)
        return self._nodes

    def _look(self, computed: Mapping[int, tuple[int, int]]) -> _Seen:
        core = self._core
        walk = core.walk_for_kv_canary(False, False)
        locs = walk.slot_indices.tolist()
        values = self._values(len(locs))
        once = len(set(locs)) == len(locs)
        return _Seen(
            values=values,
            locs=locs,
            follows=walk.prev_slot_indices.tolist(),
            paths=None
            if once
            else [
                core.collect_full_device_indices(node_id, self._root).tolist()
                for node_id, _ in values
            ],
            swa=self._read([node_id for node_id, _ in values], ComponentType.SWA)
            if self._has_swa
            else [[] for _ in values],
            unlocked=core.walk_for_kv_canary(True, False).slot_indices.tolist() if locs else [],
            swa_unlocked=core.walk_for_kv_canary(True, True).slot_indices.tolist()
            if locs and self._has_swa
            else locs,
            computed=[computed[loc] for loc in locs],
        )

    def _put_together(
        self, seen: _Seen, computed: Mapping[int, tuple[int, int]]
    ) -> tuple[tuple[SeenNode, ...], tuple[tuple[int, Any], ...]]:
        """Nodes, and the keys of the leaves."""
        unlocked, swa_unlocked = set(seen.unlocked), set(seen.swa_unlocked)
        index: dict[tuple[int, ...], int] = {(): -1}
        nodes: list[SeenNode] = []
        leaves: list[tuple[int, Any]] = []
        found = [
            (tuple(path), node_id, value, swa)
            for path, (node_id, value), swa in zip(_paths(seen), seen.values, seen.swa, strict=True)
        ]
        inner = {path[: -len(value)] for path, _, value, _ in found}
        for path, node_id, value, swa in sorted(found, key=lambda one: len(one[0])):
            first = path[-len(value)]
            if path not in inner:
                tokens = array("q", self._tokens(path, computed))
                leaves.append((node_id, RadixKey(tokens, is_bigram=self._bigram)))
            index[path] = len(nodes)
            nodes.append(
                SeenNode(
                    node_id,
                    index[path[: -len(value)]],
                    tuple(self._tokens(path[-len(value) :], computed)),
                    tuple(value),
                    int(first not in unlocked),
                    int(swa is not None and first not in swa_unlocked),
                    swa is None,
                    () if swa is None else tuple(swa),
                )
            )
        return tuple(nodes), tuple(leaves)

    def _tokens(self, locs: Sequence[int], computed: Mapping[int, tuple[int, int]]) -> list[int]:
        """What a key of these locations holds; a bigram key ends in the second of its last pair."""
        tokens = [computed[loc][0] for loc in locs]
        return [*tokens, computed[locs[-1]][1]] if self._bigram else tokens

    def _values(self, tokens: int) -> list[tuple[int, list[int]]]:
        """Nodes and their locations, `tokens` locations in all."""
        read = self._read(self._alive, ComponentType.FULL)
        pairs = [pair for pair in zip(self._alive, read, strict=True) if pair[1] is not _GONE]
        self._alive = [node_id for node_id, _ in pairs]
        values = [pair for pair in pairs if pair[1] is not None]
        found = sum([len(value) for _, value in values])
        misses = 0
        while found < tokens:
            if misses > _MAX_GAP:
                raise TreeReadError(f"the tree holds {tokens} tokens, its nodes {found}")
            candidate, self._next = self._next, self._next + 1
            [value] = self._read([candidate], ComponentType.FULL)
            if value is _GONE:
                misses += 1
                continue
            misses = 0
            self._alive.append(candidate)
            if value is not None:
                values.append((candidate, value))
                found += len(value)
        return values

    def _read(self, node_ids: Sequence[int], component: ComponentType) -> list[Any]:
        """Locations of nodes in a pool; None if one has none there, as one on the host alone."""
        ask = self._core.get_component_device_value
        read: list[Any] = []
        for node_id in node_ids:
            try:
                value = ask(node_id, component)
            except KeyError:
                read.append(_GONE)
                continue
            read.append(None if value is None else value.tolist())
        return read

    def _check(self, node_id: int, key: Any) -> None:
        matched, at, _ = self._core.match_full_device_prefix(key)
        if (matched, at) != (len(key), node_id):
            raise TreeReadError(
                f"tokens {list(key.token_ids)} were computed at the locations of node {node_id}, "
                f"but the tree finds {matched} of them, at node {at}"
            )


def _paths(seen: _Seen) -> list[list[int]]:
    """Locations from the root to each node's end."""
    if seen.paths is not None:
        return seen.paths
    follows = dict(zip(seen.locs, seen.follows, strict=True))
    return [_path(node_id, value, follows) for node_id, value in seen.values]


def _path(node_id: int, value: list[int], follows: Mapping[int, int]) -> list[int]:
    path: list[int] = []
    at = value[-1]
    while at != _NO_LOC:
        path.append(at)
        if at not in follows or len(path) > len(follows):
            raise TreeReadError(f"the walk does not lead from node {node_id} to the root: {path}")
        at = follows[at]
    path.reverse()
    if path[-len(value) :] != value:
        raise TreeReadError(f"node {node_id} holds {value}, the walk of the tree has {path}")
    return path
