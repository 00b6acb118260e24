"""Running the catalogue: each theorem's obligations, its witness, its replays, its mutants."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import msgspec

from kvproof.model.facts import Fact as LogFact
from kvproof.model.facts import Skipped
from kvproof.model.reference import MODEL
from kvproof.model.scenario import Scenario
from kvproof.proofs.asked import Question
from kvproof.proofs.mutants import Mutant
from kvproof.proofs.solver import Answer, Prover
from kvproof.proofs.theorem import Check, Claim, Enumeration, Obligation, Replay, Theorem

Verdict: TypeAlias = Literal["as expected", "not as expected", "unknown"]


class Solver(Protocol):
    """Whoever decides claims."""

    def decide(self, claim: Claim) -> Answer:
        """Prove or refute a claim."""


class Releases(Protocol):
    """Installed releases, as ``release:construction``; each method may say why it cannot."""

    def play(self, scenario: Scenario, release: str) -> Sequence[LogFact] | str:
        """The log of a scenario."""

    def ask(self, question: Question, release: str) -> tuple[int, ...] | str:
        """The answer of the release's own function."""


class Confirmation(msgspec.Struct, frozen=True, kw_only=True):
    """A counterexample played: where, and whether the named invariant broke there."""

    target: str
    invariant: str
    broken: bool
    says: str


class ObligationResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one obligation.

    Attributes:
        status: ``proved``, ``refuted``, ``unknown``; ``checked`` for an enumeration.
        bound: what an enumeration covered.
        values: the counterexample.
        confirmations: where the counterexample was played.
        gap: why a refutation could not be replayed anywhere beyond the model.
    """

    name: str
    expected: str
    status: str
    verdict: Verdict
    seconds: float
    arithmetic: str = ""
    bound: str = ""
    values: dict[str, int] = {}
    confirmations: tuple[Confirmation, ...] = ()
    gap: str = ""
    why: str = ""


class TheoremResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one theorem. ``status`` in words, with its scope."""

    identifier: str
    title: str
    statement: str
    scope: str
    source: str
    status: str
    verdict: Verdict
    seconds: float
    obligations: tuple[ObligationResult, ...]
    witness: bool | None = None
    conjecture: str = ""


def prove(theorem: Theorem, solver: Solver, *, releases: Releases | None = None) -> TheoremResult:
    """Run one theorem.

    Args:
        theorem: of the catalogue.
        solver: decides its claims.
        releases: where to play counterexamples too; None to play them on the model only.
    """
    started = time.perf_counter()
    results = tuple(_run(obligation, solver, releases) for obligation in theorem.obligations)
    witness = None
    if theorem.witness is not None:
        witness = Prover().model_of(theorem.witness()) is not None
    return TheoremResult(
        identifier=theorem.identifier,
        title=theorem.title,
        statement=theorem.statement,
        scope=theorem.scope,
        source=theorem.source,
        status=_status(theorem, results, witness),
        verdict=_verdict(results, witness),
        seconds=time.perf_counter() - started,
        obligations=results,
        witness=witness,
        conjecture=theorem.conjecture,
    )


def _run(
    obligation: Obligation | Enumeration, solver: Solver, releases: Releases | None
) -> ObligationResult:
    started = time.perf_counter()
    if isinstance(obligation, Enumeration):
        cases, failed = obligation.run()
        return ObligationResult(
            name=obligation.name,
            expected="checked",
            status="refuted" if failed else "checked",
            verdict="as expected" if failed is None and cases else "not as expected",
            seconds=time.perf_counter() - started,
            bound=f"{obligation.bound} ({cases} cases)",
            why=failed or "",
        )
    answer = solver.decide(obligation.claim())
    confirmations: tuple[Confirmation, ...] = ()
    gap = why = ""
    verdict: Verdict = "as expected" if answer.status == obligation.expected else "not as expected"
    if answer.status == "unknown":
        verdict, why = "unknown", answer.why
    elif answer.status == "refuted" and verdict == "as expected":
        if obligation.replay is None:
            verdict, why = "not as expected", "the refutation has no replay"
        else:
            confirmations, gap = _replay(obligation.replay(answer.values), releases)
            if not confirmations or not all(each.broken for each in confirmations):
                verdict, why = "not as expected", "the counterexample does not break the invariant"
    return ObligationResult(
        name=obligation.name,
        expected=obligation.expected,
        status=answer.status,
        verdict=verdict,
        seconds=time.perf_counter() - started,
        arithmetic=answer.arithmetic,
        values=dict(answer.values),
        confirmations=confirmations,
        gap=gap,
        why=why,
    )


def _replay(
    replay: Replay | Check, releases: Releases | None
) -> tuple[tuple[Confirmation, ...], str]:
    if isinstance(replay, Check):
        return _checked(replay, releases)
    modelled = list(replay.player().play(replay.scenario))
    confirmations = [_confirm(replay, MODEL, modelled)]
    gaps = [replay.why_not_engines] if replay.why_not_engines else []
    for release in replay.releases if releases is not None else ():
        assert releases is not None
        log = releases.play(replay.scenario, release)
        if isinstance(log, str):
            gaps.append(f"{release}: {log}")
        elif len(skipped := _skipped(log)) > len(_skipped(modelled)):
            gaps.append(f"{release}: {skipped[0]}")
        else:
            confirmations.append(_confirm(replay, release, log))
    return tuple(confirmations), "; ".join(gaps)


