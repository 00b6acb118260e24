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

Most operations leave the tree alone. The core's memory is its own, and all that changes it goes
through its binding, so calls there are counted: while there was none but questions, the answers
stand. Only tensors are shared with the engine, and what lies in them is looked at each time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from kvproof.fuzz.drivers.tree import NO_TREE, SeenTree
from kvproof.model.facts import Node

_MAX_GAP = 4096
"""Ids in a row that may be gone; one step of a scenario makes and drops a few nodes at most."""

_GONE = object()

_NO_LOC = -1
"""What the canary walk says that the first location of a path follows."""

_UNKNOWN = -2
"""What a location follows that the walk does not list."""

_QUESTIONS = frozenset(
    {
        "collect_full_device_indices",
        "component_evictable_size",
        "component_protected_size",
        "evictable_size",
        "full_evictable_size",
        "full_protected_size",
        "get_component_device_value",
        "match_full_device_prefix",
        "protected_size",
        "root_node_handle",
        "sanity_check",
        "total_size",
        "walk_for_kv_canary",
    }
)
"""Methods of the core's binding that change nothing; any other may."""


class TreeReadError(RuntimeError):
    """What the core says about its tree does not fit together."""


class _Seen(NamedTuple):
    """All that the core says of its tree, as it says it.

    Attributes:
        values: each node's number and locations.
        locs: every location of the tree, in the order of the walk.
        positions: of those, on their paths.
        follows: the location that each of those follows on its path.
        paths: locations from the root to each node's end, where ``follows`` does not tell.
        swa: each node's SWA locations; None for a tombstone, none where there is no SWA pool.
        unlocked: locations whose node no request locks.
        swa_unlocked: the same of the window's locks.
        computed: what was computed at the locations, in the order of the walk.
    """

    values: list[tuple[int, list[int]]]
    locs: list[int]
    positions: list[int]
    follows: list[int]
    paths: list[list[int]] | None
    swa: list[list[int] | None]
    unlocked: list[int]
    swa_unlocked: list[int]
    computed: list[tuple[int, int]]


class _Counted:
    """Stands where the core's binding stood, and counts the calls that may change the tree."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._tally = [0]

    @property
    def calls(self) -> int:
        """How many there were."""
        return self._tally[0]

    def __getattr__(self, name: str) -> Any:
        """What the binding has; it is looked up there once."""
        found = getattr(self._binding, name)
        if name not in _QUESTIONS and callable(found):
            found = _counting(found, self._tally)
        setattr(self, name, found)
        return found


def _counting(method: Callable[..., Any], tally: list[int]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        tally[0] += 1
        return method(*arguments, **named)

    return call


def _counted(core: Any) -> _Counted:
    """The core's binding, with its calls counted from now on."""
    if not isinstance(core._binding, _Counted):
        core._binding = _Counted(core._binding)
    return core._binding


