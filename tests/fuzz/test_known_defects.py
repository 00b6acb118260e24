"""The registry of known defects: every entry has a valid way, and every mutant named is killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvproof.fuzz.constructions import BY_FAMILY
from kvproof.fuzz.targets import TRANSLATIONS
from kvproof.kernels.engines.releases import RELEASES
from kvproof.model.scenario import BadFileError
from kvproof.proofs.catalogue import find
from kvproof.proofs.mutants import MUTANTS
from kvproof.triage.find_again import mutant_outcome
from kvproof.triage.known_defects import (
    MOST_OPERATIONS,
    ByAsking,
    ByFuzzing,
    ByMutant,
    ByProof,
    ByScenario,
    Defect,
    OutOfReach,
    decode_defects,
    load_defects,
)
from kvproof.triage.symptoms import refuse_unknown

DEFECTS = load_defects()
DOCUMENT = Path(__file__).parents[2] / "docs" / "known-defects.md"

MUTANT_WAYS = {
    (way.name, way.symptom): way
    for defect in DEFECTS
    for way in defect.found
    if isinstance(way, ByMutant)
}

ENTRY = """
[[defect]]
name = "a"
ids = ["#1"]
date = ""
what = "w"
affects = ""
found = [{ by = "out of reach", reason = "r" }]
"""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_an_entry_names_what_there_is(defect: Defect) -> None:
    assert re.fullmatch(r"[a-z0-9-]+", defect.name)
    assert all(re.search(r"#\d+( review)?$", report) for report in defect.ids)
    for way in defect.found:
        match way:
            case ByFuzzing() | ByScenario():
                refuse_unknown(way.symptom)
                for name in (*way.targets, *(way.clean if isinstance(way, ByScenario) else ())):
                    release, _, construction = name.partition(":")
                    assert release in set(RELEASES)
                    known = {*TRANSLATIONS, *(c for names in BY_FAMILY.values() for c in names)}
                    assert construction in known
            case ByAsking():
                assert set(way.targets) <= set(RELEASES)
            case ByMutant():
                refuse_unknown(way.symptom)
            case ByProof():
                [theorem] = find([way.theorem])
                if way.mutant is None:  # its own weaker neighbour is what fails
                    assert any(o.expected == "refuted" for o in theorem.obligations
                               if hasattr(o, "expected"))  # fmt: skip
                else:
                    assert way.mutant in {mutant.identifier for mutant in MUTANTS}
                    # `pytest proofs/` shows that a theorem notices the mutants that it names.
                    assert way.mutant in theorem.mutants
            case OutOfReach():
                assert len(way.reason.split()) > 8, "a reason, not a shrug"


@pytest.mark.parametrize("name", MUTANT_WAYS, ids="/".join)
def test_a_mutant_named_is_killed(name: tuple[str, str]) -> None:
    outcome = mutant_outcome(MUTANT_WAYS[name], seconds=60)
    assert outcome.state == "found"
    assert outcome.operations is not None
    # A window of decodes is one move, and takes the longest of them past the aim for releases.
    assert outcome.operations <= 2 * MOST_OPERATIONS


def test_at_least_twelve_are_found_on_real_releases() -> None:
    """By what they do, not by what a function answers; a scenario is short, or is refused."""
    real = [
        defect
        for defect in DEFECTS
        if any(isinstance(way, ByFuzzing | ByScenario) for way in defect.found)
    ]
    assert len(real) >= 12


def test_the_document_shows_every_entry() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for defect in DEFECTS:
        assert f"| {', '.join(defect.ids)} | {defect.what} | {defect.affects} |" in text
    assert "not found: " not in text


@pytest.mark.parametrize(
    ("spoilt", "says"),
    [
        (ENTRY + ENTRY.replace('"#1"', '"#2"'), "the name 'a' stands twice"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), "the report '#1' stands twice"),
        (ENTRY.replace('["#1"]', "[]"), "it needs an id"),
        (ENTRY.replace("reason", "excuse"), "excuse"),
        (ENTRY.replace('by = "out of reach", reason', 'by = "luck", reason'), "luck"),
        (ENTRY.replace('by = "out of reach", reason = "r"', 'by = "mutant", symptom = "X"'),
         "either a policy or a departure"),
        (ENTRY.replace(
            'by = "out of reach", reason = "r"',
            'by = "scenario", targets = [], symptom = "X", scenario = "nonsense"'), "scenario"),
    ],
)  # fmt: skip
def test_a_spoilt_registry_is_refused(spoilt: str, says: str) -> None:
    with pytest.raises(BadFileError, match=says):
        decode_defects(spoilt.encode())
