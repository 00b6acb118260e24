"""A layered run in digests: what a stack of layers computes, without floats.

Every state is a digest of exactly what the layer read for it: the token's state below, the keys in
its window, the compressed rows before it. Two runs have the same output if and only if all that
flowed into it is the same (but for collisions of 64 bits). So this is a run of a model whose
arithmetic forgets nothing: the strictest that a determinism harness can look at. The reads come
from a log, which may be a real release's; the tokens are the scenario's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvproof.model.facts import Admitted, Advanced, Ended, Fact, Pools, Read, Released, Step, Wrote
from kvproof.model.facts import Started as StartedFact
from kvproof.model.layers import Stack
from kvproof.model.scenario import Prompt, Submit, text_at
from kvproof.spec.exact import compressed_end
from kvproof.spec.indices import FullLoc, Page, Position
from kvproof.spec.pages import page_of
from kvproof.spec.window import window_start

Digest = bytes

NOTHING: Digest = b"nothing"
"""What a ring row holds that nobody wrote, and a key that a reader leaves out."""


def digest(*parts: object) -> Digest:
    """Eight bytes that stand for all parts in their order."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()


@dataclass(slots=True)
class _Run:
    name: str
    occupancy: int
    prompt: Prompt
    prompt_len: int
    matched: int
    computed: int
    states: list[dict[int, Digest]]
    reads: dict[int, dict[int, tuple[int, int] | None]] = field(default_factory=dict)
    outputs: list[Digest] = field(default_factory=list)
    chunk: tuple[int, int] | None = None


