"""Sparse attention in float64, and how far a kernel may be from it.

Written from the definition, not from a kernel: softmax over a query's keys and one sink a head,
whose value is zero. Keys and values are the same rows, as in latent attention. Nothing here is
blocked, split or kept online, so it shares no method with what it judges.

The tolerance of an output is a bound on the rounding that the kernel's own data types make
unavoidable, computed for each output from the magnitudes that go into it. With ``w`` the exact
weights, ``v`` the rows, ``s`` the scores, ``K`` keys of ``D`` elements, and ``u`` the unit roundoff
of the tensors' type, it is the sum of

- ``u |out|``: the output is rounded;
- ``u sum(w |v|)``: each weight is rounded before the second product;
- ``sum(w e |v|) + sum(w e) sum(w |v|)``: a score that is off by ``e`` moves its weight by a factor
  ``1 + e`` and the denominator with it. ``e`` is ``D eps sum(|q k|) scale`` for a float32 sum of
  exact products in any order, and ``4 eps (|s| + |max s|)`` for an exponential of a rounded
  argument, the sink's too;
- ``(K + 8) eps sum(w |v|)``: float32 sums over the keys, in any order;
- where the pool holds fp8 with scales that are rounded to the tensors' type: ``2 u`` relative on
  each key and value;
- for float16, whose smallest number is 2^-24: that much of the output, and of each weight,
  ``K 2^-24 max |v|``, is lost.

``eps`` is 2^-23: a tensor core's sum may be truncated rather than rounded. What is left out are
products of these terms, hence `SECOND_ORDER`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

SECOND_ORDER = 1.05
"""Room for products of roundoffs: the largest is 2^-7."""

EPS = 2.0**-23
"""Unit in the last place of float32."""
_FLOAT16_SMALLEST = 2.0**-24

ROUNDED = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Unit roundoff where a number is rounded to the nearest."""

TRUNCATED = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-11}
"""The same in Triton's interpreter, whose cast to bf16 cuts the lower half off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """What attention gives exactly, and how far off a kernel may be.

    Attributes:
        out: ``[tokens, heads, dim]``, float64.
        tolerance: the same shape; an absolute error.
    """

    out: torch.Tensor
    tolerance: torch.Tensor

    def worst(self, found: torch.Tensor) -> float:
        """Largest error in units of its tolerance; infinite where a number is none."""
        errors = (found.double() - self.out).abs() / self.tolerance
        return (
            float(torch.nan_to_num(errors, nan=torch.inf, posinf=torch.inf).max())
            if errors.numel()
            else 0.0
        )


def attend(
    *,
    q: torch.Tensor,
    rows: torch.Tensor,
    picks: torch.Tensor,
    sink: torch.Tensor,
    scale: float,
    roundoff: float,
    rescaled: bool = False,
) -> Attention:
    """Attention of each query over the rows that it picks.

    Args:
        q: ``[tokens, heads, dim]``, the kernel's type.
        rows: ``[rows, dim]``, float64: keys, and values too.
        picks: ``[tokens, keys]``, row numbers; negative ones are no key.
        sink: ``[heads]``, a score that takes weight and gives no value.
        scale: of the scores.
        roundoff: unit roundoff of q's type; see `ROUNDED` and `TRUNCATED`.
        rescaled: the kernel multiplies what it loads by a scale, both rounded.
    """
    count, _, dim = q.shape
    there = (picks >= 0)[:, None, :]
    keys = rows[picks.clamp(min=0)]
    queries = q.double()
    # A query without keys still has its sink; a key that is none has weight zero.
    scores = (queries @ keys.mT * scale).masked_fill(~there, -torch.inf)
    sinks = sink.double()[None, :, None].expand(count, -1, 1)
    all_scores = torch.cat([scores, sinks], dim=2)
    all_weights = all_scores.softmax(dim=2)
    weights = all_weights[:, :, :-1]
    out = weights @ keys

    sizes = keys.abs()
    spread = weights @ sizes
    largest = all_scores.amax(dim=2, keepdim=True).abs()
    argument = 4 * EPS * (all_scores.masked_fill(all_weights == 0, 0.0).abs() + largest)
    products = queries.abs() @ sizes.mT * scale
    off = argument[:, :, :-1] + products * (dim * EPS + (2 * roundoff if rescaled else 0.0))
    weighted = weights * off
    denominator = weighted.sum(dim=2) + all_weights[:, :, -1] * argument[:, :, -1]
    tolerance = (
        roundoff * out.abs()
        + (roundoff * (3 if rescaled else 1) + (picks.shape[1] + 8) * EPS) * spread
        + weighted @ sizes
        + denominator[:, :, None] * spread
    )
    if q.dtype == torch.float16:
        tolerance = tolerance + _FLOAT16_SMALLEST
        if keys.numel():
            lost = picks.shape[1] * _FLOAT16_SMALLEST
            tolerance = tolerance + lost * sizes.amax(dim=1)[:, None, :]
    # Below the smallest normal float32 nothing is promised.
    return Attention(out=out, tolerance=SECOND_ORDER * tolerance + torch.finfo(torch.float32).tiny)
