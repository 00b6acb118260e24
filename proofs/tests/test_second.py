"""cvc5 agrees with z3, where it is installed."""

from __future__ import annotations

import pytest

from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.prove import prove
from kvproof.proofs.second import SecondOpinion
from kvproof.proofs.solver import Prover

pytest.importorskip("cvc5", reason="cvc5 is not installed: pip install 'kvproof[cvc5]'")

# Not the lemmas: cvc5 takes a minute for one of them. The command asks for all.
FAMILIES = [theorem for theorem in CATALOGUE if theorem.identifier[0] in "RCT"]


@pytest.mark.parametrize("theorem", FAMILIES, ids=lambda theorem: theorem.identifier)
def test_second_opinion(theorem) -> None:  # type: ignore[no-untyped-def]
    opinion = SecondOpinion(first=Prover(), timeout_s=20)
    assert prove(theorem, opinion).verdict == "as expected"
