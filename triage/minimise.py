"""Minimise: the shortest scenario that breaks the same invariant for the same cause.

1. *slice*: what a violation's evidence names, then more and more, until the target shows it.
2. *simplify*: `kvproof.fuzz.simplify`, the same steps that a campaign takes.
3. *confirm*: on the real kernels, twice.

Only the target itself says whether a scenario breaks. The model would be quicker on a long one, but
it lends other slots and holds other tails back than some release does, and once a slice is found a
play on the release takes milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from kvproof.fuzz.confirm import KERNELS
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.simplify import Breaks, scenario_tokens, simplify
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import Fact
from kvproof.model.monitor import check
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import Violation
from kvproof.triage.cache import ResultCache, key_of
from kvproof.triage.case import Case, case_of_play
from kvproof.triage.slices import slices
from kvproof.triage.subjects import Subject
from kvproof.triage.symptoms import Symptom, choose, shows, symptoms_of, violations_of
from kvproof.triage.trials import Trials

BACKENDS: tuple[Backend, ...] = ("rules", KERNELS)
"""Quick first: most causes lie in the cache, and show without the kernels too."""


class Minimised(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    Attributes:
        symptom: what breaks, before and after.
        backend: who named the rows while it was made smaller.
        violation: as the real kernels show it; None if they do not, or for an engine's failure.
        facts: length of the log that it began with; 0 for a scenario.
        tokens: of all prompts.
        tries: scenarios that were looked at, ``recalled`` of them without a play, since they were
            played before; 0 where the whole result is an earlier run's.
        confirmed: the real kernels (the model has none) show the same symptom.
        deterministic: two plays gave the same bytes.
    """

    target: str
    symptom: Symptom
    backend: Backend
    scenario: Scenario
    violation: Violation | None
    facts: int
    operations_before: int
    tokens_before: int
    operations: int
    tokens: int
    tries: int
    recalled: int
    seconds: float
    confirmed: bool
    deterministic: bool


class Kept(msgspec.Struct, frozen=True):
    """A result with the log that confirms it."""

    result: Minimised
    log: tuple[Fact, ...]


@dataclass(slots=True)
class Watcher:
    """What a caller may watch; every method does nothing here."""

    def looking_for(self, symptom: Symptom, target: str) -> None:
        """It is known what the smaller scenario has to show, and where."""

    def tried(self, trials: Trials) -> None:
        """One more scenario was played, in some thread."""

    def better(self, scenario: Scenario) -> None:
        """The smallest scenario so far."""

    def confirming(self) -> None:
        """It does not get smaller, and is played on the real kernels."""


@dataclass(kw_only=True, slots=True)
class Minimiser:
    """How to minimise: where, with how many processes, for how long a play."""

    cache: ResultCache
    workers: int = 1
    timeout: float = 60.0
    watcher: Watcher = field(default_factory=Watcher)

    def run(self, case: Case, subject: Subject, *, wanted: str | None = None) -> Kept:
        """Make a case smaller.

        Args:
            case: from a file.
            subject: where it has to break.
            wanted: a symptom or an invariant; None for the worst.

        Raises:
            EngineError: the engine cannot be started.
            NotBrokenError: the case does not break there.
        """
        began = time.monotonic()
        key = key_of(
            "minimise", subject.name, subject.code, wanted or "",
            msgspec.json.encode((case.scenario, case.found)),
        )  # fmt: skip
        known = self.cache.get(key)
        if known is not None:
            kept = msgspec.json.decode(known, type=Kept)
            self.watcher.looking_for(kept.result.symptom, subject.name)
            self.watcher.better(kept.result.scenario)
            spent = {"tries": 0, "recalled": 0, "seconds": time.monotonic() - began}
            return Kept(msgspec.structs.replace(kept.result, **spent), kept.log)
        kept = self._run(case, subject, wanted, began)
        if kept.result.confirmed and kept.result.deterministic:
            self.cache.put(key, msgspec.json.encode(kept))
        return kept

    def _run(self, case: Case, subject: Subject, wanted: str | None, began: float) -> Kept:
        tries = recalled = 0
        # A log whose rows the rules named holds nothing that needs the kernels.
        named_by_rules = case.started is not None and case.started.backend == "rules"
        for backend in BACKENDS[:1] if named_by_rules else BACKENDS:
            with self._trials(subject, backend) as trials:
                small = self._smallest(case, trials, wanted)
            tries += trials.played + trials.recalled
            recalled += trials.recalled
            if small is not None:
                break
        else:
            raise _breaks_nothing(case, subject, wanted)
        monitor = check(small.log)
        result = Minimised(
            target=subject.name,
            symptom=small.symptom,
            backend=backend,
            scenario=small.scenario,
            violation=violations_of(monitor).get(small.symptom),
            facts=case.facts,
            operations_before=len(case.scenario.operations),
            tokens_before=scenario_tokens(case.scenario),
            operations=len(small.scenario.operations),
            tokens=scenario_tokens(small.scenario),
            tries=tries,
            recalled=recalled,
            seconds=time.monotonic() - began,
            confirmed=shows(symptoms_of(monitor), small.symptom),
            deterministic=small.deterministic,
        )
        return Kept(result, small.log)

    def _smallest(self, case: Case, trials: Trials, wanted: str | None) -> _Small | None:
        """Slice, simplify, confirm; None if nothing that is wanted breaks on these trials."""
        if case.started is None:
            case = case_of_play(case.scenario, trials.play(case.scenario), wanted)
        symptom = choose(case.found, wanted)
        if symptom is None:
            return None
        self.watcher.looking_for(symptom, trials.subject.name)

        def breaks(candidate: Scenario) -> bool:
            return shows(trials.symptoms(candidate), symptom)

        search = _Search(trials, self.watcher)
        part = search(breaks, slices(case.scenario, case.violations.get(symptom)))
        if part is None:
            return None
        smallest = simplify(part, breaks, search=search)
        self.watcher.better(smallest)  # its names are simpler than what the search found
        self.watcher.confirming()
        log, same = trials.confirm(smallest)
        return _Small(symptom, smallest, tuple(log), same)

    @contextmanager
    def _trials(self, subject: Subject, backend: Backend) -> Iterator[Trials]:
        with Trials(
            subject=subject,
            backend=backend,
            cache=self.cache,
            workers=self.workers,
            timeout=self.timeout,
        ) as trials:
            trials.tick = lambda: self.watcher.tried(trials)
            yield trials


@dataclass(frozen=True, slots=True)
class _Small:
    symptom: Symptom
    scenario: Scenario
    log: tuple[Fact, ...]
    deterministic: bool


@dataclass(frozen=True, slots=True)
class _Search:
    """A search of the trials that tells the watcher what it finds."""

    trials: Trials
    watcher: Watcher

    def __call__(self, breaks: Breaks, candidates: Iterable[Scenario]) -> Scenario | None:
        found = self.trials.search(breaks, candidates)
        if found is not None:
            self.watcher.better(found)
        return found


class NotBrokenError(EngineError):
    """The case does not break on the target that it was to be made smaller on."""


def _breaks_nothing(case: Case, subject: Subject, wanted: str | None) -> NotBrokenError:
    symptom = choose(case.found, wanted) or wanted
    kept = "; `kvproof corpus add` keeps a log as it is" if case.started else ""
    what = f"does not break {symptom}" if symptom else "breaks nothing"
    return NotBrokenError(
        f"the {'log' if case.started else 'scenario'} {what} when played on {subject.name}",
        fix="name the engine that it breaks on with --engine, or another --invariant; a log must "
        f"begin with the server's start{kept}",
    )
