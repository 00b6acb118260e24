"""K23: what a masked load leaves open does not matter."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.symbolic import Run
from kvproof.proofs.kernels.allocation import EXTEND
from kvproof.proofs.kernels.base import Code, check, play, proved
from kvproof.proofs.theorem import Check, Claim, Obligation, Term, Theorem, Values

RELYING = frozenset({EXTEND})
"""Kernels that rely on masked lanes reading 0 (H10)."""


def masked_lanes(code: Code) -> Theorem:
    """K23: stores are the same whatever masked lanes read."""

    def otherwise(run: Run, term: Term) -> Term:
        """A term with other numbers in the lanes that are left open."""
        for unknown in run.undefined:
            if isinstance(unknown, z3.FuncDeclRef):
                twin = z3.Function(f"{unknown.name()}'", z3.IntSort(), z3.IntSort(), z3.IntSort())
                term = z3.substitute_funs(
                    term, (unknown, twin(z3.Var(0, z3.IntSort()), z3.Var(1, z3.IntSort())))
                )
            else:
                term = z3.substitute(term, (unknown, z3.Int(f"{unknown}'")))
        return term

    def claim(name: str) -> Callable[[], Claim]:
        def build() -> Claim:
            run = code.run(name)
            same = []
            for access in (*run.loads, *run.stores):
                alike = [access.offset == otherwise(run, access.offset)]
                if any(access is store for store in run.stores) and not access.opaque:
                    alike.append(access.value == otherwise(run, access.value))
                same.append(access.when == otherwise(run, access.when))
                same.append(z3.Implies(access.when, z3.And(*alike)))
            for total in run.reductions:
                place = z3.And(total.path, total.over >= 0, total.over < total.lanes)
                same.append(z3.Implies(place, total.element == otherwise(run, total.element)))
            for loop in run.loops:
                same += [tail == otherwise(run, tail) for tail in loop.tail]
            return Claim(given=(run.lane >= 0, run.column >= 0), then=z3.And(*same))

        return build

    def replay(_values: Values) -> Check:
        """Two requests of one and two tokens; the lanes that are left open read 16 and 15."""
        due = play(code, "extend", fill=[0, 0])
        found = play(code, "extend", fill=[16, 15])
        broken = isinstance(found, list) and isinstance(due, list) and found != due
        return check(code, "the same locations", broken, f"{found} instead of {due}")

    names = [name for name, run in code.runs.items() if run.undefined]
    return Theorem(
        identifier="K23",
        title="masked lanes",
        statement="What a kernel loads, stores, sums and carries is the same whatever a masked "
        "load gives to lanes of which it does not say what they get.",
        scope="all kernels with such loads; those that are refuted rely on H10, which Triton "
        "leaves open",
        obligations=tuple(
            Obligation(name=name, claim=claim(name), expected="refuted", replay=replay)
            if name in RELYING
            else proved(name, claim(name))
            for name in names
        ),
        mutants=(),
        source=f"all kernels of K1 to K28 ({code.release})",
    )