@dataclass(slots=True)
class Digests:
    """Feed it a log's facts.

    Attributes:
        outputs: of every admission in turn, the request and its outputs: one for the last prompt
            token, and one a decoded position.
    """

    stack: Stack
    outputs: list[tuple[str, list[Digest]]] = field(default_factory=list)
    window: int = 1
    page_size: int = 1
    _prompts: dict[str, Prompt] = field(default_factory=dict)
    _runs: dict[str, _Run] = field(default_factory=dict)
    _by_occupancy: dict[int, _Run] = field(default_factory=dict)
    _ring: dict[int, tuple[int, int]] = field(default_factory=dict)
    _rows: dict[Page, list[list[Digest]]] = field(default_factory=dict)
    _published: set[Page] = field(default_factory=set)
    _pools: Pools | None = None

    def feed(self, fact: Fact) -> None:
        """Take in the next fact."""
        match fact:
            case StartedFact():
                self.window = fact.geometry.window
                self.page_size = fact.geometry.page_size
            case Step():
                self._settle(self._pools)
                if isinstance(fact.operation, Submit):
                    self._prompts[fact.operation.request] = fact.operation.prompt
            case Admitted():
                self._admit(fact)
            case Wrote():
                run = self._runs.get(fact.request or "")
                for position, row in zip(fact.positions, fact.rows, strict=True):
                    self._ring[row] = (run.occupancy if run else 0, position)
            case Read():
                self._read(fact)
            case Advanced():
                run = self._runs[fact.request]
                run.chunk = (run.computed, fact.computed_len)
            case Pools():
                self._snapshot(fact)
            case Released():
                self._settle(self._pools)
                self._runs.pop(fact.request, None)
            case Ended():
                self._settle(self._pools)
            case _:
                pass  # other facts carry no state

    def _admit(self, fact: Admitted) -> None:
        run = _Run(
            name=fact.request, occupancy=len(self._by_occupancy) + 1,
            prompt=self._prompts[fact.request], prompt_len=fact.prompt_len,
            matched=fact.matched_len, computed=fact.matched_len,
            states=[{} for _ in range(self.stack.layers + 1)],
        )  # fmt: skip
        self._runs[fact.request] = self._by_occupancy[run.occupancy] = run
        self.outputs.append((run.name, run.outputs))

    def _read(self, fact: Read) -> None:
        run = self._runs.get(fact.request or "")
        if run is None:
            return
        floored = self.stack.reading == "floored reads" and fact.mode == "prefill"
        run.reads[fact.position] = {
            position: None if floored and position < run.matched else self._ring.get(row)
            for position, row in enumerate(fact.rows, fact.first)
        }

    def _settle(self, pools: Pools | None) -> None:
        """Compute what was launched in this step, now that the pools are known."""
        for run in self._runs.values():
            if run.chunk is None:
                continue
            start, end = run.chunk
            inherited = self._inherited(run, pools)
            for position in range(start, end):
                text = text_at(run.prompt, position)
                run.states[0][position] = digest("token", text, position)
            for layer in range(1, self.stack.layers + 1):
                for position in range(start, end):
                    run.states[layer][position] = self._state(run, layer, position, inherited)
            run.outputs += [
                run.states[-1][position] for position in range(start, end)
                if position >= run.prompt_len - 1
            ]  # fmt: skip
            run.computed, run.chunk, run.reads = end, None, {}

    def _state(
        self, run: _Run, layer: int, query: int, inherited: Sequence[Sequence[Sequence[Digest]]]
    ) -> Digest:
        below = run.states[layer - 1]
        ring = run.reads.get(query, {})
        keys = []
        for position in range(window_start(Position(query), self.window), query + 1):
            if position in ring:
                keys.append(self._key(layer - 1, ring[position]))
            else:
                keys.append(below.get(position, NOTHING))
        parts = [below[query], *keys]
        if self.stack.ratios[layer - 1]:
            parts += self._compressed(run, layer, query, inherited)
        return digest(layer, *parts)

    def _key(self, layer: int, writer: tuple[int, int] | None) -> Digest:
        if writer is None:
            return NOTHING
        occupancy, position = writer
        run = self._by_occupancy.get(occupancy)
        return run.states[layer].get(position, NOTHING) if run else NOTHING

    def _compressed(
        self, run: _Run, layer: int, query: int, inherited: Sequence[Sequence[Sequence[Digest]]]
    ) -> list[Digest]:
        rows = [row for page in inherited for row in page[layer - 1]]
        ratio = self.stack.ratios[layer - 1]
        complete = compressed_end(query, ratio) // ratio
        return [
            *rows[:complete],
            *(self._row(run, layer, index) for index in range(len(rows), complete)),
        ]

    def _row(self, run: _Run, layer: int, index: int) -> Digest:
        ratio, below = self.stack.ratios[layer - 1], run.states[layer - 1]
        positions = range(index * ratio, (index + 1) * ratio)
        return digest("row", *(below.get(position, NOTHING) for position in positions))

    def _inherited(self, run: _Run, pools: Pools | None) -> list[list[list[Digest]]]:
        """Compressed rows that come from the tree: by page, layer, row."""
        if not any(self.stack.ratios):
            return []
        pages = self._held(run, pools)
        reused = run.matched // self.page_size
        if self.stack.reading == "rebuild":
            while reused < len(pages) and pages[reused] in self._published:
                reused += 1
        return [self._rows[page] for page in pages[:reused]]

    def _held(self, run: _Run, pools: Pools | None) -> list[Page]:
        for holding in pools.holdings if pools else ():
            if holding.request == run.name:
                starts = holding.locs[:: self.page_size]
                return [page_of(FullLoc(loc), self.page_size) for loc in starts]
        return []

    def _snapshot(self, pools: Pools) -> None:
        self._settle(pools)
        in_tree = {
            page_of(FullLoc(loc), self.page_size)
            for node in pools.nodes for loc in node.locs[:: self.page_size]
        }  # fmt: skip
        if any(self.stack.ratios):
            for run in self._runs.values():
                self._record(run, self._held(run, pools))
        self._published, self._pools = in_tree, pools

    def _record(self, run: _Run, pages: Sequence[Page]) -> None:
        """Rows of whole pages that a request computed itself."""
        size = self.page_size
        for number, page in enumerate(pages):
            start, end = number * size, (number + 1) * size
            if start < run.matched or end > run.computed or page in self._published:
                continue
            self._rows[page] = [
                [self._row(run, layer, at // ratio) for at in range(start, end, ratio)]
                if ratio
                else []
                for layer, ratio in self.stack.numbered()
            ]


def outputs_of(log: Iterable[Fact], stack: Stack) -> list[tuple[str, list[Digest]]]:
    """Requests of a log in the order of their admissions, each with its outputs."""
    digests = Digests(stack)
    for fact in log:
        digests.feed(fact)
    return digests.outputs
