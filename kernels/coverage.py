"""The gate: every cache class and index kernel of a release is covered, or exempt for a reason.

Nothing of the engine is imported: its source is parsed, and compared with ``coverage.toml``. So a
class that a release adds, and a covered kernel that it changes, are told by name before anybody
relies on a campaign that does not play them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from kvproof.kernels.family import Family
from kvproof.kernels.inventory import inventory, triton_functions
from kvproof.model.files import read_file
from kvproof.model.scenario import BadFileError
from kvproof.model.toml import decode_toml

FILE = Path(__file__).with_name("coverage.toml")

Kind: TypeAlias = Literal["class", "kernel"]
Status: TypeAlias = Literal["covered", "exempt", "new", "changed", "gone"]


class Covered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cache classes that are played, and in which constructions, or by what else."""

    by: str
    classes: tuple[str, ...]


class Exempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What nothing here plays or proves, and why.

    Attributes:
        families: those that the reason is about; all if empty.
    """

    reason: str
    classes: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an exemption without a reason."""
        if not self.reason.strip():
            raise ValueError("an exemption needs a reason")


class Coverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file.

    Attributes:
        kernel_modules: files and folders below the engine's root that hold index kernels.
        class_modules: those that hold cache classes.
        class_roots: a cache class is one of these, or derives from one.
    """

    kernel_modules: tuple[str, ...]
    class_modules: tuple[str, ...]
    class_roots: tuple[str, ...]
    covered: tuple[Covered, ...]
    exempt: tuple[Exempt, ...]

    def __post_init__(self) -> None:
        """Refuse a class that has two entries."""
        listed = (*(e.classes for e in self.covered), *(e.classes for e in self.exempt))
        names = [name for classes in listed for name in classes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"the class {name} stands twice")

    def why_exempt(self, kind: Kind, name: str, family: str) -> str:
        """The reason; empty if there is none."""
        for entry in self.exempt:
            names = entry.classes if kind == "class" else entry.kernels
            if name in names and (not entry.families or family in entry.families):
                return entry.reason
        return ""


def load_coverage(path: Path = FILE) -> Coverage:
    """The file's entries; raises BadFileError."""
    try:
        return decode_toml(read_file(path), Coverage, part="coverage file")
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """A cache class or index kernel of a release.

    Attributes:
        place: ``module:name``.
        why: constructions or catalogue steps that cover it, or the reason of its exemption.
    """

    kind: Kind
    name: str
    place: str
    status: Status
    why: str = ""

    @property
    def passes(self) -> bool:
        """Whether the gate lets it through."""
        return self.status in {"covered", "exempt"}


def gate(root: Path, family: Family, coverage: Coverage | None = None) -> tuple[Shipped, ...]:
    """All cache classes and index kernels of a release, each with its status.

    Args:
        root: folder that holds the engine's ``sglang/``.
        family: of the engine.
        coverage: what is said of them; the file of this package by default.
    """
    said = load_coverage() if coverage is None else coverage
    return (*_classes(root, family, said), *_kernels(root, family, said))


def _classes(root: Path, family: Family, said: Coverage) -> Iterator[Shipped]:
    covered = {name: entry.by for entry in said.covered for name in entry.classes}
    for name, place in sorted(_cache_classes(root, said).items()):
        if name in covered:
            yield Shipped(kind="class", name=name, place=place, status="covered", why=covered[name])
            continue
        yield _exempt_or_new("class", name, place, family, said)


def _exempt_or_new(kind: Kind, name: str, place: str, family: Family, said: Coverage) -> Shipped:
    reason = said.why_exempt(kind, name, family.name)
    return Shipped(
        kind=kind, name=name, place=place, status="exempt" if reason else "new", why=reason
    )


def _kernels(root: Path, family: Family, said: Coverage) -> Iterator[Shipped]:
    found: dict[str, Shipped] = {}
    for one in inventory(root, family):
        name = one.place.partition(":")[2]
        if one.steps:
            found[one.place] = Shipped(
                kind="kernel", name=name, place=one.place, status=one.change or "covered",
                why=", ".join(one.steps),
            )  # fmt: skip
        elif one.change != "gone":  # what nothing here looks at may go
            found[one.place] = _exempt_or_new("kernel", name, one.place, family, said)
    for module in _modules(root, said.kernel_modules):
        for function in triton_functions(root, module):
            place = f"{module}:{function.name}"
            if place not in found:
                found[place] = _exempt_or_new("kernel", function.name, place, family, said)
    for _, shipped in sorted(found.items()):
        yield shipped


def _modules(root: Path, places: tuple[str, ...]) -> Iterator[str]:
    for place in places:
        path = root / place
        files = [path] if path.is_file() else sorted(path.rglob("*.py"))
        for file in files:
            yield ".".join(file.relative_to(root).with_suffix("").parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Class:
    place: str
    bases: frozenset[str]


def _cache_classes(root: Path, said: Coverage) -> Mapping[str, str]:
    """Place of each class that is or derives from a root, by name; bases are known by name."""
    known: dict[str, _Class] = {}
    for module in _modules(root, said.class_modules):
        path = root / Path(*module.split(".")).with_suffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                known[node.name] = _Class(
                    place=f"{module}:{node.name}", bases=frozenset(map(_base, node.bases))
                )

    def is_cache(name: str, below: frozenset[str] = frozenset()) -> bool:
        if name in said.class_roots:
            return True
        if name in below or name not in known:  # of another package, or a name that is its own base
            return False
        return any(is_cache(base, below | {name}) for base in known[name].bases)

    return {name: each.place for name, each in known.items() if is_cache(name)}


def _base(node: ast.expr) -> str:
    """Name of a base, without its module and parameters."""
    return ast.unparse(node).partition("[")[0].rpartition(".")[2]
