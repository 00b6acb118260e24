"""Campaigns: draw scenarios, play them on a target, and bring what breaks down to its smallest.

In three steps, so that each says one thing:

1. *survey*: draw the profile's scenarios, play each, let the monitor judge. Nothing stops at the
   first violation: witnesses and counts cover all sequences.
2. *shrink*: for each invariant found broken, Hypothesis draws the same scenarios again and shrinks
   the first that breaks it for the same cause.
3. *confirm*: the smallest scenario is played on the real kernels, twice. It is a finding if the
   same invariant breaks there for the same cause; the two logs must be the same bytes.

A long history is not shrunk by Hypothesis, which drew no more than its palette: it is cut behind
the step that breaks, and the first of its `parts` that breaks too is simplified.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec
from hypothesis import Phase, given, seed
from hypothesis.database import ExampleDatabase
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.confirm import Plays, play_twice
from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.forward_strategies import forward_scenarios
from kvproof.fuzz.profiles import Profile, search_settings
from kvproof.fuzz.simplify import one_by_one, scenario_size, simplify
from kvproof.fuzz.strategies import histories, scenarios
from kvproof.fuzz.targets import Target
from kvproof.kernels.backends import KernelBackend
from kvproof.model.facts import EngineError, Fact
from kvproof.model.monitor import Monitor, check
from kvproof.model.scenario import Scenario, encode_scenario
from kvproof.model.verdict import (
    FAMILIES,
    IN_WORDS,
    NEEDS_SWA,
    SEVERITY,
    Cause,
    Invariant,
    Verdict,
    Violation,
)
from kvproof.model.witness import CAP_WITNESS, Witness, required_of

Break: TypeAlias = tuple[Invariant, Cause]

NO_KERNELS = ("none", "rules")
"""Backends that launch nothing."""


class Process(Plays, Protocol):
    """What a campaign plays on: `kvproof.fuzz.drivers.process.EngineProcess`."""

    @property
    def backend(self) -> KernelBackend:
        """Where it runs the real kernels."""

    def start(self) -> object:
        """Be ready to play."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A broken invariant with its smallest scenario, as played on the real kernels.

    Attributes:
        found_after: sequences drawn when it was first seen.
        find_seconds: time from the target's first sequence to that one.
        shrink_seconds: time that shrinking took.
        confirmed: the scenario breaks the same invariant for the same cause on the real kernels.
        deterministic: two plays gave the same bytes.
    """

    violation: Violation
    scenario: Scenario
    occurrences: int
    found_after: int
    find_seconds: float
    shrink_seconds: float
    confirmed: bool
    deterministic: bool

    @property
    def name(self) -> str:
        """Name for files and messages."""
        return self.violation.name


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The engine raised, hung or died under a scenario."""

    error: EngineError
    scenario: Scenario
    occurrences: int


class TargetResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign learned about one target.

    Attributes:
        sequences: scenarios played in the survey; ``kernel_sequences`` of them on real kernels.
        operations: operations played, ``skipped`` of which found nothing to do.
        seconds: survey time; the engine's import is not part of it.
        witnesses: how often each interesting state was reached.
        missing: witnesses that stayed at zero: the run proves nothing about what needs them.
        counts: violations by ``invariant/cause``, all sequences together.
    """

    target: str
    seed: int
    sequences: int
    kernel_sequences: int
    operations: int
    skipped: int
    seconds: float
    witnesses: dict[str, int]
    missing: tuple[str, ...]
    counts: dict[str, int]
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    faults: tuple[Fault, ...]
    versions: dict[str, str]
    classes: dict[str, str]


@dataclass(slots=True)
class Listener:
    """What a caller may watch; every method does nothing here."""

    def began(self, target: Target, sequences: int) -> None:
        """A target's survey begins."""

    def played(self, target: Target, survey: Survey) -> None:
        """One more sequence was played."""

    def broke(self, target: Target, broken: Break, scenario: Scenario) -> None:
        """An invariant broke for a cause not seen before on this target."""

    def shrinking(self, target: Target, broken: Break, operations: int) -> None:
        """A smaller scenario was found."""

    def found(self, target: Target, finding: Finding, log: list[Fact]) -> None:
        """A finding is complete."""

    def faulted(self, target: Target, fault: Fault, log: list[Fact]) -> None:
        """The engine raised, hung or died for a reason not seen before on this target."""


