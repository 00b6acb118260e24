"""The corpus: every counterexample that was ever found, with what it breaks on each target.

A case is two files: ``NAME.scenario``, a scenario as text, and ``NAME.toml`` with why it is there
and its verdicts. `pytest fuzz/` replays all of them; a verdict that changes is a failure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvproof.model.facts import Fact
from kvproof.model.files import load_scenario, read_file
from kvproof.model.layers import Stack
from kvproof.model.monitor import check
from kvproof.model.scenario import BadFileError, Count, Scenario
from kvproof.model.text import encode_text
from kvproof.model.toml import decode_toml

DEFAULT_CORPUS = Path("fuzz/corpus")
"""Seen from the repository."""

ENGINE_ERROR = "engine error"

SCENARIO_SUFFIX = ".scenario"
VERDICTS_SUFFIX = ".toml"


class Verdicts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of a case's TOML file.

    Attributes:
        why: what the case shows, in a sentence.
        kernels: whether it is small enough to be replayed on the real kernels each time; by the
            rules it always is.
        breaks: by target, what breaks there, as ``INVARIANT/cause``; nothing for one that is clean.
        ratios: of the layers through which EXACT and PURE are asked; none where they are not.
    """

    why: str
    kernels: bool
    breaks: dict[str, tuple[str, ...]]
    ratios: tuple[Count, ...] = ()

    @property
    def stack(self) -> Stack | None:
        """The layers, if any."""
        return Stack(ratios=self.ratios) if self.ratios else None

    def __post_init__(self) -> None:
        """Refuse a case that shows nothing."""
        if not any(self.breaks.values()):
            raise ValueError("the case breaks nothing on any target")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case of the corpus."""

    name: str
    scenario: Scenario
    verdicts: Verdicts


def what_breaks(log: Sequence[Fact], stack: Stack | None = None) -> tuple[str, ...]:
    """What a log breaks, as a case records it."""
    monitor = check(log, stack=stack)
    found = sorted("/".join(broken) for broken in monitor.violations)
    return (*found, ENGINE_ERROR) if monitor.engine_error is not None else tuple(found)


def decode_verdicts(data: bytes) -> Verdicts:
    """Verdicts from TOML.

    Raises:
        BadFileError: the bytes are no verdicts of a case.
    """
    return decode_toml(data, Verdicts, part="case's verdicts")


def load_case(folder: Path, name: str) -> Case:
    """One case; raises BadFileError with the path in its message."""
    path = folder / f"{name}{VERDICTS_SUFFIX}"
    data = read_file(path)
    try:
        verdicts = decode_verdicts(data)
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error
    scenario = load_scenario(folder / f"{name}{SCENARIO_SUFFIX}")
    return Case(name=name, scenario=scenario, verdicts=verdicts)


def load_corpus(folder: Path) -> tuple[Case, ...]:
    """All cases by name. A scenario without verdicts, or the other way round, is an error."""
    names = {path.stem for path in folder.glob("*") if path.suffix in {".scenario", ".toml"}}
    return tuple(load_case(folder, name) for name in sorted(names))


def write_case(folder: Path, case: Case) -> tuple[Path, Path]:
    """Write a case's two files; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    scenario = folder / f"{case.name}{SCENARIO_SUFFIX}"
    verdicts = folder / f"{case.name}{VERDICTS_SUFFIX}"
    scenario.write_bytes(encode_text(case.scenario))
    verdicts.write_bytes(encode_verdicts(case.verdicts))
    return scenario, verdicts


def encode_verdicts(verdicts: Verdicts) -> bytes:
    """Verdicts as TOML, whose basic strings are those of JSON."""
    lines = [
        f"why = {json.dumps(verdicts.why)}",
        f"kernels = {json.dumps(verdicts.kernels)}",
        *([f"ratios = {json.dumps(verdicts.ratios)}"] if verdicts.ratios else []),
        "",
        "[breaks]",
    ]
    for target, broken in sorted(verdicts.breaks.items()):
        lines.append(f"{json.dumps(target)} = [" + ("" if broken else "]"))
        if broken:
            lines += [*(f"    {json.dumps(name)}," for name in broken), "]"]
    return "\n".join([*lines, ""]).encode()
