"""Random launches of a release's kernels through its own wrappers, within the host's guarantees.

Runs in the engine's process. The same launch serves two ends: compiled for a GPU that is not there,
it gives the exact code that the engine would launch (`capture`); in the interpreter it gives the
stores that the symbolic model of that code must predict. Dtypes are those that the attention
backend passes (``layers/attention/deepseek_v4_backend_hip_radix.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from kvproof.kernels import attention_recipes, memory_recipes, store_recipes
from kvproof.kernels.family import Family
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.kernels.launch_sizes import COMPRESSED, HEAD_DIM, ROPE_DIM, WINDOW

_PAGES = 4096
_DRAFT_TOKENS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """A ragged batch, one entry a token.

    Attributes:
        slots: request slot.
        positions: position.
        chunk_starts: first position of the request's chunk.
        first_rows: row of the chunk's first token in the batch.
        final_positions: last position of the request's chunk.
    """

    slots: torch.Tensor
    positions: torch.Tensor
    chunk_starts: torch.Tensor
    first_rows: torch.Tensor
    final_positions: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    slots: int
    stride: int

    @classmethod
    def random(cls, dice: Random) -> _Sizes:
        return cls(slots=dice.randint(3, 6), stride=WINDOW + dice.choice((0, 1, 3)))

    @property
    def rows(self) -> int:
        return self.slots * self.stride


def _chunks(dice: Random, sizes: _Sizes, *, longest: int) -> _Batch:
    columns: list[tuple[int, int, int, int, int]] = []
    for slot in dice.sample(range(1, sizes.slots), dice.randint(2, sizes.slots - 1)):
        start, length = dice.choice((0, dice.randint(0, 3 * WINDOW))), dice.randint(1, longest)
        row = len(columns)
        columns += [
            (slot, at, start, row, start + length - 1) for at in range(start, start + length)
        ]
    return _Batch(
        **dict(
            zip(
                ("slots", "positions", "chunk_starts", "first_rows", "final_positions"),
                (torch.tensor(column) for column in zip(*columns, strict=True)),
                strict=True,
            )
        )
    )


def _page_table(dice: Random, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``[rows, COMPRESSED]`` int32, pages first and -1 after them; and how many pages, int32."""
    lengths = [dice.choice((0, dice.randint(0, 40), COMPRESSED)) for _ in range(rows)]
    table = torch.full((rows, COMPRESSED), -1, dtype=torch.int32)
    for row, length in enumerate(lengths):
        table[row, :length] = torch.tensor([dice.randrange(_PAGES) for _ in range(length)])
    return table, torch.tensor(lengths, dtype=torch.int32)


def _scatter(family: Family, dice: Random) -> None:
    sizes = _Sizes.random(dice)
    batch = _chunks(dice, sizes, longest=2 * sizes.stride if dice.random() < 0.2 else 5)
    family.launcher("scatter")(
        kv=torch.randn(len(batch.slots), HEAD_DIM, dtype=torch.bfloat16),
        state_slot=batch.slots,
        positions=batch.positions,
        unified_kv=torch.zeros(sizes.rows, HEAD_DIM, dtype=torch.bfloat16),
        win=WINDOW,
        ring_stride=sizes.stride,
        final_pos=batch.final_positions,
    )


def _two_pool_scatter(family: Family, dice: Random) -> None:
    """The fp8 layout: packed rows of bytes in one pool, their bf16 rope part in another."""
    sizes = _Sizes.random(dice)
    batch = _chunks(dice, sizes, longest=2 * sizes.stride if dice.random() < 0.2 else 5)
    count = len(batch.slots)
    family.launcher("scatter into two pools")(
        kv=torch.randint(0, 256, (count, HEAD_DIM), dtype=torch.uint8),
        state_slot=batch.slots,
        positions=batch.positions,
        unified_kv=torch.zeros(sizes.rows, HEAD_DIM, dtype=torch.uint8),
        win=WINDOW,
        ring_stride=sizes.stride,
        final_pos=batch.final_positions,
        kv_rope=torch.randn(count, ROPE_DIM, dtype=torch.bfloat16),
        unified_kv_rope=torch.zeros(sizes.rows, ROPE_DIM, dtype=torch.bfloat16),
    )


