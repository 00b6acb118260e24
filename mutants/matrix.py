"""The kill matrix: each mutant against each of its oracles, with the time that it took.

Everything is judged against the same run without the mutant: a violation that a release has anyway
kills nothing. What could not be run, an unknown and a mutant that is no program are no kills.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from hypothesis.strategies import SearchStrategy

from kvproof.fuzz.campaign import scenarios_of
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.forward_strategies import forward_scenarios
from kvproof.fuzz.profiles import PROFILES
from kvproof.fuzz.seek import seek
from kvproof.fuzz.strategies import scenarios
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.capture import Edit, KernelProcess, Launch, Mutated, Order, Report
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.forward_reference import Departure, forward_player
from kvproof.model.monitor import check
from kvproof.model.policy import Policy
from kvproof.model.reference import reference_player
from kvproof.model.scenario import BadFileError, Scenario
from kvproof.model.text import parse_scenario
from kvproof.mutants.catalogue import Mutant, Oracle
from kvproof.mutants.engine import EngineMutant, engine_mutants
from kvproof.mutants.model import ModelMutant
from kvproof.proofs.catalogue import CATALOGUE as THEOREMS
from kvproof.proofs.kernels import Code
from kvproof.proofs.kernels.mutants import MUTANTS as KERNEL_EDITS
from kvproof.proofs.kernels.report import MutantResult, code_of, judge
from kvproof.proofs.mutants import Mutant as RuleEdit
from kvproof.proofs.prove import kills
from kvproof.proofs.solver import Prover

State: TypeAlias = Literal["killed", "survived", "not run"]

PLAY_TIMEOUT_S = 60.0

LOGS_FROM = (
    "0.5.15:registry", "0.5.16:SWARadixCache", "0.5.23:registry", "0.5.15:paged-swa",
    "0.5.23:paged-swa", "0.5.16:dsv4",
)  # fmt: skip
"""Targets whose logs a mutated specification has to judge."""

LOGS_OF_EACH = 80
"""Scenarios of each, the same for all mutants."""

KERNELS_OF = ("0.5.23", "0.5.16", "0.5.15")
"""Engines whose kernels are edited: the first of them that has the text."""

LAUNCHES = 20
"""Random launches of each kernel recipe."""

UNSHOWN = "nothing breaks that holds without it"

NO_PROGRAM = ("NameError", "UnboundLocalError", "SyntaxError", "ImportError")
"""What an engine raises where a mutant makes no sense: not what an engineer would have to find."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one oracle made of one mutant.

    Attributes:
        by: what noticed it: a theorem and its obligation, or what broke.
        seconds: to the kill, or until the oracle gave up; starting an engine is not part of it.
        tried: sequences or launches that were played until then; 0 for a proof.
        reason: why it survived or was not run.
    """

    mutant: str
    digest: str
    oracle: Oracle
    state: State
    by: str = ""
    seconds: float = 0.0
    tried: int = 0
    reason: str = ""
    settings: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant with its cells.

    Attributes:
        state: killed by some oracle, or by none of those that ran.
        good: killed, or survived and known to be equivalent, or not run.
    """

    layer: str
    name: str
    area: str
    where: str
    change: str
    equivalent: str
    state: State
    good: bool
    cells: tuple[Cell, ...]


def row_of(mutant: Mutant, cells: Sequence[Cell]) -> Row:
    """A mutant's row; ``cells`` are those of the oracles that were asked for."""
    states = {cell.state for cell in cells}
    state: State = (
        "killed" if "killed" in states
        # It may be that the oracle that was not run would have noticed.
        else "not run" if "not run" in states or not states
        else "survived"
    )  # fmt: skip
    good = state == "not run" or (state == "killed") == (not mutant.equivalent)
    return Row(
        layer=mutant.layer, name=mutant.name, area=mutant.area, where=mutant.where,
        change=mutant.change, equivalent=mutant.equivalent, state=state, good=good,
        cells=tuple(cells),
    )  # fmt: skip


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """How many mutants were killed.

    Attributes:
        equivalent: survivors with a written reason; no part of the score.
        percent: killed of the killed and the survivors without a reason; None where none ran.
    """

    mutants: int
    killed: int
    survived: int
    equivalent: int
    not_run: int
    percent: float | None


