"""The corpus: every counterexample that was ever found, with what it breaks on each target.

A case is two files: ``NAME.scenario``, a scenario as text, and ``NAME.toml`` with why it is there
and its verdicts. What no scenario shows is kept as a log, in ``NAME.log.jsonl`` and
``NAME.log.toml``: it is judged again, not played. `pytest fuzz/` does that with all of them; a
verdict that changes is a failure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvproof.model.facts import Fact, LogReader, encode_fact
from kvproof.model.files import blocks, load_scenario, open_file, read_file
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

LOG_SUFFIX = ".log.jsonl"
LOG_VERDICTS_SUFFIX = ".log.toml"


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


class LogCase(msgspec.Struct, frozen=True, kw_only=True):
    """One case that is a log.

    Attributes:
        verdicts: of the one target that the log names.
    """

    name: str
    facts: tuple[Fact, ...]
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
    verdicts = _load_verdicts(folder / f"{name}{VERDICTS_SUFFIX}")
    scenario = load_scenario(folder / f"{name}{SCENARIO_SUFFIX}")
    return Case(name=name, scenario=scenario, verdicts=verdicts)


def load_log_case(folder: Path, name: str) -> LogCase:
    """One case that is a log; raises BadFileError with the path in its message."""
    verdicts = _load_verdicts(folder / f"{name}{LOG_VERDICTS_SUFFIX}")
    with open_file(folder / f"{name}{LOG_SUFFIX}") as file:
        facts = tuple(LogReader(blocks(file)))
    return LogCase(name=name, facts=facts, verdicts=verdicts)


def _load_verdicts(path: Path) -> Verdicts:
    data = read_file(path)
    try:
        return decode_verdicts(data)
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error


def load_corpus(folder: Path) -> tuple[Case, ...]:
    """All scenarios by name. One without verdicts, or the other way round, is an error."""
    logs = _names(folder, LOG_VERDICTS_SUFFIX)
    names = _names(folder, SCENARIO_SUFFIX) | _names(folder, VERDICTS_SUFFIX)
    names -= {f"{name}{Path(LOG_VERDICTS_SUFFIX).stem}" for name in logs}
    return tuple(load_case(folder, name) for name in sorted(names))


def load_logs(folder: Path) -> tuple[LogCase, ...]:
    """All logs by name. One without verdicts, or the other way round, is an error."""
    names = _names(folder, LOG_SUFFIX) | _names(folder, LOG_VERDICTS_SUFFIX)
    return tuple(load_log_case(folder, name) for name in sorted(names))


def _names(folder: Path, suffix: str) -> set[str]:
    return {path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}")}


def write_case(folder: Path, case: Case) -> tuple[Path, Path]:
    """Write a case's two files; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    scenario = folder / f"{case.name}{SCENARIO_SUFFIX}"
    verdicts = folder / f"{case.name}{VERDICTS_SUFFIX}"
    scenario.write_bytes(encode_text(case.scenario))
    verdicts.write_bytes(encode_verdicts(case.verdicts))
    return scenario, verdicts


def write_log_case(folder: Path, case: LogCase) -> tuple[Path, Path]:
    """Write the two files of a case that is a log; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{case.name}{LOG_SUFFIX}"
    verdicts = folder / f"{case.name}{LOG_VERDICTS_SUFFIX}"
    log.write_bytes(b"".join(map(encode_fact, case.facts)))
    verdicts.write_bytes(encode_verdicts(case.verdicts))
    return log, verdicts


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
