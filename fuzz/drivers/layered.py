"""A stack of layers on a release's real kernels, run with the cache and without.

Each layer has a unified buffer as the release lays it out: the ring first, by the release's own
numbers, compressed rows behind it, at the place of the group's last token in its page. The engine's
own pool has a single small layer: slots, pages and tree are its, the layers' buffers are ours.

Beside the numbers each layer has a ring with payloads (`forward`), moved by launches of their own:
who wrote what was read. All layers must agree, and attention must be given those rows. What is
reported is the first layer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch

from kvproof.fuzz.drivers.payload import ELEMENTS
from kvproof.kernels.exact_model import ExactModel, relative_error
from kvproof.kernels.launch import Ring
from kvproof.kernels.layer import LayerLaunches, Queries, rows_by_rule
from kvproof.model.facts import (
    Admitted,
    Advanced,
    Compared,
    Ended,
    Fact,
    Mode,
    Read,
    Released,
    Skipped,
    Stored,
    Wrote,
)
from kvproof.model.forward import FlooredForward
from kvproof.model.layers import Reading
from kvproof.model.player import Forward, Lane, Player
from kvproof.model.scenario import (
    Decode,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    token_ids,
)
from kvproof.spec.exact import exact_decode_tail
from kvproof.spec.pages import page_ceil

TokensOf: TypeAlias = Callable[[str, int, int], Sequence[int]]
"""Token ids of a request's positions ``[start, end)``."""


class LayersDisagreeError(RuntimeError):
    """Two layers of a launch moved other rows, or attention was given others."""


@dataclass(slots=True)
class Trace:
    """What one occupancy computed.

    Attributes:
        states: state of each position, by layer; layer 0 are embeddings.
        rows: compressed rows that its last query saw, by layer: ``[rows, dim]``.
    """

    states: list[dict[int, torch.Tensor]]
    rows: list[torch.Tensor]

    def above(self, layer: int, start: int, end: int) -> torch.Tensor:
        """States ``[positions, dim]`` of a layer."""
        return torch.stack([self.states[layer][position] for position in range(start, end)])


