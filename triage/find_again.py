"""Find the known defects again: on the releases that are installed, on the model, by the proofs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import msgspec
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.campaign import scenarios_of
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.forward_strategies import forward_scenarios
from kvproof.fuzz.profiles import PROFILES
from kvproof.fuzz.seek import seek
from kvproof.fuzz.strategies import Sizes, scenarios
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact, encode_fact
from kvproof.model.forward_reference import forward_player
from kvproof.model.monitor import check
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Scenario
from kvproof.proofs.asked import AskedProcess
from kvproof.proofs.catalogue import find
from kvproof.proofs.mutants import MUTANTS
from kvproof.proofs.prove import kills, prove
from kvproof.proofs.solver import Prover
from kvproof.triage.known_defects import (
    ByAsking,
    ByFuzzing,
    ByMutant,
    ByProof,
    ByScenario,
    Defect,
    OutOfReach,
    Way,
)
from kvproof.triage.symptoms import shows, symptoms_of

PLAY_TIMEOUT_S = 60.0

State: TypeAlias = Literal["found", "not found", "not run", "out of reach"]
"""``not run`` says nothing: its engine is not installed."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one way to find a defect, in one place.

    Attributes:
        by: the way's kind.
        where: a target, ``model``, or a theorem.
        breaks: the symptom, or what the proof says.
        sequences: that were drawn until then; 0 where nothing is drawn.
        seconds: until it was seen first; shrinking is not part of it.
        operations: of the smallest scenario; None where there is none.
        scenario: that one.
        reason: why it was not found, not run or is out of reach; or what of a report is shown.
    """

    by: str
    where: str
    state: State
    breaks: str = ""
    sequences: int = 0
    seconds: float = 0.0
    operations: int | None = None
    scenario: Scenario | None = None
    reason: str = ""


class DefectResult(msgspec.Struct, frozen=True, kw_only=True):
    """A defect and what came of its ways."""

    defect: Defect
    outcomes: tuple[Outcome, ...]

    @property
    def on_releases(self) -> bool:
        """Whether it was found on the real code of a release."""
        real = {"fuzz", "scenario", "asked"}
        return any(o.state == "found" and o.by in real for o in self.outcomes)

    @property
    def as_promised(self) -> bool:
        """Whether nothing that was run went otherwise than the registry says."""
        return all(outcome.state != "not found" for outcome in self.outcomes)


@dataclass(slots=True)
class Finder:
    """Finds defects. Close it: it keeps the process of the engine that it used last.

    Attributes:
        seconds: that one search on one target may take.
    """

    store: EngineStore = field(default_factory=EngineStore)
    seed: int = 0
    seconds: float = 120.0
    report: Callable[[str], None] = field(default=lambda _: None)
    _process: tuple[str, EngineProcess] | None = None

    def close(self) -> None:
        """End the engine's process."""
        if self._process is not None:
            self._process[1].close()
            self._process = None

    def run(self, defect: Defect) -> DefectResult:
        """All ways of a defect.

        Raises:
            EngineError: an engine that is installed cannot be started.
        """
        outcomes = [outcome for way in defect.found for outcome in self._outcomes(defect, way)]
        return DefectResult(defect=defect, outcomes=tuple(outcomes))

    def _outcomes(self, defect: Defect, way: Way) -> Iterator[Outcome]:
        match way:
            case OutOfReach(reason=reason):
                yield Outcome(by="out of reach", where="", state="out of reach", reason=reason)
            case ByAsking():
                for name in way.targets:
                    self.report(f"{defect.name}: a function of {name}")
                    yield self.asked(way, name)
            case ByProof():
                self.report(f"{defect.name}: theorem {way.theorem}")
                yield proof_outcome(way)
            case ByMutant():
                self.report(f"{defect.name}: the model with {way.name!r}")
                yield mutant_outcome(way, seed=self.seed, seconds=self.seconds)
            case ByFuzzing() | ByScenario():
                for name in way.targets:
                    self.report(f"{defect.name}: {way.__struct_config__.tag} on {name}")
                    yield self.on_target(way, name)
                if isinstance(way, ByScenario):
                    for name in way.clean:
                        self.report(f"{defect.name}: to be clean on {name}")
                        yield self.clean_on(way, name)

    def on_target(self, way: ByFuzzing | ByScenario, name: str) -> Outcome:
        """Whether a way finds its defect on a target."""
        kind = str(way.__struct_config__.tag)
        target = self._target(name)
        if target is None:
            return _not_run(kind, name, way.symptom)
        with self._playing(target) as play:
            if isinstance(way, ByScenario):
                return _replayed(way, name, play)
            return _sought(
                kind, name, way.symptom, partial(_shown, play, symptom=way.symptom),
                scenarios_of(target, PROFILES["default"]), seed=self.seed, seconds=self.seconds,
                note=way.note,
            )  # fmt: skip

    def asked(self, way: ByAsking, name: str) -> Outcome:
        """Whether a release's own function departs from the specification."""
        question = way.question
        try:
            engine = self.store.find(name)
        except EngineError:
            return _not_run("asked", name, type(question).__name__)
        with closing(AskedProcess(engine, way.environment)) as process:
            answer = process.ask(question)
        due = question.due
        departs = not isinstance(answer, str) and answer != due
        return Outcome(
            by="asked",
            where=name,
            state="found" if departs else "not found",
            breaks=f"{type(question).__name__.lower()}: {_numbers(answer)}, due is {_numbers(due)}",
            reason=way.note
            if departs
            else "it answers as specified"
            if answer == due
            else f"it gives no answer: {answer}",
        )

    def clean_on(self, way: ByScenario, name: str) -> Outcome:
        """Whether a scenario does not break on a target that has no such defect."""
        target = self._target(name)
        if target is None:
            return _not_run("control", name, f"not {way.symptom}")
        with self._playing(target) as play:
            broken = _shown(play, way.parsed(), symptom=way.symptom)
        return Outcome(
            by="control",
            where=name,
            state="not found" if broken else "found",
            breaks=f"not {way.symptom}",
            reason="it breaks there too" if broken else "",
        )

    def _target(self, name: str) -> Target | None:
        try:
            [target] = find_targets([name], self.store)
        except EngineError:
            return None
        return target

    @contextmanager
    def _playing(self, target: Target) -> Iterator[Play]:
        if self._process is None or self._process[0] != target.name:
            self.close()
            self._process = (target.name, target.process())
        process = self._process[1]
        process.start()  # the import of the engine is not part of any figure

        def play(scenario: Scenario) -> list[Fact]:
            return process.play(scenario, timeout=PLAY_TIMEOUT_S, backend="rules")

        yield play


