"""One catalogue of all mutants: what was changed where, and which oracles may notice it.

Four layers, each kept where it belongs: edits of the specification's rules (`proofs.mutants`),
faults of the model (`mutants.model`), edits of the releases' own functions (`mutants.engine`) and
of their kernels (`proofs.kernels.mutants`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias

from kvproof.kernels.capture import Edit
from kvproof.mutants.engine import EngineMutant, engine_mutants
from kvproof.mutants.model import ModelMutant, model_mutants
from kvproof.proofs.kernels.mutants import MUTANTS as KERNEL_EDITS
from kvproof.proofs.mutants import MUTANTS as RULE_EDITS
from kvproof.proofs.mutants import Mutant as RuleEdit

Layer: TypeAlias = Literal["specification", "model", "engine", "kernel"]
Area: TypeAlias = Literal[
    "ring", "cap", "tree", "pools", "translation", "kernels", "streams", "layers", "arithmetic"
]
Oracle: TypeAlias = Literal["proof", "fuzz", "scenario", "kernel proof"]

ORACLES: dict[Oracle, str] = {
    "proof": "a theorem's obligation is decided otherwise than promised",
    "fuzz": "the monitor's verdicts on drawn scenarios are others than without the mutant; for a "
    "kernel: a random launch stores other bytes",
    "scenario": "the same on one scenario that was written for it, where drawn ones seldom go",
    "kernel proof": "a theorem about the release's kernel is decided otherwise",
}

_AREAS: dict[str, Area] = {
    "spec.ring": "ring",
    "spec.window": "ring",
    "model.transition": "ring",
    "spec.cap": "cap",
    "spec.exact": "layers",
    "spec.radix": "tree",
    "model.tree": "tree",
    "spec.pages": "pools",
    "spec.cursor": "pools",
    "spec.schedule": "pools",
    "spec.translate": "translation",
    "model.translation": "translation",
    "spec.streams": "streams",
    "proofs.linear": "arithmetic",
}
"""Area of a rule, by its module."""

UNSEEN: dict[str, str] = {
    "proofs.linear": "a lemma of the prover's arithmetic: the monitor computes with integers",
    "model.transition": "a step of the proofs' transition system: the monitor follows facts",
    "model.translation": "a step of the proofs' transition system: the monitor follows facts",
    "model.tree": "a step of the proofs' transition system: the monitor follows facts",
}
"""Modules whose rules no log is judged by, and why: their mutants are for the proofs alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One entry.

    Attributes:
        name: a few words; unique within its layer.
        where: the rule, fault, function or kernel that is changed.
        change: the edit, or the fault in words.
        oracles: those that may notice it.
        equivalent: why none can; empty if one must.
        subject: what the oracles are given.
    """

    layer: Layer
    name: str
    area: Area
    where: str
    change: str
    oracles: tuple[Oracle, ...]
    subject: RuleEdit | ModelMutant | EngineMutant | Edit
    equivalent: str = ""

    @property
    def key(self) -> str:
        """Name over all layers."""
        return f"{self.layer}: {self.name}"

    @property
    def digest(self) -> str:
        """Of what is changed: a result of an earlier version of a mutant is none of this one's."""
        # A rule's edit names its function object, which is another one each time.
        subject = "" if isinstance(self.subject, RuleEdit) else repr(self.subject)
        told = "\n".join((self.key, self.where, self.change, repr(self.oracles), subject))
        return hashlib.sha256(told.encode()).hexdigest()[:16]


def _rules() -> Iterator[Mutant]:
    for edit in RULE_EDITS:
        module = edit.rule.__module__.removeprefix("kvproof.")
        yield Mutant(
            layer="specification",
            name=edit.identifier,
            area=_AREAS[module],
            where=f"{module}.{edit.rule.__name__}",
            change=f"{edit.text} -> {edit.by}",
            oracles=("proof",) if module in UNSEEN else ("proof", "fuzz"),
            subject=edit,
        )


def _model() -> Iterator[Mutant]:
    for one in model_mutants():
        yield Mutant(
            layer="model",
            name=one.name,
            area=one.area,
            where="reference engine" if one.faulty else "reference engine of forwards",
            change=one.change,
            oracles=("fuzz",),
            subject=one,
        )


def _engines() -> Iterator[Mutant]:
    for one in engine_mutants():
        edit = one.edit
        yield Mutant(
            layer="engine",
            name=f"{edit.name} ({one.target})",
            area=one.area,
            where=edit.place.removeprefix("sglang.").rpartition(".srt.")[2] or edit.place,
            change=f"{edit.text} -> {edit.by}",
            oracles=("fuzz", "scenario") if one.scenario else ("fuzz",),
            subject=one,
            equivalent=one.equivalent,
        )


def _kernels() -> Iterator[Mutant]:
    numbers: Counter[str] = Counter()
    for edit in KERNEL_EDITS:
        numbers[edit.kernel] += 1
        yield Mutant(
            layer="kernel",
            name=f"{edit.kernel.strip('_')} {numbers[edit.kernel]}",
            area="kernels",
            where=edit.kernel,
            change=f"{edit.text} -> {edit.by}",
            oracles=("fuzz", "kernel proof"),
            subject=edit,
        )


@cache
def catalogue() -> tuple[Mutant, ...]:
    """All mutants, layer by layer; raises BadFileError."""
    return (*_rules(), *_model(), *_engines(), *_kernels())
