"""Reads a tree, and what requests lock in it, out of a release's own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class SeenNode(NamedTuple):
    """One node as a reader found it, nothing in it the engine's own; nodes come parents first.

    Attributes:
        handle: number by which the release's requests refer to it.
        parent: index of the parent among the nodes, -1 for a child of the root.
        locs: locations in the full pool.
        swa_locs: locations in the SWA pool, where the tree keeps them; empty else.
        boundary: mark of the sliding-window locks that end here; None without.
    """

    handle: int
    parent: int
    tokens: tuple[int, ...]
    locs: tuple[int, ...]
    full_lock: int
    swa_lock: int
    tombstone: bool
    swa_locs: tuple[int, ...] = ()
    boundary: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLock:
    """A request's lock on the tree.

    Attributes:
        node: handle of the node up to which it locks.
        has_swa: whether the lock on the window is still held.
        boundary: mark of the node where the lock on the window ends; None for the root.
    """

    node: int
    has_swa: bool
    boundary: object


Look = Callable[[Any, int], SeenNode | None]
"""Reads one node, given its parent's index; None for one that has no pages."""


def walk(root: Any, look: Look) -> Iterator[SeenNode]:
    """All nodes below ``root`` with pages.

    What a hierarchical cache keeps in the host's memory alone has none, and nothing below it has.
    """
    stack = [(-1, child) for child in root.children.values()]
    index = 0
    while stack:
        parent, node = stack.pop()
        seen = look(node, parent)
        if seen is None:
            continue
        yield seen
        if node.children:
            stack += [(index, child) for child in node.children.values()]
        index += 1


def look_at_swa_node(node: Any, parent: int) -> SeenNode | None:
    """A node of `SWARadixCache`, which asks the map for SWA locations."""
    if node.value is None:
        return None
    return SeenNode(
        node.id, parent, tuple(node.key.token_ids), tuple(node.value.tolist()),
        node.full_lock_ref, node.swa_lock_ref, node.swa_tombstone, boundary=node.swa_uuid,
    )  # fmt: skip


def look_at_full_node(node: Any, parent: int) -> SeenNode | None:
    """A node of `RadixCache` or `HiRadixCache`, which know of no window."""
    return _full_node(node, parent, node.value, node.lock_ref)


def look_at_full_component(component: Any) -> Look:
    """The same of `UnifiedRadixCache` in Python, where the full component is the only one."""

    def look(node: Any, parent: int) -> SeenNode | None:
        full = node.component_data[component.FULL]
        return _full_node(node, parent, full.value, full.lock_ref)

    return look


def _full_node(node: Any, parent: int, value: Any, lock: int) -> SeenNode | None:
    if value is None:
        return None
    tokens, locs = tuple(node.key.token_ids), tuple(value.tolist())
    return SeenNode(node.id, parent, tokens, locs, lock, 0, False)


def look_at_components(component: Any) -> Look:
    """What reads a node of `UnifiedRadixCache` in Python, given the release's component types."""

    def look(node: Any, parent: int) -> SeenNode | None:
        full = node.component_data[component.FULL]
        swa = node.component_data[component.SWA]
        if full.value is None:
            return None
        return SeenNode(
            node.id, parent, tuple(node.key.token_ids), tuple(full.value.tolist()),
            full.lock_ref, swa.lock_ref, swa.value is None,
            () if swa.value is None else tuple(swa.value.tolist()), swa.metadata.get("uuid"),
        )  # fmt: skip

    return look


def lock_indices(
    lock: SeenLock, nodes: Sequence[SeenNode], index_of: Mapping[int, int]
) -> tuple[int | None, int | None]:
    """Indices of the node up to which a lock reaches, and of the topmost that its window covers.

    A lock on the root, which is among no tree's nodes, locks nothing.
    """
    if lock.node not in index_of:
        return None, None
    at = locked = index_of[lock.node]
    if not lock.has_swa:
        return locked, None
    while nodes[at].parent >= 0 and (lock.boundary is None or nodes[at].boundary != lock.boundary):
        at = nodes[at].parent
    return locked, at