def _checked(check: Check, releases: Releases | None) -> tuple[tuple[Confirmation, ...], str]:
    confirmations = [
        Confirmation(
            target=check.model, invariant=check.invariant, broken=check.broken, says=check.says
        )
    ]
    gaps = [check.why_not_engines] if check.why_not_engines else []
    for release in check.releases if releases is not None else ():
        assert releases is not None
        assert check.question is not None
        found = releases.ask(check.question, release)
        if isinstance(found, str):
            gaps.append(f"{release}: {found}")
            continue
        confirmations.append(
            Confirmation(
                target=release,
                invariant=check.invariant,
                broken=found != check.question.due,
                says=f"it gives {list(found)}, due is {list(check.question.due)}",
            )
        )
    return tuple(confirmations), "; ".join(gaps)


def _skipped(log: Sequence[LogFact]) -> list[str]:
    return [fact.reason for fact in log if isinstance(fact, Skipped)]


def _confirm(replay: Replay, target: str, log: Sequence[LogFact]) -> Confirmation:
    violation = replay.judge(log)
    return Confirmation(
        target=target,
        invariant=replay.breaks,
        broken=violation is not None,
        says=violation or "the invariant holds on this run",
    )


def _verdict(results: Iterable[ObligationResult], witness: bool | None) -> Verdict:
    verdicts = {result.verdict for result in results}
    if witness is False:
        verdicts.add("not as expected")
    if "not as expected" in verdicts:
        return "not as expected"
    return "unknown" if "unknown" in verdicts else "as expected"


def _status(theorem: Theorem, results: Sequence[ObligationResult], witness: bool | None) -> str:
    if witness is False:
        return "vacuous: its witness is out of reach"
    bad = [result for result in results if result.verdict != "as expected"]
    if bad:
        return f"{bad[0].verdict}: {bad[0].name}"
    parts: list[str] = [theorem.expected]
    bounds = [
        result.bound
        for obligation, result in zip(theorem.obligations, results, strict=True)
        if isinstance(obligation, Enumeration) and not obligation.proved_too
    ]
    if bounds and len(bounds) == len(results):
        parts = [f"checked up to a bound: {'; '.join(bounds)}"]
    elif bounds:
        parts.append(f"partly up to a bound: {'; '.join(bounds)}")
    refuted = [result for result in results if result.status == "refuted"]
    if refuted:
        targets = dict.fromkeys(
            each.target for result in refuted for each in result.confirmations
            if each.target[0].isdigit()
        )  # fmt: skip
        where = f", confirmed on {', '.join(targets)}" if targets else ""
        count = "neighbour" if len(refuted) == 1 else f"{len(refuted)} neighbours"
        parts.append(f"{count} refuted and replayed{where}")
        if theorem.expected == "refuted":
            parts = [f"refuted and replayed{where}"]
    return "; ".join(parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """A mutant changed a theorem's obligation: how."""

    theorem: str
    obligation: str
    how: str


def kills(
    mutant: Mutant, theorems: Sequence[Theorem], solver: Solver, *, first: bool = True
) -> list[Kill]:
    """Theorems that a mutant flips.

    An obligation counts as flipped only if the solver decided it otherwise than expected, or an
    enumeration found a failing case; an ``unknown`` is no kill. Obligations that the mutant leaves
    as they are are not asked again.

    Args:
        mutant: put in place while the theorems run.
        theorems: to try.
        solver: decides the claims.
        first: stop a theorem at its first flipped obligation.
    """
    found = []
    for theorem in theorems:
        for obligation in theorem.obligations:
            how = _flipped(mutant, theorem, obligation, solver)
            if how:
                found.append(Kill(theorem=theorem.identifier, obligation=obligation.name, how=how))
                if first:
                    break
    return found


def _flipped(
    mutant: Mutant, theorem: Theorem, obligation: Obligation | Enumeration, solver: Solver
) -> str:
    if isinstance(obligation, Enumeration):
        if mutant.identifier not in theorem.mutants:
            return ""
        with mutant.applied():
            _, failed = obligation.run()
        return failed or ""
    original = obligation.claim()
    with mutant.applied():
        claim = obligation.claim()
    if _same(original, claim):
        return ""
    answer = solver.decide(claim)
    return answer.status if answer.status not in (obligation.expected, "unknown") else ""


def _same(one: Claim, other: Claim) -> bool:
    facts = [*one.given, one.then], [*other.given, other.then]
    return len(facts[0]) == len(facts[1]) and all(
        a is b if isinstance(a, bool) or isinstance(b, bool) else a.eq(b)
        for a, b in zip(*facts, strict=True)
    )
