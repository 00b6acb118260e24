"""What triage plays scenarios on: a target of the store, or the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.drivers.wire import Backend, Layering
from kvproof.fuzz.fleet.subjects import ModelProcess
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import RECORDED, EngineError, Fact, Started
from kvproof.model.monitor import check
from kvproof.model.reference import MODEL, Policy
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import Family
from kvproof.triage.cache import engine_code

PLAY_TIMEOUT_S = 60.0
"""Seconds that one play of a scenario may take."""


class Process(Protocol):
    """What plays scenarios, one at a time: `kvproof.fuzz.drivers.process.EngineProcess`."""

    def start(self) -> object:
        """Be ready to play."""

    def play(self, scenario: Scenario, *, timeout: float, backend: Backend) -> list[Fact]:
        """The log of a scenario."""

    def interrupt(self) -> None:
        """End what is played in another thread, as soon as may be."""

    def close(self) -> None:
        """End."""


class Subject(Protocol):
    """Something to play scenarios on."""

    @property
    def name(self) -> str:
        """Name as a target."""

    @property
    def code(self) -> str:
        """Changes whenever plays may."""

    def process(self) -> Process:
        """A process of its own, not yet started."""


@dataclass(frozen=True, slots=True)
class EngineSubject:
    """A target of the store, with layers to run on its kernels or without."""

    target: Target
    layering: Layering | None = None

    @property
    def name(self) -> str:
        """The target's name."""
        return self.target.name

    @property
    def code(self) -> str:
        """Construction and code of the engine."""
        return f"{self.target.construction} {engine_code(self.target.engine)}"

    def process(self) -> Process:
        """A process of the engine."""
        return self.target.process(layering=self.layering)


@dataclass(frozen=True, slots=True)
class ModelSubject:
    """The reference engine under one policy, in this process."""

    policy: Policy = field(default_factory=Policy)

    @property
    def name(self) -> str:
        """``model``."""
        return MODEL

    @property
    def code(self) -> str:
        """The policy; the model's code is kvproof's own."""
        return repr(self.policy)

    def process(self) -> Process:
        """Itself."""
        return ModelProcess(self.policy)


def find_subjects(
    names: Sequence[str],
    store: EngineStore,
    *,
    started: Started | None = None,
    family: Family = "cache",
    layering: Layering | None = None,
) -> tuple[Subject, ...]:
    """Targets by name, as `find_targets` takes them, or ``model``.

    Args:
        names: none for the one that a log is of, or else for every installed engine.
        store: where engines are.
        started: how a log begins, if there is one. The model then has its cap.
        family: of what is to be played.
        layering: layers to run on the kernels of a target; the model has none.

    Raises:
        EngineError: an engine is not installed.
    """
    if not names and started is not None:
        engine, _, construction = started.target.partition(":")
        # A server takes the tree that its release's registry chooses.
        names = [f"{engine}:{REGISTRY}" if construction == RECORDED else started.target]
    found: list[Subject] = []
    for name in names or [""]:
        if name == MODEL:
            found.append(ModelSubject(Policy() if started is None else _policy_of(started)))
        else:
            targets = find_targets([name] if name else [], store, family=family)
            found += [EngineSubject(target, layering) for target in targets]
    return tuple(dict.fromkeys(found))


def _policy_of(started: Started) -> Policy:
    return Policy(
        reprefill_tail=started.reprefill_tail,
        stride=None,
        verify_order=started.verify_order,
    )


def play_on(
    subject: Subject,
    scenario: Scenario,
    *,
    report: Callable[[str], None],
    timeout: float = PLAY_TIMEOUT_S,
    backend: Backend = "interpreter",
) -> list[Fact]:
    """The log of one play; ``report`` is told of it.

    Raises:
        kernels.engines.errors.EngineError: the engine cannot be started.
    """
    report(f"playing on {subject.name}")
    with closing(subject.process()) as process:
        return process.play(scenario, timeout=timeout, backend=backend)


def play_until_broken(
    subjects: Sequence[Subject], scenario: Scenario, *, report: Callable[[str], None]
) -> tuple[Subject, list[Fact]]:
    """The first subject on which something breaks, else the last one, and its log."""
    for subject in subjects:
        facts = play_on(subject, scenario, report=report)
        if isinstance(facts[-1], EngineError) or check(facts).violations:
            break
    return subject, facts