def _scatter_by_location(family: Family, dice: Random) -> None:
    rows, tokens = 50, dice.randint(2, 6)
    family.launcher("scatter by location")(
        kv=torch.randn(tokens, HEAD_DIM, dtype=torch.bfloat16),
        loc=torch.tensor([dice.choice((-1, at * 7)) for at in range(tokens)], dtype=torch.int32),
        unified_kv=torch.zeros(rows, HEAD_DIM, dtype=torch.bfloat16),
    )


def _decode_streams(family: Family, dice: Random) -> None:
    sizes = _Sizes.random(dice)
    count = dice.randint(2, sizes.slots - 1)
    positions = torch.tensor([dice.randint(0, 4 * WINDOW) for _ in range(count)]).to(torch.int32)
    table, lengths = _page_table(dice, count)
    family.launcher("decode streams")(
        state_slot=torch.tensor(dice.sample(range(1, sizes.slots), count)),
        positions=positions,
        swa_len=torch.clamp(positions + 1, max=WINDOW),
        hca_len=lengths,
        csa_len=torch.zeros_like(positions),
        hca_page_indices=table,
        csa_width=0,
        win=WINDOW,
        ring_stride=sizes.stride,
        swa_pages=sizes.rows,
    )


def _prefill_indices(family: Family, dice: Random, *, compressed: bool) -> None:
    sizes = _Sizes.random(dice)
    batch = _chunks(dice, sizes, longest=4 if compressed else 2 * WINDOW)
    table, _ = _page_table(dice, len(batch.slots))
    family.launcher("prefill indices")(
        compress_ratio=128 if compressed else 0,
        state_slot=batch.slots,
        positions=batch.positions,
        chunk_start=batch.chunk_starts,
        cu_q=batch.first_rows,
        win=WINDOW,
        ring_stride=sizes.stride,
        swa_pages=sizes.rows,
        c128_page_indices=table if compressed else None,
        c4_sparse_page_indices=None,
    )


def _verify_streams(family: Family, dice: Random) -> None:
    sizes = _Sizes(slots=5, stride=WINDOW + _DRAFT_TOKENS - 1)
    count = dice.randint(2, sizes.slots - 1)
    starts = [dice.choice((0, dice.randint(0, 3 * WINDOW))) for _ in range(count)]
    table, lengths = _page_table(dice, count)
    family.launcher("verify streams")(
        state_slot=torch.tensor(dice.sample(range(1, sizes.slots), count)).repeat_interleave(
            _DRAFT_TOKENS
        ),
        positions=torch.tensor([start + at for start in starts for at in range(_DRAFT_TOKENS)]),
        hca_len=lengths.repeat_interleave(_DRAFT_TOKENS),
        hca_page_indices=table.repeat_interleave(_DRAFT_TOKENS, dim=0),
        win=WINDOW,
        ring_stride=sizes.stride,
        swa_pages=sizes.rows,
        num_draft=_DRAFT_TOKENS,
        block_q=dice.choice((2, 4)),
    )


Recipe = Callable[[Family, Random], None]

RECIPES: dict[str, Recipe] = {
    "scatter": _scatter,
    "scatter by location": _scatter_by_location,
    "scatter into two pools": _two_pool_scatter,
    "decode streams": _decode_streams,
    "prefill indices": lambda family, dice: _prefill_indices(family, dice, compressed=False),
    "prefill indices, compressed": lambda family, dice: _prefill_indices(
        family, dice, compressed=True
    ),
    "verify streams": _verify_streams,
    **memory_recipes.RECIPES,
    **store_recipes.RECIPES,
    **attention_recipes.RECIPES,
}
"""Launches by what they do; a role of the catalogue, and which variant of it."""


def recipes_of(family: Family, *, compiled: bool = False) -> dict[str, Recipe]:
    """The recipes whose wrapper this release has.

    Args:
        family: of the release.
        compiled: those too that are only compiled, being too slow for the interpreter.
    """
    every = {**RECIPES, **(attention_recipes.COMPILED_RECIPES if compiled else {})}
    return {
        name: run
        for name, run in every.items()
        if name in family.kernels or name.partition(",")[0] in family.kernels
    }


Numbers = Mapping[str, list[int]]


def _ring(window: int, stride: int, slots: Iterable[int]) -> Ring:
    """A small ring: eight numbers a row."""
    rows = (max(slots) + 1) * stride
    return Ring(
        rows=torch.zeros(rows, 8, dtype=torch.bfloat16), window=window, stride=stride, pages=rows
    )