class LayeredForward:
    """`kvproof.model.player.Forward` through a stack of layers."""

    def __init__(
        self,
        *,
        engine: Any,
        launches: LayerLaunches,
        follow: Callable[[Ring], Forward],
        model: ExactModel,
        ratios: Sequence[int],
        reading: Reading = "cap",
    ) -> None:
        """Make empty layers.

        Args:
            engine: whose slots and pages they are for.
            launches: what runs their attention.
            follow: what names and follows the rows of one layer, in a ring of payloads.
            model: their weights.
            ratios: see `model.layers.Stack`.
            reading: the same.
        """
        self.engine = engine
        self.launches = launches
        self.model = model
        self.ratios = tuple(ratios)
        self.traces: dict[int, Trace] = {}
        self.stored: dict[str, Stored] = {}
        self.reading = reading
        self.matched: dict[int, int] = {}
        self.tokens_of: TokensOf | None = None
        device = model.embedding.device
        sizes = Ring.of_pool(engine.kv_pool)
        geometry = engine.geometry
        # Locations go from one page on; the page before them is the padded rows'.
        tokens = geometry.pool_tokens + geometry.page_size
        self.rings: list[Ring] = []
        self.provenance: list[Forward] = []
        for ratio in self.ratios:
            rows = sizes.pages + (tokens // ratio + 1 if ratio else 0)
            zeros = torch.zeros(rows, model.dim, dtype=torch.bfloat16, device=device)
            self.rings.append(replace(sizes, rows=zeros))
            tags = torch.zeros(sizes.pages, ELEMENTS, dtype=torch.bfloat16, device=device)
            followed = follow(replace(sizes, rows=tags))
            if reading == "floored reads":
                followed = FlooredForward(followed, sizes.window)
            self.provenance.append(followed)

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """Read the old window, then scatter the chunk."""
        facts: list[Read | Wrote] = []
        for lane in lanes:
            if lane.occupancy in self.matched:
                continue
            self.matched[lane.occupancy] = lane.start
            if self.reading == "rebuild" and lane.start:
                facts += self._launch([self._replay(lane)], "prefill", beside=True, replays=True)
        return [*facts, *self._launch(lanes, "prefill", beside=True)]

    def _replay(self, lane: Lane) -> Lane:
        """The end of what a request reuses, computed again for the rings' sake alone."""
        assert lane.request is not None
        assert self.tokens_of is not None, "a rebuild needs the tokens of what is reused"
        reach = exact_decode_tail(len(self.rings), self.rings[0].window)
        start = max(0, lane.start - reach)
        tokens = self.tokens_of(lane.request, start, lane.start)
        return replace(lane, start=start, end=lane.start, tokens=tokens)

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """Scatter the queries' own keys, then read."""
        return self._launch(lanes, "decode", beside=False)

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """Scatter and read the draft in the release's order."""
        beside = self.launches.verify_order == "read, then write"
        return self._launch(lanes, "verify", beside=beside)

    def _launch(
        self, lanes: Sequence[Lane], mode: Mode, *, beside: bool, replays: bool = False
    ) -> list[Read | Wrote]:
        facts: list[Read | Wrote] = []
        self.stored = {
            lane.request: self._stored(lane.request, lane)
            for lane in lanes
            if lane.request is not None
        }
        states = self.model.embed([token for lane in lanes for token in lane.tokens])
        self._keep(0, lanes, states)
        for layer, (ring, provenance) in enumerate(
            zip(self.rings, self.provenance, strict=True), 1
        ):
            moved = {
                "prefill": provenance.prefill,
                "decode": provenance.decode,
                "verify": provenance.verify,
            }[mode](lanes)
            if layer == 1:
                facts = moved
            elif moved != facts:
                raise LayersDisagreeError(f"layer {layer} moved other rows than layer 1")
            states, given = self._layer(
                layer, ring, lanes, states,
                beside=beside, floored=mode == "prefill" and self.reading == "floored reads",
                replays=replays,
            )  # fmt: skip
            self._check_given(layer, ring, given, facts)
            self._keep(layer, lanes, states)
        return facts

    def _layer(
        self,
        layer: int,
        ring: Ring,
        lanes: Sequence[Lane],
        states: torch.Tensor,
        *,
        beside: bool,
        floored: bool,
        replays: bool,
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """States above a layer, and the rows of the buffer that each query was given."""
        weights, ratio = self.model.layers[layer - 1], self.ratios[layer - 1]
        tokens = [(lane, position) for lane in lanes for position in range(lane.start, lane.end)]
        firsts: list[int] = []
        for lane in lanes:
            firsts += [len(firsts)] * (lane.end - lane.start)
        table = self._compress(layer, ring, lanes, ratio, replays=replays) if ratio else None
        queries = Queries(
            q=weights.queries(states),
            keys=weights.keys(states),
            slots=[lane.slot for lane, _ in tokens],
            positions=[position for _, position in tokens],
            chunk_starts=[lane.start for lane, _ in tokens],
            first_rows=firsts,
            # Past a store, each token is its own last one, so that none is filtered out.
            final_positions=[lane.end - 1 if beside else position for lane, position in tokens],
            table=table,
            floors=[self.matched[lane.occupancy] for lane, _ in tokens] if floored else None,
        )
        attend = self.launches.beside if beside else self.launches.after_store
        attended, given = attend(ring, queries, ratio=ratio)
        return weights.update(states, attended), given

    def _compress(
        self, layer: int, ring: Ring, lanes: Sequence[Lane], ratio: int, *, replays: bool
    ) -> torch.Tensor:
        """Write the rows that these lanes complete; the rows that each of their queries sees.

        A replay finds its rows in the tree, and leaves them as they are.
        """
        weights = self.model.layers[layer - 1]
        seen: list[list[int]] = []
        for lane in lanes:
            if lane.request is None:
                seen += [[] for _ in range(lane.start, lane.end)]
                continue
            locs = self.engine.requests.req_to_token[lane.slot, : lane.end].to(ring.rows.device)
            places, visible = self.launches.row_places(
                locs, lane.start, ratio=ratio, page_size=self.engine.geometry.page_size
            )
            if (places, visible) != rows_by_rule(locs, lane.start, ratio=ratio):
                raise LayersDisagreeError(
                    f"compressed rows of layer {layer} are not where the rule puts them"
                )
            trace = self.traces[lane.occupancy]
            for position, place in enumerate(places, lane.start):
                if place >= 0 and not replays:
                    below = trace.above(layer - 1, position + 1 - ratio, position + 1)
                    ring.rows[ring.pages + place] = weights.pooled(below)
            seen += visible
            trace.rows[layer] = ring.rows[[ring.pages + row for row in visible[-1]]].clone()
        width = max(1, *(len(rows) for rows in seen))
        return torch.tensor(
            [[*rows, *[-1] * (width - len(rows))] for rows in seen],
            dtype=torch.int32,
            device=ring.rows.device,
        )

    def _stored(self, request: str, lane: Lane) -> Stored:
        locs = self.engine.requests.req_to_token[lane.slot, lane.start : lane.end]
        return Stored(request=request, start=lane.start, locs=tuple(locs.tolist()))

    def _keep(self, layer: int, lanes: Sequence[Lane], states: torch.Tensor) -> None:
        at = 0
        for lane in lanes:
            if lane.request is not None:
                trace = self._trace(lane)
                for position in range(lane.start, lane.end):
                    trace.states[layer][position] = states[at + position - lane.start]
            at += lane.end - lane.start

    def _trace(self, lane: Lane) -> Trace:
        if lane.occupancy not in self.traces:
            layers = range(len(self.rings) + 1)
            none = self.rings[0].rows[:0]
            self.traces[lane.occupancy] = Trace(
                states=[{} for _ in layers], rows=[none for _ in layers]
            )
        return self.traces[lane.occupancy]

    def _check_given(
        self, layer: int, ring: Ring, given: list[list[int]], facts: Sequence[Read | Wrote]
    ) -> None:
        in_ring = [[row for row in rows if row < ring.pages] for rows in given]
        named = [list(fact.rows) for fact in facts if isinstance(fact, Read)]
        if [rows for rows in in_ring if rows] != named:
            raise LayersDisagreeError(
                f"attention of layer {layer} was given other rows than those that were followed"
            )


@dataclass(slots=True)
class _Lease:
    """A request while it holds its slot."""

    occupancy: int
    prompt: Prompt
    prompt_len: int
    matched: int
    computed: int


class Make(Protocol):
    """What makes a fresh engine, and the layers behind it."""

    def __call__(self, geometry: Geometry, *, alone: bool) -> tuple[Any, LayeredForward]:
        """For a scenario, or for one of its requests alone: then without its seeded faults."""


@dataclass(slots=True)
class LayeredPlayer:
    """Plays a scenario through the layers, and each of its requests alone on an empty cache.

    Alone a request does not draft: what a verify keeps must be what plain decodes compute, one
    token at a time. Overlapped steps are refused: a log does not tell whose compressed rows a page
    holds while the step that publishes it and the next one are both in flight.
    """

    make: Make
    ratios: tuple[int, ...]
    compared: str = ""
    _cold: dict[tuple[int, ...], Trace] = field(default_factory=dict)
    _noises: dict[tuple[tuple[int, ...], int], float] = field(default_factory=dict)

    def play(self, scenario: Scenario) -> Iterator[Fact]:
        """Yield the facts of the scenario, and before each release how its request departs."""
        if scenario.geometry.overlap:
            raise ValueError("overlapped steps do not go through the layers")
        engine, forward = self.make(scenario.geometry, alone=False)
        player = Player(engine=engine, forward=forward)
        forward.tokens_of = lambda name, start, end: token_ids(
            player.texts, player.requests[name].prompt, start, end
        )
        leases: dict[str, _Lease] = {}
        occupancies = 0
        for fact in player.play(scenario):
            match fact:
                case Admitted():
                    occupancies += 1
                    leases[fact.request] = _Lease(
                        occupancy=occupancies,
                        prompt=player.requests[fact.request].prompt,
                        prompt_len=fact.prompt_len,
                        matched=fact.matched_len,
                        computed=fact.matched_len,
                    )
                case Advanced():
                    leases[fact.request].computed = fact.computed_len
                    yield forward.stored[fact.request]
                case Released():
                    yield from self._compared(fact.request, leases, forward, player, scenario)
                    engine.takes_over()
                case Ended():
                    for name in [*leases]:
                        yield from self._compared(name, leases, forward, player, scenario)
            yield fact

    def _compared(
        self,
        name: str,
        leases: dict[str, _Lease],
        forward: LayeredForward,
        player: Player,
        scenario: Scenario,
    ) -> Iterator[Compared]:
        lease = leases.pop(name, None)
        if lease is None or lease.computed == lease.matched:
            return
        if not name.startswith(self.compared):
            return
        trace = forward.traces.pop(lease.occupancy)
        cold = self._cold_run(lease, player.texts, scenario)
        layers = range(1, len(self.ratios) + 1)
        start, end = lease.matched, lease.computed
        yield Compared(
            request=name,
            ratios=self.ratios,
            start=start,
            states=tuple(
                tuple(relative_error(trace.above(at, start, end), cold.above(at, start, end)))
                for at in layers
            ),
            rows=tuple(tuple(self._row_errors(at, end, trace, cold)) for at in layers),
            # Without reuse the run is itself a second batching of the cold one.
            noise=self._noise(lease, cold, player.texts, scenario) if start else 0.0,
        )

    def _row_errors(self, layer: int, end: int, found: Trace, cold: Trace) -> list[float]:
        """Of the rows that are complete at ``end``: a draft's last query sees more."""
        ratio = self.ratios[layer - 1]
        seen = found.rows[layer][: end // ratio if ratio else 0]
        return relative_error(seen, cold.rows[layer][: len(seen)])

    def _noise(
        self, lease: _Lease, cold: Trace, texts: Mapping[str, int], scenario: Scenario
    ) -> float:
        """Largest error of a cold run in chunks of a page against one in a single chunk."""
        key = (tuple(token_ids(texts, lease.prompt, 0, lease.computed)), lease.prompt_len)
        if key not in self._noises:
            self._noises[key] = self._measured_noise(lease, cold, texts, scenario)
        return self._noises[key]

    def _measured_noise(
        self, lease: _Lease, cold: Trace, texts: Mapping[str, int], scenario: Scenario
    ) -> float:
        size = scenario.geometry.page_size
        chunks = page_ceil(lease.prompt_len, size) // size
        chunked = self._alone(
            lease, texts, scenario, [Prefill(request="alone", tokens=size)] * chunks
        )
        errors = [0.0]
        for layer in range(1, len(self.ratios) + 1):
            states = chunked.above(layer, 0, lease.computed)
            errors += relative_error(states, cold.above(layer, 0, lease.computed))
            errors += self._row_errors(layer, lease.computed, chunked, cold)
        return max(errors)

    def _cold_run(self, lease: _Lease, texts: Mapping[str, int], scenario: Scenario) -> Trace:
        """The prompt alone on an empty cache, in one chunk; another's that begins so will do."""
        tokens = tuple(token_ids(texts, lease.prompt, 0, max(lease.computed, lease.prompt_len)))
        for known, trace in self._cold.items():
            if known[: len(tokens)] == tokens:
                return trace
        self._cold[tokens] = self._alone(lease, texts, scenario, [Prefill(request="alone")])
        return self._cold[tokens]

    def _alone(
        self,
        lease: _Lease,
        texts: Mapping[str, int],
        scenario: Scenario,
        prefills: Sequence[Operation],
    ) -> Trace:
        geometry = _roomy(scenario.geometry)
        engine, forward = self.make(geometry, alone=True)
        # One that was retracted comes back with its answer as part of its prompt.
        *pieces, last = lease.prompt
        prompt = (*pieces, Piece(last.text, max(last.until, lease.prompt_len)))
        player = Player(engine=engine, forward=forward, texts=dict(texts))
        alone = Scenario(
            geometry=geometry,
            operations=(
                Submit(request="alone", prompt=prompt),
                *prefills,
                *[Decode()] * (lease.computed - lease.prompt_len),
            ),
        )
        for fact in player.play(alone):
            if isinstance(fact, Skipped):
                raise RuntimeError(f"a request alone on an empty cache is refused: {fact.reason}")
        return forward.traces[1]


def _roomy(geometry: Geometry) -> Geometry:
    """Plain decodes, and room for a whole prompt where a hit needed room for its tail alone."""
    tokens = geometry.pool_tokens + max(geometry.pool_tokens, 4 * geometry.page_size)
    return Geometry(
        window=geometry.window,
        page_size=geometry.page_size,
        slots=geometry.slots,
        pool_tokens=tokens,
    )
