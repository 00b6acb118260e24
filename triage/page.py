"""The page of a log: one HTML file that opens from disk, without a server or a network.

What the page shows is computed here, as plain data; the template's script only draws it. All names
come from a file that may be hostile: the data is escaped where it is embedded, the script makes
text of it and never markup, and the page forbids every script but its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import pairwise

import jinja2
import msgspec

from kvproof.fuzz.story import chain, happened, tell
from kvproof.model.facts import Node, Pools
from kvproof.model.monitor import statuses
from kvproof.model.scenario import TEXT_TOKENS
from kvproof.model.text import spell_operation
from kvproof.model.verdict import CAUSES, IN_WORDS
from kvproof.spec.indices import FullLoc
from kvproof.spec.pages import page_of
from kvproof.triage.excerpt import Excerpt, concerns
from kvproof.triage.timeline import Cell, Frame, Tenant

MOST_NODES = 200
"""Nodes of the tree that a page draws; of a larger tree, the first ones."""

MOST_PAGES = 640
"""Pages of the full pool that are drawn one by one; of a larger pool, only the counts are shown."""


class TreeNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its depth in the tree, its tokens as ranges of texts, its positions, its locks."""

    depth: int
    label: str
    start: int
    end: int
    pages: tuple[int, ...]
    full_lock: int
    swa_lock: int
    tombstone: bool


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """Pools and tree of one snapshot.

    Attributes:
        nodes: depth first, so that children follow their parent.
        hidden: number of nodes that are left out.
        pages: page number, and who has it: ``free``, ``tree`` or a request; empty if too many.
        counts: number of pages by what has them.
        counters: the engine's own sizes, in tokens.
    """

    nodes: tuple[TreeNode, ...]
    hidden: int
    pages: tuple[tuple[int, str, str], ...]
    counts: dict[str, int]
    counters: dict[str, int]
    free_slots: tuple[int, ...]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One column of the page.

    Attributes:
        gap: whether steps are left out between this one and the one before.
        cells: rows that were touched or changed since the column before; the others are as there.
        pool: None where it is as in the column before.
    """

    index: int
    operation: str
    happened: str
    gap: bool
    tenants: tuple[Tenant, ...]
    cells: tuple[Cell, ...]
    pool: PoolView | None
    lent: dict[str, int]


class Focus(msgspec.Struct, frozen=True, kw_only=True):
    """The column of the violation, and the row of the stale read if it is one."""

    column: int
    row: int | None


class PageData(msgspec.Struct, frozen=True, kw_only=True):
    """All that the script of a page draws."""

    stride: int
    rows: tuple[int, ...]
    slots: int
    steps: tuple[StepView, ...]
    focus: Focus | None
    causes: dict[str, str]


def page_data(shown: Excerpt) -> PageData:
    """What the page of an excerpt draws."""
    violation, stride = shown.violation, shown.monitor.ghost.stride
    focus = None
    if violation is not None:
        columns = [at for at, frame in enumerate(shown.frames) if frame.index == violation.step]
        row = violation.evidence.row if violation.evidence else None
        focus = Focus(column=columns[0], row=row) if columns else None
    return PageData(
        stride=stride,
        rows=tuple(_visible_rows(shown.frames, stride)) if shown.frames else (),
        slots=shown.started.geometry.slots,
        steps=tuple(_steps(shown)),
        focus=focus,
        causes={str(cause): words for cause, words in CAUSES.items()},
    )


def _visible_rows(frames: Sequence[Frame], stride: int) -> Iterator[int]:
    """Rows, less those of slots that nothing in the frames ever touched."""
    used = {
        cell.row // stride
        for frame in frames
        for cell in frame.cells
        if cell.holds is not None or cell.looks
    }
    yield from (cell.row for cell in frames[0].cells if cell.row // stride in used)


def _steps(shown: Excerpt) -> Iterator[StepView]:
    names = {number: text for text, number in shown.monitor.texts.items()}
    size = shown.started.geometry.page_size
    before: Frame | None = None
    for frame in shown.frames:
        known = {cell.row: cell.holds for cell in before.cells} if before else {}
        pools = frame.pools if before is None or frame.pools is not before.pools else None
        yield StepView(
            index=frame.index,
            operation=spell_operation(frame.operation),
            happened="; ".join(
                happened([fact for fact in frame.facts if concerns(fact, shown.requests)])
            ),
            gap=frame.index != (before.index + 1 if before else 0),
            tenants=frame.tenants,
            cells=tuple(
                cell
                for cell in frame.cells
                if cell.written or cell.looks or cell.holds != known.get(cell.row)
            ),
            pool=_pool_view(pools, names, size) if pools else None,
            lent={str(pool): tokens for pool, tokens in frame.lent.items()},
        )
        before = frame


def _pool_view(pools: Pools, names: Mapping[int, str], page_size: int) -> PoolView:
    owners = dict.fromkeys(pools.free, ("free", ""))
    for holding in pools.holdings:
        for loc in holding.locs[holding.protected_len :]:
            owners[page_of(FullLoc(loc), page_size)] = ("request", holding.request)
    for node in pools.nodes:
        for loc in node.locs[::page_size]:
            owners[page_of(FullLoc(loc), page_size)] = ("tree", "")
    counts: dict[str, int] = {"free": 0, "tree": 0, "request": 0}
    for kind, _ in owners.values():
        counts[kind] += 1
    order = _depth_first(pools.nodes)
    return PoolView(
        nodes=tuple(_tree_nodes(pools.nodes, order[:MOST_NODES], names, page_size)),
        hidden=max(0, len(order) - MOST_NODES),
        pages=()
        if len(owners) > MOST_PAGES
        else tuple((page, *owner) for page, owner in sorted(owners.items())),
        counts=counts,
        counters=pools.counters,
        free_slots=pools.free_slots,
    )


def _depth_first(nodes: Sequence[Node]) -> list[int]:
    children: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(number)
    order: list[int] = []
    stack = children.get(-1, [])[::-1]
    while stack:
        order.append(stack.pop())
        stack += children.get(order[-1], [])[::-1]
    return order


def _tree_nodes(
    nodes: Sequence[Node], order: Sequence[int], names: Mapping[int, str], page_size: int
) -> Iterator[TreeNode]:
    place: dict[int, tuple[int, int]] = {-1: (-1, 0)}  # depth and end of each node
    for number in order:
        node = nodes[number]
        depth, start = place[node.parent]
        end = start + len(node.locs)
        place[number] = (depth + 1, end)
        yield TreeNode(
            depth=depth + 1,
            label=spell_tokens(node.tokens, names),
            start=start,
            end=end,
            pages=tuple(page_of(FullLoc(loc), page_size) for loc in node.locs[::page_size]),
            full_lock=node.full_lock,
            swa_lock=node.swa_lock,
            tombstone=node.tombstone,
        )


def spell_tokens(tokens: Sequence[int], names: Mapping[int, str]) -> str:
    """Token ids as ranges of their texts, e.g. ``A[0:4] B[4:8]``."""
    if not tokens:
        return ""
    cuts = [at for at, (one, next_) in enumerate(pairwise(tokens), 1) if next_ != one + 1]
    words = []
    for start, end in pairwise([0, *cuts, len(tokens)]):
        text, position = divmod(tokens[start], TEXT_TOKENS)
        words.append(f"{names.get(text, f'#{text}')}[{position}:{position + end - start}]")
    return " ".join(words)


def render(shown: Excerpt) -> str:
    """The page as HTML, all in one text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kvproof.triage", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    violation, started = shown.violation, shown.started
    geometry = started.geometry
    style, script = _resource("page.css"), _resource("page.js")
    return environment.get_template("page.html.j2").render(
        style=style,
        script=script,
        style_hash=_csp_hash(style),
        script_hash=_csp_hash(script),
        data=msgspec.to_builtins(page_data(shown), str_keys=True),
        started=started,
        violation=violation,
        invariants=IN_WORDS,
        statuses=statuses(shown.monitor),
        chain=chain(violation, geometry.window) if violation else [],
        text=tell(violation, shown.facts) if violation else "",
        total=shown.monitor.steps,
        is_whole=shown.is_whole,
        sizes={
            "window": geometry.window,
            "page_size": geometry.page_size,
            "ring_stride": "none" if started.ring_stride is None else started.ring_stride,
            "slots": geometry.slots,
            "pool_tokens": geometry.pool_tokens,
            **({"swa_tokens": geometry.swa_pool_tokens} if started.family == "translation" else {}),
            "reprefill_tail": started.reprefill_tail,
        },
    )


def _resource(name: str) -> str:
    return resources.files("kvproof.triage").joinpath("templates", name).read_text()


def _csp_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
