"""Executes a kernel's TTIR for all inputs at once, into Z3 terms.

One symbolic program of the launch is run. Its id is a free number, and so are its lanes: every
tensor of a kernel here has one dimension, so a tensor is a term over one number, the lane. Loads
are uninterpreted functions of the address; what the host guarantees about what they give is for the
theorems to say. A branch forks the path. A loop is run for one arbitrary round: its counter is a
free number, and what it carries from round to round is unknown, up to what a theorem proves of it
by induction (`Loop`, `Reduction`).

Two kinds of arithmetic run the same code. `Integers` are mathematical: each operation that could
leave its type is kept as an obligation, and once these are proved, so are theorems about the code.
`Bits` wrap around as the hardware does; they show that what an obligation calls an overflow is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import z3

from kvproof.kernels.ttir import Block, Function, Operation, UnknownCodeError

Term: TypeAlias = Any
"""A Z3 term; z3 publishes no types."""

_ADDRESS_BITS = 64
_OPAQUE = {"bf16": 16, "f16": 16, "f32": 32}
"""Types whose values are moved and not computed with: their bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A number, or a tensor of numbers as a term over its lane.

    Attributes:
        bits: width of its type; 1 for conditions.
        steps: indices of the computations that it was made of, which may overflow.
        unordered: a tensor whose lanes may have been reordered; only a sum may use it.
    """

    term: Term
    bits: int
    steps: frozenset[int] = frozenset()
    unordered: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointer:
    """An address: an argument and an offset in its elements."""

    base: str
    offset: Term
    steps: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One computation that has to stay in its type.

    Attributes:
        term: exact result.
        path: condition under which it is computed.
    """

    name: str
    line: int
    term: Term
    bits: int
    path: Term


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """A load or a store of one lane of one program.

    Attributes:
        base: pointer argument.
        offset: element within it.
        value: what is stored, or loaded.
        when: path and mask together: the access takes place exactly then.
        path: path alone.
        steps: computations in its address and value.
        mask_steps: computations in its mask and path.
        lanes: lanes of the tensor; 1 for a single element.
        line: line of the kernel's source file.
    """

    base: str
    offset: Term
    value: Term
    when: Term
    path: Term
    steps: frozenset[int]
    mask_steps: frozenset[int]
    lanes: int
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A loop, run for one arbitrary round.

    Attributes:
        counter: value of its variable in that round.
        low, high, step: its bounds.
        start: what is carried in.
        head: what the round begins with; unknown.
        tail: what the round ends with, a term over ``head``.
        result: what is carried out; unknown.
    """

    counter: Term
    low: Term
    high: Term
    step: Term
    start: tuple[Term, ...]
    head: tuple[Term, ...]
    tail: tuple[Term, ...]
    result: tuple[Term, ...]
    path: Term
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """A sum: ``result`` stands for that of ``element`` over ``lanes`` lanes."""

    element: Term
    lanes: int
    result: Term
    path: Term
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one arbitrary program of a launch does.

    Attributes:
        program: its id.
        lane: the lane of every tensor.
        arguments: numbers that the kernel was given, by name.
        memory: content of each pointer argument before the launch, as a function of the element.
        facts: ranges of types, which hold of whatever is loaded or passed.
    """

    kernel: str
    program: Term
    lane: Term
    arguments: Mapping[str, Term]
    memory: Mapping[str, Callable[[Term], Term]]
    facts: tuple[Term, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    steps: tuple[Step, ...]
    loops: tuple[Loop, ...]
    reductions: tuple[Reduction, ...]

    def stores_to(self, base: str) -> tuple[Access, ...]:
        """Stores to one pointer argument, in program order.

        Raises:
            UnknownCodeError: there is none.
        """
        found = tuple(store for store in self.stores if store.base == base)
        if not found:
            raise UnknownCodeError(f"{self.kernel} has no store to {base}")
        return found


class Arithmetic(Protocol):
    """How numbers of a fixed width compute."""

    def fresh(self, name: str, bits: int) -> Term: ...  # noqa: D102
    def constant(self, value: int, bits: int) -> Term: ...  # noqa: D102
    def memory(self, name: str, bits: int) -> Callable[[Term], Term]: ...  # noqa: D102
    def binary(self, name: str, one: Term, other: Term) -> Term: ...  # noqa: D102
    def compare(self, predicate: str, one: Term, other: Term) -> Term: ...  # noqa: D102
    def resize(self, term: Term, before: int, after: int) -> Term: ...  # noqa: D102
    def in_range(self, term: Term, bits: int) -> Term: ...  # noqa: D102


class Integers:
    """Mathematical integers."""

    def fresh(self, name: str, bits: int) -> Term:
        """An unknown number."""
        return z3.Bool(name) if bits == 1 else z3.Int(name)

    def constant(self, value: int, bits: int) -> Term:
        """A number."""
        return z3.IntVal(value)

    def memory(self, name: str, bits: int) -> Callable[[Term], Term]:
        """Content of a buffer."""
        function: Callable[[Term], Term] = z3.Function(name, z3.IntSort(), z3.IntSort())
        return function

    def binary(self, name: str, one: Term, other: Term) -> Term:
        """Division rounds towards zero and a remainder has the dividend's sign, as in C."""
        if name == "remsi":
            return z3.If(one >= 0, one % other, -(-one % other))
        if name == "divsi":
            return z3.If(one >= 0, one / other, -(-one / other))
        return _PLAIN[name](one, other)

    def compare(self, predicate: str, one: Term, other: Term) -> Term:
        """A comparison of signed numbers."""
        return _COMPARE[predicate](one, other)

    def resize(self, term: Term, before: int, after: int) -> Term:
        """A number is what it is in any width that it fits."""
        return term

    def in_range(self, term: Term, bits: int) -> Term:
        """Whether a result fits its type."""
        return z3.And(term >= -(1 << bits - 1), term < 1 << bits - 1)


class Bits:
    """Bit-vectors of the true widths."""

    def fresh(self, name: str, bits: int) -> Term:
        """An unknown number."""
        return z3.Bool(name) if bits == 1 else z3.BitVec(name, bits)

    def constant(self, value: int, bits: int) -> Term:
        """A number."""
        return z3.BitVecVal(value, bits)

    def memory(self, name: str, bits: int) -> Callable[[Term], Term]:
        """Content of a buffer."""
        function: Callable[[Term], Term] = z3.Function(
            name, z3.BitVecSort(_ADDRESS_BITS), z3.BitVecSort(bits)
        )
        return function

    def binary(self, name: str, one: Term, other: Term) -> Term:
        """As the hardware does."""
        if name == "remsi":
            return z3.SRem(one, other)
        if name == "divsi":
            return one / other
        return _PLAIN[name](one, other)

    def compare(self, predicate: str, one: Term, other: Term) -> Term:
        """A comparison of signed numbers."""
        return _COMPARE[predicate](one, other)

    def resize(self, term: Term, before: int, after: int) -> Term:
        """Sign extension, or the low bits."""
        if after > before:
            return z3.SignExt(after - before, term)
        return z3.Extract(after - 1, 0, term) if after < before else term

    def in_range(self, term: Term, bits: int) -> Term:
        """Bit-vectors always are."""
        return z3.BoolVal(True)


_PLAIN: Mapping[str, Callable[[Term, Term], Term]] = {
    "addi": lambda a, b: a + b,
    "subi": lambda a, b: a - b,
    "muli": lambda a, b: a * b,
    "minsi": lambda a, b: z3.If(a <= b, a, b),
    "maxsi": lambda a, b: z3.If(a >= b, a, b),
}
_COMPARE: Mapping[str, Callable[[Term, Term], Term]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "slt": lambda a, b: a < b,
    "sle": lambda a, b: a <= b,
    "sgt": lambda a, b: a > b,
    "sge": lambda a, b: a >= b,
}
_LOGIC: Mapping[str, Callable[[Term, Term], Term]] = {
    "andi": z3.And,
    "ori": z3.Or,
    "xori": z3.Xor,
}


def execute(function: Function, arithmetic: Arithmetic | None = None) -> Run:
    """Run one arbitrary program of a kernel.

    Args:
        function: parsed TTIR.
        arithmetic: mathematical integers by default.

    Raises:
        UnknownCodeError: something that it does is not modelled; names operation and line.
    """
    return _Executor(function, arithmetic or Integers()).run()


Environment: TypeAlias = dict[str, Value | Pointer]


@dataclass(slots=True)
class _Executor:
    function: Function
    arithmetic: Arithmetic
    memory: dict[str, Callable[[Term], Term]] = field(default_factory=dict)
    element: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, Term] = field(default_factory=dict)
    facts: list[Term] = field(default_factory=list)
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    fresh: int = 0
    program: Term = None
    lane: Term = None

    def run(self) -> Run:
        self.program = self.arithmetic.fresh("program", 32)
        self.lane = self.arithmetic.fresh("lane", 32)
        self.facts.append(self.arithmetic.compare("sge", self.program, self._number(0, 32)))
        self.facts.append(self.arithmetic.in_range(self.program, 32))
        environment: Environment = {}
        for name, kind in self.function.arguments.items():
            if kind.startswith("!tt.ptr<"):
                self.element[name] = _bits(kind[8:-1])
                self.memory[name] = self.arithmetic.memory(name, self.element[name])
                offset = self._number(0, _ADDRESS_BITS)
                environment[f"%{name}"] = Pointer(base=name, offset=offset)
            else:
                self.arguments[name] = self.arithmetic.fresh(name, _bits(kind))
                self.facts.append(self.arithmetic.in_range(self.arguments[name], _bits(kind)))
                environment[f"%{name}"] = Value(term=self.arguments[name], bits=_bits(kind))
        self._block("^bb0", environment, z3.BoolVal(True), frozenset(), ())
        both = {load.base for load in self.loads} & {store.base for store in self.stores}
        if both:
            raise UnknownCodeError(f"{', '.join(sorted(both))} is both read and written")
        return Run(
            kernel=self.function.name, program=self.program, lane=self.lane,
            arguments=self.arguments, memory=self.memory, facts=tuple(self.facts),
            loads=tuple(self.loads), stores=tuple(self.stores), steps=tuple(self.steps),
            loops=tuple(self.loops), reductions=tuple(self.reductions),
        )  # fmt: skip

    def _number(self, value: int, bits: int) -> Term:
        return self.arithmetic.constant(value, bits)

    def _unknown(self, what: str, bits: int) -> Term:
        self.fresh += 1
        return self.arithmetic.fresh(f"{what}{self.fresh}", bits)

    def _block(
        self,
        label: str,
        environment: Environment,
        path: Term,
        decided: frozenset[int],
        trail: tuple[str, ...],
    ) -> None:
        if label in trail:
            raise UnknownCodeError(f"a jump back to {label}")
        block = self.function.blocks[label]
        last = self._operations(block, environment, path, decided)
        if last.name == "tt.return":
            return
        if last.name == "cf.br":
            choices = [(path, decided, last.targets[0])]
        else:
            condition = _value(environment, last.operands[0])
            choices = [
                (z3.And(path, side), decided | condition.steps, target)
                for side, target in zip(
                    (condition.term, z3.Not(condition.term)), last.targets, strict=True
                )
            ]
        for taken, because, (target, passed) in choices:
            names = self.function.blocks[target].arguments
            there = environment | {
                name: environment[value] for name, value in zip(names, passed, strict=True)
            }
            self._block(target, there, taken, because, (*trail, label))

    def _operations(
        self, block: Block, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Operation:
        """Run a block up to the operation that leaves it; that one."""
        for operation in block.operations:
            if operation.name in ("tt.return", "cf.br", "cf.cond_br", "scf.yield"):
                return operation
            results = self._operation(operation, environment, path, decided)
            environment.update(zip(operation.results, results, strict=True))
        return Operation(name="scf.yield")

    def _operation(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Sequence[Value | Pointer]:
        name = operation.name
        family, _, short = name.partition(".")
        if name == "tt.load":
            return (self._load(operation, environment, path, decided),)
        if name == "tt.store":
            self._store(operation, environment, path, decided)
            return ()
        if name == "scf.for":
            return self._loop(operation, environment, path, decided)
        if name == "scf.if":
            return self._conditional(operation, environment, path, decided)
        if name == "tt.get_program_id":
            if not operation.text.startswith("x"):
                raise _unknown(operation, "a grid of more than one dimension")
            return (Value(term=self.program, bits=32),)
        if name == "tt.make_range":
            start = int(_attribute(operation, "start"))
            term = self.lane + self._number(start, 32) if start else self.lane
            return (Value(term=term, bits=32),)
        if name == "arith.constant":
            return (self._constant(operation),)
        taken = [environment[operand] for operand in operation.operands]
        if name in ("tt.splat", "tt.broadcast"):
            return taken
        if name == "tt.addptr":
            return (self._moved(taken, operation),)
        values = [_value(environment, operand) for operand in operation.operands]
        if name == "tt.reduce":
            return (self._reduced(operation, taken, path),)
        if name == "tt.reshape":
            before, _, after = operation.type.partition(" -> ")
            if before != after:
                raise _unknown(operation, "a change of shape")
            return (replace(values[0], unordered="allow_reorder" in operation.text),)
        steps = frozenset().union(*(value.steps for value in values))
        if name == "arith.cmpi":
            predicate = operation.text.partition(",")[0]
            if predicate not in _COMPARE:
                raise _unknown(operation, f"the comparison {predicate}")
            term = self.arithmetic.compare(predicate, values[0].term, values[1].term)
            return (Value(term=term, bits=1, steps=steps),)
        if name == "arith.select":
            term = z3.If(values[0].term, values[1].term, values[2].term)
            return (Value(term=term, bits=values[1].bits, steps=steps),)
        if name in ("arith.extsi", "arith.extui", "arith.trunci"):
            return (self._resized(operation, values[0], path),)
        assert family == "arith"
        if short in _LOGIC:
            if values[0].bits != 1:
                raise _unknown(operation, "bits of numbers")
            return (Value(term=_LOGIC[short](values[0].term, values[1].term), bits=1, steps=steps),)
        bits = values[0].bits
        term = self.arithmetic.binary(short, values[0].term, values[1].term)
        if short in ("addi", "subi", "muli"):
            steps |= {self._step(operation, term, bits, path)}
        return (Value(term=term, bits=bits, steps=steps),)

    def _step(self, operation: Operation, term: Term, bits: int, path: Term) -> int:
        self.steps.append(
            Step(name=operation.name, line=operation.line, term=term, bits=bits, path=path)
        )
        return len(self.steps) - 1

    def _constant(self, operation: Operation) -> Value:
        text = operation.text.removeprefix("dense<").removesuffix(">")
        bits = _bits(_element(operation.type))
        if bits == 1:
            return Value(term=z3.BoolVal(text == "true"), bits=1)
        if _element(operation.type) in _OPAQUE:
            if float(text) != 0:
                raise _unknown(operation, f"the float {text}")
            return Value(term=self._number(0, bits), bits=bits)
        return Value(term=self._number(int(text), bits), bits=bits)

    def _resized(self, operation: Operation, value: Value, path: Term) -> Value:
        after = _bits(_element(operation.type.partition(" to ")[2]))
        if value.bits == 1:
            one, zero = self._number(1, after), self._number(0, after)
            number = one if operation.name == "arith.extui" else self._number(-1, after)
            term = z3.If(value.term, number, zero)
            return Value(term=term, bits=after, steps=value.steps)
        if operation.name == "arith.extui":
            raise _unknown(operation, "an unsigned number")
        term = self.arithmetic.resize(value.term, value.bits, after)
        steps = value.steps
        if after < value.bits:
            steps |= {self._step(operation, term, after, path)}
        return Value(term=term, bits=after, steps=steps)

    def _moved(self, taken: Sequence[Value | Pointer], operation: Operation) -> Pointer:
        pointer, by = taken
        if not isinstance(pointer, Pointer) or not isinstance(by, Value):
            raise _unknown(operation, "a pointer that is no argument")
        wide = self.arithmetic.resize(by.term, by.bits, _ADDRESS_BITS)
        # In one form, so that the same cell of a buffer is the same term wherever it is loaded.
        offset = z3.simplify(pointer.offset + wide)
        return Pointer(base=pointer.base, offset=offset, steps=pointer.steps | by.steps)

    def _load(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Value:
        pointer, mask, other = self._operands(operation, environment, values=2)
        term = self.memory[pointer.base](pointer.offset)
        bits = self.element[pointer.base]
        self.facts.append(self.arithmetic.in_range(term, bits))
        steps = pointer.steps
        when, because = path, decided
        if mask is not None:
            if other is None:  # Triton leaves open what a masked lane gets
                self.fresh += 1
                undefined = self.arithmetic.memory(f"undefined{self.fresh}", bits)
                other = Value(term=undefined(pointer.offset), bits=bits)
            when, because = z3.And(path, mask.term), decided | mask.steps
            steps |= other.steps | mask.steps
        self.loads.append(
            Access(
                base=pointer.base, offset=pointer.offset, value=term, when=when, path=path,
                steps=pointer.steps, mask_steps=because, lanes=_lanes(operation.type),
                line=operation.line,
            )
        )  # fmt: skip
        if mask is not None and other is not None:
            term = z3.If(mask.term, term, other.term)
        return Value(term=term, bits=bits, steps=steps)

    def _store(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> None:
        pointer, value, mask = self._operands(operation, environment, values=2)
        assert value is not None
        when, because = path, decided
        if mask is not None:
            when, because = z3.And(path, mask.term), decided | mask.steps
        self.stores.append(
            Access(
                base=pointer.base, offset=pointer.offset, value=value.term, when=when, path=path,
                steps=pointer.steps | value.steps, mask_steps=because,
                lanes=_lanes(operation.type), line=operation.line,
            )
        )  # fmt: skip

    def _operands(
        self, operation: Operation, environment: Environment, *, values: int
    ) -> tuple[Pointer, Value | None, Value | None]:
        first, *rest = operation.operands
        pointer = environment[first]
        if not isinstance(pointer, Pointer) or len(rest) > values:
            raise _unknown(operation, "an access of an unknown form")
        found = [_value(environment, operand) for operand in rest]
        one, other, *_ = [*found, None, None]
        return pointer, one, other

    def _loop(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Sequence[Value]:
        low, high, step, *start = [_value(environment, name) for name in operation.operands]
        body = operation.regions[0]
        number = self._unknown("round", 32)
        counter = low.term + step.term * number
        head = [self._unknown("carried", value.bits) for value in start]
        result = [self._unknown("after_loop", value.bits) for value in start]
        steps = low.steps | high.steps | step.steps
        inside = environment | {
            name: Value(term=term, bits=value.bits, steps=steps)
            for name, term, value in zip(
                body.arguments, (counter, *head), (low, *start), strict=True
            )
        }
        compare = self.arithmetic.compare
        zero = self._number(0, 32)
        taken = z3.And(path, compare("sge", number, zero), compare("slt", counter, high.term))
        last = self._operations(body, inside, taken, decided | steps)
        tail = [_value(inside, name) for name in last.operands]
        self.loops.append(
            Loop(
                counter=counter, low=low.term, high=high.term, step=step.term,
                start=tuple(value.term for value in start), head=tuple(head),
                tail=tuple(value.term for value in tail), result=tuple(result), path=taken,
                line=operation.line,
            )
        )  # fmt: skip
        every = steps.union(*(value.steps for value in (*start, *tail)))
        return [
            Value(term=term, bits=value.bits, steps=every)
            for term, value in zip(result, start, strict=True)
        ]

    def _conditional(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Sequence[Value]:
        condition = _value(environment, operation.operands[0])
        sides = []
        for region, side in zip(
            operation.regions, (condition.term, z3.Not(condition.term)), strict=True
        ):
            inside = dict(environment)
            last = self._operations(region, inside, z3.And(path, side), decided | condition.steps)
            sides.append([_value(inside, name) for name in last.operands])
        return [
            Value(
                term=z3.If(condition.term, one.term, other.term),
                bits=one.bits,
                steps=condition.steps | one.steps | other.steps,
            )
            for one, other in zip(*sides, strict=True)
        ]

    def _reduced(self, operation: Operation, taken: Sequence[Value | Pointer], path: Term) -> Value:
        [element] = taken
        assert isinstance(element, Value)
        result = self._unknown("sum", element.bits)
        self.reductions.append(
            Reduction(
                element=element.term, lanes=_lanes(operation.type), result=result, path=path,
                line=operation.line,
            )
        )  # fmt: skip
        step = self._step(operation, result, element.bits, path)
        return Value(term=result, bits=element.bits, steps=element.steps | {step})


def _value(environment: Environment, name: str) -> Value:
    value = environment[name]
    if not isinstance(value, Value):
        raise UnknownCodeError("a pointer used as a number")
    return value


def _element(kind: str) -> str:
    """Type of a tensor's elements, or of a number."""
    kind = kind.strip()
    if kind.startswith("tensor<"):
        _, _, kind = kind[7:-1].partition("x")
    return kind


def _lanes(kind: str) -> int:
    kind = kind.strip().removeprefix("(")
    return int(kind[7:].partition("x")[0]) if kind.startswith("tensor<") else 1


def _bits(kind: str) -> int:
    if kind in _OPAQUE:
        return _OPAQUE[kind]
    if kind == "index" or not kind.startswith("i"):
        raise UnknownCodeError(f"the type {kind}")
    return int(kind[1:])


def _attribute(operation: Operation, name: str) -> str:
    return operation.text.partition(f"{name} = ")[2].partition(" ")[0]


def _unknown(operation: Operation, what: str) -> UnknownCodeError:
    return UnknownCodeError(f"{what} in {operation.name} at line {operation.line}")


def at(term: Term, *, of: Run, program: Term = None, lane: Term = None, **others: Term) -> Term:
    """A term of a run for another program or lane, or with numbers in place of arguments.

    Raises:
        UnknownCodeError: another program of a kernel with loops, whose unknowns are the first's.
    """
    if program is not None and not program.eq(of.program) and of.loops:
        raise UnknownCodeError(f"two programs of {of.kernel}, which has loops")
    pairs = [(of.program, program), (of.lane, lane)]
    pairs += [(of.arguments[name], value) for name, value in others.items()]
    return z3.substitute(term, *((one, other) for one, other in pairs if other is not None))


def must_fit(run: Run, accesses: Iterable[Access]) -> list[tuple[Step, Term]]:
    """Computations that the accesses depend on, and when each has to stay in its type.

    What a mask or a branch depends on has to on its whole path; an address and a value only where
    the access takes place.
    """
    due: dict[int, list[Term]] = {}
    for access in accesses:
        for step in access.mask_steps:
            due.setdefault(step, []).append(run.steps[step].path)
        for step in access.steps:
            due.setdefault(step, []).append(z3.And(run.steps[step].path, access.when))
    return [(run.steps[step], z3.Or(*conditions)) for step, conditions in sorted(due.items())]
