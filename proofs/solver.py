"""Asking the solver: a fresh one for each question, and ``unknown`` is never a proof."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import z3

from kvproof.proofs.linear import linearised
from kvproof.proofs.theorem import Claim, Fact, Status, Term, Values

SMALL = (2, 3, 4, 6, 9, 16, 40)
"""Bounds within which a counterexample is looked for first: small ones are read and replayed."""

DEFAULT_TIMEOUT_S = 20.0
"""Seconds for one question; each of the catalogue takes well under one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the solver said about one claim.

    Attributes:
        values: the counterexample's, by the names that the claim shows.
        vacuous: the hypotheses contradict each other, or no instance of them was found.
        arithmetic: ``linear`` if the lemmas sufficed, ``exact`` otherwise.
        seconds: wall time of all questions together.
        why: reason of an ``unknown``.
    """

    status: Status
    values: Values = field(default_factory=dict)
    vacuous: bool = False
    arithmetic: str = "linear"
    seconds: float = 0.0
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prover:
    """Z3 with a seed and a time limit for each question."""

    seed: int = 0
    timeout_s: float = DEFAULT_TIMEOUT_S

    def decide(self, claim: Claim) -> Answer:
        """Prove or refute a claim.

        It is proved if its negation has no model, in linear arithmetic with the lemmas or exactly.
        It is refuted by a model of the exact formula only.
        """
        started = time.perf_counter()
        given = [_condition(fact) for fact in claim.given]
        negated = [*given, z3.Not(_condition(claim.then))]
        formulas, more = linearised(negated)
        if self._refutes(formulas) or (more and self._refutes([*formulas, *more])):
            return self._proved(given, "linear", started)
        model = self.model_of(negated)
        if model is None:
            result, model = self._ask(negated)
            if result == z3.unsat:
                return self._proved(given, "exact", started)
        seconds = time.perf_counter() - started
        if model is None:
            return Answer(
                status="unknown", arithmetic="exact", seconds=seconds,
                why=f"no proof and no counterexample within {self.timeout_s:g} s a question",
            )  # fmt: skip
        values = {name: _integer(model, term) for name, term in claim.show.items()}
        return Answer(status="refuted", values=values, arithmetic="exact", seconds=seconds)

    def model_of(self, formulas: Sequence[Fact]) -> z3.ModelRef | None:
        """A model of the exact formulas, a small one if there is one; None if none was found."""
        conditions = [_condition(formula) for formula in formulas]
        constants = _constants(conditions)
        for bound in SMALL:
            limits = [z3.And(constant >= -bound, constant <= bound) for constant in constants]
            result, model = self._ask([*conditions, *limits], self.timeout_s / len(SMALL))
            if result == z3.sat:
                return model
        weaker, _ = linearised(conditions)
        result, model = self._ask(weaker)
        if model is not None and all(
            z3.is_true(model.eval(condition, model_completion=True)) for condition in conditions
        ):
            return model
        return None

    def _proved(self, given: list[Fact], arithmetic: str, started: float) -> Answer:
        # A proof from contradictory hypotheses says nothing.
        vacuous = self.model_of(given) is None if given else False
        return Answer(
            status="unknown" if vacuous else "proved",
            vacuous=vacuous,
            arithmetic=arithmetic,
            seconds=time.perf_counter() - started,
            why="no instance of the hypotheses was found" if vacuous else "",
        )

    def _refutes(self, formulas: Sequence[Fact]) -> bool:
        result, _ = self._ask(formulas)
        return bool(result == z3.unsat)

    def _ask(
        self, formulas: Iterable[Fact], timeout_s: float | None = None
    ) -> tuple[z3.CheckSatResult, z3.ModelRef | None]:
        solver = z3.Solver()
        solver.set("timeout", max(1, round(1000 * (timeout_s or self.timeout_s))))
        solver.set("random_seed", self.seed)
        solver.add(*formulas)
        result = solver.check()
        return result, solver.model() if result == z3.sat else None


def smt2(claim: Claim, *, linear: bool) -> str:
    """The negated claim as SMT-LIB text: ``unsat`` means proved."""
    formulas = [*(_condition(fact) for fact in claim.given), z3.Not(_condition(claim.then))]
    if linear:
        linear_form, more = linearised(formulas)
        formulas = [*linear_form, *more]
    solver = z3.Solver()
    solver.add(*formulas)
    text: str = solver.to_smt2()
    return text


def _condition(fact: Fact) -> z3.BoolRef:
    return z3.BoolVal(fact) if isinstance(fact, bool) else fact


def _integer(model: z3.ModelRef, term: Term) -> int:
    if isinstance(term, int):
        return term
    value = model.eval(term, model_completion=True)
    if z3.is_bool(value):
        return int(z3.is_true(value))
    number: int = value.as_long()
    return number


def _constants(formulas: Iterable[Fact]) -> list[Term]:
    """Integer variables of some formulas, and what uninterpreted functions give in them."""
    found: dict[int, Term] = {}
    seen: set[int] = set()
    todo = list(formulas)
    while todo:
        term = todo.pop()
        if term.get_id() in seen:
            continue
        seen.add(term.get_id())
        todo.extend(term.children())
        if z3.is_int(term) and z3.is_app_of(term, z3.Z3_OP_UNINTERPRETED):
            found[term.get_id()] = term
    return list(found.values())