Play: TypeAlias = Callable[[Scenario], Sequence[Fact]]


def _numbers(answer: tuple[int, ...] | str) -> str:
    return answer if isinstance(answer, str) else ", ".join(map(str, answer))


def _shown(play: Play, scenario: Scenario, *, symptom: str) -> bool:
    return shows(symptoms_of(check(play(scenario))), symptom)


def _not_run(kind: str, name: str, symptom: str) -> Outcome:
    return Outcome(
        by=kind, where=name, state="not run", breaks=symptom, reason="the engine is not installed"
    )


def _replayed(way: ByScenario, name: str, play: Play) -> Outcome:
    scenario = way.parsed()
    began = time.monotonic()
    logs = [b"".join(map(encode_fact, play(scenario))) for _ in range(2)]
    seconds = (time.monotonic() - began) / 2
    found = _shown(play, scenario, symptom=way.symptom)
    same = logs[0] == logs[1]
    return Outcome(
        by="scenario",
        where=name,
        state="found" if found and same else "not found",
        breaks=way.symptom,
        seconds=seconds,
        operations=len(scenario.operations),
        scenario=scenario,
        reason=way.note if found and same else "two plays differ" if found else "it does not break",
    )


def _sought(
    kind: str, where: str, symptom: str, shown: Callable[[Scenario], bool],
    drawn: SearchStrategy[Scenario], *, seed: int, seconds: float, note: str,
) -> Outcome:  # fmt: skip
    sought = seek(shown, drawn, seed_number=seed, seconds=seconds)
    small = sought.scenario
    return Outcome(
        by=kind,
        where=where,
        state="not found" if small is None else "found",
        breaks=symptom,
        sequences=sought.sequences,
        seconds=sought.seconds,
        operations=None if small is None else len(small.operations),
        scenario=small,
        reason=note if small else f"in {sought.sequences} sequences",
    )


def mutant_outcome(way: ByMutant, *, seed: int = 0, seconds: float = 60.0) -> Outcome:
    """Whether the monitor kills a mutant of the reference engine, in scenarios that are drawn."""
    if way.policy is None:
        drawn = forward_scenarios(any_caller=False)

        def play(scenario: Scenario) -> Sequence[Fact]:
            return list(forward_player(scenario.geometry, way.departure).play(scenario))
    else:
        policy: Policy = way.policy
        shares = (1, 2, 4) if policy.paged_swa else ()
        drawn = scenarios(Sizes(draft_tokens=(way.draft_tokens,), swa_shares=shares))

        def play(scenario: Scenario) -> Sequence[Fact]:
            return list(reference_player(scenario.geometry, policy).play(scenario))

    shown = partial(_shown, play, symptom=way.symptom)
    return _sought(
        "mutant", f"model: {way.name}", way.symptom, shown, drawn, seed=seed, seconds=seconds,
        note=way.note,
    )  # fmt: skip


def proof_outcome(way: ByProof) -> Outcome:
    """Whether a theorem notices its mutant, or else has a refuted neighbour as it says."""
    began = time.monotonic()
    [theorem] = find([way.theorem])
    if way.mutant is None:
        result = prove(theorem, Prover())
        refuted = [o for o in result.obligations if o.status == "refuted"]
        found = result.verdict == "as expected" and bool(refuted)
        says = f"{refuted[0].name} refuted" if refuted else "nothing is refuted"
    else:
        [mutant] = [one for one in MUTANTS if one.identifier == way.mutant]
        found = bool(kills(mutant, [theorem], Prover()))
        says = f"{way.mutant!r} killed" if found else f"{way.mutant!r} survives"
    return Outcome(
        by="proof",
        where=f"theorem {way.theorem}",
        state="found" if found else "not found",
        breaks=says,
        seconds=time.monotonic() - began,
        reason=way.note,
    )
