"""K10: no computation leaves its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import z3

from kvproof.kernels.symbolic import Integers, Run, must_fit
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.kernels.width import REFERENCE, STRIDE, limits, of_true_size, smallest_breaking
from kvproof.proofs.kernels.base import Code, proved
from kvproof.proofs.theorem import Check, Claim, Obligation, Theorem, Values

INTEGERS = Integers()

_OLD = ("0.5.14", "0.5.16")
_ALL = (*_OLD, "0.5.23")

BREAKS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "_triton_fused_store_flashmla_kernel": (_OLD, "locations"),
    "_triton_fused_store_indexer_kernel": (_OLD, "locations"),
    "_paged_decode_fused_kernel": (_ALL, "tokens"),
    "_paged_decode_split_kernel": (_ALL, "tokens"),
    "_paged_decode_reduce_kernel": (_ALL, "tokens"),
    "_sparse_attn_v4_paged_prefill_kernel": (_ALL, "tokens"),
}
"""Kernels that are known to overflow within the reference sizes, in which families, and by what."""


def width(code: Code) -> Theorem:
    """K10: every kernel within the reference sizes."""

    def run_of(name: str) -> Run:
        if name in code.unknown:
            raise UnknownCodeError(f"{name}: {code.unknown[name]}")
        return code.shipped[name]

    def claim(name: str) -> Callable[[], Claim]:
        def build() -> Claim:
            run = run_of(name)
            fits = [
                z3.Implies(condition, INTEGERS.in_range(step.term, step.bits))
                for step, condition in must_fit(run, (*run.loads, *run.stores))
            ]
            return Claim(given=limits(run, REFERENCE), then=z3.And(*fits))

        return build

    def replay(name: str, size: str) -> Callable[[Values], Check]:
        def play(_values: Values) -> Check:
            found = smallest_breaking(name, run_of(name), code.bits[name], size)
            return Check(
                model="bit-vectors of the true widths",
                invariant="addresses and values are exact",
                broken=bool(found.wraps),
                says=f"{found.smallest:,} {size}: {found.wraps}" if found.wraps else "nothing",
            )

        return play

    obligations = []
    for name in (*code.shipped, *code.unknown):
        if not of_true_size(name):
            continue
        families, size = BREAKS.get(name.partition(" ")[0], ((), ""))
        if code.family in families:
            obligations.append(
                Obligation(
                    name=name, claim=claim(name), expected="refuted", replay=replay(name, size)
                )
            )
        else:
            obligations.append(proved(name, claim(name)))
    sizes = ", ".join(f"{limit:,} {name}" for name, limit in REFERENCE.items())
    return Theorem(
        identifier="K10",
        title="widths",
        statement="No computation that an address, a mask or a stored value depends on leaves its "
        f"type with up to {sizes}, except in the kernels that are refuted here. The smallest sizes "
        "that break a kernel are in the table of widths.",
        scope=f"the constants that the release launches with; a stride of {STRIDE}; H10",
        obligations=tuple(obligations),
        mutants=(),
        source=f"all kernels of K1 to K28 ({code.release})",
    )
