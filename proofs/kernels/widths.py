"""K10: no computation leaves its type."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.symbolic import Integers, must_fit
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.kernels.width import REFERENCE, STRIDE, limits
from kvproof.proofs.kernels.base import (
    Code,
    proved,
)
from kvproof.proofs.theorem import Claim, Theorem

INTEGERS = Integers()


def width(code: Code) -> Theorem:
    """K10: every kernel within the reference sizes."""

    def claim(name: str) -> Callable[[], Claim]:
        def build() -> Claim:
            if name in code.unknown:
                raise UnknownCodeError(f"{name}: {code.unknown[name]}")
            run = code.shipped[name]
            fits = [
                z3.Implies(condition, INTEGERS.in_range(step.term, step.bits))
                for step, condition in must_fit(run, (*run.loads, *run.stores))
            ]
            return Claim(given=limits(run, REFERENCE), then=z3.And(*fits))

        return build

    sizes = ", ".join(f"{limit:,} {name}" for name, limit in REFERENCE.items())
    return Theorem(
        identifier="K10",
        title="widths",
        statement="No computation that an address, a mask or a stored value depends on leaves its "
        f"type with up to {sizes}. The smallest sizes that break a kernel are in the table of "
        "widths.",
        scope=f"the constants that the release launches with; a stride of {STRIDE}",
        obligations=tuple(proved(name, claim(name)) for name in (*code.shipped, *code.unknown)),
        mutants=(),
        source=f"all kernels of K1 to K9 ({code.release})",
    )
