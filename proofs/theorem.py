"""Theorems as values: what is claimed, how it is proved, what would break it, what refutes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from kvproof.model import facts
from kvproof.model.layers import Stack, first_break
from kvproof.model.monitor import check
from kvproof.model.player import Player
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Scenario
from kvproof.proofs.asked import Question

Term: TypeAlias = Any
"""A Z3 integer term; z3 publishes no types."""

Fact: TypeAlias = Any
"""A Z3 condition, or a Python bool where a rule folded to one."""

Status: TypeAlias = Literal["proved", "refuted", "unknown"]
Expected: TypeAlias = Literal["proved", "refuted", "open"]
Values: TypeAlias = Mapping[str, int]
"""A counterexample: the values that the claim asked for, by name."""


UNCAPPED = ("0.5.15:registry", "0.5.16:registry")
"""Releases that reuse all that is cached, as they wire themselves."""

ALL_RELEASES = (*UNCAPPED, "0.5.23:registry")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A sequent over the specification's rules: the conclusion follows from the hypotheses.

    Attributes:
        given: hypotheses; they must be satisfiable together, or the proof would be empty.
        then: conclusion.
        show: terms whose values make up a counterexample, smallest wanted.
    """

    given: tuple[Fact, ...]
    then: Fact
    show: Mapping[str, Term] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """A counterexample as a scenario, and where it can be played.

    Attributes:
        policy: how the reference engine is to behave, e.g. with the weaker stride.
        breaks: the invariant that must be reported: by the monitor, or by ``stack``.
        stack: layers through which the log is judged, for EXACT, PURE and non-interference.
        releases: engine releases that behave as ``policy`` says, as ``release:construction``.
        why_not_engines: why no release can play it, where none can.
    """

    scenario: Scenario
    policy: Policy
    breaks: str
    stack: Stack | None = None
    releases: tuple[str, ...] = ()
    why_not_engines: str = ""

    def player(self) -> Player:
        """A fresh reference engine of that policy."""
        return reference_player(self.scenario.geometry, self.policy)

    def judge(self, log: Sequence[facts.Fact]) -> str | None:
        """What broke in a log, in a sentence; None if the named invariant holds there."""
        if self.stack is not None:
            return first_break(log, self.stack, self.breaks)
        for (invariant, _), violation in check(log).violations.items():
            if invariant == self.breaks:
                return violation.sentence
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Obligation:
    """One query to the solver, for all values of its variables.

    Attributes:
        name: e.g. ``consecution: decode``.
        claim: builds the claim anew, so that a mutant in place is seen.
        expected: ``refuted`` for the next weaker neighbour of a tight bound.
        replay: turns a counterexample into a run; required where a refutation is expected.
    """

    name: str
    claim: Callable[[], Claim]
    expected: Literal["proved", "refuted"] = "proved"
    replay: Callable[[Values], Replay | Check] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A counterexample replayed without a scenario: what must break, and whether it did.

    Attributes:
        model: what it was played on.
        broken: whether the named invariant broke there.
        says: the run in a sentence.
        question: the same as a question to a release's own function; see `asked`.
        releases: where to ask it.
        why_not_engines: why no release can play it, where none can.
    """

    model: str
    invariant: str
    broken: bool
    says: str
    question: Question | None = None
    releases: tuple[str, ...] = ()
    why_not_engines: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Enumeration:
    """An obligation that is checked for every case up to a bound, not proved for all.

    Attributes:
        run: returns the number of cases and the first that fails, or None.
        bound: what was covered, in words; part of the verdict.
        proved_too: only a cross-check of what other obligations prove for all.
    """

    name: str
    run: Callable[[], tuple[int, str | None]]
    bound: str
    proved_too: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Theorem:
    """One entry of the catalogue.

    Attributes:
        identifier: e.g. ``R6``.
        title: a few words.
        statement: plain English; what is true, where the conjecture was not.
        scope: what the proof covers, e.g. ``all W, S, n, any chunking``.
        expected: status of the statement as a whole.
        obligations: what has to be shown, by name.
        mutants: identifiers of mutants of the specification that must flip it.
        witness: hypotheses of an interesting instance; must be satisfiable.
        source: engine file, pull request or report that it speaks about.
        conjecture: the statement as first conjectured, where it turned out to be false.
    """

    identifier: str
    title: str
    statement: str
    scope: str
    obligations: tuple[Obligation | Enumeration, ...]
    mutants: tuple[str, ...]
    source: str
    expected: Expected = "proved"
    witness: Callable[[], tuple[Fact, ...]] | None = None
    conjecture: str = ""
