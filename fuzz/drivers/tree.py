"""Reads a tree, and what requests lock in it, out of a release's own objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from kvproof.model.facts import Node


class SeenTree(NamedTuple):
    """A tree as a reader found it, nothing in it the engine's own.

    Attributes:
        nodes: what a snapshot tells of them, parents first.
        index_of: where each stands among them, by the number by which the release's requests
            refer to it.
        boundaries: mark of the sliding-window locks that end at each node, None without; empty
            where the core does not tell.
    """

    nodes: tuple[Node, ...]
    index_of: Mapping[int, int]
    boundaries: Sequence[object]


NO_TREE = SeenTree((), {}, ())


class SeenLock(NamedTuple):
    """A request's lock on the tree.

    Attributes:
        node: handle of the node up to which it locks.
        has_swa: whether the lock on the window is still held.
        boundary: mark of the node where the lock on the window ends; None for the root.
    """

    node: int
    has_swa: bool
    boundary: object


Look = Callable[[Any, int], tuple[Node, object] | None]
"""Reads one node and its boundary, given its parent's index; None for one that has no pages."""


def walk(root: Any, look: Look) -> SeenTree:
    """All nodes below ``root`` with pages.

    What a hierarchical cache keeps in the host's memory alone has none, and nothing below it has.
    """
    stack = [(-1, child) for child in root.children.values()]
    nodes: list[Node] = []
    index_of: dict[int, int] = {}
    boundaries: list[object] = []
    while stack:
        parent, node = stack.pop()
        seen = look(node, parent)
        if seen is None:
            continue
        told, boundary = seen
        index = index_of[node.id] = len(nodes)
        nodes.append(told)
        boundaries.append(boundary)
        if node.children:
            stack += [(index, child) for child in node.children.values()]
    return SeenTree(tuple(nodes), index_of, boundaries)


def look_at_swa_node(node: Any, parent: int) -> tuple[Node, object] | None:
    """A node of `SWARadixCache`, which asks the map for SWA locations."""
    if node.value is None:
        return None
    told = Node(
        parent=parent,
        tokens=tuple(node.key.token_ids),
        locs=tuple(node.value.tolist()),
        full_lock=node.full_lock_ref,
        swa_lock=node.swa_lock_ref,
        tombstone=node.swa_tombstone,
    )
    return told, node.swa_uuid


def look_at_full_node(node: Any, parent: int) -> tuple[Node, object] | None:
    """A node of `RadixCache` or `HiRadixCache`, which know of no window."""
    return _full_node(node, parent, node.value, node.lock_ref)


def look_at_full_component(component: Any) -> Look:
    """The same of `UnifiedRadixCache` in Python, where the full component is the only one."""

    def look(node: Any, parent: int) -> tuple[Node, object] | None:
        full = node.component_data[component.FULL]
        return _full_node(node, parent, full.value, full.lock_ref)

    return look


def _full_node(node: Any, parent: int, value: Any, lock: int) -> tuple[Node, object] | None:
    if value is None:
        return None
    tokens, locs = tuple(node.key.token_ids), tuple(value.tolist())
    return Node(parent=parent, tokens=tokens, locs=locs, full_lock=lock), None


def look_at_components(component: Any, *, has_swa_pool: bool) -> Look:
    """What reads a node of `UnifiedRadixCache` in Python, given the release's component types.

    Where the window lives in rings nothing lies at a node's SWA locations: they are left out.
    """

    def look(node: Any, parent: int) -> tuple[Node, object] | None:
        full = node.component_data[component.FULL]
        swa = node.component_data[component.SWA]
        if full.value is None:
            return None
        told = Node(
            parent=parent,
            tokens=tuple(node.key.token_ids),
            locs=tuple(full.value.tolist()),
            full_lock=full.lock_ref,
            swa_lock=swa.lock_ref,
            tombstone=swa.value is None,
            swa_locs=tuple(swa.value.tolist()) if has_swa_pool and swa.value is not None else (),
        )
        return told, swa.metadata.get("uuid")

    return look


def lock_indices(lock: SeenLock, tree: SeenTree) -> tuple[int | None, int | None]:
    """Indices of the node up to which a lock reaches, and of the topmost that its window covers.

    A lock on the root, which is among no tree's nodes, locks nothing.
    """
    at = locked = tree.index_of.get(lock.node)
    if at is None or not lock.has_swa:
        return locked, None
    nodes, boundary = tree.nodes, lock.boundary
    while nodes[at].parent >= 0 and (boundary is None or tree.boundaries[at] != boundary):
        at = nodes[at].parent
    return locked, at
