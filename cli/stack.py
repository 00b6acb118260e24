"""The options by which EXACT and PURE are asked: a stack of layers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from kvproof.kernels.engines.errors import EngineError
from kvproof.model.layers import Stack

MAX_LAYERS = 1024

LayersOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1, max=MAX_LAYERS,
        help="Judge EXACT and PURE too, through so many layers. Default: one a ratio.",
    ),
]  # fmt: skip

RatiosOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="R,R,...",
        help="Tokens of a compressed row in each layer, 0 for none, repeated over the layers, "
        "e.g. 0,4,128. Each divides the page size. Default: 0.",
    ),
]


def stack_of(layers: int | None, ratios: str | None) -> Stack | None:
    """The stack that the options name; None for neither.

    Raises:
        EngineError: the ratios are no list of numbers.
    """
    if layers is None and ratios is None:
        return None
    pattern = parse_ratios(ratios or "0")
    return Stack.repeating(layers=layers or len(pattern), ratios=pattern)


def parse_ratios(ratios: str) -> tuple[int, ...]:
    """Numbers between commas; raises EngineError."""
    parts = [part.strip() for part in ratios.split(",")]
    if not all(part.isdecimal() and len(part) < 6 for part in parts) or len(parts) > MAX_LAYERS:
        raise EngineError(
            f"{ratios!r} are no ratios", fix="give numbers between commas, e.g. --ratios 0,4,128"
        )
    return tuple(int(part) for part in parts)
