"""Every mutant of the specification is noticed by the theorems that promise it."""

from __future__ import annotations

import pytest

from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.mutants import MUTANTS, BadMutantError, Mutant
from kvproof.proofs.prove import kills
from kvproof.proofs.solver import Prover
from kvproof.spec.ring import ring_row
from kvproof.spec.window import window_start


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.identifier)
def test_mutant_is_noticed(mutant: Mutant) -> None:
    promised = [theorem for theorem in CATALOGUE if mutant.identifier in theorem.mutants]
    watching = promised or list(CATALOGUE)
    noticed = {kill.theorem for kill in kills(mutant, watching, Prover())}
    assert noticed, f"no theorem notices: {mutant.edit}"
    assert {theorem.identifier for theorem in promised} <= noticed


def test_a_mutant_is_in_place_only_while_it_is_applied() -> None:
    mutant = Mutant(identifier="test", rule=window_start, text="- window + 1", by="- window")
    assert window_start(5, 3) == 3
    with mutant.applied():
        assert window_start(5, 3) == 2
    assert window_start(5, 3) == 3


def test_a_mutant_whose_text_is_gone_is_an_error() -> None:
    mutant = Mutant(identifier="test", rule=ring_row, text="no such text", by="")
    with pytest.raises(BadMutantError, match="occurs 0 times"), mutant.applied():
        pass