def _play_scatter(family: Family, numbers: Numbers) -> list[int]:
    """Rows in which the tokens are found afterwards; -1 for one that is gone."""
    ring = _ring(numbers["window"][0], numbers["stride"][0], numbers["slots"])
    marks = torch.arange(1, len(numbers["slots"]) + 1, dtype=torch.bfloat16)
    RingKernels.of_family(family).scatter(
        ring,
        marks[:, None].expand(-1, 8).contiguous(),
        slots=numbers["slots"],
        positions=numbers["positions"],
        final_positions=numbers["finals"],
    )
    found = [torch.nonzero(ring.rows[:, 0] == mark).flatten().tolist() for mark in marks]
    return [rows[0] if rows else -1 for rows in found]


def _play_decode(family: Family, numbers: Numbers) -> list[int]:
    """Rows that the query reads."""
    ring = _ring(numbers["window"][0], numbers["stride"][0], numbers["slots"])
    [rows] = RingKernels.of_family(family).decode_rows(
        ring, slots=numbers["slots"], positions=numbers["positions"]
    )
    return rows


def _play_verify(family: Family, numbers: Numbers) -> list[int]:
    """Rows that one group of drafts reads."""
    group, last = numbers["group"][0], numbers["position"][0]
    indices, starts, _ = family.launcher("verify streams")(
        state_slot=torch.tensor(numbers["slot"] * group),
        positions=torch.arange(last - group + 1, last + 1),
        hca_len=torch.zeros(group, dtype=torch.int32),
        hca_page_indices=torch.full((group, 1), -1, dtype=torch.int32),
        win=numbers["window"][0],
        ring_stride=numbers["stride"][0],
        swa_pages=(numbers["slot"][0] + 1) * numbers["stride"][0],
        num_draft=group,
        block_q=next(size for size in (1, 2, 4) if size >= group),
    )
    rows: list[int] = indices[: int(starts[1])].tolist()
    return rows


def _play_prefill(family: Family, numbers: Numbers) -> list[int]:
    """Compressed entries of the one query's prefix."""
    table = torch.tensor([numbers["table"]], dtype=torch.int32)
    indices, starts, *_ = family.launcher("prefill indices")(
        compress_ratio=128,
        state_slot=torch.tensor([0]),
        positions=torch.tensor([0]),
        chunk_start=torch.tensor([0]),
        cu_q=torch.tensor([0]),
        win=numbers["window"][0],
        ring_stride=numbers["stride"][0],
        swa_pages=numbers["swa_pages"][0],
        c128_page_indices=table,
        c4_sparse_page_indices=None,
    )
    entries: list[int] = indices[: int(starts[1])].tolist()
    return entries


PLAYS: Mapping[str, Callable[[Family, Numbers], list[int]]] = {
    "scatter": _play_scatter,
    "decode": _play_decode,
    "verify": _play_verify,
    "prefill": _play_prefill,
    "exhausted": lambda _family, _numbers: memory_recipes.exhausted(),
    "extend": lambda _family, numbers: memory_recipes.extended(numbers["fill"]),
    "pending": memory_recipes.pending_rows,
    "rejected": memory_recipes.cleared_rows,
}
"""Launches on given numbers, for counterexamples."""


_SHAPES = frozenset(
    {
        "bs_upper", "page_size", "TILE_SIZE", "HEAD_DIM", "KV_SPLITS", "D_CHUNK", "PAGE_BLOCK",
        "RATIO", "R", "W", "B",
    }
)  # fmt: skip
"""Constants that are the size of a tensor or of a loop that is unrolled, and not called BLOCK."""

_CHOICES = frozenset({"ENTRY_PAGE_SIZE", "PRESHUFFLE_TILE", "MODE"})
"""Constants that choose between programs, and are numbers."""


def lifted(name: str, value: Any) -> bool:
    """Whether a compile-time constant is a size that a proof can take as any number.

    Block sizes shape the tensors of a program and stay; flags choose between programs.
    """
    return name not in _SHAPES | _CHOICES and (
        isinstance(value, int)
        and not isinstance(value, bool)
        and not name.startswith("BLOCK")
        and not name.endswith("_B")
    )
