"""An engine's process that is none: the reference engine, played in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz.campaign import Break, Campaign, Fault, Finding, Listener, TargetResult
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.run_folder import RunFolder
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.store import Engine
from kvproof.model.facts import Fact, Started
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Scenario, encode_scenario

UNCAPPED = Policy(reprefill_tail=0)
CAPPED = Policy()

QUICK = Profile(sequences=80, kernel_share=4)


@dataclass(frozen=True, kw_only=True)
class Played:
    """One play: what was asked for, how often before, and what came out."""

    scenario: Scenario
    backend: str
    times: int
    log: list[Fact]


@dataclass
class FakeProcess:
    """Has what a campaign uses of `EngineProcess`.

    ``policy`` by backend lets the two disagree; ``spoil`` turns a log into what a bad engine says.
    """

    rules: Policy = UNCAPPED
    kernels: Policy | None = None
    spoil: Callable[[Played], list[Fact]] = field(default=lambda played: played.log)
    plays: Counter[bytes] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    closed: int = 0
    backend: str = "interpreter"

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """It always runs."""

    def close(self) -> None:
        self.closed += 1

    def play(self, scenario: Scenario, *, timeout: float, backend: str) -> list[Fact]:
        assert timeout > 0
        policy = self.rules if backend == "rules" or self.kernels is None else self.kernels
        log = list(reference_player(scenario.geometry, policy).play(scenario))
        assert isinstance(log[0], Started)
        log[0] = replace(log[0], target="fake:registry", backend=backend)
        times = self.plays[encode_scenario(scenario)]
        self.plays[encode_scenario(scenario)] += 1
        self.asked[backend] += 1
        return self.spoil(Played(scenario=scenario, backend=backend, times=times, log=log))


@dataclass
class Keeper(Listener):
    """Keeps everything in a run folder, as the command does, and what it was told."""

    folder: RunFolder
    breaks: list[Break] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def broke(self, target: Target, broken: Break, scenario: Scenario) -> None:
        self.breaks.append(broken)
        self.folder.seen(target, broken, scenario)

    def found(self, target: Target, finding: Finding, log: list[Fact]) -> None:
        self.findings.append(finding)
        self.folder.found(target, finding, log)

    def faulted(self, target: Target, fault: Fault, log: list[Fact]) -> None:
        self.folder.faulted(target, fault, log)


def fake_target() -> Target:
    nowhere = Path("nowhere")
    engine = Engine(name="fake", version="1", source="path", root=nowhere, deps=nowhere)
    return Target(engine=engine, construction="registry")


def campaign(process: FakeProcess, **options: object) -> Campaign:
    settings: dict[str, object] = {"profile": QUICK, "seed": 0, **options}
    return Campaign(target=fake_target(), process=process, **settings)  # type: ignore[arg-type]


def verdicts(result: TargetResult) -> dict[str, str]:
    return {verdict.invariant: verdict.status for verdict in result.verdicts}


def reason(result: TargetResult, invariant: str) -> str:
    [found] = [verdict for verdict in result.verdicts if verdict.invariant == invariant]
    return found.reason


@pytest.fixture
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(RunFolder.create(tmp_path / "runs"))
