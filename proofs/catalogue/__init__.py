"""The catalogue of theorems, one module a subject."""

from __future__ import annotations

from kvproof.proofs.catalogue import cap, exact, ring, streams, translation, tree
from kvproof.proofs.linear import LEMMAS
from kvproof.proofs.theorem import Theorem

ARITHMETIC = Theorem(
    identifier="A1",
    title="the lemmas of linear arithmetic",
    statement="What the proofs assume of remainders and products holds for all integers.",
    scope="all integers; exact non-linear arithmetic",
    obligations=LEMMAS,
    mutants=(
        "lemma MOD-1 too strong",
        "lemma MOD-2 one too far",
        "lemma MOD-3 without carry",
        "lemma MUL-1 with a wrong unit",
        "lemma MUL-2 a step too long",
    ),
    source="proofs/linear.py",
)

CATALOGUE: tuple[Theorem, ...] = (
    ARITHMETIC,
    *ring.THEOREMS,
    *cap.THEOREMS,
    *exact.THEOREMS,
    *tree.THEOREMS,
    *translation.THEOREMS,
    *streams.THEOREMS,
)
"""All theorems, in the order in which tables show them."""


def find(identifiers: list[str]) -> list[Theorem]:
    """Theorems by identifier or by leading letters (``R`` for all of R1 to R10).

    Raises:
        KeyError: nothing is called that.
    """
    found = []
    for wanted in identifiers:
        matching = [
            theorem
            for theorem in CATALOGUE
            if theorem.identifier == wanted.upper()
            or (wanted.isalpha() and theorem.identifier.startswith(wanted.upper()))
        ]
        if not matching:
            raise KeyError(wanted)
        found += [theorem for theorem in matching if theorem not in found]
    return found
