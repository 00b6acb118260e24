"""``kvproof prove``: run the theorems, replay their counterexamples, try the mutants."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli import kernels
from kvproof.cli.output import ExitCode, JsonOption, plain_table, progress, renewing, show
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import EngineError as EngineFailure
from kvproof.model.facts import Fact
from kvproof.model.scenario import Scenario
from kvproof.proofs.asked import AskedProcess, Question
from kvproof.proofs.catalogue import CATALOGUE, find
from kvproof.proofs.mutants import MUTANTS
from kvproof.proofs.prove import Kill, Solver, TheoremResult, kills
from kvproof.proofs.prove import prove as prove_theorem
from kvproof.proofs.second import NoSecondSolverError, SecondOpinion
from kvproof.proofs.solver import DEFAULT_TIMEOUT_S, Prover, smt2
from kvproof.proofs.table import update
from kvproof.proofs.theorem import Obligation, Theorem

REPLAY_TIMEOUT_S = 60.0
"""Seconds for one counterexample on one release."""


def prove(
    *,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="ID", help="A theorem (R6) or a family (R); repeatable."),
    ] = None,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Play counterexamples on installed releases too.")
    ] = False,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Print which theorem notices which mutant.")
    ] = False,
    smt2_folder: Annotated[
        Path | None, typer.Option("--smt2", metavar="DIR", help="Write each query there.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Time for one question.")
    ] = DEFAULT_TIMEOUT_S,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the solver.")] = 0,
    solver: Annotated[
        Literal["z3", "cvc5"], typer.Option(help="cvc5 checks what z3 proves.")
    ] = "z3",
    tables: Annotated[
        list[Path] | None,
        typer.Option("--table", metavar="FILE", help="Renew a document's table of theorems."),
    ] = None,
    about_kernels: Annotated[
        bool, typer.Option("--kernels", help="Prove what the releases' real kernels do instead.")
    ] = False,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", metavar="NAME", help="With --kernels: one engine; repeatable."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove the theorems about the specification, and refute their next weaker neighbours.

    Exits with 1 if one is not as expected or unknown.
    """
    if about_kernels:
        kernels.prove(engine=engine, mutants=mutants, timeout=timeout, seed=seed, as_json=as_json)
        return
    theorems = _chosen(only)
    prover: Solver = Prover(seed=seed, timeout_s=timeout)
    if solver == "cvc5":
        prover = SecondOpinion(first=Prover(seed=seed, timeout_s=timeout), timeout_s=timeout)
    if smt2_folder is not None:
        _write_smt2(theorems, smt2_folder)
    if mutants:
        _mutants(theorems, prover, as_json=as_json, complete=not only)
        return
    started = time.perf_counter()
    with progress("proving", lines=False) as report, closing(Installed()) as installed:
        results = []
        for theorem in theorems:
            report(f"{theorem.identifier} {theorem.title}")
            try:
                results.append(
                    prove_theorem(theorem, prover, releases=installed if confirm else None)
                )
            except NoSecondSolverError as error:
                raise EngineError(str(error), fix="pip install 'kvproof[cvc5]'") from error
    for document in tables or ():
        with renewing():
            update(document, results)
    good = all(result.verdict == "as expected" for result in results)
    seconds = time.perf_counter() - started
    data = {"ok": good, "solver": solver, "seed": seed, "seconds": seconds, "theorems": results}
    show(_report(results, seconds, confirm=confirm), data, as_json=as_json)
    if not good:
        raise typer.Exit(ExitCode.VIOLATION)


def _chosen(only: list[str] | None) -> Sequence[Theorem]:
    try:
        return find(only) if only else CATALOGUE
    except KeyError as error:
        names = ", ".join(theorem.identifier for theorem in CATALOGUE)
        raise EngineError(f"there is no theorem {error.args[0]}", fix=f"one of {names}") from error


