"""What a campaign plays on: targets of the store, and reference engines as its canaries.

A canary is a target whose verdict is known beforehand. One must break, or the campaign would not
see a defect that is there; one must hold, or it sees some that are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from kvproof.fuzz.campaign import Process
from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.strategies import Sizes
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.facts import Fact
from kvproof.model.players import model_player
from kvproof.model.policy import RingFault
from kvproof.model.reference import MODEL, Policy
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import FAMILIES, Invariant


@dataclass(slots=True)
class ModelProcess:
    """The reference engine, played in this process."""

    policy: Policy
    backend: KernelBackend = "interpreter"

    def start(self) -> None:
        """It is there."""

    def play(self, scenario: Scenario, *, timeout: float, backend: Backend) -> list[Fact]:
        """The log of a scenario; there are no kernels, so rows come from the rules."""
        return list(model_player(scenario, self.policy).play(scenario))

    def interrupt(self) -> None:
        """A play ends by itself."""

    def close(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Something that a campaign plays on.

    Attributes:
        target: what reports call it, and what is drawn for it.
        policy: of the reference engine; None for an engine of the store.
        sequences: that a canary is played, until it breaks what it must; 0 for what is none.
        must_break: what a canary must break; None if nothing of it may.
    """

    target: Target
    policy: Policy | None = None
    sequences: int = 0
    must_break: Invariant | None = None

    @property
    def name(self) -> str:
        """The target's."""
        return self.target.name

    @property
    def asked(self) -> str:
        """What `find_subjects` takes for it, in another process too."""
        return self.target.asked

    @property
    def is_canary(self) -> bool:
        """Whether its verdict is known."""
        return self.sequences > 0

    def open(self) -> AbstractContextManager[Process]:
        """A process of its own, not yet started."""
        return self.target.process() if self.policy is None else nullcontext(self._model())

    def _model(self) -> Process:
        assert self.policy is not None
        return ModelProcess(self.policy)


def _model(
    name: str, policy: Policy, *, sequences: int = 0, must_break: Invariant | None = None
) -> Subject:
    nowhere = Path(MODEL)
    engine = Engine(name=f"{MODEL}-{name}", version="", source="path", root=nowhere, deps=nowhere)
    sizes = Sizes(swa_shares=(1, 2, 4)) if policy.paged_swa else Sizes()
    target = Target(
        engine=engine, construction=REGISTRY, has_ring=not policy.paged_swa, sizes=sizes
    )
    return Subject(target=target, policy=policy, sequences=sequences, must_break=must_break)


CANARIES = (
    _model("uncapped", Policy(reprefill_tail=0), sequences=2000, must_break="FRESH-DECODE"),
    _model("sound", Policy(paged_swa=True), sequences=200),
)
"""The reference engine without the cap of PR #30339, and one with a paged SWA pool and no fault."""

FAULTY = tuple(
    _model(fault.replace(" ", "-"), Policy(faults=frozenset({fault})))
    for fault in get_args(RingFault)
)
"""The reference engine with a seeded fault, for those who want to see a campaign find one."""

_MODELS = {subject.target.engine.name: subject for subject in (*CANARIES, *FAULTY)}


def find_subjects(names: Sequence[str], store: EngineStore) -> tuple[Subject, ...]:
    """Subjects by name.

    Args:
        names: targets as `find_targets` takes them, or a reference engine such as
            ``model-leak-on-abort``; none for all targets of all installed engines.
        store: where engines are.

    Raises:
        EngineError: nothing is installed, or a name is of nothing.
    """
    found: list[Subject] = []
    for name in names:
        engine_name = name.partition(":")[0]
        if engine_name in _MODELS:
            found.append(_MODELS[engine_name])
        elif engine_name.startswith(MODEL):
            raise EngineError(
                f"there is no reference engine {name!r}",
                fix=f"choose one of {', '.join(_MODELS)}",
            )
        else:
            found += _subjects(find_targets([name], store))
    if not names:
        for family in FAMILIES:
            found += _subjects(find_targets((), store, family=family))
    return tuple(dict.fromkeys(found))


def _subjects(targets: Iterable[Target]) -> Iterable[Subject]:
    return (Subject(target=target) for target in targets)
