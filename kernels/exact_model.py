"""Layers around a release's attention whose arithmetic is exact, so that nothing is a tolerance.

A state is a vector of 64-bit integers. Keys are small integers, queries pick one element of a key
with a sign, the softmax's scale makes each score an integer: then every weight is a power of two,
every sum of the attention kernels is exact in float32 whatever the order, tiles and splits, and the
output is rounded once. Residual and mixing step are integer arithmetic on the bits of that output:
one changed bit changes every element of the state. So a state equals that of a run on an empty
cache bit for bit, or it departs for good; it does not fade with depth, as it may in a trained
model, and rounding does not blur it. What runs the kernels in another order or batching must give
the same bits, which `Compared.noise` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_LEVELS = 7
"""Keys are from -3 to 3: scores span 6 powers of two, far within what float32 adds exactly."""

_MIXED = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
"""Shifts and odd factors of splitmix64's finaliser, as signed numbers."""
_LAST_SHIFT = 31


def mix(x: torch.Tensor) -> torch.Tensor:
    """Each element to a number that depends on all its bits; int64, one to one."""
    for shift, factor in _MIXED:
        x = (x ^ _shifted(x, shift)) * factor
    return x ^ _shifted(x, _LAST_SHIFT)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right as if unsigned."""
    return (x >> by) & ((1 << (64 - by)) - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactModel:
    """Random fixed weights.

    Attributes:
        embedding: ``[dim]``.
        layers: of each layer.
    """

    dim: int
    heads: int
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]

    @classmethod
    def seeded(cls, seed: int, *, layers: int, heads: int, dim: int, device: str) -> ExactModel:
        """Weights by a seed, the same on every device.

        Args:
            seed: they are drawn from it.
            layers: how many.
            heads: query heads.
            dim: width of a key.
            device: torch's name of where they lie.
        """
        dice = torch.Generator().manual_seed(seed)

        def odd(*shape: int) -> torch.Tensor:
            drawn = torch.randint(-(2**62), 2**62, shape, generator=dice)
            return (drawn * 2 + 1).to(device)

        return cls(
            dim=dim,
            heads=heads,
            embedding=odd(dim),
            layers=tuple(
                LayerWeights(
                    key=odd(dim), query=odd(heads), sum=odd(dim), output=odd(heads, dim),
                    spread=odd(dim), pool=odd(1)[0],
                )
                for _ in range(layers)
            ),
        )  # fmt: skip

    def embed(self, tokens: Sequence[int]) -> torch.Tensor:
        """States ``[tokens, dim]`` of token ids."""
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.embedding.device)
        return mix(mix(ids)[:, None] + self.embedding)


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """What a layer does but for attention. All are odd numbers."""

    key: torch.Tensor
    query: torch.Tensor
    sum: torch.Tensor
    output: torch.Tensor
    spread: torch.Tensor
    pool: torch.Tensor

    def keys(self, states: torch.Tensor) -> torch.Tensor:
        """Keys ``[tokens, dim]`` of states, bf16."""
        levels = mix(states + self.key) % _LEVELS
        return (levels - _LEVELS // 2).to(torch.bfloat16)

    def queries(self, states: torch.Tensor) -> torch.Tensor:
        """Queries ``[tokens, heads, dim]`` of states, bf16: one element of each is 1 or -1."""
        chosen = mix((states * self.sum).sum(dim=1)[:, None] + self.query)
        q = torch.zeros(*chosen.shape, states.shape[1], dtype=torch.bfloat16, device=chosen.device)
        sign = (_shifted(chosen, 62) & 1) * 2 - 1
        q.scatter_(2, (chosen % states.shape[1])[:, :, None], sign[:, :, None].to(q.dtype))
        return q

    def update(self, states: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """States above the layer: what was attended is added, then all elements are mixed.

        Args:
            states: ``[tokens, dim]``, below the layer.
            attended: ``[tokens, heads, dim]``, bf16.
        """
        # Adding 0 leaves one zero of the two.
        bits = (attended + 0.0).view(torch.int16).to(torch.int64)
        residual = states + (mix(bits + self.output)).sum(dim=1)
        total = (residual * self.sum).sum(dim=1, keepdim=True)
        return mix(residual + total * self.spread)

    def pooled(self, states: torch.Tensor) -> torch.Tensor:
        """Compressed row ``[dim]`` of the states ``[ratio, dim]`` of its tokens, bf16.

        It stands for the release's compressor, which is C++ and needs a GPU: a row depends on all
        its tokens, and on no other.
        """
        places = torch.arange(len(states), device=states.device)[:, None] * 2 + 1
        return self.keys(mix((mix(states + self.pool) * places).sum(dim=0, keepdim=True)))[0]


def relative_error(found: torch.Tensor, cold: torch.Tensor) -> list[float]:
    """``|found - cold| / |cold|`` of each row of numbers, to three digits."""
    size = cold.double().norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)
    errors = (found.double() - cold.double()).norm(dim=-1) / size
    # Numbers of 64 bits that differ in the last may be one float64.
    errors = torch.where((found != cold).any(dim=-1) & (errors == 0), 2.0**-53, errors)
    return [float(f"{error:.3g}") for error in errors.tolist()]