@dataclass(slots=True)
class Survey:
    """Running totals of a survey.

    Attributes:
        kernels: where real kernels ran, as the logs name it; until one says so, what was asked for.
    """

    sequences: int = 0
    kernel_sequences: int = 0
    operations: int = 0
    skipped: int = 0
    seconds: float = 0.0
    witnesses: Counter[Witness] = field(default_factory=Counter)
    counts: Counter[Break] = field(default_factory=Counter)
    checked: Counter[Invariant] = field(default_factory=Counter)
    first: dict[Break, tuple[int, float]] = field(default_factory=dict)
    smallest: dict[Break, tuple[Scenario, Backend, Violation]] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    kernels: str = ""
    has_ring: bool = False
    has_cap: bool = False
    told: set[Invariant] = field(default_factory=set)
    target: Target | None = None

    def add(self, monitor: Monitor) -> None:
        """Count one played scenario."""
        self.sequences += 1
        self.operations += monitor.steps
        self.skipped += monitor.skipped
        self.witnesses.update(monitor.witnesses)
        self.counts.update(monitor.counts)
        self.checked.update(monitor.checked)
        if monitor.started is not None:
            # What the log says, not what was asked for: without a ring there are no kernels to run.
            if monitor.started.backend not in NO_KERNELS:
                self.kernel_sequences += 1
                self.kernels = monitor.started.backend
            self.versions = monitor.started.versions
            self.classes = monitor.started.classes
            self.has_ring = self.has_ring or monitor.started.ring_stride is not None
            self.told.update(invariant for invariant in NEEDS_SWA if monitor.applies(invariant))
            self.has_cap = self.has_cap or monitor.started.reprefill_tail > 0

    def keep(self, violation: Violation, scenario: Scenario, backend: Backend) -> bool:
        """Note a scenario that breaks an invariant; whether it is the first for this cause."""
        broken = (violation.invariant, violation.cause)
        is_first = broken not in self.first
        self.first.setdefault(broken, (self.sequences, self.seconds))
        if is_first or scenario_size(scenario) < scenario_size(self.smallest[broken][0]):
            self.smallest[broken] = (scenario, backend, violation)
        return is_first

    @property
    def required(self) -> tuple[Witness, ...]:
        """Witnesses that every run on the target must reach."""
        return required_of(REGISTRY) if self.target is None else self.target.witnesses

    def missing(self) -> tuple[Witness, ...]:
        """Witnesses that stayed at zero."""
        reuses = self.target is None or self.target.reuses
        required = [*self.required, *([CAP_WITNESS] if self.has_cap and reuses else [])]
        return tuple(witness for witness in required if not self.witnesses[witness])


class _BreaksError(Exception):
    """Raised for Hypothesis, which shrinks what raises it."""


class _EnoughError(Exception):
    """Raised for Hypothesis, which draws no more: drawing alone takes minutes in a long run."""


def scenarios_of(target: Target, profile: Profile) -> SearchStrategy[Scenario]:
    """What a campaign on a target draws."""
    if target.family == "translation":
        return forward_scenarios(any_caller=target.construction == "dsv4-any")
    if profile.history:
        return histories(target.sizes, operations=profile.history, swarm=profile.swarm)
    return scenarios(target.sizes, swarm=profile.swarm)


Parts: TypeAlias = Callable[[Scenario, Violation], Iterable[Scenario]]
"""Parts of a long scenario that may break as the whole does, the smallest first."""


def never(_survey: Survey) -> bool:
    """A survey that goes on until all is drawn."""
    return False


