"""What lets one rule run on integers and be proved on Z3 terms.

``+ - * %`` and comparisons mean the same on Python integers and on Z3 integers for the
divisors that occur here (all positive), and ``&``/``|`` combine conditions of both. Only a choice
between two values does not: Python would take a symbolic condition's truth value. `select` is that
choice. The prover registers its own conditional for its own type of condition, so that no rule
imports a prover.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_conditionals: dict[type, Callable[[Any, Any, Any], Any]] = {}


def register_conditional(condition_type: type, conditional: Callable[[Any, Any, Any], Any]) -> None:
    """Use ``conditional(condition, then, otherwise)`` for conditions of ``condition_type``."""
    _conditionals[condition_type] = conditional


def select(condition: bool, then: T, otherwise: T) -> T:
    """``then`` if ``condition`` holds, else ``otherwise``.

    Raises:
        TypeError: the condition is neither a bool nor of a registered type.
    """
    if isinstance(condition, bool):
        return then if condition else otherwise
    for condition_type, conditional in _conditionals.items():
        if isinstance(condition, condition_type):
            chosen: T = conditional(condition, then, otherwise)
            return chosen
    raise TypeError(f"no conditional is registered for {type(condition).__name__}")


def minimum(one: int, other: int) -> int:
    """Smaller of two terms.

    post: __return__ <= one and __return__ <= other
    post: __return__ == one or __return__ == other
    """
    return select(one <= other, one, other)


def maximum(one: int, other: int) -> int:
    """Larger of two terms.

    post: __return__ >= one and __return__ >= other
    post: __return__ == one or __return__ == other
    """
    return select(one >= other, one, other)
