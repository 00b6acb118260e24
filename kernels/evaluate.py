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
from kvproof.kernels.symbolic import Access, Loop, Reduction, Run, Term

Numbers = Any
"""An int or a numpy array ``[programs, lanes, columns]``, any of which may be 1."""


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
        written: which of its cells are stored.
        free: which of these hold floats that the kernel computes; they may be anything.
        cells: cells stored, each as often as it is.
        clash: two stores of one launch to one cell, with different values; empty if there is none.
        outside: a store outside its buffer; empty if there is none.
    """

    after: dict[str, np.ndarray]
    written: dict[str, np.ndarray]
    free: dict[str, np.ndarray]
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
    """The first cell that is not as predicted, in a sentence; empty if there is none.

    A launch that breaks what the proofs assume is one that they do not speak of. Of floats that the
    kernel computes only the place is compared, and that nothing else changes.
    """
    if launch.breaches:
        first = launch.breaches[0]
        return f"{launch.kernel}: a launch breaks {first.assumption}: {first.message}"
    if predicted.outside or predicted.clash:
        return predicted.outside or predicted.clash
    touched = _bytes_touched(predicted, launch)
    for name, values in predicted.after.items():
        found, free = numbers(launch.after[name]), predicted.free[name]
        own = predicted.written[name]
        wrong = np.flatnonzero((found != values) & ~free & (own | ~touched[name]))
        if len(wrong):
            cell = int(wrong[0])
            return (
                f"{launch.kernel}: {name}[{cell}] is {found[cell]} after the launch, "
                f"{values[cell]} in the model"
            )
    return ""


def _bytes_touched(predicted: Prediction, launch: Launch) -> dict[str, np.ndarray]:
    """Cells of which a byte is stored, be it through another view of the same memory."""
    views = {
        name: (launch.where[name], len(array.data), np.dtype(array.dtype).itemsize)
        for name, array in launch.after.items()
    }
    memory: dict[tuple[int, int], np.ndarray] = {}
    for name, (address, length, size) in views.items():
        stored = np.repeat(predicted.written[name], size)
        memory[address, length] = memory.get((address, length), stored) | stored
    return {
        name: np.any(memory[address, length].reshape(-1, size), axis=1)
        for name, (address, length, size) in views.items()
    }


def numbers(array: Array) -> np.ndarray:
    """A buffer as integers."""
    return np.frombuffer(array.data, dtype=array.dtype).astype(np.int64)


def predict(run: Run, launch: Launch) -> Prediction:
    """What a launch stores, according to the model."""
    player = _Player(run, launch)
    memory = {name: numbers(array) for name, array in launch.before.items()}
    after = {name: values.copy() for name, values in memory.items()}
    written = {name: np.zeros(len(values), dtype=bool) for name, values in after.items()}
    free = {name: np.zeros(len(values), dtype=bool) for name, values in after.items()}
    cells, clash = 0, ""
    for store in run.stores:
        base = store.base
        for offsets, values in player.stored(store):
            cells += len(offsets)
            outside = (offsets < 0) | (offsets >= len(after[base]))
            if np.any(outside):
                return Prediction(
                    after=after, written=written, free=free, cells=cells,
                    outside=f"{run.kernel}: line {store.line} stores outside {base}",
                )  # fmt: skip
            if store.opaque:
                free[base][offsets] = True
            else:
                again = offsets[written[base][offsets] & (after[base][offsets] != values)]
                order = np.argsort(offsets, kind="stable")
                twice = np.flatnonzero(
                    (np.diff(offsets[order]) == 0) & (np.diff(values[order]) != 0)
                )
                again = np.concatenate([again, offsets[order][twice]])
                if len(again):
                    clash = f"{run.kernel}: two stores to {base}[{again[0]}]"
                after[base][offsets] = values
            written[base][offsets] = True
    return Prediction(after=after, written=written, free=free, cells=cells, clash=clash)


class _Player:
    """Plays a launch on a model: all programs and places at once, loops round by round."""

    def __init__(self, run: Run, launch: Launch) -> None:
        self.run = run
        self.buffers: dict[str, Any] = {name: numbers(a) for name, a in launch.before.items()}
        for name, pointed in launch.pointed.items():
            self.buffers[f"*{name}"] = {at: numbers(array) for at, array in pointed.items()}
        ids = np.unravel_index(np.arange(np.prod(launch.grid)), launch.grid, order="F")
        self.known: dict[str, Numbers] = {
            **launch.scalars,
            "lane": _number(0),
            "column": _number(0),
        }
        for term, id_, count in zip(run.programs, ids, launch.grid, strict=True):
            self.known[str(term)] = id_.astype(np.int64)[:, None, None]
            self.known[f"{term}_count"] = _number(count)
        self.rounds: dict[str, list[dict[str, Numbers]]] = {}
        for loop in run.loops:
            self._play(loop)

    def stored(self, store: Access) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Cells and values of a store, for each round of the loop that it is in."""
        counters = [name for name in constants(store.path) if name in self.rounds]
        places = _places(store.lanes, store.columns)
        for round_ in self.rounds[counters[0]] if counters else [{}]:
            evaluate = self._evaluator({**round_, **places})
            value = _number(0) if store.opaque else evaluate(store.value)
            when, offset, value = np.broadcast_arrays(
                evaluate(store.when), evaluate(store.offset), value
            )
            shape = np.broadcast_shapes(
                when.shape, (len(self.known["program"]), store.lanes, store.columns)
            )
            when, offset, value = (np.broadcast_to(each, shape) for each in (when, offset, value))
            yield offset[when], value[when].astype(np.int64)

    def _play(self, loop: Loop) -> None:
        """All rounds of a loop: what each begins with, and what it carries out."""
        [counter] = constants(loop.counter) & {str(each) for each in self.run.unknowns} - set(
            self.rounds
        )
        sizes = _places(loop.lanes, loop.columns)
        start = self._evaluator(sizes)
        values = [start(each) for each in loop.start]
        self.rounds[counter] = []
        while True:
            inside = {counter: _number(len(self.rounds[counter]))}
            inside |= {_name(head): value for head, value in zip(loop.head, values, strict=True)}
            evaluate = self._evaluator({**inside, **sizes})
            taken = evaluate(loop.path)
            if not np.any(taken):
                break
            self.rounds[counter].append(inside)
            values = [
                np.where(taken, evaluate(tail), value)
                for tail, value in zip(loop.tail, values, strict=True)
            ]
        self.known |= {_name(one): value for one, value in zip(loop.result, values, strict=True)}

    def _evaluator(self, more: Mapping[str, Numbers]) -> Callable[[Term], np.ndarray]:
        known = {**self.known, **more}
        places = {str(self.run.lane): "lanes", str(self.run.column): "columns"}

        def total(sum_: Reduction) -> Numbers:
            size = {"lanes": 1, "columns": 1} | {places[str(sum_.over)]: sum_.lanes}
            inner = {**more, **_places(size["lanes"], size["columns"])}
            if str(sum_.over) == "column":
                inner["lane"] = known["lane"]
            element = self._evaluator(inner)(sum_.element)
            axis = {"lane": 1, "column": 2}[str(sum_.over)]
            element = np.broadcast_to(
                element, np.broadcast_shapes(element.shape, (1, size["lanes"], size["columns"]))
            )
            return element.sum(axis=axis, keepdims=True)

        sums = {_name(each.result): each for each in self.run.reductions}

        def unknown(name: str) -> Numbers:
            if name in sums:
                return total(sums[name])
            # A lane that is masked away reads 0 in the interpreter, an argument's address is not
            # null, and floats are not looked at.
            return _number(1 if name.startswith("address") else 0)

        return evaluator(self.buffers, known, unknown)


