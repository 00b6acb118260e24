"""A second solver: cvc5 decides the same SMT-LIB text that Z3 is asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from kvproof.proofs.solver import DEFAULT_TIMEOUT_S, Answer, Prover, smt2
from kvproof.proofs.theorem import Claim


class NoSecondSolverError(RuntimeError):
    """cvc5 is not installed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SecondOpinion:
    """cvc5 on what Z3 proved; it takes the linear form first, then the exact one.

    A refutation is Z3's, checked by evaluating the exact formula and by playing it; cvc5 is asked
    for proofs.
    """

    first: Prover
    timeout_s: float = DEFAULT_TIMEOUT_S

    def decide(self, claim: Claim) -> Answer:
        """Z3's answer where cvc5 agrees or a counterexample decides, else ``unknown``."""
        answer = self.first.decide(claim)
        if answer.status != "proved":
            return answer
        started = time.perf_counter()
        for linear in (True, False):
            result = _cvc5(smt2(claim, linear=linear), self.timeout_s)
            if result == "unsat":
                return Answer(
                    status="proved",
                    arithmetic="linear" if linear else "exact",
                    seconds=answer.seconds + time.perf_counter() - started,
                )
        return Answer(
            status="unknown",
            arithmetic="exact",
            seconds=answer.seconds + time.perf_counter() - started,
            why=f"z3 proves it, cvc5 says {result}",
        )


def _cvc5(text: str, timeout_s: float) -> str:
    try:
        import cvc5  # noqa: PLC0415  # optional
    except ImportError as error:
        raise NoSecondSolverError("cvc5 is not installed") from error
    solver: Any = cvc5.Solver()
    solver.setOption("tlimit-per", str(round(1000 * timeout_s)))
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, "(set-logic ALL)\n" + text, "claim")
    symbols = parser.getSymbolManager()
    outcome = ""
    while not (command := parser.nextCommand()).isNull():
        outcome += command.invoke(solver, symbols)
    return outcome.strip()
