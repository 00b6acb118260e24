"""Random launches of the paged attention, for proofs about its addresses. See `recipes`.

What it computes is not looked at here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from random import Random
from unittest import mock

import torch

from kvproof.kernels.family import Family
from kvproof.kernels.launch_sizes import DIM, HEADS, SMALL_RECIPES, SPLITS, V4_DIM, V4_HEADS

_ROWS = 40


class _OnGpu(torch.Tensor):
    """A query that says it is on a GPU, which the wrappers ask for."""

    is_cuda = True


def _queries(tokens: int, heads: int, dim: int) -> torch.Tensor:
    return torch.randn(tokens, heads, dim, dtype=torch.bfloat16).as_subclass(_OnGpu)


def _segments(dice: Random, tokens: int, *, holes: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Row numbers and where each token's begin; some tokens have none."""
    lengths = [dice.choice((0, dice.randint(1, 40))) for _ in range(tokens)]
    rows = [dice.choice((-1, 1)) * dice.randrange(1, _ROWS) if holes else dice.randrange(_ROWS)
            for _ in range(sum(lengths))]  # fmt: skip
    edges = torch.zeros(tokens + 1, dtype=torch.int32)
    edges[1:] = torch.cumsum(torch.tensor(lengths), dim=0)
    return torch.tensor([max(row, -1) for row in rows], dtype=torch.int32), edges


def _decode(
    family: Family, dice: Random, *, split: bool, heads: int = HEADS, dim: int = DIM
) -> None:
    tokens = dice.randint(2, 4)
    rows, edges = _segments(dice, tokens, holes=False)
    attend = family.launcher("decode attention")
    module = importlib.import_module(attend.__module__)
    # Compute units: the wrapper splits so that each has two programs, or takes the fused kernel.
    units = SPLITS // 2 * tokens * -(-heads // 64) if split else 1
    pool = torch.randn(_ROWS, dim, dtype=torch.bfloat16)
    with mock.patch.object(module, "_cu_count", return_value=units):
        attend(_queries(tokens, heads, dim), pool, rows, edges, torch.randn(heads), 0.1)


def _prefill(family: Family, dice: Random, *, heads: int = HEADS, dim: int = DIM) -> None:
    tokens = dice.randint(2, 4)
    prefix, prefix_edges = _segments(dice, tokens, holes=True)
    extend, extend_edges = _segments(dice, tokens, holes=True)
    rows, chunk = torch.randn(2, _ROWS, dim, dtype=torch.bfloat16)
    family.launcher("prefill attention")(
        _queries(tokens, heads, dim), rows, prefix, prefix_edges, chunk, extend, extend_edges,
        torch.randn(heads), 0.1,
    )  # fmt: skip


_DECODE, _SPLIT, _PREFILL = SMALL_RECIPES

RECIPES: Mapping[str, Callable[[Family, Random], None]] = {
    _DECODE: lambda family, dice: _decode(family, dice, split=False),
    _SPLIT: lambda family, dice: _decode(family, dice, split=True),
    _PREFILL: _prefill,
}
"""As `recipes.RECIPES`."""

COMPILED_RECIPES: Mapping[str, Callable[[Family, Random], None]] = {
    "decode attention, V4": lambda family, dice: _decode(
        family, dice, split=False, heads=V4_HEADS, dim=V4_DIM
    ),
    "decode attention, V4 split": lambda family, dice: _decode(
        family, dice, split=True, heads=V4_HEADS, dim=V4_DIM
    ),
    "prefill attention, V4": lambda family, dice: _prefill(
        family, dice, heads=V4_HEADS, dim=V4_DIM
    ),
}
"""Launches of the true size, for WIDTH; too slow for the interpreter."""
