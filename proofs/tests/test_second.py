"""cvc5 agrees with z3, where it is installed."""

from __future__ import annotations

import pytest

from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.prove import prove
from kvproof.proofs.second import SecondOpinion
from kvproof.proofs.solver import Prover
from kvproof.proofs.theorem import Theorem

pytest.importorskip("cvc5", reason="cvc5 is not installed: pip install 'kvproof[cvc5]'")


@pytest.mark.parametrize("theorem", CATALOGUE, ids=lambda theorem: theorem.identifier)
def test_second_opinion(theorem: Theorem) -> None:
    opinion = SecondOpinion(first=Prover(), timeout_s=20)
    assert prove(theorem, opinion).verdict == "as expected"
