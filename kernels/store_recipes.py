"""Random launches of the stores into paged pools, fp8 and bf16. See `recipes`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import torch

from kvproof.kernels.family import Family
from kvproof.kernels.launch_sizes import INDEXER_BYTES, PAGE_BYTES, STORE_PAGE

_PAGES = 2


def _locations(dice: Random, count: int) -> torch.Tensor:
    return torch.tensor(dice.sample(range(_PAGES * STORE_PAGE), count), dtype=torch.int32)


def _paged_store(family: Family, dice: Random) -> None:
    count = dice.randint(2, 6)
    family.launcher("paged store")(
        torch.randn(count, 512, dtype=torch.bfloat16),
        torch.zeros(_PAGES, PAGE_BYTES, dtype=torch.uint8),
        _locations(dice, count),
        STORE_PAGE,
    )


def _indexer_store(family: Family, dice: Random) -> None:
    count = dice.randint(2, 6)
    family.launcher("indexer store")(
        torch.randn(count, 128, dtype=torch.bfloat16),
        torch.zeros(_PAGES, INDEXER_BYTES, dtype=torch.uint8),
        _locations(dice, count),
        STORE_PAGE,
    )


RECIPES: Mapping[str, Callable[[Family, Random], None]] = {
    "paged store": _paged_store,
    "indexer store": _indexer_store,
}
"""As `recipes.RECIPES`."""
