"""The known defects: public reports of this family, and how each is found again here.

A defect is found on the real code of a release where that can be installed: by the fuzzer, which is
not steered to it, or by a scenario that is replayed. For the others a mutant of the specification
stands in, which the monitor or a proof has to kill; or it says why not even that is possible.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec

from kvproof.model.files import read_file
from kvproof.model.forward_reference import Departure
from kvproof.model.reference import Policy
from kvproof.model.scenario import BadFileError, Scenario
from kvproof.model.text import parse_scenario
from kvproof.model.toml import decode_toml
from kvproof.proofs.asked import Question

REGISTRY = Path(__file__).with_name("known_defects.toml")

MOST_OPERATIONS = 12
"""Of a scenario that shows a defect: more would not be its smallest."""


class _Way(msgspec.Struct, frozen=True, kw_only=True, tag_field="by", forbid_unknown_fields=True):
    pass


class ByFuzzing(_Way, frozen=True, kw_only=True, tag="fuzz"):
    """The fuzzer finds it with its everyday scenarios.

    Attributes:
        targets: where, e.g. ``0.5.15:registry``.
        symptom: what breaks, e.g. ``FRESH-DECODE/other-request``.
        note: what of the report is shown, where that is not all.
    """

    targets: tuple[str, ...]
    symptom: str
    note: str = ""


class ByScenario(_Way, frozen=True, kw_only=True, tag="scenario"):
    """A scenario shows it.

    Attributes:
        targets: where it breaks.
        clean: targets on which it must not: the fix, or a construction that never had it.
        scenario: as text.
    """

    targets: tuple[str, ...]
    symptom: str
    scenario: str
    clean: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse a text that is no scenario, or a long one."""
        count = len(self.parsed().operations)
        if count > MOST_OPERATIONS:
            raise ValueError(f"the scenario has {count} operations, more than {MOST_OPERATIONS}")

    def parsed(self) -> Scenario:
        """The scenario."""
        try:
            return parse_scenario(self.scenario.encode())
        except BadFileError as error:
            raise ValueError(str(error)) from error


_DEPARTING = ("reprefill_tail", "stride", "verify_order", "prefill_order", "early_release")
"""Fields of a policy that are no fault by name."""


class ByMutant(_Way, frozen=True, kw_only=True, tag="mutant"):
    """The reference engine is made to do the same, and the monitor notices.

    Attributes:
        policy: how the reference engine of caches departs; None where it is that of forwards.
        departure: how the reference engine of forwards does.
        draft_tokens: of the geometries that are drawn.
    """

    symptom: str
    policy: Policy | None = None
    departure: Departure = "none"
    draft_tokens: int = 1
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse none and both."""
        if (self.policy is None) == (self.departure == "none"):
            raise ValueError("a mutant has either a policy or a departure")

    @property
    def name(self) -> str:
        """What departs."""
        if self.policy is None:
            return self.departure
        default = Policy()
        changed = [
            f"{name} {value}"
            for name in _DEPARTING
            if (value := getattr(self.policy, name)) != getattr(default, name)
        ]
        return ", ".join([*sorted(self.policy.faults), *changed])


class ByProof(_Way, frozen=True, kw_only=True, tag="proof"):
    """A theorem fails with a mutant of the specification; without one, its own neighbour does."""

    theorem: str
    mutant: str | None = None
    note: str = ""


class ByAsking(_Way, frozen=True, kw_only=True, tag="asked"):
    """A release's own function gives another answer than the specification.

    Attributes:
        targets: engines, e.g. ``0.5.14``.
        question: what is asked.
        environment: variables of the engine that an operator may set.
    """

    targets: tuple[str, ...]
    question: Question
    environment: dict[str, str] = {}
    note: str = ""


class OutOfReach(_Way, frozen=True, kw_only=True, tag="out of reach"):
    """Why it is not found here."""

    reason: str


Way: TypeAlias = ByFuzzing | ByScenario | ByAsking | ByMutant | ByProof | OutOfReach


class Defect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry: reports of one cause.

    Attributes:
        name: for the command line.
        ids: ``#1234`` of sgl-project/sglang, ``project #1234`` of another.
        date: of the report, or of the first and last; empty where it is not known.
        what: what goes wrong, in a sentence.
        affects: releases that the report, or a reading of them, marks.
        found: how it is found here.
    """

    name: str
    ids: tuple[str, ...]
    date: str
    what: str
    affects: str
    found: tuple[Way, ...]

    def __post_init__(self) -> None:
        """Refuse an entry without report or way."""
        if not self.ids or not self.found:
            raise ValueError(f"{self.name}: it needs an id and a way in which it is found")


class _Registry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    defect: tuple[Defect, ...]


def load_defects(path: Path = REGISTRY) -> tuple[Defect, ...]:
    """All entries; raises BadFileError."""
    data = read_file(path)
    try:
        return decode_defects(data)
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error


def decode_defects(data: bytes) -> tuple[Defect, ...]:
    """Entries from TOML; raises BadFileError."""
    defects = decode_toml(data, _Registry, part="registry of known defects").defect
    for kind, values in (
        ("name", [defect.name for defect in defects]),
        ("report", [report for defect in defects for report in defect.ids]),
    ):
        for twice in _repeated(values):
            raise BadFileError(f"the {kind} {twice!r} stands twice")
    return defects


def _repeated(values: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]
