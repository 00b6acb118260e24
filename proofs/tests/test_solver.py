"""What counts as proved, refuted and unknown."""

from __future__ import annotations

import z3

from kvproof.proofs.prove import prove
from kvproof.proofs.solver import Prover, smt2
from kvproof.proofs.theorem import Check, Claim, Enumeration, Obligation, Theorem

A, B, S = z3.Ints("a b s")


def test_contradictory_hypotheses_prove_nothing() -> None:
    answer = Prover().decide(Claim(given=(A > 0, A < 0), then=A == 7))
    assert (answer.status, answer.vacuous) == ("unknown", True)


def test_a_question_out_of_time_is_unknown() -> None:
    x, y, z = z3.Ints("x y z")
    cubes = Claim(given=(x > 20, y > 20, z > 20), then=x * x * x + y * y * y != z * z * z)
    assert Prover(timeout_s=0.05).decide(cubes).status == "unknown"


def test_a_model_of_the_linear_form_alone_refutes_nothing() -> None:
    # The lemmas do not know this one, the exact formula does.
    claim = Claim(given=(S >= 1,), then=(A * S) % S == 0)
    answer = Prover().decide(claim)
    assert (answer.status, answer.arithmetic) == ("proved", "exact")


def test_counterexamples_are_small_and_true() -> None:
    claim = Claim(given=(S >= 3, A >= 0, B > A), then=A % S != B % S, show={"a": A, "b": B, "s": S})
    answer = Prover().decide(claim)
    assert answer.status == "refuted"
    assert answer.values["a"] % answer.values["s"] == answer.values["b"] % answer.values["s"]
    assert max(answer.values.values()) <= 3


def test_smt2_text_is_a_query_of_its_own() -> None:
    claim = Claim(given=(S >= 1,), then=A % S < S)
    for linear in (True, False):
        solver = z3.Solver()
        solver.from_string(smt2(claim, linear=linear))
        assert solver.check() == z3.unsat


def _theorem(*obligations: Obligation | Enumeration, **changes: object) -> Theorem:
    fields: dict[str, object] = {
        "identifier": "Z1", "title": "", "statement": "", "scope": "", "mutants": (),
        "source": "", "obligations": obligations,
    }  # fmt: skip
    return Theorem(**(fields | changes))  # type: ignore[arg-type]


def _false() -> Claim:
    return Claim(given=(A > 0,), then=A > 1, show={"a": A})


def _check(broken: bool) -> Check:
    return Check(model="test", invariant="test", broken=broken, says="")


def test_a_false_theorem_is_not_as_expected() -> None:
    result = prove(_theorem(Obligation(name="false", claim=_false)), Prover())
    assert result.verdict == "not as expected"
    assert result.obligations[0].values == {"a": 1}


def test_a_refutation_needs_a_replay_that_breaks() -> None:
    def verdict(replay: Check | None) -> str:
        obligation = Obligation(
            name="tight", claim=_false, expected="refuted",
            replay=None if replay is None else lambda _: replay,
        )  # fmt: skip
        return prove(_theorem(obligation), Prover()).verdict

    assert verdict(None) == "not as expected"
    assert verdict(_check(broken=False)) == "not as expected"
    assert verdict(_check(broken=True)) == "as expected"


def test_a_witness_out_of_reach_is_not_as_expected() -> None:
    fine = Obligation(name="fine", claim=lambda: Claim(given=(), then=A * 2 == A + A))
    assert prove(_theorem(fine), Prover()).verdict == "as expected"
    result = prove(_theorem(fine, witness=lambda: (A > 0, A < 0)), Prover())
    assert result.verdict == "not as expected"


def test_an_enumeration_says_its_bound() -> None:
    result = prove(
        _theorem(Enumeration(name="few", run=lambda: (3, None), bound="n <= 3")), Prover()
    )
    assert result.status == "checked up to a bound: n <= 3 (3 cases)"
    empty = prove(_theorem(Enumeration(name="none", run=lambda: (0, None), bound="")), Prover())
    assert empty.verdict == "not as expected"
