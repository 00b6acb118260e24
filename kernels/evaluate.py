"""Holds the symbolic model of a kernel against what the real kernel did: every cell of every store.

The Z3 terms that proofs are about are evaluated on the arguments of a real launch, all programs and
lanes at once, with loops played round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import z3

from kvproof.kernels.capture import Array, Launch
from kvproof.kernels.symbolic import Access, Run, Term

Numbers = Any
"""An int or a numpy array ``[programs, lanes]``, either of which may be 1."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel's model against its launches.

    Attributes:
        launches: launches of the real kernel.
        cells: cells that the model stores, over all of them.
        difference: the first cell that differs, in a sentence; empty if none does.
    """

    kernel: str
    launches: int
    cells: int
    difference: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What the model says of a launch.

    Attributes:
        after: content of each pointer argument.
        cells: cells stored.
        clash: two stores of one launch to one cell, with different values; empty if there is none.
        outside: a store outside its buffer; empty if there is none.
    """

    after: dict[str, np.ndarray]
    cells: int
    clash: str = ""
    outside: str = ""


def compare(name: str, run: Run, launches: Sequence[Launch]) -> Comparison:
    """Predict each launch and compare all cells of all buffers."""
    cells = 0
    for launch in launches:
        predicted = predict(run, launch)
        cells += predicted.cells
        wrong = difference(predicted, launch)
        if wrong:
            return Comparison(kernel=name, launches=len(launches), cells=cells, difference=wrong)
    return Comparison(kernel=name, launches=len(launches), cells=cells)


def difference(predicted: Prediction, launch: Launch) -> str:
    """The first cell that is not as predicted, in a sentence; empty if there is none."""
    if predicted.outside or predicted.clash:
        return predicted.outside or predicted.clash
    for name, values in predicted.after.items():
        found = numbers(launch.after[name])
        wrong = np.flatnonzero(found != values)
        if len(wrong):
            cell = int(wrong[0])
            return (
                f"{launch.kernel}: {name}[{cell}] is {found[cell]} after the launch, "
                f"{values[cell]} in the model"
            )
    return ""


def numbers(array: Array) -> np.ndarray:
    """A buffer as integers."""
    return np.frombuffer(array.data, dtype=array.dtype).astype(np.int64)


def predict(run: Run, launch: Launch) -> Prediction:
    """What a launch stores, according to the model."""
    memory = {name: numbers(array) for name, array in launch.before.items()}
    after = {name: values.copy() for name, values in memory.items()}
    known: dict[str, Numbers] = {
        **launch.scalars,
        "program": np.arange(launch.grid, dtype=np.int64)[:, None],
        "lane": np.zeros((1, 1), dtype=np.int64),
    }
    known |= _carried(run, memory, known)
    cells, clash = 0, ""
    written: dict[tuple[str, int], int] = {}
    for store in run.stores:
        for offsets, values in _stored(store, memory, known):
            cells += len(offsets)
            for cell, value in zip(offsets.tolist(), values.tolist(), strict=True):
                if not 0 <= cell < len(after[store.base]):
                    return Prediction(
                        after=after, cells=cells,
                        outside=f"{run.kernel}: line {store.line} stores outside {store.base}",
                    )  # fmt: skip
                if written.setdefault((store.base, cell), value) != value:
                    clash = f"{run.kernel}: two stores to {store.base}[{cell}]"
            after[store.base][offsets] = values
    return Prediction(after=after, cells=cells, clash=clash)


