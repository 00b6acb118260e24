"""One attention layer over a release's unified buffer, through the release's own wrappers.

Runs in the engine's process and launches what ``_forward_unified_kv`` of the release's backend
(``layers/attention/deepseek_v4_backend_hip_radix.py``) launches, in its order and with its dtypes:
index lists with the compressed rows behind the ring's, attention, scatter. Which compressed rows a
query sees is the caller's to say, as the backend takes it from its metadata.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch

from kvproof.kernels.engines.shims import compute_units
from kvproof.kernels.family import Family
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.spec.exact import compressed_end
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import (
    Order,
    decode_reads,
    floored_ring_reads,
    prefill_ring_reads,
    scatter_keeps,
    window_start,
)

SELECTED_RATIO = 4
"""Ratio whose rows an indexer selects: they take the wrappers' second path."""

_ALL_RATIO = 128
"""Ratio of the path that sees every compressed row. The kernels do not use the number."""

LOG2E = 1.4426950408889634
"""What the wrappers multiply a softmax scale by."""


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU: the wrappers refuse queries that are not."""

    is_cuda = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Queries:
    """A ragged batch of queries, one entry a token.

    Attributes:
        q: ``[tokens, heads, dim]``, bf16.
        keys: ``[tokens, dim]``, bf16: their own.
        slots: request slot.
        positions: position.
        chunk_starts: first position of the request's chunk.
        first_rows: row of the chunk's first token in the batch.
        final_positions: last position of the chunk that the scatter takes for the final one.
        floors: position from which on ring rows are read beside the chunk; None for all of the
            window, as in the releases.
        table: compressed rows that each sees, ``[tokens, width]`` int32, counted from the first
            compressed row, in front; -1 after them. None in a layer without.
    """

    q: torch.Tensor
    keys: torch.Tensor
    slots: Sequence[int]
    positions: Sequence[int]
    chunk_starts: Sequence[int]
    first_rows: Sequence[int]
    final_positions: Sequence[int]
    table: torch.Tensor | None = None
    floors: Sequence[int] | None = None

    def ring_reads(self, at: int, window: int) -> range:
        """Positions that a query reads from the ring beside its chunk."""
        position, start = Position(self.positions[at]), Position(self.chunk_starts[at])
        if self.floors is None:
            return range(*prefill_ring_reads(position, start, window))
        return range(*floored_ring_reads(position, start, self.floors[at], window))


class LayerLaunches(Protocol):
    """What runs the attention of a layer: the real kernels, or the specification's rules."""

    @property
    def verify_order(self) -> Order:
        """Whether a verify step writes its draft's rows before or after it reads."""

    def row_places(
        self, locs: torch.Tensor, start: int, *, ratio: int, page_size: int
    ) -> tuple[list[int], list[list[int]]]:
        """Where the compressed rows of a chunk go, and which rows its queries see.

        Args:
            locs: locations of all of the request's tokens, up to the chunk's end.
            start: first position of the chunk.
            ratio: tokens of a row.
            page_size: tokens of a page.

        Returns:
            For each token of the chunk the row that it completes, -1 for none; and the rows that it
            sees, in order. Both are counted from the first compressed row of the buffer.
        """

    def beside(
        self, ring: Ring, queries: Queries, *, ratio: int
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """Attend over the ring, the compressed rows and the chunk itself; then scatter the chunk.

        Args:
            ring: of the layer, with compressed rows behind ``ring.pages``; written in place.
            queries: what is attended.
            ratio: tokens of a compressed row, 0 for a layer without.

        Returns:
            Output ``[tokens, heads, dim]``, and the rows of the buffer that each query was given.
        """

    def after_store(
        self, ring: Ring, queries: Queries, *, ratio: int
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """Scatter the queries' keys, then attend over ring and compressed rows. As `beside`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerKernels:
    """The launches of a layer: `LayerLaunches` on the real kernels."""

    ring: RingKernels
    metadata: Callable[..., tuple[torch.Tensor, ...]]
    prefill_attention: Callable[..., torch.Tensor]
    decode_attention: Callable[..., torch.Tensor]
    fill_tail: Callable[..., None]

    @classmethod
    def of_family(cls, family: Family, *, units: int = 0) -> LayerKernels:
        """Import the wrappers of this process's engine.

        Args:
            family: of the engine.
            units: compute units that the decode attention splits a query's keys over; 0 for none.
        """
        compute_units(units)
        streams = importlib.import_module(family.launcher("decode streams").__module__)
        return cls(
            ring=RingKernels.of_family(family),
            metadata=family.part("compression metadata"),
            prefill_attention=family.launcher("prefill attention"),
            decode_attention=family.launcher("decode attention"),
            fill_tail=streams.fill_compress_tail,
        )

    @property
    def verify_order(self) -> Order:
        """The release's."""
        return self.ring.verify_order

    def row_places(
        self, locs: torch.Tensor, start: int, *, ratio: int, page_size: int
    ) -> tuple[list[int], list[list[int]]]:
        """From the release's metadata kernel, which knows ratios 4 and 128 and pages of 128.

        Other ratios and pages are for small runs, and take the rule. Of the rows of ratio 4 the
        indexer chooses; here all are seen.
        """
        if ratio not in (SELECTED_RATIO, _ALL_RATIO) or page_size % _ALL_RATIO:
            return rows_by_rule(locs, start, ratio=ratio)
        end = len(locs)
        positions = torch.arange(start, end, dtype=torch.int32, device=locs.device)
        pages = (locs[::page_size] // page_size).to(torch.int32)
        some, _, some_lengths, _, every, _, _, _, table = self.metadata(
            positions + 1,
            positions,
            locs[start:].to(torch.int64),
            pages.expand(end - start, -1).contiguous(),
            page_size,
            compute_page_indices=True,
        )
        completes = ((positions + 1) % ratio == 0).tolist()
        places = (some if ratio == SELECTED_RATIO else every).tolist()
        if ratio == SELECTED_RATIO:
            _, all_seen = rows_by_rule(locs, end - 1, ratio=ratio)
            seen = [all_seen[0][:length] for length in some_lengths.tolist()]
        else:
            seen = [[row for row in rows if row >= 0] for rows in table.tolist()]
        return [at if done else -1 for at, done in zip(places, completes, strict=True)], seen

    def beside(
        self, ring: Ring, queries: Queries, *, ratio: int
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """The prefill path."""
        as_int64 = _int64(ring)
        tables: dict[str, Any] = {"c128_page_indices": None, "c4_sparse_page_indices": None}
        if ratio:
            name = "c4_sparse" if ratio == SELECTED_RATIO else "c128"
            tables[f"{name}_page_indices"] = queries.table
        prefix, prefix_edges, own, own_edges = self.ring.prefill_indices(
            compress_ratio=ratio if ratio in (0, SELECTED_RATIO) else _ALL_RATIO,
            state_slot=as_int64(queries.slots),
            positions=as_int64(queries.positions),
            chunk_start=as_int64(queries.chunk_starts),
            cu_q=as_int64(queries.first_rows),
            win=ring.window,
            ring_stride=ring.stride,
            swa_pages=ring.pages,
            **tables,
        )
        if queries.floors is not None:
            prefix, prefix_edges = _floored(prefix, prefix_edges, ring, queries)
        out = self.prefill_attention(
            queries.q.as_subclass(OnGpu), ring.rows, prefix, prefix_edges, queries.keys, own,
            own_edges, _no_sink(queries.q), 1 / LOG2E,
        )  # fmt: skip
        self._scatter(ring, queries)
        return out.as_subclass(torch.Tensor), _segments(prefix, prefix_edges)

    def after_store(
        self, ring: Ring, queries: Queries, *, ratio: int
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """The decode path."""
        positions = torch.tensor(queries.positions, dtype=torch.int32, device=ring.rows.device)
        seen = torch.clamp(positions + 1, max=ring.window)
        none = torch.zeros_like(positions)
        table = queries.table
        if table is None:
            table = positions.new_full((len(positions), 1), -1)
        lengths = (table >= 0).sum(dim=1, dtype=torch.int32)
        selected = ratio == SELECTED_RATIO
        # The index streams are built once a forward, before the first layer runs.
        swa, swa_edges, every, every_edges, some, some_edges = self.ring.decode_streams(
            state_slot=_int64(ring)(queries.slots),
            positions=positions,
            swa_len=seen,
            hca_len=none if selected else lengths,
            csa_len=lengths if selected else none,
            hca_page_indices=torch.full_like(table, -1) if selected else table,
            csa_width=table.shape[1] if selected else 0,
            win=ring.window,
            ring_stride=ring.stride,
            swa_pages=ring.pages,
        )
        self._scatter(ring, queries)
        if not ratio:
            rows, edges = swa, swa_edges
        elif selected:
            rows, edges = some, some_edges
            self.fill_tail(
                indices=rows,
                indptr=edges,
                prefix_len=seen,
                page_indices=table,
                valid_len=lengths,
                swa_pages=ring.pages,
            )
        else:
            rows, edges = every, every_edges
        out = self.decode_attention(
            queries.q.as_subclass(OnGpu), ring.rows, rows, edges, _no_sink(queries.q), 1 / LOG2E
        )
        return out.as_subclass(torch.Tensor), _segments(rows, edges)

    def _scatter(self, ring: Ring, queries: Queries) -> None:
        self.ring.scatter(
            ring,
            queries.keys,
            slots=queries.slots,
            positions=queries.positions,
            final_positions=queries.final_positions,
        )


def _int64(ring: Ring) -> Callable[[Sequence[int]], torch.Tensor]:
    return lambda values: torch.tensor(values, dtype=torch.int64, device=ring.rows.device)


def _no_sink(q: torch.Tensor) -> torch.Tensor:
    """A sink that takes no weight: its exponential is zero."""
    return torch.full((q.shape[1],), -1e30, dtype=torch.float32, device=q.device)


def _segments(flat: torch.Tensor, edges: torch.Tensor) -> list[list[int]]:
    rows: list[int] = flat.tolist()
    return [rows[start:end] for start, end in pairwise(edges.tolist())]


def _floored(
    flat: torch.Tensor, edges: torch.Tensor, ring: Ring, queries: Queries
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the index kernel named, without the ring rows below each query's floor."""
    kept: list[list[int]] = []
    for at, rows in enumerate(_segments(flat, edges)):
        in_ring = [row for row in rows if row < ring.pages]
        left = len(queries.ring_reads(at, ring.window))
        kept.append([*in_ring[len(in_ring) - left :], *rows[len(in_ring) :]])
    ends = [0, *accumulate(map(len, kept))]
    return flat.new_tensor([row for rows in kept for row in rows]), edges.new_tensor(ends)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRules:
    """`LayerLaunches` by the specification: a hundred times as quick as the interpreter.

    Outputs are rounded to the nearest, where the interpreter cuts bits off, so states are others
    than there. Which of them are a cold run's does not depend on that.
    """

    verify_order: Order

    def row_places(
        self, locs: torch.Tensor, start: int, *, ratio: int, page_size: int
    ) -> tuple[list[int], list[list[int]]]:
        """By `rows_by_rule`."""
        return rows_by_rule(locs, start, ratio=ratio)

    def beside(
        self, ring: Ring, queries: Queries, *, ratio: int
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """The prefill path."""
        given, keys = [], []
        for at, position in enumerate(queries.positions):
            start = queries.chunk_starts[at]
            given.append(self._rows(ring, queries, at, queries.ring_reads(at, ring.window)))
            first = queries.first_rows[at] - start
            own = range(max(window_start(Position(position), ring.window), start), position + 1)
            keys.append([ring.rows[given[at]], queries.keys[first + own.start : first + own.stop]])
        out = [_attended(q, torch.cat(parts)) for q, parts in zip(queries.q, keys, strict=True)]
        self._scatter(ring, queries)
        return torch.stack(out), given

    def after_store(
        self, ring: Ring, queries: Queries, *, ratio: int
    ) -> tuple[torch.Tensor, list[list[int]]]:
        """The decode path."""
        self._scatter(ring, queries)
        given = [
            self._rows(ring, queries, at, range(*decode_reads(Position(position), ring.window)))
            for at, position in enumerate(queries.positions)
        ]
        out = [_attended(q, ring.rows[rows]) for q, rows in zip(queries.q, given, strict=True)]
        return torch.stack(out), given

    def _rows(self, ring: Ring, queries: Queries, at: int, reads: range) -> list[int]:
        slot = Slot(queries.slots[at])
        rows: list[int] = [ring_row(slot, Position(each), ring.stride) for each in reads]
        seen = [] if queries.table is None else queries.table[at].tolist()
        return [*rows, *(ring.pages + row for row in seen if row >= 0)]

    def _scatter(self, ring: Ring, queries: Queries) -> None:
        for slot, position, final, key in zip(
            queries.slots, queries.positions, queries.final_positions, queries.keys, strict=True
        ):
            if scatter_keeps(Position(position), Position(final), ring.window):
                ring.rows[ring_row(Slot(slot), Position(position), ring.stride)] = key


def _attended(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """``[heads, dim]`` of queries ``[heads, dim]`` over ``[keys, dim]``, softmax to the base 2."""
    exact = keys.double()
    scores = q.double() @ exact.T
    weights = torch.exp2(scores - scores.amax(dim=1, keepdim=True))
    return ((weights @ exact) / weights.sum(dim=1, keepdim=True)).to(q.dtype)


def rows_by_rule(
    locs: torch.Tensor, start: int, *, ratio: int
) -> tuple[list[int], list[list[int]]]:
    """`LayerLaunches.row_places`: a row lies at the place of its last token in its page."""
    rows = [loc // ratio for loc in locs[ratio - 1 :: ratio].tolist()]
    positions = range(start, len(locs))
    seen = [rows[: compressed_end(position, ratio) // ratio] for position in positions]
    return [
        rows[position // ratio] if (position + 1) % ratio == 0 else -1 for position in positions
    ], seen