class RustTreeReader:
    """Finds the nodes of one tree core; make a new one when the tree is reset."""

    def __init__(self, core: Any, *, bigram: bool, slides: bool, has_swa_pool: bool) -> None:
        self._core = core
        self._bigram = bigram
        self._slides = slides
        self._has_swa_pool = has_swa_pool
        self._root: int = core.root_node_handle()
        self._alive: list[int] = []
        self._next = self._root + 1
        self._calls = -1
        # The tensors of all nodes' locations, and what lay in them.
        self._tensors: list[Any] = []
        self._lists: list[list[int]] = []
        self._seen: _Seen | None = None
        self._tree = NO_TREE
        self._leaves: list[tuple[int, Any]] = []

    def tree(self, computed: Mapping[int, tuple[int, int]]) -> SeenTree:
        """The tree as it is; boundaries are inside the core.

        Args:
            computed: token that was last computed at each location, and the one after it.

        Raises:
            TreeReadError: nodes are missing, or a key is not what was computed there.
        """
        binding = _counted(self._core)
        before, self._seen = self._seen, None  # in case this raises
        if before is None or not self._stands(binding, before, computed):
            self._calls = binding.calls
            seen = self._look(binding, computed)
            if seen != before:
                self._tree, self._leaves = self._put_together(seen, computed)
            for node_id, key in self._leaves:
                self._check(node_id, key)
            before = seen
        self._seen = before
        return self._tree

    def _stands(
        self, binding: _Counted, seen: _Seen, computed: Mapping[int, tuple[int, int]]
    ) -> bool:
        """Whether all is as it was seen last."""
        return (
            binding.calls == self._calls
            and [tensor.tolist() for tensor in self._tensors] == self._lists
            and [computed[loc] for loc in seen.locs] == seen.computed
        )

    def _look(self, binding: _Counted, computed: Mapping[int, tuple[int, int]]) -> _Seen:
        self._tensors, self._lists = [], []
        walk = binding.walk_for_kv_canary(False, False)
        locs = walk.slot_indices.tolist()
        values = self._values(binding, len(locs))
        once = len(set(locs)) == len(locs)
        return _Seen(
            values=values,
            locs=locs,
            positions=walk.positions.tolist(),
            follows=walk.prev_slot_indices.tolist(),
            paths=None
            if once
            else [
                binding.collect_full_device_indices(node_id, self._root).tolist()
                for node_id, _ in values
            ],
            swa=self._swa(binding, [node_id for node_id, _ in values]),
            unlocked=binding.walk_for_kv_canary(True, False).slot_indices.tolist() if locs else [],
            swa_unlocked=binding.walk_for_kv_canary(True, True).slot_indices.tolist()
            if locs and self._slides
            else locs,
            computed=[computed[loc] for loc in locs],
        )

    def _put_together(
        self, seen: _Seen, computed: Mapping[int, tuple[int, int]]
    ) -> tuple[SeenTree, list[tuple[int, Any]]]:
        """The tree, and the keys of its leaves."""
        unlocked, swa_unlocked = set(seen.unlocked), set(seen.swa_unlocked)
        hung = _hang(seen)
        inner = {parent for parent, _ in hung}
        index = {-1: -1}
        paths: dict[int, tuple[int, ...]] = {-1: ()}
        index_of: dict[int, int] = {}
        nodes: list[Node] = []
        leaves: list[tuple[int, Any]] = []
        for number in sorted(range(len(hung)), key=[end for _, end in hung].__getitem__):
            parent, _ = hung[number]
            node_id, locs = seen.values[number]
            swa = seen.swa[number]
            tokens = tuple([computed[loc][0] for loc in locs])
            path = paths[number] = paths[parent] + tokens
            # A bigram key ends in the second token of its last pair.
            end = (computed[locs[-1]][1],) if self._bigram else ()
            if number not in inner:
                key = RadixKey(array("q", path + end), is_bigram=self._bigram)
                leaves.append((node_id, key))
            index[number] = index_of[node_id] = len(nodes)
            nodes.append(
                Node(
                    parent=index[parent],
                    tokens=tokens + end,
                    locs=tuple(locs),
                    full_lock=int(locs[0] not in unlocked),
                    swa_lock=int(swa is not None and locs[0] not in swa_unlocked),
                    tombstone=swa is None,
                    swa_locs=() if swa is None else tuple(swa),
                )
            )
        return SeenTree(tuple(nodes), index_of, ()), leaves

    def _swa(self, binding: _Counted, node_ids: Sequence[int]) -> list[list[int] | None]:
        if self._has_swa_pool:
            return self._read(binding, node_ids, ComponentType.SWA)
        if not self._slides:
            return [[] for _ in node_ids]
        # Where the window lives in rings nothing lies at these locations: there are some or none.
        ask, number = binding.get_component_device_value, int(ComponentType.SWA)
        return [None if ask(node_id, number) is None else [] for node_id in node_ids]

    def _values(self, binding: _Counted, tokens: int) -> list[tuple[int, list[int]]]:
        """Nodes and their locations, `tokens` locations in all."""
        read = self._read(binding, self._alive, ComponentType.FULL)
        pairs = [pair for pair in zip(self._alive, read, strict=True) if pair[1] is not _GONE]
        self._alive = [node_id for node_id, _ in pairs]
        values = [pair for pair in pairs if pair[1] is not None]
        found = sum([len(value) for _, value in values])
        misses = 0
        while found < tokens:
            if misses > _MAX_GAP:
                raise TreeReadError(f"the tree holds {tokens} tokens, its nodes {found}")
            candidate, self._next = self._next, self._next + 1
            [value] = self._read(binding, [candidate], ComponentType.FULL)
            if value is _GONE:
                misses += 1
                continue
            misses = 0
            self._alive.append(candidate)
            if value is not None:
                values.append((candidate, value))
                found += len(value)
        return values

    def _read(
        self, binding: _Counted, node_ids: Sequence[int], component: ComponentType
    ) -> list[Any]:
        """Locations of nodes in a pool; None if one has none there, as one on the host alone."""
        ask, number = binding.get_component_device_value, int(component)
        read: list[Any] = []
        for node_id in node_ids:
            try:
                tensor = ask(node_id, number)
            except KeyError:
                read.append(_GONE)
                continue
            if tensor is None:
                read.append(None)
                continue
            value = tensor.tolist()
            self._tensors.append(tensor)
            self._lists.append(value)
            read.append(value)
        return read

    def _check(self, node_id: int, key: Any) -> None:
        matched, at, _ = self._core.match_full_device_prefix(key)
        if (matched, at) != (len(key), node_id):
            raise TreeReadError(
                f"tokens {list(key.token_ids)} were computed at the locations of node {node_id}, "
                f"but the tree finds {matched} of them, at node {at}"
            )


def _hang(seen: _Seen) -> list[tuple[int, int]]:
    """Number of each node's parent, -1 for a child of the root, and length of the path to its end.

    Raises:
        TreeReadError: the walk is not along the nodes.
    """
    if seen.paths is not None:
        return _hang_by_paths(seen.values, seen.paths)
    locs, positions, follows = seen.locs, seen.positions, seen.follows
    at = {loc: place for place, loc in enumerate(locs)}
    ends = {value[-1]: number for number, (_, value) in enumerate(seen.values)} | {_NO_LOC: -1}
    hung = []
    for node_id, value in seen.values:
        first = at.get(value[0], len(locs))
        behind = first + len(value)
        above, *inside = follows[first:behind] or [_UNKNOWN]
        start = positions[at[above]] + 1 if above in at else 0
        if (
            above not in ends
            or locs[first:behind] != value
            or inside != value[:-1]
            # They count on from the node above: so every path begins at the root.
            or positions[first:behind] != [*range(start, start + len(value))]
        ):
            raise TreeReadError(
                f"node {node_id} holds {value}, the walk of the tree has {locs[first:behind]} "
                f"behind {follows[first:behind]} at {positions[first:behind]}"
            )
        hung.append((ends[above], start + len(value)))
    return hung


def _hang_by_paths(
    values: Sequence[tuple[int, list[int]]], paths: Sequence[list[int]]
) -> list[tuple[int, int]]:
    number_of = {tuple(path): number for number, path in enumerate(paths)} | {(): -1}
    hung = []
    for (node_id, value), path in zip(values, paths, strict=True):
        above = tuple(path[: -len(value)])
        if path[-len(value) :] != value or above not in number_of:
            raise TreeReadError(f"node {node_id} holds {value}, its path is {path}")
        hung.append((number_of[above], len(path)))
    return hung
