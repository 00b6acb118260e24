"""Vectors: the specification as data, for tests that cannot import kvproof.

A team whose engine is written in C++, HIP or Rust, or whose CI takes no further package, reads one
JSON file: for each numbered rule with integers in and out, inputs and the result; and for each
scenario of the corpus, the facts of an engine that follows the rules, with and without the cap.
Whoever addresses a ring, caps a match or filters a scatter by the same rule gets the same numbers.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import msgspec

from kvproof.fuzz.corpus import Case
from kvproof.model.facts import Fact
from kvproof.model.monitor import check
from kvproof.model.policy import Policy
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario, family_of_operations
from kvproof.spec import cap, cursor, exact, pages, ring, schedule, translate, window

MODULES: tuple[ModuleType, ...] = (ring, window, cap, pages, schedule, cursor, translate, exact)

VALUES = (0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 255, 256, 257, 1000)
"""What each argument is drawn from: small numbers, and those around DeepSeek-V4's own sizes."""

CASES = 64
"""Of each rule, at most."""

POLICIES: dict[str, Policy] = {"no cap": Policy(reprefill_tail=0), "cap": Policy()}
"""What `ScenarioVector.expected` is told for."""

_DRAWS = 4_000
_RULE = re.compile(r"([A-Z]+-\d+)\. (.*?)\n\n", re.DOTALL)
_PRE = re.compile(r"^\s*pre: (.+)$", re.MULTILINE)


class RuleVectors(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and results of one rule.

    Attributes:
        rule: its number in the specification, e.g. ``RING-2``.
        function: its name there.
        says: the rule in a sentence.
        arguments: their names, in the order of each case's inputs.
        cases: inputs, then the result: a number, a truth value, or two numbers ``[start, end)``.
    """

    rule: str
    function: str
    says: str
    arguments: tuple[str, ...]
    cases: tuple[tuple[Any, ...], ...]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine that follows the rules does under one policy.

    Attributes:
        reprefill_tail: tokens that its cap holds back.
        facts: its log, as in docs/files.md. Slots and pages are those that it happened to lend;
            another engine may lend others.
        breaks: what is broken then, as ``INVARIANT/cause``.
    """

    reprefill_tail: int
    facts: tuple[Fact, ...]
    breaks: tuple[str, ...]


class ScenarioVector(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario, and what is expected of it by policy."""

    name: str
    why: str
    scenario: Scenario
    expected: dict[str, Expected]


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    """A file of vectors; `version` changes when what is here changes its meaning."""

    rules: tuple[RuleVectors, ...]
    scenarios: tuple[ScenarioVector, ...]
    version: int = 1


def make_vectors(corpus: Sequence[Case]) -> Vectors:
    """Vectors of all rules of integers, and of those cases that are about a ring."""
    return Vectors(
        rules=tuple(
            _vectors_of(rule, says, function) for rule, says, function in rules_of_integers()
        ),
        scenarios=tuple(
            _scenario_vector(case)
            for case in corpus
            if family_of_operations(case.scenario.operations) == "cache"
            and not case.scenario.geometry.swa_tokens
            and not case.scenario.geometry.overlap
        ),
    )


def rules_of_integers() -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """Number, sentence and function of each rule whose arguments are all integers."""
    for module in MODULES:
        for _, function in inspect.getmembers(module, inspect.isfunction):
            told = _RULE.match((inspect.getdoc(function) or "") + "\n\n")
            if function.__module__ == module.__name__ and told and _takes_integers(function):
                yield told[1], " ".join(told[2].split()), function


def _takes_integers(function: Callable[..., Any]) -> bool:
    kinds = {"int", "Position", "Slot", "RingRow", "FullLoc", "SwaLoc", "Page", "Occupancy"}
    parameters = inspect.signature(function).parameters.values()
    return all(p.annotation in kinds and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


def _vectors_of(rule: str, says: str, function: Callable[..., Any]) -> RuleVectors:
    names = tuple(inspect.signature(function).parameters)
    conditions = [compile(text, rule, "eval") for text in _PRE.findall(function.__doc__ or "")]
    scope = vars(inspect.getmodule(function))
    allowed = [
        values
        for values in dict.fromkeys(itertools.islice(_draws(rule, len(names)), _DRAWS))
        if all(eval(each, scope, dict(zip(names, values, strict=True))) for each in conditions)
    ]
    # Half of the room is for cases at an edge: one argument more by one, and the result is another.
    share = CASES // 2 // len(names)
    edges = [
        [values for values in allowed if _is_edge(function, values, index)][:share]
        for index in range(len(names))
    ]
    chosen = itertools.islice(dict.fromkeys(itertools.chain(*edges, allowed)), CASES)
    return RuleVectors(
        rule=rule, function=function.__name__, says=says, arguments=names,
        cases=tuple((*values, function(*values)) for values in chosen),
    )  # fmt: skip


def _is_edge(function: Callable[..., Any], values: tuple[int, ...], index: int) -> bool:
    moved = [value + (place == index) for place, value in enumerate(values)]
    return bool(function(*moved) != function(*values))


def _draws(rule: str, arguments: int) -> Iterator[tuple[int, ...]]:
    """Small numbers and any, by turns, in an order that the rule alone determines."""
    dice = random.Random(rule)
    while True:
        yield tuple(dice.choices(VALUES[:6], k=arguments))
        yield tuple(dice.choices(VALUES, k=arguments))


def _scenario_vector(case: Case) -> ScenarioVector:
    return ScenarioVector(
        name=case.name,
        why=case.verdicts.why,
        scenario=case.scenario,
        expected={name: _expected(case.scenario, policy) for name, policy in POLICIES.items()},
    )


def _expected(scenario: Scenario, policy: Policy) -> Expected:
    facts = tuple(reference_player(scenario.geometry, policy).play(scenario))
    tail = scenario.geometry.window if policy.reprefill_tail is None else policy.reprefill_tail
    broken = sorted("/".join(pair) for pair in check(facts).violations)
    return Expected(reprefill_tail=tail, facts=facts, breaks=tuple(broken))
