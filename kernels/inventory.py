"""Which Triton functions the catalogued modules of a release hold, and whether they are as known.

Nothing of the engine is imported: its source is parsed. A function is known by a fingerprint of its
code without comments and layout, recorded for each family in ``fingerprints.toml``. So a kernel
that a release adds, drops or changes is noticed by name, before anything is proved of it.

``python -m kvproof.kernels.inventory`` prints that file anew for the installed releases.
"""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.store import EngineStore
from kvproof.kernels.family import Family

Change: TypeAlias = Literal["", "new", "changed", "gone"]

_FILE = "fingerprints.toml"


class TritonFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A Triton function of a release.

    Attributes:
        place: ``module:name``.
        line: in its file; 0 if it is gone.
        signature: its parameters; those that are compile-time constants are marked.
        fingerprint: of its code.
        steps: of the catalogue that launch it; empty if kvproof does not look at it.
        change: what is not as recorded for this family.
    """

    place: str
    line: int = 0
    signature: str = ""
    fingerprint: str = ""
    steps: tuple[str, ...] = ()
    change: Change = ""


def inventory(
    root: Path, family: Family, *, known: Mapping[str, str] | None = None
) -> list[TritonFunction]:
    """All Triton functions in the modules that the catalogue names, and those that are gone.

    Args:
        root: folder that holds the engine's ``sglang/``.
        family: of the engine.
        known: fingerprints by place; those of the family by default.
    """
    if known is None:
        known = recorded().get(family.name, {})
    steps: dict[str, list[str]] = {}
    for step, kernel in family.kernels.items():
        for place in kernel.jit:
            steps.setdefault(place, []).append(step)
    modules = sorted({place.partition(":")[0] for place in steps})
    found: dict[str, TritonFunction] = {}
    for module in modules:
        for function in triton_functions(root, module):
            place = f"{module}:{function.name}"
            fingerprint = _fingerprint(function)
            found[place] = TritonFunction(
                place=place,
                line=function.lineno,
                signature=ast.unparse(function.args),
                fingerprint=fingerprint,
                steps=tuple(steps.get(place, ())),
                change="" if known.get(place) == fingerprint
                else "changed" if place in known else "new",
            )  # fmt: skip
    missing = [place for place in (*known, *steps) if place not in found]
    for place in missing:
        found[place] = TritonFunction(place=place, steps=tuple(steps.get(place, ())), change="gone")
    return [found[place] for place in sorted(found)]


_RECORDED = (
    "0.5.12", "0.5.13", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21",
    "0.5.22", "0.5.23",
)  # fmt: skip
"""The release of each family that fingerprints are of; all have to be installed to record."""


def recorded() -> Mapping[str, Mapping[str, str]]:
    """Fingerprints by family and place, as recorded."""
    text = resources.files("kvproof.kernels").joinpath(_FILE).read_text(encoding="utf-8")
    families: Mapping[str, Mapping[str, str]] = tomllib.loads(text)
    return families


def triton_functions(root: Path, module: str) -> Iterator[ast.FunctionDef]:
    """Functions of a module that are decorated with ``triton.jit``, wherever they stand in it."""
    path = root / Path(*module.split(".")).with_suffix(".py")
    if not path.is_file():
        return
    source = path.read_text(encoding="utf-8")
    if ".jit" not in source:  # parsing takes most of the time
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list)):
            yield node


def _is_jit(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    return isinstance(decorator, ast.Attribute) and decorator.attr == "jit"


def _fingerprint(function: ast.FunctionDef) -> str:
    """Of the code alone: the docstring, comments and layout may change."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    code = [ast.unparse(function.args), *map(ast.unparse, (*function.decorator_list, *body))]
    return hashlib.sha256("\n".join(code).encode()).hexdigest()[:16]


def _record(engines: Sequence[str]) -> str:
    lines = ["# Written by `python -m kvproof.kernels.inventory`: see inventory.py."]
    store = EngineStore()
    for name in engines:
        root = store.find(name).root
        family = family_of(root)
        lines += ["", f'["{family.name}"]']
        lines += [
            f'"{each.place}" = "{each.fingerprint}"'
            for each in inventory(root, family, known={})
            if each.fingerprint
        ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(_record(_RECORDED), end="")  # noqa: T201  # its output is the file
