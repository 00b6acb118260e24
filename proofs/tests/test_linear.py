"""The axioms of linear arithmetic are consistent, and true of numbers."""

from __future__ import annotations

from functools import reduce

import pytest
import z3
from hypothesis import given
from hypothesis import strategies as st

from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.linear import PERIODS, Linear, remainder_range, remainder_shift, remainder_sum
from kvproof.proofs.solver import Prover
from kvproof.proofs.theorem import Obligation

THEOREMS = {theorem.identifier: theorem for theorem in CATALOGUE}


@pytest.mark.parametrize("identifier", THEOREMS)
def test_the_lemmas_hold_in_an_instance_of_every_obligation(identifier: str) -> None:
    """What a proof assumes has a model: the hypotheses' own, with true remainders and products."""
    for obligation in THEOREMS[identifier].obligations:
        if not isinstance(obligation, Obligation):
            continue
        claim = obligation.claim()
        given = [fact for fact in claim.given if not isinstance(fact, bool)]
        model = Prover().model_of(given)
        assert model is not None, obligation.name
        linear = Linear()
        for formula in [*given, claim.then]:
            if not isinstance(formula, bool):
                linear.rewrite(z3.simplify(formula))
        values = [
            *((name, a % d) for a, d, name in linear.remainders),
            *((name, x * y) for x, y, name in linear.products),
        ]
        for fact in [*linear.lemmas(), *linear.sums()]:
            # Terms name earlier remainders and products; twice reaches those of the other kind.
            exact = reduce(z3.substitute, reversed([*values, *values]), fact)
            assert z3.is_true(model.eval(exact, model_completion=True)), obligation.name


numbers = st.integers(-200, 200)


@given(a=numbers, b=numbers, d=st.integers(1, 50), periods=st.sampled_from(PERIODS))
def test_remainders_of_numbers(a: int, b: int, d: int, periods: int) -> None:
    terms = [z3.IntVal(value) for value in (a, a % d, b, b % d)]
    assert z3.is_true(z3.simplify(remainder_range(terms[0], terms[1], z3.IntVal(d))))
    assert z3.is_true(z3.simplify(remainder_shift(*terms, d=z3.IntVal(d), periods=periods)))
    total = z3.IntVal((a + b) % d)
    assert z3.is_true(z3.simplify(remainder_sum(terms[1], terms[3], total, z3.IntVal(d))))