def _number(value: int) -> np.ndarray:
    return np.full((1, 1, 1), value, dtype=np.int64)


def _places(lanes: int, columns: int) -> dict[str, Numbers]:
    return {
        "lane": np.arange(lanes, dtype=np.int64)[None, :, None],
        "column": np.arange(columns, dtype=np.int64)[None, None, :],
    }


def _name(term: Term) -> str:
    """Of an unknown number, or of the function that an unknown tensor is."""
    name: str = term.decl().name()
    return name


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
    z3.Z3_OP_DISTINCT: lambda one, other: one != other,
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
    memory: Mapping[str, Any],
    known: Mapping[str, Numbers],
    unknown: Callable[[str], Numbers] | None = None,
) -> Callable[[Term], np.ndarray]:
    """Evaluates terms over buffers and numbers; a masked lane's address may be anything.

    Args:
        memory: buffers by name; under ``*name`` those that an argument holds the addresses of.
        known: numbers and tensors by name.
        unknown: asked for any other name.
    """
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
        if name in memory:
            if len(parts) == 2:
                return _pointed(memory[name], *parts)
            return _read(memory[name], parts[0])
        if name not in known:
            assert unknown is not None, name
            return unknown(name)
        if not parts:
            return known[name]
        tensor = np.atleast_3d(known[name])
        programs = np.arange(tensor.shape[0])[:, None, None]
        lane, column = (
            np.clip(part, 0, size - 1) for part, size in zip(parts, tensor.shape[1:], strict=True)
        )
        return tensor[programs, lane, column]

    return evaluate


def _read(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    return values[np.clip(offsets, 0, len(values) - 1)] if len(values) else np.zeros_like(offsets)


def _pointed(
    buffers: Mapping[int, np.ndarray], addresses: np.ndarray, offsets: np.ndarray
) -> np.ndarray:
    addresses, offsets = np.broadcast_arrays(addresses, offsets)
    found = np.zeros(addresses.shape, dtype=np.int64)
    for address, values in buffers.items():
        chosen = addresses == address
        found[chosen] = _read(values, offsets[chosen])
    return found