def silent(_monitor: Monitor) -> None:
    """Nothing is fed back."""


def whole(scenario: Scenario, _violation: Violation) -> Iterable[Scenario]:
    """No part but all of it."""
    return (scenario,)


@dataclass(slots=True)
class Campaign:
    """One target's campaign.

    Attributes:
        parts: what is tried of a long history, before it is simplified.
        enough: whether a survey may end before all is drawn.
        database: where Hypothesis keeps and finds examples, for a survey that goes on from what
            others found. Hypothesis takes a seed or a database: the seed has no part in it then.
        feedback: told of each play of a survey while Hypothesis still looks on.
    """

    target: Target
    process: Process
    profile: Profile
    seed: int
    time_limit: float | None = None
    listener: Listener = field(default_factory=Listener)
    parts: Parts = whole
    enough: Callable[[Survey], bool] = never
    database: ExampleDatabase | None = None
    feedback: Callable[[Monitor], None] = silent

    def run(self) -> TargetResult:
        """Survey, shrink, confirm.

        Raises:
            kernels.engines.errors.EngineError: the engine cannot be started.
        """
        self.process.start()
        survey = self.survey()
        findings = tuple(self.finding(survey, broken) for broken in self._to_shrink(survey))
        return result_of(survey, findings, target=self.target, seed=self.seed)

    def survey(self) -> Survey:
        """Play the profile's scenarios and count."""
        survey = Survey(target=self.target, kernels=self.process.backend)
        began = time.monotonic()
        self.listener.began(self.target, self.profile.sequences)

        def look(scenario: Scenario) -> None:
            survey.seconds = time.monotonic() - began
            if self.time_limit is not None and survey.seconds > self.time_limit:
                raise _EnoughError
            backend = self._backend(scenario)
            log = self._play(scenario, backend)
            monitor = check(log)
            survey.add(monitor)
            self.feedback(monitor)
            survey.seconds = time.monotonic() - began
            if monitor.engine_error is not None:
                self._fault(survey, monitor.engine_error, scenario, log)
            for broken, violation in monitor.violations.items():
                shown = _until(scenario, violation) if self.profile.history else scenario
                if survey.keep(violation, shown, backend):
                    self.listener.broke(self.target, broken, shown)
            self.listener.played(self.target, survey)
            if self.enough(survey):
                raise _EnoughError

        with suppress(_EnoughError):
            self._draw(look, phases=self._phases, database=self.database)
        return survey

    def shrink(self, broken: Break, found: Scenario, backend: Backend, seen: Violation) -> Scenario:
        """Smallest scenario that breaks an invariant for a cause, as ``found`` does with ``seen``.

        Hypothesis starts from ``found``, the smallest one of the survey: shrinking from a large one
        more often ends where no single step makes it smaller.
        """
        limit = scenario_size(found)
        if backend not in NO_KERNELS and broken in self._judge(found, "rules").violations:
            backend = "rules"  # the cause lies in the cache: the quicker backend shows it too
        if self.profile.history:
            return self._shrink_history(broken, found, backend, seen)
        smallest = found

        def provoke(scenario: Scenario) -> None:
            nonlocal smallest
            if scenario_size(scenario) > limit:
                return
            if broken in self._judge(scenario, backend).violations:
                smallest = scenario
                self.listener.shrinking(self.target, broken, len(scenario.operations))
                raise _BreaksError

        # Hypothesis ends by raising for the smallest one, which was kept above; or because that one
        # breaks nothing when played again, which `confirm` will see too.
        with suppress(_BreaksError, Flaky):
            self._draw(provoke, phases=(Phase.generate, Phase.shrink))
        return simplify(
            smallest, lambda candidate: broken in self._judge(candidate, backend).violations
        )

    def _shrink_history(
        self, broken: Break, found: Scenario, backend: Backend, seen: Violation
    ) -> Scenario:
        def breaks(candidate: Scenario) -> bool:
            if broken not in self._judge(candidate, backend).violations:
                return False
            self.listener.shrinking(self.target, broken, len(candidate.operations))
            return True

        return simplify(one_by_one(breaks, self.parts(found, seen)) or found, breaks)

    def confirm(
        self, broken: Break, scenario: Scenario
    ) -> tuple[Violation | None, list[Fact], bool]:
        """Play on the real kernels twice: the violation if it is there, the log, same bytes."""
        log, same = play_twice(
            self.process,
            scenario,
            timeout=self.profile.play_timeout,
            backend=self.process.backend,
        )
        return check(log).violations.get(broken), log, same

    @property
    def _phases(self) -> tuple[Phase, ...]:
        if self.database is None:
            return (Phase.generate,)
        return (Phase.reuse, Phase.generate, Phase.target)

    def finding(self, survey: Survey, broken: Break) -> Finding:
        """Shrink what a survey saw break, and confirm it."""
        found_after, find_seconds = survey.first[broken]
        found, backend, seen = survey.smallest[broken]
        began = time.monotonic()
        smallest = self.shrink(broken, found, backend, seen)
        shrink_seconds = time.monotonic() - began
        violation, log, deterministic = self.confirm(broken, smallest)
        confirmed = violation is not None
        if violation is None:
            violation = self._judge(smallest, "rules").violations.get(broken, seen)
        finding = Finding(
            violation=violation,
            scenario=smallest,
            occurrences=survey.counts[broken],
            found_after=found_after,
            find_seconds=find_seconds,
            shrink_seconds=shrink_seconds,
            confirmed=confirmed,
            deterministic=deterministic,
        )
        self.listener.found(self.target, finding, log)
        return finding

    def _fault(
        self, survey: Survey, error: EngineError, scenario: Scenario, log: list[Fact]
    ) -> None:
        known = survey.faults.get(error.message)
        if known is None:
            fault = Fault(error=error, scenario=scenario, occurrences=1)
            self.listener.faulted(self.target, fault, log)
        else:
            fault = msgspec.structs.replace(known, occurrences=known.occurrences + 1)
        survey.faults[error.message] = fault

    def _backend(self, scenario: Scenario) -> Backend:
        """By the scenario's own bytes, so that a scenario always gets the same one."""
        digest = hashlib.sha256(encode_scenario(scenario)).digest()
        share = int.from_bytes(digest[:8]) % self.profile.kernel_share
        return self.process.backend if share == 0 else "rules"

    def _play(self, scenario: Scenario, backend: Backend) -> list[Fact]:
        return self.process.play(scenario, timeout=self.profile.play_timeout, backend=backend)

    def _judge(self, scenario: Scenario, backend: Backend) -> Monitor:
        return check(self._play(scenario, backend))

    def _to_shrink(self, survey: Survey) -> list[Break]:
        """The worst cause of each broken invariant; all where one invariant is all there is."""
        ranked = sorted(survey.first, key=SEVERITY.__getitem__)
        if self.target.family == "translation":
            return ranked
        worst: dict[Invariant, Break] = {}
        for broken in ranked:
            worst.setdefault(broken[0], broken)
        return list(worst.values())

    def _draw(
        self,
        act: Callable[[Scenario], None],
        *,
        phases: tuple[Phase, ...],
        database: ExampleDatabase | None = None,
    ) -> None:
        """Call ``act`` with the profile's scenarios, the same ones for the same seed."""
        drawn = given(scenarios_of(self.target, self.profile))(act)
        bounded = search_settings(self.profile.sequences, phases=phases, database=database)(drawn)
        (seed(self.seed)(bounded) if database is None else bounded)()


