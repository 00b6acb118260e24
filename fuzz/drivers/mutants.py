"""Mutants of an engine: its own functions, edited in the memory of its own process.

The code of a function object is replaced while a scenario is played, so that whoever imported the
function sees the edit, and the same process plays the release as it is beside it. No
line of the engine is kept here or written anywhere: a mutant is a key to a place in the installed
source and what to put there.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from kvproof.fuzz.drivers.wire import FunctionEdit
from kvproof.kernels.engines.errors import EngineError


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """An edit that fits the engine of this process."""

    function: FunctionType
    code: CodeType

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the edit in place."""
        original = self.function.__code__
        self.function.__code__ = self.code
        try:
            yield
        finally:
            self.function.__code__ = original


def prepare(edit: FunctionEdit) -> Prepared:
    """Compile an edit, and change nothing yet.

    Raises:
        EngineError: the engine has no such function, or its text occurs not once in there.
    """
    try:
        function = _function(pkgutil.resolve_name(edit.place))
    except (ImportError, AttributeError) as error:
        raise _unfit(edit, f"there is no {edit.place}") from error
    return Prepared(function=function, code=_edited(edit, function))


def _function(found: Any) -> FunctionType:
    """The function itself, without what decorates it."""
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    if not isinstance(found, FunctionType):
        raise AttributeError(f"a {type(found).__name__} is no function")
    return found


def _edited(edit: FunctionEdit, function: FunctionType) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(source)
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef)
    lines = source.splitlines(keepends=True)
    # The body alone: what a docstring or the parameters say is not what the function does.
    first = definition.body[1 if ast.get_docstring(definition) is not None else 0].lineno - 1
    body = "".join(lines[first:])
    if body.count(edit.text) != 1:
        raise _unfit(edit, f"{edit.text!r} occurs {body.count(edit.text)} times in {edit.place}")
    made = ast.parse("".join(lines[:first]) + body.replace(edit.text, edit.by)).body[0]
    assert isinstance(made, ast.FunctionDef)
    made.decorator_list = []
    return _code(made, function)


def _code(definition: ast.FunctionDef, function: FunctionType) -> CodeType:
    """Code of a definition with the free variables that the function has, e.g. ``__class__``."""
    outer = ast.parse("def outer(): pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.args.args = [ast.arg(arg=name) for name in function.__code__.co_freevars]
    outer.body = [definition]
    module = ast.fix_missing_locations(ast.Module(body=[outer], type_ignores=[]))
    ast.increment_lineno(module, function.__code__.co_firstlineno - 1)  # for tracebacks
    # As the release's module is compiled: it may postpone annotations.
    postponed = function.__code__.co_flags & __future__.annotations.compiler_flag
    whole = compile(
        module, function.__code__.co_filename, "exec", flags=postponed, dont_inherit=True
    )
    [inside] = [each for each in whole.co_consts if isinstance(each, CodeType)]
    [code] = [
        each
        for each in inside.co_consts
        if isinstance(each, CodeType) and each.co_name == function.__name__
    ]
    if code.co_freevars != function.__code__.co_freevars:
        raise EngineError(
            f"an edit of {function.__qualname__} uses other variables around it than it does",
            fix="choose another edit",
        )
    return code


def _unfit(edit: FunctionEdit, cause: str) -> EngineError:
    return EngineError(
        f"the mutant {edit.name!r} does not fit this engine: {cause}",
        fix="the release reads differently there: give the mutant another text or another release",
    )
