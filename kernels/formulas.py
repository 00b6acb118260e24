"""Formulas in a release's docstrings, held against what its kernel computes.

A docstring that says ``state_slot * win + pos % win`` can be evaluated, and the decode index kernel
can be asked for the row of the same numbers. Formulas about anything else are found and not judged.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from kvproof.kernels.capture import KernelProcess, Order
from kvproof.kernels.family import Family

Subject: TypeAlias = Literal["ring row", "window length"]

Judgement: TypeAlias = Literal["agrees", "agrees without drafts", "disagrees", "not judged"]

_QUOTED = re.compile(r"(`{1,2})([^`\n]+)\1")
_ASSIGNED = re.compile(r"^\w+\s*=\s*")
_NAMES = {
    "slot": "slot", "state_slot": "slot",
    "pos": "position", "position": "position", "positions": "position",
    "win": "window", "window": "window",
    "ring_stride": "stride", "win_with_spec": "stride",
}  # fmt: skip
"""Words of the releases for the numbers that a launch is given."""

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip

Numbers = Mapping[str, int]

WITH_DRAFTS: tuple[Numbers, ...] = (
    {"window": 4, "stride": 6, "slot": 2, "position": 7},
    {"window": 4, "stride": 5, "slot": 1, "position": 2},
)
WITHOUT_DRAFTS: tuple[Numbers, ...] = (
    {"window": 4, "stride": 4, "slot": 2, "position": 9},
    {"window": 3, "stride": 3, "slot": 1, "position": 1},
)
"""Launches that kernel and formula are compared on; without drafts a slot has a row a position."""


class Formula(msgspec.Struct, frozen=True, kw_only=True):
    """A formula in a docstring.

    Attributes:
        place: of the docstring, ``module`` or ``module:function``.
        text: the formula.
        subject: what it is of; None where it is about something that is not asked of a kernel.
        judgement: whether the kernel computes it.
        says: where the two differ.
    """

    place: str
    text: str
    subject: Subject | None
    judgement: Judgement = "not judged"
    says: str = ""


def formulas_of(root: Path, family: Family) -> tuple[Formula, ...]:
    """Formulas in the docstrings of the modules with ring kernels; imports nothing.

    Args:
        root: folder that holds the engine's ``sglang/``.
        family: of the engine.
    """
    if not family.has_ring:
        return ()
    modules = {place.partition(":")[0] for each in family.kernels.values() for place in each.jit}
    found = (each for module in sorted(modules) for each in _formulas(root, module))
    return tuple(dict.fromkeys(found))


def judge(formulas: Sequence[Formula], process: KernelProcess) -> tuple[Formula, ...]:
    """The same formulas, those about rows and windows held against the decode index kernel.

    Raises:
        EngineError: the engine's process does not answer.
    """
    if not any(formula.subject for formula in formulas):
        return tuple(formulas)
    launches = (*WITH_DRAFTS, *WITHOUT_DRAFTS)
    answers = [_ask(process, numbers) for numbers in launches]
    return tuple(_judged(formula, launches, answers) for formula in formulas)


def _ask(process: KernelProcess, numbers: Numbers) -> dict[Subject, int]:
    order = Order(
        work="play",
        wrapper="decode",
        numbers={
            "window": [numbers["window"]], "stride": [numbers["stride"]],
            "slots": [numbers["slot"]], "positions": [numbers["position"]],
        },
    )  # fmt: skip
    rows = process.ask(order).numbers
    # The query's own row comes last.
    return {"ring row": rows[-1], "window length": len(rows)}


def _judged(
    formula: Formula, launches: Sequence[Numbers], answers: Sequence[Mapping[Subject, int]]
) -> Formula:
    if formula.subject is None:
        return formula
    wrong = [
        (numbers, value, answer[formula.subject])
        for numbers, answer in zip(launches, answers, strict=True)
        if (value := evaluate(formula.text, numbers)) != answer[formula.subject]
    ]
    if not wrong:
        return msgspec.structs.replace(formula, judgement="agrees")
    numbers, value, answer = wrong[0]
    given = ", ".join(f"{name} {number}" for name, number in numbers.items())
    only_drafts = all(numbers in WITH_DRAFTS for numbers, _, _ in wrong)
    return msgspec.structs.replace(
        formula,
        judgement="agrees without drafts" if only_drafts else "disagrees",
        says=f"with {given} it gives {value}, the kernel {answer}",
    )


def _formulas(root: Path, module: str) -> Iterator[Formula]:
    path = root / Path(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            continue
        place = module if isinstance(node, ast.Module) else f"{module}:{node.name}"
        for _, text in _QUOTED.findall(ast.get_docstring(node) or ""):
            expression = _ASSIGNED.sub("", text.strip())
            if any(sign in expression for sign in ("%", "min(")) and _parsed(expression):
                yield Formula(place=place, text=expression, subject=_subject(expression))


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return None


def _subject(text: str) -> Subject | None:
    """What a formula is of, by the numbers that it is made of."""
    tree = _parsed(text)
    if tree is None or evaluate(text, WITH_DRAFTS[0]) is None:
        return None
    names = {_NAMES[node.id] for node in ast.walk(tree) if isinstance(node, ast.Name)
             and node.id in _NAMES}  # fmt: skip
    if {"slot", "position"} <= names:
        return "ring row"
    return "window length" if names == {"position", "window"} and "min(" in text else None


def evaluate(text: str, numbers: Numbers) -> int | None:
    """The value of a formula for a launch's numbers; None if it is made of anything else."""
    tree = _parsed(text)
    return None if tree is None else _value(tree, numbers)


def _value(node: ast.expr, numbers: Numbers) -> int | None:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)):
            return numbers.get(_NAMES.get(name, ""))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            one, other = _value(left, numbers), _value(right, numbers)
            if (
                one is None
                or other is None
                or (other == 0 and isinstance(sign, ast.FloorDiv | ast.Mod))
            ):
                return None
            return _OPERATORS[type(sign)](one, other)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=arguments, keywords=[]):
            values = [_value(each, numbers) for each in arguments]
            known = [value for value in values if value is not None]
            if not known or len(known) < len(values):
                return None
            return min(known) if name == "min" else max(known)
        case _:
            return None