class Installed:
    """Plays counterexamples on the installed releases, each in processes of its own."""

    def __init__(self) -> None:
        self._store = EngineStore()
        self._drivers: dict[str, EngineProcess] = {}
        self._asked: dict[str, AskedProcess] = {}

    def play(self, scenario: Scenario, release: str) -> Sequence[Fact] | str:
        """The log, or why there is none."""
        if release not in self._drivers:
            name, _, construction = release.partition(":")
            try:
                engine = self._store.find(name)
            except EngineError as error:
                return error.cause
            self._drivers[release] = Target(engine=engine, construction=construction).process()
        log = self._drivers[release].play(scenario, backend="interpreter", timeout=REPLAY_TIMEOUT_S)
        return log[-1].message if isinstance(log[-1], EngineFailure) else log

    def ask(self, question: Question, release: str) -> tuple[int, ...] | str:
        """What the release's own function gives, or why nothing."""
        if release not in self._asked:
            try:
                engine = self._store.find(release.partition(":")[0])
            except EngineError as error:
                return error.cause
            self._asked[release] = AskedProcess(engine)
        return self._asked[release].ask(question)

    def close(self) -> None:
        """End the processes."""
        for driver in self._drivers.values():
            driver.close()
        for asked in self._asked.values():
            asked.close()


def _report(results: Sequence[TheoremResult], seconds: float, *, confirm: bool) -> RenderableType:
    table = plain_table("", "theorem", "scope", "status", "s")
    for result in results:
        style = {"as expected": "green", "unknown": "yellow", "not as expected": "bold red"}
        table.add_row(
            result.identifier, Text(result.title), Text(result.scope),
            Text(result.status, style=style[result.verdict]), f"{result.seconds:.2f}",
        )  # fmt: skip
    parts: list[RenderableType] = [table]
    for result in results:
        for obligation in result.obligations:
            for played in obligation.confirmations:
                if played.target[0].isdigit() or not played.broken:
                    how = "broken" if played.broken else "NOT broken"
                    parts.append(
                        Text(
                            f"\n{result.identifier}, {obligation.name}, on {played.target}: "
                            f"{played.invariant} {how}: {played.says}"
                        )
                    )
            if obligation.gap and confirm:
                parts.append(
                    Text(f"\n{result.identifier}, {obligation.name}, not played: {obligation.gap}")
                )
            if obligation.why:
                parts.append(Text(f"\n{result.identifier}, {obligation.name}: {obligation.why}"))
    obligations = [obligation for result in results for obligation in result.obligations]
    count = sum(obligation.verdict == "as expected" for obligation in obligations)
    unknown = sum(obligation.verdict == "unknown" for obligation in obligations)
    parts.append(
        Text(
            f"\n{len(results)} theorems, {len(obligations)} obligations: {count} as expected, "
            f"{unknown} unknown; {seconds:.1f} s"
        )
    )
    return Group(*parts)


def _mutants(theorems: Sequence[Theorem], prover: Solver, *, as_json: bool, complete: bool) -> None:
    found: dict[str, list[Kill]] = {}
    with progress("mutants", lines=False) as report:
        for mutant in MUTANTS:
            report(mutant.identifier)
            found[mutant.identifier] = kills(mutant, theorems, prover)
    promised = [(mutant, theorem.identifier) for theorem in theorems for mutant in theorem.mutants]
    broken = [
        f"{theorem} does not notice {mutant!r}"
        for mutant, theorem in promised
        if theorem not in {kill.theorem for kill in found.get(mutant, [])}
    ]
    if complete:
        broken += [f"no theorem notices {name!r}" for name, hits in found.items() if not hits]
    table = plain_table("mutant", "noticed by", "edit")
    for mutant in MUTANTS:
        hits = ", ".join(kill.theorem for kill in found[mutant.identifier])
        table.add_row(Text(mutant.identifier), Text(hits or "-"), Text(mutant.edit))
    lines = [Text(line, style="bold red") for line in broken]
    show(
        Group(table, *lines),
        {"ok": not broken, "mutants": found, "broken": broken},
        as_json=as_json,
    )
    if broken:
        raise typer.Exit(ExitCode.VIOLATION)


def _write_smt2(theorems: Sequence[Theorem], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for theorem in theorems:
        for obligation in theorem.obligations:
            if isinstance(obligation, Obligation):
                name = re.sub(r"\W+", "-", obligation.name).strip("-").lower()
                for form in ("linear", "exact"):
                    text = smt2(obligation.claim(), linear=form == "linear")
                    header = f"; {theorem.identifier}, {obligation.name}, {form} arithmetic\n"
                    path = folder / f"{theorem.identifier}-{name}.{form}.smt2"
                    path.write_text(header + text, encoding="utf-8")
