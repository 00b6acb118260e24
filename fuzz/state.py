"""The state after a step in plain text: rings with who wrote what, requests, pools, tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvproof.fuzz.story import happened
from kvproof.model.facts import Fact, Pools, Started, Step
from kvproof.model.forward import spelled_out
from kvproof.model.ghost import Ghost
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import TEXT_TOKENS
from kvproof.model.slot_rows import Written
from kvproof.model.text import spell_operation
from kvproof.model.verdict import Violation
from kvproof.spec.indices import FullLoc
from kvproof.spec.pages import page_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """One step of a walk: its number from 1, what happened, what broke, the state after it."""

    number: int
    title: str
    broken: tuple[Violation, ...]
    state: tuple[str, ...]

    def lines(self) -> list[str]:
        """All of it as text."""
        return [
            self.title,
            *(f"  breaks {v.invariant} ({v.cause}): {v.sentence}" for v in self.broken),
            *(f"  {line}" for line in self.state),
        ]


def walk(log: Sequence[Fact]) -> Iterator[Walked]:
    """The steps of a log, each with the state after it."""
    monitor = Monitor()
    for facts in _steps(log):
        before = set(monitor.violations)
        for fact in facts:
            monitor.feed(fact)
        if isinstance(facts[0], Step):
            step = facts[0]
            words = "; ".join(happened([*spelled_out([log[0], *facts])]))
            yield Walked(
                number=step.index + 1,
                title=f"step {step.index + 1}: {spell_operation(step.operation)}  {words}".rstrip(),
                broken=tuple(v for k, v in monitor.violations.items() if k not in before),
                state=tuple(draw_state(monitor)),
            )


def _steps(log: Iterable[Fact]) -> Iterator[list[Fact]]:
    facts: list[Fact] = []
    for fact in log:
        if isinstance(fact, Step) and facts:
            yield facts
            facts = []
        facts.append(fact)
    yield facts


def draw_state(monitor: Monitor) -> list[str]:
    """What the monitor knows at this moment."""
    started = monitor.started
    lines = []
    for slot in sorted(monitor.ghost.slots):
        lines += _draw_slot(monitor, slot)
    for lease in monitor.leases.values():
        lines.append(
            f"request {lease.request}: slot {lease.slot}, occupancy {lease.occupancy}, reuses "
            f"{lease.matched_len} of {lease.prompt_len} tokens, computed "
            f"{monitor.computed_len(lease.request)}"
        )
    if started is not None and monitor.pools is not None:
        lines += _draw_pools(monitor.pools, started, {n: t for t, n in monitor.texts.items()})
    return lines


def _draw_slot(monitor: Monitor, slot: int) -> list[str]:
    ghost = monitor.ghost
    tenant = next((lease for lease in monitor.leases.values() if lease.slot == slot), None)
    whose = f"lent to {tenant.request}" if tenant else "padding" if slot == 0 else "free"
    lines = [f"slot {slot} ({whose})"]
    runs: list[tuple[int, int, Written | None]] = []
    for row in range(slot * ghost.stride, (slot + 1) * ghost.stride):
        written = ghost.written(row)
        if runs and _follows(runs[-1], row, written):
            runs[-1] = (runs[-1][0], row, runs[-1][2])
        else:
            runs.append((row, row, written))
    for first, last, written in runs:
        rows = f"row {first}" if first == last else f"rows {first}-{last}"
        lines.append(f"  {rows:<14}{_spell(ghost, written, last - first)}")
    return lines


def _follows(run: tuple[int, int, Written | None], row: int, written: Written | None) -> bool:
    first, _, start = run
    if start is None or written is None:
        return start is written
    return (
        written.occupancy == start.occupancy
        and written.rejected == start.rejected
        and written.position == start.position + row - first
    )


def _spell(ghost: Ghost, written: Written | None, further: int) -> str:
    if written is None:
        return "nothing"
    lease = ghost.lease_of(written.occupancy)
    first, last = written.position, written.position + further
    positions = f"position {first}" if first == last else f"positions {first}-{last}"
    owner = f"{lease.request} (occupancy {written.occupancy})" if lease else "padding"
    return f"{positions} of {owner}" + (", rejected" if written.rejected else "")


def _draw_pools(pools: Pools, started: Started, texts: dict[int, str]) -> Iterator[str]:
    size = started.geometry.page_size
    pages = started.geometry.pool_tokens // size
    yield f"free pages: {len(pools.free)} of {pages}; free slots: {_spans(pools.free_slots)}"
    for holding in pools.holdings:
        held = dict.fromkeys(page_of(FullLoc(loc), size) for loc in holding.locs)
        yield (
            f"{holding.request} holds {len(holding.locs)} tokens, {holding.protected_len} of them "
            f"the tree's, in {_pages(held)}"
        )
    yield "tree" if pools.nodes else "tree: empty"
    depth: list[int] = []
    for node in pools.nodes:
        depth.append(0 if node.parent < 0 else depth[node.parent] + 1)
        held = dict.fromkeys(page_of(FullLoc(loc), size) for loc in node.locs)
        marks = "".join(
            [
                f", full_lock {node.full_lock}" if node.full_lock else "",
                f", swa_lock {node.swa_lock}" if node.swa_lock else "",
                ", tombstone" if node.tombstone else "",
            ]
        )
        yield (
            f"{'  ' * (depth[-1] + 1)}{_spell_tokens(node.tokens, texts)} in {_pages(held)}{marks}"
        )


def _spell_tokens(tokens: Sequence[int], texts: dict[int, str]) -> str:
    words: list[tuple[int, int, int]] = []
    for token in tokens:
        text, position = divmod(token, TEXT_TOKENS)
        if words and words[-1][0] == text and words[-1][2] == position:
            words[-1] = (text, words[-1][1], position + 1)
        else:
            words.append((text, position, position + 1))
    return " ".join(f"{texts.get(text, f'text {text}')}[{a}:{b}]" for text, a, b in words)


def _pages(numbers: Iterable[int]) -> str:
    pages = [*numbers]
    return f"page{'s' * (len(pages) != 1)} {_spans(pages)}"


def _spans(numbers: Iterable[int]) -> str:
    spans: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1] = (spans[-1][0], number)
        else:
            spans.append((number, number))
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans) or "none"