def result_of(
    survey: Survey, findings: tuple[Finding, ...], *, target: Target, seed: int
) -> TargetResult:
    """What a survey and its findings come to."""
    return TargetResult(
        target=target.name,
        seed=seed,
        sequences=survey.sequences,
        kernel_sequences=survey.kernel_sequences,
        operations=survey.operations,
        skipped=survey.skipped,
        seconds=survey.seconds,
        witnesses={
            name: survey.witnesses[name]
            for name in dict.fromkeys(
                (*required_of(target.construction), *survey.required, CAP_WITNESS)
            )
        },
        missing=survey.missing(),
        counts={"/".join(broken): count for broken, count in sorted(survey.counts.items())},
        verdicts=tuple(
            _verdict(invariant, survey, findings)
            for invariant in IN_WORDS
            if invariant in FAMILIES[target.family]
            or any(finding.violation.invariant == invariant for finding in findings)
        ),
        findings=findings,
        faults=tuple(survey.faults.values()),
        versions=survey.versions,
        classes=survey.classes,
    )


def _until(scenario: Scenario, violation: Violation) -> Scenario:
    """A scenario up to the step that breaks."""
    kept = scenario.operations[: violation.step + 1]
    return msgspec.structs.replace(scenario, operations=kept)


def _verdict(invariant: Invariant, survey: Survey, findings: tuple[Finding, ...]) -> Verdict:
    backend = (
        f"rules, {survey.kernels} for {survey.kernel_sequences} of {survey.sequences} sequences"
    )
    scope = f"{survey.sequences} sequences, {survey.operations} operations"
    if survey.target is not None and survey.target.sizes.page_holds_window:
        scope += ", page_size >= window"
    for finding in findings:
        if finding.violation.invariant == invariant:
            if finding.confirmed and finding.deterministic:
                return Verdict(
                    invariant=invariant,
                    status="violated",
                    scope=f"{len(finding.scenario.operations)} operations",
                    backend=survey.kernels,
                    violation=finding.violation,
                )
            reason = (
                "a violation was seen that the real kernels do not repeat"
                if not finding.confirmed
                else "two plays of the smallest scenario differ"
            )
            return Verdict(
                invariant=invariant, status="unknown", scope=scope, backend=backend, reason=reason
            )
    unconfirmed = [cause for broken, cause in survey.first if broken == invariant]
    if unconfirmed:
        reason = f"a violation was seen ({', '.join(unconfirmed)}) and is not confirmed yet"
        return Verdict(
            invariant=invariant, status="unknown", scope=scope, backend=backend, reason=reason
        )
    if survey.faults:
        return Verdict(
            invariant=invariant,
            status="engine error",
            scope=scope,
            backend=backend,
            reason=next(iter(survey.faults)),
        )
    if reason := _not_asked(invariant, survey):
        return Verdict(
            invariant=invariant, status="skipped", scope=scope, backend=backend, reason=reason
        )
    if not survey.checked[invariant]:
        reason = "no sequence put it to the test" + (
            "" if survey.has_ring else ": there is no ring"
        )
        return Verdict(
            invariant=invariant, status="unknown", scope=scope, backend=backend, reason=reason
        )
    if survey.missing():
        return Verdict(
            invariant=invariant,
            status="unknown",
            scope=scope,
            backend=backend,
            reason=f"vacuous: never reached: {', '.join(survey.missing())}",
        )
    return Verdict(
        invariant=invariant,
        status="holds",
        scope=f"no counterexample in {scope}, seed given",
        backend=backend,
    )


def _not_asked(invariant: Invariant, survey: Survey) -> str:
    """Why no sequence could put an invariant to the test; empty if one could."""
    target = survey.target
    if invariant == "CURSOR" and target is not None and not target.gives_back:
        return "no request gives SWA pages back while it runs"
    if survey.checked[invariant]:
        return ""
    if invariant in NEEDS_SWA - survey.told:
        return "who holds locks is not told" if invariant == "LOCK" else "no paged SWA pool is told"
    if target is None:
        return ""
    if invariant == "USEFUL" and not target.reuses:
        return "no prefix is kept that could be reused"
    if invariant == "IN-FLIGHT" and 1 not in target.sizes.overlaps:
        return target.sizes.no_overlap or "no scenario of this target overlaps"
    return "" if target.has_ring else "this release has no ring"