def _stored(
    store: Access, memory: Mapping[str, np.ndarray], known: Mapping[str, Numbers]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    lanes = {"lane": np.arange(store.lanes, dtype=np.int64)[None, :]}
    for round_ in _rounds(store.path, memory, known):
        evaluate = evaluator(memory, {**known, **lanes, **round_})
        when, offset, value = np.broadcast_arrays(
            evaluate(store.when), evaluate(store.offset), evaluate(store.value)
        )
        shape = np.broadcast_shapes(when.shape, (len(known["program"]), store.lanes))
        when, offset, value = (np.broadcast_to(each, shape) for each in (when, offset, value))
        yield offset[when], value[when]


def _rounds(
    path: Term, memory: Mapping[str, np.ndarray], known: Mapping[str, Numbers]
) -> Iterator[dict[str, Numbers]]:
    """The rounds of the one loop that a path is in, until no program takes another."""
    counters = [name for name in constants(path) if name.startswith("round")]
    if not counters:
        yield {}
        return
    [counter] = counters
    number = 0
    while np.any(evaluator(memory, {**known, counter: number})(path)):
        yield {counter: number}
        number += 1


def _carried(
    run: Run, memory: Mapping[str, np.ndarray], known: Mapping[str, Numbers]
) -> dict[str, Numbers]:
    """Play the loops that carry values, and their sums; what they carry out."""
    carried: dict[str, Numbers] = {}
    for loop in run.loops:
        if not loop.start:
            continue
        values = [evaluator(memory, known)(start) for start in loop.start]
        for round_ in _rounds(loop.path, memory, known):
            inside = {**known, **round_}
            inside |= {str(head): value for head, value in zip(loop.head, values, strict=True)}
            for total in run.reductions:
                lanes = {"lane": np.arange(total.lanes, dtype=np.int64)[None, :]}
                element = evaluator(memory, {**inside, **lanes})(total.element)
                inside[str(total.result)] = element.sum(axis=1, keepdims=True)
            values = [evaluator(memory, inside)(tail) for tail in loop.tail]
        carried |= {str(name): value for name, value in zip(loop.result, values, strict=True)}
    return carried


def constants(term: Term) -> set[str]:
    """Names of the free numbers of a term."""
    found, todo, seen = set(), [term], set()
    while todo:
        one = todo.pop()
        if one.get_id() in seen:
            continue
        seen.add(one.get_id())
        todo += one.children()
        if z3.is_const(one) and one.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found.add(str(one))
    return found


_OPERATIONS: Mapping[int, Callable[..., Numbers]] = {
    z3.Z3_OP_ADD: lambda *each: sum(each[1:], each[0]),
    z3.Z3_OP_SUB: lambda one, *others: one - sum(others[1:], others[0]),
    z3.Z3_OP_MUL: lambda one, *others: one * _product(others),
    z3.Z3_OP_UMINUS: lambda one: -one,
    z3.Z3_OP_MOD: np.mod,
    z3.Z3_OP_IDIV: np.floor_divide,
    z3.Z3_OP_LE: lambda one, other: one <= other,
    z3.Z3_OP_LT: lambda one, other: one < other,
    z3.Z3_OP_GE: lambda one, other: one >= other,
    z3.Z3_OP_GT: lambda one, other: one > other,
    z3.Z3_OP_EQ: lambda one, other: one == other,
    z3.Z3_OP_ITE: np.where,
    z3.Z3_OP_NOT: np.logical_not,
    z3.Z3_OP_AND: lambda *each: np.logical_and.reduce(np.broadcast_arrays(*each)),
    z3.Z3_OP_OR: lambda *each: np.logical_or.reduce(np.broadcast_arrays(*each)),
    z3.Z3_OP_XOR: np.logical_xor,
    z3.Z3_OP_TRUE: lambda: np.array(True),
    z3.Z3_OP_FALSE: lambda: np.array(False),
}
"""For the positive divisors that occur, numpy rounds as Z3 does."""


def _product(factors: tuple[Numbers, ...]) -> Numbers:
    result: Numbers = 1
    for factor in factors:
        result = result * factor
    return result


def evaluator(
    memory: Mapping[str, np.ndarray], known: Mapping[str, Numbers]
) -> Callable[[Term], np.ndarray]:
    """Evaluates terms over buffers and numbers; a masked lane's address may be anything."""
    done: dict[int, np.ndarray] = {}
    kept: list[Term] = []

    def evaluate(term: Term) -> np.ndarray:
        key = term.get_id()
        if key not in done:
            done[key] = np.asarray(compute(term))
            kept.append(term)  # an id is free again once its term is gone
        return done[key]

    def compute(term: Term) -> Numbers:
        if z3.is_int_value(term):
            return np.int64(term.as_long())
        parts = [evaluate(child) for child in term.children()]
        kind, name = term.decl().kind(), term.decl().name()
        if kind != z3.Z3_OP_UNINTERPRETED:
            return _OPERATIONS[kind](*parts)
        if not parts:
            return known[name]
        values = memory[name]
        return values[np.clip(parts[0], 0, len(values) - 1)]

    return evaluate