def score_of(rows: Iterable[Row]) -> Score:
    """The score of some rows."""
    counts = Counter(
        "equivalent" if row.equivalent and row.state == "survived" else row.state for row in rows
    )
    judged = counts["killed"] + counts["survived"]
    return Score(
        mutants=counts.total(),
        killed=counts["killed"],
        survived=counts["survived"],
        equivalent=counts["equivalent"],
        not_run=counts["not run"],
        percent=100 * counts["killed"] / judged if judged else None,
    )


@dataclass(slots=True)
class Progress:
    """Cells that were filled before, and a file that gets each new one at once.

    Attributes:
        path: None keeps nothing.
    """

    path: Path | None = None
    known: dict[tuple[str, str, str], Cell] = field(default_factory=dict)

    @classmethod
    def at(cls, path: Path | None) -> Progress:
        """What a file holds; raises BadFileError."""
        progress = cls(path)
        if path is not None and path.is_file():
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                try:
                    cell = msgspec.json.decode(line, type=Cell)
                except msgspec.DecodeError as error:
                    raise BadFileError(f"{path}, line {number}: no result of mutants") from error
                progress.known[cell.digest, cell.oracle, cell.settings] = cell
        return progress

    def find(self, mutant: Mutant, oracle: Oracle, settings: str) -> Cell | None:
        """The cell, if the same mutant was judged with the same settings."""
        return self.known.get((mutant.digest, oracle, settings))

    def add(self, cell: Cell) -> None:
        """Keep a cell. What was not run is not kept: it may run next time."""
        if self.path is not None and cell.state != "not run":
            with self.path.open("ab") as lines:
                lines.write(msgspec.json.encode(cell) + b"\n")


Broken: TypeAlias = set[str]
Judge: TypeAlias = Callable[[Scenario], Broken]
"""What breaks in a scenario, by ``invariant/cause``."""


def broken_in(log: Iterable[Fact]) -> Broken:
    """What breaks in a log, or that the engine stopped itself; a time that ran out is nothing."""
    monitor = check(log)
    broken = {"/".join(each) for each in monitor.violations}
    error = monitor.engine_error
    if (
        error is not None
        and error.cause != "timed out"
        and not error.message.startswith(NO_PROGRAM)
    ):
        broken.add(f"engine {error.cause}: {error.message.partition(' ')[0].rstrip(':')}")
    return broken


