"""The executor on small code of our own: each construct against what it must mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import z3

from kvproof.kernels.evaluate import evaluator
from kvproof.kernels.symbolic import Bits, Integers, Run, at, execute, must_fit
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
        ("tensor<4xi32> loc(#loc)", "tensor<4x4x4xi32> loc(#loc)", "more than two dimensions"),
        ("^bb2(%1 : i32)", "^bb0", "a jump back"),
    ],
)
def test_what_is_not_modelled_is_named(text: str, by: str, named: str) -> None:
    code = BRANCH.replace(text, by).replace("OPERATION", "arith.addi")
    with pytest.raises(UnknownCodeError, match=named):
        execute(parse(code))


def test_a_reduction_other_than_a_sum_is_named() -> None:
    with pytest.raises(UnknownCodeError, match=r"reduction by arith\.maxsi"):
        execute(parse(LOOP.replace("%j = arith.addi", "%j = arith.maxsi")))


PLANE = """
module {
  tt.func public @k(%x_ptr: !tt.ptr<i32>, %f_ptr: !tt.ptr<f32>, %n: i32) {
    %cst = arith.constant dense<0.000000e+00> : tensor<4x8xf32>
    %t = tt.get_program_id y : i32
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
    %c = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32>
    %p = tt.splat %x_ptr : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
    %q = tt.addptr %p, %r : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
    %s = tt.load %q : tensor<4x!tt.ptr<i32>>
    %0 = tt.expand_dims %s {axis = 1 : i32} : tensor<4xi32> -> tensor<4x1xi32>
    %1 = tt.splat %n : i32 -> tensor<4x1xi32>
    %2 = arith.muli %0, %1 : tensor<4x1xi32>
    %3 = tt.splat %f_ptr : !tt.ptr<f32> -> tensor<4x1x!tt.ptr<f32>>
    %4 = tt.addptr %3, %2 : tensor<4x1x!tt.ptr<f32>>, tensor<4x1xi32>
    %5 = tt.broadcast %4 : tensor<4x1x!tt.ptr<f32>> -> tensor<4x8x!tt.ptr<f32>>
    %6 = tt.expand_dims %c {axis = 0 : i32} : tensor<8xi32> -> tensor<1x8xi32>
    %7 = tt.broadcast %6 : tensor<1x8xi32> -> tensor<4x8xi32>
    %8 = tt.addptr %5, %7 : tensor<4x8x!tt.ptr<f32>>, tensor<4x8xi32>
    %9 = tt.splat %t : i32 -> tensor<4x8xi32>
    %10 = arith.cmpi slt, %7, %9 : tensor<4x8xi32>
    %11 = OPERATION
    tt.store %8, %11, %10 : tensor<4x8x!tt.ptr<f32>>
    tt.return
  }
}
"""


def test_a_tensor_of_two_dimensions_is_a_term_over_lane_and_column() -> None:
    run = execute(parse(PLANE.replace("OPERATION", "math.exp %cst : tensor<4x8xf32>")))
    [store] = run.stores
    row = run.memory["x_ptr"](run.lane)
    solver = z3.Solver()
    solver.add(
        z3.Or(
            store.offset != row * run.arguments["n"] + run.column,
            store.when != (run.column < run.programs[1]),
        )
    )
    assert solver.check() == z3.unsat
    assert (store.lanes, store.columns, store.opaque) == (4, 8, True)


def test_an_address_or_mask_made_of_floats_is_named() -> None:
    address = PLANE.replace("OPERATION", "math.exp %cst : tensor<4x8xf32>").replace(
        "tt.addptr %5, %7", "tt.addptr %5, %11"
    )
    lines = address.splitlines()
    lines.insert(6, lines.pop(next(n for n, one in enumerate(lines) if "%11 =" in one)))
    text = "\n".join(lines).replace(
        "%11 = math.exp %cst : tensor<4x8xf32>",
        "%10f = math.exp %cst : tensor<4x8xf32>\n"
        "    %11 = arith.fptosi %10f : tensor<4x8xf32> to tensor<4x8xi32>",
    )
    with pytest.raises(UnknownCodeError, match="an address that depends on floats"):
        execute(parse(text))


def test_a_buffer_is_read_before_it_is_written_or_not_at_all() -> None:
    code = BRANCH.replace("OPERATION", "arith.addi")
    shared = execute(parse(code.replace("%4 = tt.splat %y_ptr", "%4 = tt.splat %x_ptr")))
    assert shared.shared == {"x_ptr"}
    again = "    %z = tt.load %0 : !tt.ptr<i32> loc(#loc)\n    tt.return loc(#loc)\n  } loc"
    late = code.replace("%4 = tt.splat %y_ptr", "%4 = tt.splat %x_ptr").replace(
        "    tt.return loc(#loc)\n  } loc", again
    )
    with pytest.raises(UnknownCodeError, match="x_ptr is read after it is written"):
        execute(parse(late))


def test_what_a_masked_lane_reads_is_kept_apart() -> None:
    code = LOOP.replace(
        "%e = tt.load %d : ", "%m = arith.cmpi slt, %b, %a : tensor<4xi32>\n"
        "      %e = tt.load %d, %m : "
    )  # fmt: skip
    run = execute(parse(code))
    [unknown] = run.undefined
    assert unknown(run.lane, z3.IntVal(0)) in _parts(run.reductions[0].element)


def _parts(term: Any) -> list[Any]:
    """Terms of which a term is made."""
    return [term, *(leaf for child in term.children() for leaf in _parts(child))]


def test_another_place_has_unknowns_of_its_own() -> None:
    run = execute(parse(LOOP))
    moved = at(run.loops[0].tail[0], of=run, program=z3.Int("q"))
    assert not moved.eq(run.loops[0].tail[0])
    assert at(run.loops[0].tail[0], of=run, n=z3.IntVal(3)).eq(run.loops[0].tail[0])


def test_code_is_compared_without_locations() -> None:
    moved = BRANCH.replace("file.py", "other.py").replace(":8:4", ":9:9")
    assert strip_locations(moved) == strip_locations(BRANCH)
    assert strip_locations(BRANCH) != strip_locations(BRANCH.replace("sle", "slt"))
