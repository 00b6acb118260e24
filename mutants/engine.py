"""Mutants of the engines: edits of the releases' own functions, and where each is played.

They are listed in ``engine.toml``. `kvproof.fuzz.drivers.mutants` puts one in place in the engine's
own process, for as long as a scenario is played.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from kvproof.fuzz.drivers.wire import FunctionEdit
from kvproof.model.files import read_file
from kvproof.model.scenario import BadFileError
from kvproof.model.toml import decode_toml

FILE = Path(__file__).with_name("engine.toml")


class EngineMutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One edit of a release, and the target on which it is played.

    Attributes:
        name: a few words; unique on its target.
        target: e.g. ``0.5.16:registry``.
        place: see `FunctionEdit`, as for ``text`` and ``by``.
        by_kernels: the rows have to be named by the real kernels: the edit is in their launch.
        equivalent: why nothing that is observed can differ; empty if it must be noticed.
        scenario: one that shows it, as text, where drawn ones seldom do.
    """

    name: str
    target: str
    area: Literal["ring", "cap", "tree", "pools", "translation", "streams"]
    place: str
    text: str
    by: str
    by_kernels: bool = False
    equivalent: str = ""
    scenario: str = ""

    @property
    def edit(self) -> FunctionEdit:
        """What the engine's process is told."""
        return FunctionEdit(name=self.name, place=self.place, text=self.text, by=self.by)


class _Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: tuple[EngineMutant, ...]


@cache
def engine_mutants(path: Path = FILE) -> tuple[EngineMutant, ...]:
    """All entries; raises BadFileError."""
    try:
        listed = decode_toml(read_file(path), _Listed, part="list of engine mutants").mutant
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error
    names = [(one.target, one.name) for one in listed]
    for twice in {name for name in names if names.count(name) > 1}:
        raise BadFileError(f"{path}: the mutant {twice[1]!r} of {twice[0]} stands twice")
    return listed
