"""The executor on small code of our own: each construct against what it must mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import z3

from kvproof.kernels.evaluate import evaluator
from kvproof.kernels.symbolic import Bits, Integers, Run, execute, must_fit
from kvproof.kernels.ttir import UnknownCodeError, parse, strip_locations

BRANCH = """
#loc = loc("some/file.py":3:1)
#loc1 = loc("some/file.py":8:4)
#loc2 = loc("x"(#loc1))
module {
  tt.func public @k(%x_ptr: !tt.ptr<i32> loc("x_ptr"(#loc)), %y_ptr: !tt.ptr<i32>, %n: i32) {
    %c-1_i32 = arith.constant -1 : i32 loc(#loc)
    %p = tt.get_program_id x : i32 loc(#loc)
    %0 = tt.addptr %x_ptr, %p : !tt.ptr<i32>, i32 loc(#loc)
    %1 = tt.load %0 : !tt.ptr<i32> loc(#loc)
    %2 = arith.cmpi sle, %1, %c-1_i32 : i32 loc(#loc)
    cf.cond_br %2, ^bb1, ^bb2(%1 : i32) loc(#loc)
  ^bb1:  // pred: ^bb0
    tt.return loc(#loc)
  ^bb2(%v: i32):  // pred: ^bb0
    %3 = OPERATION %v, %n : i32 loc(#loc2)
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32> loc(#loc)
    %s = tt.splat %3 : i32 -> tensor<4xi32> loc(#loc)
    %m = arith.cmpi slt, %r, %s : tensor<4xi32> loc(#loc)
    %4 = tt.splat %y_ptr : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>> loc(#loc)
    %5 = tt.addptr %4, %r : tensor<4x!tt.ptr<i32>>, tensor<4xi32> loc(#loc)
    tt.store %5, %s, %m : tensor<4x!tt.ptr<i32>> loc(#loc1)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
"""

LOOP = """
module {
  tt.func public @k(%x_ptr: !tt.ptr<i32>, %y_ptr: !tt.ptr<i32>, %n: i32) {
    %c0_i32 = arith.constant 0 : i32
    %c4_i32 = arith.constant 4 : i32
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %sum = scf.for %i = %c0_i32 to %n step %c4_i32 iter_args(%so_far = %c0_i32) -> (i32)  : i32 {
      %a = tt.splat %i : i32 -> tensor<4xi32>
      %b = arith.addi %a, %r : tensor<4xi32>
      %c = tt.splat %x_ptr : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
      %d = tt.addptr %c, %b : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
      %e = tt.load %d : tensor<4x!tt.ptr<i32>>
      %f = "tt.reduce"(%e) <{axis = 0 : i32}> ({
      ^bb0(%g: i32, %h: i32):
        %j = arith.addi %g, %h : i32
        tt.reduce.return %j : i32
      }) : (tensor<4xi32>) -> i32
      %k = arith.addi %so_far, %f : i32
      scf.yield %k : i32
    }
    tt.store %y_ptr, %sum : !tt.ptr<i32>
    tt.return
  }
}
"""


def _branch(operation: str) -> Run:
    return execute(parse(BRANCH.replace("OPERATION", operation)))


def test_a_branch_forks_the_path_and_a_mask_narrows_it() -> None:
    run = _branch("arith.addi")
    [store] = run.stores
    loaded = run.memory["x_ptr"](run.program)
    due = z3.And(loaded >= 0, run.lane < loaded + run.arguments["n"])
    solver = z3.Solver()
    solver.add(store.when != due)
    assert solver.check() == z3.unsat
    assert store.line == 8
    assert store.lanes == 4


@pytest.mark.parametrize("one", [-7, -1, 0, 5, 7])
@pytest.mark.parametrize("other", [3, 4])
@pytest.mark.parametrize(
    ("name", "due"),
    [
        ("addi", lambda a, b: a + b),
        ("subi", lambda a, b: a - b),
        ("muli", lambda a, b: a * b),
        ("minsi", min),
        ("maxsi", max),
        ("remsi", lambda a, b: int(np.fmod(a, b))),
        ("divsi", lambda a, b: int(a / b)),
    ],
)
def test_arithmetic_is_that_of_c_in_both_kinds(one: int, other: int, name: str, due: Any) -> None:
    wanted = due(one, other)
    for arithmetic in (Integers(), Bits()):
        a, b = arithmetic.constant(one, 32), arithmetic.constant(other, 32)
        found = z3.simplify(arithmetic.binary(name, a, b))
        value = found.as_signed_long() if z3.is_bv_value(found) else found.as_long()
        assert value == wanted
    evaluate = evaluator({}, {"a": one, "b": other})
    assert evaluate(Integers().binary(name, z3.Int("a"), z3.Int("b"))) == wanted


def test_an_overflow_is_an_obligation_and_bits_wrap() -> None:
    run = _branch("arith.muli")
    [(step, condition)] = must_fit(run, run.stores)
    assert step.line == 8
    solver = z3.Solver()
    solver.add(*run.facts, condition, z3.Not(Integers().in_range(step.term, step.bits)))
    assert solver.check() == z3.sat
    bits = execute(parse(BRANCH.replace("OPERATION", "arith.muli")), Bits())
    solver = z3.Solver()
    solver.add(bits.memory["x_ptr"](z3.SignExt(32, bits.program)) == 1 << 16)
    solver.add(bits.arguments["n"] == 1 << 16)
    assert solver.check() == z3.sat
    assert solver.model().eval(bits.stores[0].value, True).as_signed_long() == 0


def test_a_loop_is_one_arbitrary_round_and_its_results_are_unknown() -> None:
    run = execute(parse(LOOP))
    [loop], [total] = run.loops, run.reductions
    assert loop.tail[0].eq(loop.head[0] + total.result)
    assert total.lanes == 4
    [store] = run.stores
    assert store.value.eq(loop.result[0])


@pytest.mark.parametrize(
    ("text", "by", "named"),
    [
        ("OPERATION", "arith.shli", "arith.shli at line 8"),
        ("sle, %1", "ult, %1", "the comparison ult"),
        ("get_program_id x", "get_program_id y", "more than one dimension"),
        ("%4 = tt.splat %y_ptr", "%4 = tt.splat %x_ptr", "x_ptr is both read and written"),
        ("tensor<4xi32> loc(#loc)", "tensor<4x4xi32> loc(#loc)", "more than one dimension"),
        ("^bb2(%1 : i32)", "^bb0", "a jump back"),
    ],
)
def test_what_is_not_modelled_is_named(text: str, by: str, named: str) -> None:
    code = BRANCH.replace(text, by).replace("OPERATION", "arith.addi")
    with pytest.raises(UnknownCodeError, match=named):
        execute(parse(code))


def test_a_reduction_other_than_a_sum_is_named() -> None:
    with pytest.raises(UnknownCodeError, match=r"reduction by arith\.maxsi"):
        parse(LOOP.replace("%j = arith.addi", "%j = arith.maxsi"))


def test_code_is_compared_without_locations() -> None:
    moved = BRANCH.replace("file.py", "other.py").replace(":8:4", ":9:9")
    assert strip_locations(moved) == strip_locations(BRANCH)
    assert strip_locations(BRANCH) != strip_locations(BRANCH.replace("sle", "slt"))