@dataclass(slots=True)
class Oracles:
    """Judges mutants. Close it: it keeps the processes of the engine that it used last.

    Attributes:
        seconds: that one search may take.
        report: told what begins.
    """

    store: EngineStore = field(default_factory=EngineStore)
    seed: int = 0
    seconds: float = 30.0
    report: Callable[[str], None] = field(default=lambda _: None)
    _process: tuple[Target, EngineProcess] | None = None
    _logs: list[tuple[str, list[list[Fact]], Broken]] | None = None
    _kernels: dict[str, _Kernels | None] = field(default_factory=dict)
    _judged: dict[Edit, MutantResult | None] = field(default_factory=dict)

    @property
    def settings(self) -> str:
        """What results depend on besides the mutant."""
        return f"seed {self.seed}, {self.seconds:g} s"

    def close(self) -> None:
        """End the processes."""
        self._let_go()
        for kernels in self._kernels.values():
            if kernels is not None:
                kernels.process.close()
        self._kernels.clear()

    def judge(self, mutant: Mutant, oracle: Oracle) -> Cell:
        """One cell.

        Raises:
            EngineError: an installed engine cannot be started, or an edit does not fit it.
        """
        self.report(f"{oracle}: {mutant.key}")
        match mutant.subject:
            case RuleEdit() as edit if oracle == "proof":
                cell = self._by_proof(edit)
            case RuleEdit() as edit:
                cell = self._by_logs(edit)
            case ModelMutant() as one:
                cell = self._by_model(one)
            case EngineMutant() as one:
                cell = self._by_engine(one, oracle)
            case Edit() as edit:
                cell = self._by_kernel(edit, oracle)
        return msgspec.structs.replace(
            cell, mutant=mutant.key, digest=mutant.digest, oracle=oracle, settings=self.settings
        )

    def _by_proof(self, edit: RuleEdit) -> Cell:
        """Theorems that promise to notice it, one after another."""
        began = time.monotonic()
        promised = [theorem for theorem in THEOREMS if edit.identifier in theorem.mutants]
        for theorem in promised:
            for kill in kills(edit, [theorem], Prover(seed=self.seed)):
                return _cell("killed", began, by=f"{kill.theorem}: {kill.obligation}")
        names = ", ".join(theorem.identifier for theorem in promised)
        return _cell("survived", began, reason=f"none of {names or 'no theorem'} notices it")

    def _by_logs(self, edit: RuleEdit) -> Cell:
        """Logs of real engines, judged again by the mutated rules."""
        if self._logs is None:
            self._logs = list(self._play_logs())
        if not self._logs:
            return _cell("not run", time.monotonic(), reason="no engine is installed")
        began, judged = time.monotonic(), 0
        with edit.applied():
            for name, logs, without in self._logs:
                found: Broken = set()
                for log in logs:
                    judged += 1
                    try:
                        found |= broken_in(log)
                    except Exception as error:  # whatever a wrong rule leads to
                        found.add(f"the monitor fails: {type(error).__name__}")
                    if new := found - without:
                        by = f"{name}: {_list(new)}"
                        return _cell("killed", began, by=by, tried=judged)
                if gone := without - found:
                    by = f"{name}: no {_list(gone)} any more"
                    return _cell("killed", began, by=by, tried=judged)
        return _cell("survived", began, tried=judged, reason="all verdicts are the same")

    def _play_logs(self) -> Iterable[tuple[str, list[list[Fact]], Broken]]:
        for name in LOGS_FROM:
            target = self._target(name)
            if target is None:
                continue
            self.report(f"playing {LOGS_OF_EACH} scenarios on {target.name}")
            process = self._started(target)
            logs: list[list[Fact]] = []

            def keep(scenario: Scenario) -> bool:
                backend: Backend = "rules" if len(logs) % 8 else process.backend  # noqa: B023
                logs.append(process.play(scenario, timeout=PLAY_TIMEOUT_S, backend=backend))  # noqa: B023
                return False

            seek(
                keep, scenarios_of(target, PROFILES["default"]), seed_number=self.seed,
                sequences=LOGS_OF_EACH, seconds=10 * self.seconds,
            )  # fmt: skip
            yield name, logs, set().union(*map(broken_in, logs))

    def _by_model(self, one: ModelMutant) -> Cell:
        if one.faulty is None:
            departure: Departure = one.departure
            drawn = forward_scenarios(any_caller=False)

            def mutated(scenario: Scenario) -> Broken:
                return broken_in(forward_player(scenario.geometry, departure).play(scenario))

            def sound(scenario: Scenario) -> Broken:
                return broken_in(forward_player(scenario.geometry, "none").play(scenario))
        else:
            faulty, right = one.faulty, one.sound or Policy()
            drawn = scenarios(one.sizes)

            def mutated(scenario: Scenario) -> Broken:
                return broken_in(reference_player(scenario.geometry, faulty).play(scenario))

            def sound(scenario: Scenario) -> Broken:
                return broken_in(reference_player(scenario.geometry, right).play(scenario))

        return self._sought(drawn, mutated, sound)

    def _by_engine(self, one: EngineMutant, oracle: Oracle) -> Cell:
        target = self._target(one.target)
        if target is None:
            return _cell("not run", time.monotonic(), reason="its engine is not installed")
        process = self._started(target)
        # The rules in place of the kernels are quicker, and name the rows of a ring as well.
        by_kernels = one.by_kernels or target.family == "translation"
        backend: Backend = process.backend if by_kernels else "rules"

        def play(mutant: str) -> Judge:
            return lambda scenario: broken_in(
                process.play(scenario, timeout=PLAY_TIMEOUT_S, backend=backend, mutant=mutant)
            )

        mutated, sound = play(one.name), play("")
        if oracle == "scenario":
            began, scenario = time.monotonic(), parse_scenario(one.scenario.encode())
            if new := mutated(scenario) - sound(scenario):
                return _cell("killed", began, by=_list(new), tried=1)
            return _cell("survived", began, tried=1, reason=UNSHOWN)
        return self._sought(scenarios_of(target, PROFILES["default"]), mutated, sound)

    def _sought(self, drawn: SearchStrategy[Scenario], mutated: Judge, sound: Judge) -> Cell:
        found: Broken = set()

        def shows(scenario: Scenario) -> bool:
            broken = mutated(scenario)
            found.update(broken - sound(scenario) if broken else ())
            return bool(found)

        began = time.monotonic()
        sought = seek(
            shows, drawn, seed_number=self.seed, seconds=self.seconds, shrink=False,
        )  # fmt: skip
        if sought.scenario is None:
            return _cell("survived", began, tried=sought.sequences, reason=UNSHOWN)
        return _cell("killed", began, by=_list(found), tried=sought.sequences)

    def _by_kernel(self, edit: Edit, oracle: Oracle) -> Cell:
        if edit not in self._judged:
            self._judged[edit] = self._judge_kernel(edit)
        result = self._judged[edit]
        if result is None:
            reason = f"none of {', '.join(KERNELS_OF)} is installed and has this text"
            return _cell("not run", time.monotonic(), reason=reason)
        if oracle == "kernel proof":
            return Cell(
                mutant="", digest="", oracle=oracle,
                state="killed" if result.killed_by else "survived",
                by=result.killed_by, seconds=result.seconds, reason=result.why,
            )  # fmt: skip
        if result.launches is None:
            return Cell(
                mutant="", digest="", oracle=oracle, state="survived", tried=result.tried,
                reason="no launch stores other bytes",
            )  # fmt: skip
        return Cell(
            mutant="", digest="", oracle=oracle, state="killed", by="other bytes are stored",
            seconds=result.launch_seconds or 0.0, tried=result.launches,
        )  # fmt: skip

    def _judge_kernel(self, edit: Edit) -> MutantResult | None:
        for name in KERNELS_OF:
            if name not in self._kernels:
                self._kernels[name] = self._kernels_of(name)
            kernels = self._kernels[name]
            if kernels is None:
                continue
            if found := kernels.mutated(edit):
                prover = Prover(seed=self.seed)
                return judge(kernels.code, edit, found, prover, kernels.launches)
        return None

    def _kernels_of(self, name: str) -> _Kernels | None:
        try:
            engine = self.store.find(name)
        except EngineError:
            return None
        self.report(f"compiling and launching the kernels of {engine.name}")
        return _Kernels(KernelProcess(engine))

    def _target(self, name: str) -> Target | None:
        try:
            [target] = find_targets([name], self.store)
        except EngineError:
            return None
        return target

    def _started(self, target: Target) -> EngineProcess:
        """The target's process with all mutants that are played on it."""
        if self._process is None or self._process[0] != target:
            self._let_go()
            self.report(f"starting {target.name}")
            name = target.name.removeprefix("sglang-")
            edits = tuple(one.edit for one in engine_mutants() if one.target == name)
            self._process = (target, target.process(mutants=edits))
        process = self._process[1]
        process.start()  # the import of the engine is not part of any figure
        return process

    def _let_go(self) -> None:
        if self._process is not None:
            self._process[1].close()
            self._process = None


class _Kernels:
    """A release's kernels, all mutants of them, and launches to hold both against."""

    def __init__(self, process: KernelProcess) -> None:
        self.process = process

    @cached_property
    def _report(self) -> Report:
        return self.process.ask(Order(work="capture", edits=KERNEL_EDITS))

    def mutated(self, edit: Edit) -> list[Mutated]:
        """The kernel with the edit, once for each launch of it; empty if its text is not there."""
        return [one for one in self._report.mutated if one.edit == edit]

    @cached_property
    def code(self) -> Code:
        """All its kernels as symbolic runs."""
        return code_of(self.process, self._report)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Random launches in the interpreter."""
        return self.process.ask(Order(work="run", seeds=tuple(range(LAUNCHES)))).launches


def _cell(state: State, began: float, *, by: str = "", tried: int = 0, reason: str = "") -> Cell:
    """A cell of whatever mutant is judged; `Oracles.judge` names it."""
    return Cell(
        mutant="", digest="", oracle="fuzz", state=state, by=by,
        seconds=time.monotonic() - began, tried=tried, reason=reason,
    )  # fmt: skip


def _list(broken: Iterable[str]) -> str:
    return ", ".join(sorted(broken))
