"""The same functions on Z3 terms: what is proved is what is run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.spec import cap, cursor, exact, pages, radix, ring, schedule, terms, window
from kvproof.spec.terms import maximum, minimum, register_conditional, select

register_conditional(z3.BoolRef, z3.If)

MODULES: tuple[ModuleType, ...] = (cap, cursor, exact, pages, ring, schedule, terms, window)

CONCRETE_ONLY = {
    "page_of": "`//` has no counterpart on Z3 integers; its docstring says so",
    "next_slot": "chooses from a list",
    "register_conditional": "no rule",
    "select": "checked by name below",
}


def rules_on_terms() -> list[Callable[..., Any]]:
    """Every function of the specification that takes numbers only."""
    return [
        function
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and name not in CONCRETE_ONLY
    ]


def arguments(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that are terms; a flag like ``bigram`` is not."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]


# Smallest value of each parameter that a divisor or size may take; the rest start at 0.
AT_LEAST_1 = {
    "page_size", "stride", "window", "prompt_len", "tail", "draft_tokens", "accepted", "ratio",
}  # fmt: skip


@pytest.mark.parametrize("function", rules_on_terms(), ids=lambda function: function.__name__)
def test_symbolic_rule_gives_the_same_numbers(function: Callable[..., Any]) -> None:
    names = arguments(function)
    variables = [z3.Int(name) for name in names]
    symbolic = function(*variables)
    parts = symbolic if isinstance(symbolic, tuple) else (symbolic,)

    @settings(max_examples=25)
    @given(st.tuples(*(st.integers(int(name in AT_LEAST_1), 60) for name in names)))
    def agree(values: tuple[int, ...]) -> None:
        replacements = [(v, z3.IntVal(x)) for v, x in zip(variables, values, strict=True)]
        found = [z3.simplify(z3.substitute(part, *replacements)) for part in parts]
        concrete = function(*values)
        expected = concrete if isinstance(concrete, tuple) else (concrete,)
        assert len(found) == len(expected)
        for term, value in zip(found, expected, strict=True):
            if isinstance(value, bool):
                assert z3.is_true(term) if value else z3.is_false(term)
            else:
                assert term.as_long() == value

    agree()


def test_bigram_flag_on_terms() -> None:
    n, cached = z3.Ints("n cached")
    term = cap.reprefill_bound(n, cached, 4, 4, bigram=True)
    at = z3.substitute(term, (n, z3.IntVal(18)), (cached, z3.IntVal(16)))
    assert z3.simplify(at).as_long() == 8 == cap.reprefill_bound(18, 16, 4, 4, bigram=True)


def test_select_takes_bools_and_registered_conditions_only() -> None:
    assert select(True, 1, 2) == 1
    assert select(False, 1, 2) == 2
    x = z3.Int("x")
    assert z3.is_app_of(select(x > 0, x, -x), z3.Z3_OP_ITE)
    with pytest.raises(TypeError, match="no conditional is registered for str"):
        select("yes", 1, 2)  # type: ignore[arg-type]


PAGEWISE = {"extend_match", "kept_page", "locked_from", "recovers", "recovered_page"}
"""What the proofs of P1 and P6 are about: one page at a time."""


def test_radix_rules_over_sequences_are_concrete() -> None:
    """A proof goes over a sequence one page at a time, by induction."""
    for name, function in inspect.getmembers(radix, inspect.isfunction):
        if function.__module__ == radix.__name__ and name not in PAGEWISE:
            assert "Sequence" in str(inspect.signature(function)) or name == "evictable"


@given(one=st.integers(), other=st.integers())
def test_minimum_and_maximum(one: int, other: int) -> None:
    assert minimum(one, other) == min(one, other)
    assert maximum(one, other) == max(one, other)
