"""What a release's functions and classes are called with, read from its source.

Nothing of the engine is imported: its source is parsed. A class is called as its ``__init__`` is.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def parameters_of(root: Path, place: str) -> tuple[str, ...] | None:
    """Names of what a function or class takes, without ``self``; None if it is not there.

    Args:
        root: folder that holds the engine's ``sglang/``.
        place: ``module:name`` or ``module:Class.method``, where it is defined.
    """
    function = _function(root, place)
    return None if function is None else parameters(function)


def parameters(function: Definition) -> tuple[str, ...]:
    """Names of what a parsed function takes, without ``self``."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return tuple(name for name in names if name not in {"self", "cls"})


def signature_of(root: Path, place: str) -> str | None:
    """The parameters as they are written, with types and defaults; None if it is not there."""
    function = _function(root, place)
    return None if function is None else ast.unparse(function.args)


def _function(root: Path, place: str) -> Definition | None:
    found = _definition(root, place)
    if isinstance(found, ast.ClassDef):
        return _member(found.body, "__init__")  # type: ignore[return-value]
    return found


def _definition(root: Path, place: str) -> Definition | ast.ClassDef | None:
    module, _, path = place.partition(":")
    tree = _module(root / Path(*module.split(".")).with_suffix(".py"))
    body: list[ast.stmt] = [] if tree is None else tree.body
    found: Definition | ast.ClassDef | None = None
    for name in path.split("."):
        found = _member(body, name)
        body = [] if found is None else found.body
    return found


def _member(body: list[ast.stmt], name: str) -> Definition | ast.ClassDef | None:
    defined = (
        node
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name == name
    )
    return next(defined, None)


@cache
def _module(path: Path) -> ast.Module | None:
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None
