"""Random launches: what a batch may look like, within what the engine's host code guarantees.

Numbers are Python integers, so that the specification's rules can be called on them as they are;
tensors are drawn on the device of the launch. A case is given by its seed and its backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

import torch

from kvproof.spec.indices import Position, Slot

FP8_GROUP = 64
"""Elements that share a scale in the fp8 pool of the decode attention."""

# Heads and width. Each pair is compiled for, so there are few: one head (then the reduction of
# split-K cuts the width), fewer heads than a tile and a width that is no power of two, heads that
# do not fill the last tile; the last one is DeepSeek-V4's.
SMALL_SHAPES = ((1, 64), (5, 96), (40, 64))
SHAPES = (*SMALL_SHAPES, (16, 128), (128, 512))


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of a ring."""

    window: int
    stride: int
    slots: int

    @classmethod
    def random(cls, dice: Random) -> Sizes:
        """A ring with rows to spare or without."""
        window = dice.choice((4, 16, 128))
        return cls(window=window, stride=window + dice.choice((0, 1, 3)), slots=dice.randint(3, 9))

    @property
    def rows(self) -> int:
        """Rows of the ring, the padding slot's included."""
        return self.slots * self.stride

    def lent(self, dice: Random, most: int) -> list[Slot]:
        """Distinct slots that requests may have."""
        return lent_slots(dice, self.slots, most=most)


def lent_slots(dice: Random, slots: int, *, most: int) -> list[Slot]:
    """Distinct slots of up to ``most`` requests, the padding slot not among them."""
    count = dice.randint(1, min(most, slots - 1))
    return [Slot(slot) for slot in dice.sample(range(1, slots), count)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One token of a ragged batch.

    Attributes:
        first: position of its chunk's first token, ``last`` of its last.
        row: row of the chunk's first token in the batch.
    """

    slot: Slot
    position: Position
    first: Position
    last: Position
    row: int


def chunks(dice: Random, sizes: Sizes, *, longest: int) -> list[Token]:
    """A prefill batch: a chunk a request, at the start of its prompt or further on."""
    tokens: list[Token] = []
    for slot in sizes.lent(dice, 4):
        start = dice.choice((0, dice.randint(0, 4 * sizes.window)))
        end = start + dice.randint(1, longest)
        row = len(tokens)
        tokens += [
            Token(
                slot=slot,
                position=Position(at),
                first=Position(start),
                last=Position(end - 1),
                row=row,
            )
            for at in range(start, end)
        ]
    return tokens


def page_lists(dice: Random, rows: int, *, width: int) -> list[list[int]]:
    """Compressed pages of each query: none, some, or a full table."""
    lengths = [dice.choice((0, dice.randint(0, width), width)) for _ in range(rows)]
    return [[dice.randrange(1 << 20) for _ in range(length)] for length in lengths]


def page_table(pages: Sequence[Sequence[int]], *, width: int, device: str) -> torch.Tensor:
    """``[rows, width]`` int32, front-packed, -1 behind."""
    rows = [[*row, *(-1 for _ in range(width - len(row)))] for row in pages]
    return torch.tensor(rows, dtype=torch.int32, device=device).reshape(len(pages), width)


def ragged(lists: Sequence[Sequence[int]], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Flat int32 entries and where each list starts, as attention takes them."""
    flat = [entry for one in lists for entry in one]
    starts = [0, *accumulate(len(one) for one in lists)]
    # One entry more: an empty tensor has no address to pass.
    return (
        torch.tensor([*flat, 0], dtype=torch.int32, device=device),
        torch.tensor(starts, dtype=torch.int32, device=device),
    )


def padded(lists: Sequence[Sequence[int]], device: str) -> torch.Tensor:
    """``[lists, longest]`` int64 with -1 behind, as the reference takes them."""
    width = max((len(one) for one in lists), default=0)
    rows = [[*one, *(-1 for _ in range(width - len(one)))] for one in lists]
    return torch.tensor(rows, dtype=torch.int64, device=device).reshape(len(lists), width)


@dataclass(frozen=True, kw_only=True, slots=True)
class Queries:
    """Queries of an attention launch and what they may read.

    Attributes:
        q: ``[tokens, heads, dim]``.
        pool: ``[rows, dim]``, the same type.
        sink: ``[heads]``, float32.
        picks: rows of the pool by query; some queries have none.
    """

    q: torch.Tensor
    pool: torch.Tensor
    sink: torch.Tensor
    picks: list[list[int]]

    @property
    def scale(self) -> float:
        """Of the scores, as the model sets it."""
        return float(self.q.shape[2] ** -0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Draws numbers and tensors of one launch from its seed."""

    dice: Random
    generator: torch.Generator
    device: str

    @classmethod
    def seeded(cls, seed: int, device: str) -> Source:
        """The source of a launch; tensors come from the device's own generator."""
        generator = torch.Generator(device)
        generator.manual_seed(seed)
        return cls(dice=Random(seed), generator=generator, device=device)

    def normal(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Normal numbers."""
        return torch.randn(*shape, generator=self.generator, device=self.device).to(dtype)

    def queries(self, dtype: torch.dtype, shapes: Sequence[tuple[int, int]]) -> Queries:
        """A decode or prefill batch of up to six queries over a pool."""
        heads, dim = self.dice.choice(shapes)
        tokens = self.dice.randint(1, 6)
        rows = self.dice.randint(40, 200)
        return Queries(
            # From nearly even weights to one key that takes all.
            q=self.normal(tokens, heads, dim, dtype=dtype) * self.dice.choice((0.25, 1.0, 4.0)),
            pool=self.normal(rows, dim, dtype=dtype),
            sink=self.normal(heads, dtype=torch.float32) * self.dice.choice((1.0, 8.0)),
            picks=[self.picks(rows) for _ in range(tokens)],
        )

    def picks(self, rows: int, *, gaps: bool = False) -> list[int]:
        """Rows that a query reads: none, some, or several tiles; with gaps, -1 among them."""
        length = self.dice.choice((0, 1, self.dice.randint(2, 40), self.dice.randint(2, 300)))
        return [
            -1 if gaps and self.dice.random() < 0.2 else self.dice.randrange(rows)
            for _ in range(length)
        ]
