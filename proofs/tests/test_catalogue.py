"""Every theorem, as the command proves it."""

from __future__ import annotations

import pytest

from kvproof.proofs.catalogue import CATALOGUE, find
from kvproof.proofs.mutants import MUTANTS
from kvproof.proofs.prove import prove
from kvproof.proofs.solver import Prover
from kvproof.proofs.theorem import Obligation, Theorem

BY_IDENTIFIER = {theorem.identifier: theorem for theorem in CATALOGUE}

REQUIRED = (
    *(f"R{n}" for n in range(1, 11)),
    *(f"C{n}" for n in range(1, 6)),
    *(f"X{n}" for n in range(1, 7)),
    *(f"P{n}" for n in range(1, 9)),
    *(f"T{n}" for n in range(1, 8)),
    *(f"F{n}" for n in (1, 2)),
)


@pytest.mark.parametrize("identifier", BY_IDENTIFIER)
def test_theorem(identifier: str) -> None:
    result = prove(BY_IDENTIFIER[identifier], Prover())
    bad = [(o.name, o.status, o.why) for o in result.obligations if o.verdict != "as expected"]
    assert result.verdict == "as expected", (result.status, bad)


def test_the_catalogue_is_whole() -> None:
    assert list(BY_IDENTIFIER) == ["A1", *REQUIRED]


@pytest.mark.parametrize("seed", [7])
def test_answers_do_not_depend_on_the_seed(seed: int) -> None:
    prover = Prover(seed=seed)
    different = [
        (theorem.identifier, obligation.name, answer.status)
        for theorem in CATALOGUE
        for obligation in theorem.obligations
        if isinstance(obligation, Obligation)
        and (answer := prover.decide(obligation.claim())).status != obligation.expected
    ]
    assert different == []


@pytest.mark.parametrize("identifier", BY_IDENTIFIER)
def test_a_theorem_names_its_mutants_source_and_replays(identifier: str) -> None:
    theorem = BY_IDENTIFIER[identifier]
    assert theorem.source
    assert theorem.mutants
    # The lemmas are about all integers, T2 is its own counterexample, and P6 tries every case.
    assert (theorem.witness is not None) == (identifier not in ("A1", "T2", "P6"))
    assert set(theorem.mutants) <= {mutant.identifier for mutant in MUTANTS}
    names = [obligation.name for obligation in theorem.obligations]
    assert len(names) == len(set(names)), "an obligation's name is its identity"
    for obligation in _refuted(theorem):
        assert obligation.replay is not None, f"{obligation.name} has no replay"


def _refuted(theorem: Theorem) -> list[Obligation]:
    return [
        obligation
        for obligation in theorem.obligations
        if isinstance(obligation, Obligation) and obligation.expected == "refuted"
    ]


def test_families_and_unknown_names() -> None:
    assert [theorem.identifier for theorem in find(["c2", "T"])] == [
        "C2", "T1", "T2", "T3", "T4", "T5", "T6", "T7",
    ]  # fmt: skip
    with pytest.raises(KeyError):
        find(["R99"])
