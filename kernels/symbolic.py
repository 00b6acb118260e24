"""Executes a kernel's TTIR for all inputs at once, into Z3 terms.

One symbolic program of the launch is run. Its id is free numbers, and so is the place in a tensor:
a tensor is a term over the lane, and over the column if it has two dimensions. Loads are
uninterpreted functions of the address; what the host guarantees about what they give is for the
theorems to say. A branch forks the path. A loop is run for one arbitrary round: its counter is a
free number, and what it carries from round to round is unknown, up to what a theorem proves of it
by induction (`Loop`, `Reduction`).

What is computed of floats is anything at all. It may be stored; an address or a mask that depends
on it is not modelled.

Two kinds of arithmetic run the same code. `Integers` are mathematical: each operation that could
leave its type is kept as an obligation, and once these are proved, so are theorems about the code.
`Bits` wrap around as the hardware does; they show that what an obligation calls an overflow is one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import z3

from kvproof.kernels.ttir import FLOATS, Block, Function, Operation, UnknownCodeError

Term: TypeAlias = Any
"""A Z3 term; z3 publishes no types."""

_ADDRESS_BITS = 64
_FLOATS = {"bf16": 16, "f16": 16, "f32": 32, "f8E4M3FN": 8, "f8E4M3FNUZ": 8, "f8E5M2": 8}
"""Types whose values are moved and not computed with: their bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """A number, or a tensor of numbers as a term over its lane.

    Attributes:
        bits: width of its type; 1 for conditions.
        steps: indices of the computations that it was made of, which may overflow.
        unordered: a tensor whose lanes may have been reordered; only a sum may use it.
        opaque: made of floats; may be anything.
    """

    term: Term
    bits: int
    steps: frozenset[int] = frozenset()
    unordered: bool = False
    opaque: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointer:
    """An address: an argument and an offset in its elements.

    Attributes:
        base: the argument; ``*name`` for buffers whose addresses the argument holds.
        origin: which of these buffers: its address.
    """

    base: str
    offset: Term
    steps: frozenset[int] = frozenset()
    origin: Term = None


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
        lanes, columns: size of the tensor; 1 for a single element.
        line: line of the kernel's source file.
        opaque: the value is made of floats, and no theorem is about it.
        origin: address of the buffer, where the argument holds addresses.
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
    columns: int = 1
    opaque: bool = False
    origin: Term = None


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
        lanes, columns: size of the largest tensor that is carried.
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
    lanes: int = 1
    columns: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """A sum: ``result`` stands for that of ``element`` over ``lanes`` lanes, or columns.

    Attributes:
        over: the number that the sum runs over: lane or column.
    """

    element: Term
    over: Term
    lanes: int
    result: Term
    path: Term
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one arbitrary program of a launch does.

    Attributes:
        programs: its id in each dimension of the grid.
        grid: size of the grid.
        lane, column: place in every tensor.
        arguments: numbers that the kernel was given, by name.
        memory: content of each pointer argument before the launch, as a function of the element.
        facts: ranges of types, which hold of whatever is loaded or passed.
        unknowns: numbers, and functions of lane and column, that stand for what is not known of
            one program: rounds, what loops carry, sums, floats.
        undefined: of these, what lanes get that a masked load leaves out without saying what they
            get; with the load's line.
        shared: buffers that the kernel reads and writes. Each program reads what was there before
            the launch if no other program writes it: that is for a theorem to show.
    """

    kernel: str
    programs: tuple[Term, Term, Term]
    grid: tuple[Term, Term, Term]
    lane: Term
    column: Term
    arguments: Mapping[str, Term]
    memory: Mapping[str, Callable[..., Term]]
    facts: tuple[Term, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    steps: tuple[Step, ...]
    loops: tuple[Loop, ...]
    reductions: tuple[Reduction, ...]
    unknowns: tuple[Any, ...]
    undefined: Mapping[Any, int]
    shared: frozenset[str]

    @property
    def program(self) -> Term:
        """Its id in the first dimension."""
        return self.programs[0]

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
    def buffers(self, name: str, bits: int) -> Callable[[Term, Term], Term]: ...  # noqa: D102
    def tensor(self, name: str, bits: int) -> Any: ...  # noqa: D102
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

    def buffers(self, name: str, bits: int) -> Callable[[Term, Term], Term]:
        """Content of buffers that are told apart by their addresses."""
        function: Callable[[Term, Term], Term] = z3.Function(
            name, z3.IntSort(), z3.IntSort(), z3.IntSort()
        )
        return function

    def tensor(self, name: str, bits: int) -> Any:
        """An unknown tensor: a function of lane and column."""
        range_ = z3.BoolSort() if bits == 1 else z3.IntSort()
        return z3.Function(name, z3.IntSort(), z3.IntSort(), range_)

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

    def buffers(self, name: str, bits: int) -> Callable[[Term, Term], Term]:
        """Content of buffers that are told apart by their addresses."""
        address = z3.BitVecSort(_ADDRESS_BITS)
        function: Callable[[Term, Term], Term] = z3.Function(
            name, address, address, z3.BitVecSort(bits)
        )
        return function

    def tensor(self, name: str, bits: int) -> Any:
        """An unknown tensor: a function of lane and column."""
        range_ = z3.BoolSort() if bits == 1 else z3.BitVecSort(bits)
        return z3.Function(name, z3.BitVecSort(32), z3.BitVecSort(32), range_)

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
    memory: dict[str, Callable[..., Term]] = field(default_factory=dict)
    element: dict[str, int] = field(default_factory=dict)
    arguments: dict[str, Term] = field(default_factory=dict)
    facts: list[Term] = field(default_factory=list)
    loads: list[Access] = field(default_factory=list)
    stores: list[Access] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)
    unknowns: list[Any] = field(default_factory=list)
    undefined: dict[Any, int] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    programs: list[Term] = field(default_factory=list)
    grid: list[Term] = field(default_factory=list)
    lane: Term = None
    column: Term = None
    looping: int = 0

    def run(self) -> Run:
        for name in ("program", "program_y", "program_z"):
            self.programs.append(self.arithmetic.fresh(name, 32))
            self.grid.append(self.arithmetic.fresh(f"{name}_count", 32))
            for term in (self.programs[-1], self.grid[-1]):
                self.facts.append(self.arithmetic.compare("sge", term, self._number(0, 32)))
                self.facts.append(self.arithmetic.in_range(term, 32))
        self.lane = self.arithmetic.fresh("lane", 32)
        self.column = self.arithmetic.fresh("column", 32)
        environment: Environment = {}
        for name, kind in self.function.arguments.items():
            if kind.startswith("!tt.ptr<"):
                # A bool takes a byte.
                self.element[name] = max(_bits(kind[8:-1]), 8)
                self.memory[name] = self.arithmetic.memory(name, self.element[name])
                offset = self._number(0, _ADDRESS_BITS)
                environment[f"%{name}"] = Pointer(base=name, offset=offset)
            else:
                self.arguments[name] = self.arithmetic.fresh(name, _bits(kind))
                self.facts.append(self.arithmetic.in_range(self.arguments[name], _bits(kind)))
                environment[f"%{name}"] = Value(term=self.arguments[name], bits=_bits(kind))
        self._block("^bb0", environment, z3.BoolVal(True), frozenset(), ())
        return Run(
            kernel=self.function.name, programs=_three(self.programs), grid=_three(self.grid),
            lane=self.lane, column=self.column, arguments=self.arguments, memory=self.memory,
            facts=tuple(self.facts), loads=tuple(self.loads), stores=tuple(self.stores),
            steps=tuple(self.steps), loops=tuple(self.loops), reductions=tuple(self.reductions),
            unknowns=tuple(self.unknowns), undefined=self.undefined,
            shared=frozenset(self.shared),
        )  # fmt: skip

    def _number(self, value: int, bits: int) -> Term:
        return self.arithmetic.constant(value, bits)

    def _unknown(self, what: str, bits: int, kind: str = "") -> Term:
        """Anything: a number, or one for each place of a tensor of that type."""
        name = f"{what}{len(self.unknowns)}"
        rank = len(_shape(kind))
        if not rank:
            self.unknowns.append(self.arithmetic.fresh(name, bits))
            return self.unknowns[-1]
        self.unknowns.append(self.arithmetic.tensor(name, bits))
        return self.unknowns[-1](self.lane, self.column if rank == 2 else self._number(0, 32))

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
        if name == "ttg.barrier":
            return ()
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            which = self.programs if name == "tt.get_program_id" else self.grid
            return (Value(term=which["xyz".index(operation.text.strip()[0])], bits=32),)
        if name == "tt.make_range":
            start = int(_attribute(operation, "start"))
            term = self.lane + self._number(start, 32) if start else self.lane
            return (Value(term=term, bits=32),)
        if name == "arith.constant":
            return (self._constant(operation),)
        taken = [environment[operand] for operand in operation.operands]
        if name in ("tt.splat", "tt.broadcast"):
            return taken
        if name in ("tt.expand_dims", "tt.trans"):
            return (self._turned(operation, taken[0]),)
        if name == "tt.addptr":
            return (self._moved(taken, operation),)
        if name == "tt.bitcast":
            before, _, after = operation.type.partition(" -> ")
            if isinstance(taken[0], Value) or _bytes(before) != _bytes(after):
                raise _unknown(operation, "bits that are taken for others")
            return taken
        if name == "tt.ptr_to_int":
            if not isinstance(taken[0], Pointer) or taken[0].steps:
                raise _unknown(operation, "an address as a number")
            # All that is asked of an argument's address is whether it is there.
            address = self._unknown("address", _ADDRESS_BITS)
            self.facts.append(
                self.arithmetic.compare("ne", address, self._number(0, _ADDRESS_BITS))
            )
            return (Value(term=address, bits=_ADDRESS_BITS),)
        values = [_value(environment, operand) for operand in operation.operands]
        if name in FLOATS:
            return (self._opaque(operation),)
        if name == "tt.int_to_ptr":
            return (self._pointed(operation, values[0]),)
        if name == "tt.reduce":
            return (self._reduced(operation, taken, path),)
        if name == "tt.reshape":
            before, _, after = operation.type.partition(" -> ")
            if before != after:
                raise _unknown(operation, "a change of shape")
            return (replace(values[0], unordered="allow_reorder" in operation.text),)
        steps = frozenset().union(*(value.steps for value in values))
        opaque = any(value.opaque for value in values)
        if name == "arith.cmpi":
            predicate = operation.text.partition(",")[0]
            if predicate not in _COMPARE:
                raise _unknown(operation, f"the comparison {predicate}")
            term = self.arithmetic.compare(predicate, values[0].term, values[1].term)
            return (Value(term=term, bits=1, steps=steps, opaque=opaque),)
        if name == "arith.select":
            term = z3.If(values[0].term, values[1].term, values[2].term)
            return (Value(term=term, bits=values[1].bits, steps=steps, opaque=opaque),)
        if name in ("arith.extsi", "arith.extui", "arith.trunci"):
            return (self._resized(operation, values[0], path),)
        assert family == "arith"
        if short in _LOGIC:
            if values[0].bits != 1:
                raise _unknown(operation, "bits of numbers")
            term = _LOGIC[short](values[0].term, values[1].term)
            return (Value(term=term, bits=1, steps=steps, opaque=opaque),)
        bits = values[0].bits
        term = self.arithmetic.binary(short, values[0].term, values[1].term)
        if short in ("addi", "subi", "muli") and not opaque:
            steps |= {self._step(operation, term, bits, path)}
        return (Value(term=term, bits=bits, steps=steps, opaque=opaque),)

    def _opaque(self, operation: Operation) -> Value:
        """The result of a computation with floats: anything."""
        kind = re.split(r" -> | to ", operation.type)[-1]
        bits = 1 if operation.name == "arith.cmpf" else _bits(_element(kind))
        return Value(term=self._unknown("float", bits, kind), bits=bits, opaque=True)

    def _turned(self, operation: Operation, taken: Value | Pointer) -> Value | Pointer:
        """The same numbers along another axis."""
        zero = self._number(0, 32)
        if operation.name == "tt.trans":
            pairs = [(self.lane, self.column), (self.column, self.lane)]
        elif _attribute(operation, "axis") == "0":
            pairs = [(self.lane, self.column), (self.column, zero)]
        else:
            return taken
        if isinstance(taken, Pointer):
            return replace(taken, offset=z3.substitute(taken.offset, *pairs))
        return replace(taken, term=z3.substitute(taken.term, *pairs))

    def _pointed(self, operation: Operation, value: Value) -> Pointer:
        """A buffer whose address was loaded."""
        found = [load for load in self.loads if load.value.eq(value.term) and load.lanes == 1]
        if not found:
            raise _unknown(operation, "a computed address")
        base = f"*{found[0].base}"
        self.element[base] = _bits(operation.type.partition("!tt.ptr<")[2].removesuffix(">"))
        self.memory.setdefault(base, self.arithmetic.buffers(base, self.element[base]))
        return Pointer(base=base, offset=self._number(0, _ADDRESS_BITS), origin=value.term)

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
        if _element(operation.type) in _FLOATS:
            if text.startswith("0x") or float(text) != 0:
                return Value(term=self._unknown("float", bits), bits=bits, opaque=True)
            return Value(term=self._number(0, bits), bits=bits)
        return Value(term=self._number(int(text), bits), bits=bits)

    def _resized(self, operation: Operation, value: Value, path: Term) -> Value:
        after = _bits(_element(operation.type.partition(" to ")[2]))
        if value.bits == 1:
            one, zero = self._number(1, after), self._number(0, after)
            number = one if operation.name == "arith.extui" else self._number(-1, after)
            term = z3.If(value.term, number, zero)
            return Value(term=term, bits=after, steps=value.steps, opaque=value.opaque)
        if operation.name == "arith.extui":
            raise _unknown(operation, "an unsigned number")
        term = self.arithmetic.resize(value.term, value.bits, after)
        steps = value.steps
        if after < value.bits and not value.opaque:
            steps |= {self._step(operation, term, after, path)}
        return Value(term=term, bits=after, steps=steps, opaque=value.opaque)

    def _moved(self, taken: Sequence[Value | Pointer], operation: Operation) -> Pointer:
        pointer, by = taken
        if not isinstance(pointer, Pointer) or not isinstance(by, Value):
            raise _unknown(operation, "a pointer that is no argument")
        if by.opaque:
            raise _unknown(operation, "an address that depends on floats")
        wide = self.arithmetic.resize(by.term, by.bits, _ADDRESS_BITS)
        # In one form, so that the same cell of a buffer is the same term wherever it is loaded.
        offset = z3.simplify(pointer.offset + wide)
        return replace(pointer, offset=offset, steps=pointer.steps | by.steps)

    def _load(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Value:
        pointer, mask, other = self._operands(operation, environment, values=2)
        self._ordered(operation, pointer.base, {store.base for store in self.stores})
        read = self.memory[pointer.base]
        term = (
            read(pointer.offset) if pointer.origin is None else read(pointer.origin, pointer.offset)
        )
        bits = self.element[pointer.base]
        self.facts.append(self.arithmetic.in_range(term, bits))
        steps, opaque = pointer.steps, False
        when, because = path, decided
        if mask is not None:
            if other is None:  # Triton leaves open what a masked lane gets
                nothing = self._unknown("undefined", bits, operation.type)
                self.undefined[self.unknowns[-1]] = operation.line
                other = Value(term=nothing, bits=bits)
            when, because = z3.And(path, mask.term), decided | mask.steps
            steps |= other.steps | mask.steps
            opaque = other.opaque
        lanes, columns = _size(operation.type)
        self.loads.append(
            Access(
                base=pointer.base, offset=pointer.offset, value=term, when=when, path=path,
                steps=pointer.steps, mask_steps=because, lanes=lanes, columns=columns,
                line=operation.line, origin=pointer.origin,
            )
        )  # fmt: skip
        if mask is not None and other is not None:
            term = z3.If(mask.term, term, other.term)
        return Value(term=term, bits=bits, steps=steps, opaque=opaque)

    def _ordered(self, operation: Operation, base: str, others: set[str]) -> None:
        """A buffer that is read and written is read first, and not in a loop."""
        if base in others:
            if operation.name == "tt.load" or self.looping:
                raise _unknown(operation, f"{base} is read after it is written,")
            self.shared.add(base)

    def _store(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> None:
        pointer, value, mask = self._operands(operation, environment, values=2)
        assert value is not None
        self._ordered(operation, pointer.base, {load.base for load in self.loads})
        when, because = path, decided
        if mask is not None:
            when, because = z3.And(path, mask.term), decided | mask.steps
        lanes, columns = _size(operation.type)
        self.stores.append(
            Access(
                base=pointer.base, offset=pointer.offset, value=value.term, when=when, path=path,
                steps=pointer.steps | value.steps, mask_steps=because, lanes=lanes,
                columns=columns, line=operation.line, opaque=value.opaque, origin=pointer.origin,
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
        mask = one if operation.name == "tt.load" else other
        if mask is not None and mask.opaque:
            raise _unknown(operation, "a mask that depends on floats")
        return pointer, one, other

    def _loop(
        self, operation: Operation, environment: Environment, path: Term, decided: frozenset[int]
    ) -> Sequence[Value]:
        low, high, step, *start = [_value(environment, name) for name in operation.operands]
        body = operation.regions[0]
        number = self._unknown("round", low.bits)
        counter = low.term + step.term * number
        kinds = [kind.strip() for kind in operation.type.split(", ")] if start else []
        head = [
            self._unknown("carried", value.bits, kind)
            for value, kind in zip(start, kinds, strict=True)
        ]
        result = [
            self._unknown("after_loop", value.bits, kind)
            for value, kind in zip(start, kinds, strict=True)
        ]
        # Floats may come in later rounds.
        opaque = [value.opaque or _element(kind) in _FLOATS
                  for value, kind in zip(start, kinds, strict=True)]  # fmt: skip
        steps = low.steps | high.steps | step.steps
        inside = environment | {
            name: Value(term=term, bits=value.bits, steps=steps, opaque=floats)
            for name, term, value, floats in zip(
                body.arguments, (counter, *head), (low, *start), (False, *opaque), strict=True
            )
        }
        compare = self.arithmetic.compare
        zero = self._number(0, low.bits)
        taken = z3.And(path, compare("sge", number, zero), compare("slt", counter, high.term))
        self.looping += 1
        last = self._operations(body, inside, taken, decided | steps)
        self.looping -= 1
        tail = [_value(inside, name) for name in last.operands]
        if any(value.opaque and not floats for value, floats in zip(tail, opaque, strict=True)):
            raise _unknown(operation, "a number that a loop makes of floats")
        self.loops.append(
            Loop(
                counter=counter, low=low.term, high=high.term, step=step.term,
                start=tuple(value.term for value in start), head=tuple(head),
                tail=tuple(value.term for value in tail), result=tuple(result), path=taken,
                line=operation.line,
                lanes=max((_size(kind)[0] for kind in kinds), default=1),
                columns=max((_size(kind)[1] for kind in kinds), default=1),
            )
        )  # fmt: skip
        every = steps.union(*(value.steps for value in (*start, *tail)))
        return [
            Value(term=term, bits=value.bits, steps=every, opaque=floats)
            for term, value, floats in zip(result, start, opaque, strict=True)
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
                opaque=condition.opaque or one.opaque or other.opaque,
            )
            for one, other in zip(*sides, strict=True)
        ]

    def _reduced(self, operation: Operation, taken: Sequence[Value | Pointer], path: Term) -> Value:
        [element] = taken
        assert isinstance(element, Value)
        by, axis = operation.text.split()
        before, _, after = operation.type.partition(" -> ")
        if by in FLOATS:
            bits = _bits(_element(after))
            return Value(term=self._unknown("float", bits, after), bits=bits, opaque=True)
        shape = _shape(before.strip("()"))
        if by != "arith.addi" or element.opaque or (len(shape), axis) == (2, "0"):
            raise _unknown(operation, f"a reduction by {by}")
        result = self._unknown("sum", element.bits, after)
        self.reductions.append(
            Reduction(
                element=element.term, over=self.column if axis == "1" else self.lane,
                lanes=shape[-1], result=result, path=path, line=operation.line,
            )
        )  # fmt: skip
        step = self._step(operation, result, element.bits, path)
        return Value(term=result, bits=element.bits, steps=element.steps | {step})


def _three(terms: Sequence[Term]) -> tuple[Term, Term, Term]:
    one, two, three = terms
    return one, two, three


def _value(environment: Environment, name: str) -> Value:
    value = environment[name]
    if not isinstance(value, Value):
        raise UnknownCodeError("a pointer used as a number")
    return value


def _shape(kind: str) -> tuple[int, ...]:
    """Size of a tensor; empty for a number."""
    kind = kind.strip()
    if not kind.startswith("tensor<"):
        return ()
    return tuple(int(each) for each in re.findall(r"(\d+)x", kind.partition("!")[0]))


def _size(kind: str) -> tuple[int, int]:
    """Lanes and columns; 1 for what there is not."""
    lanes, columns, *_ = [*_shape(kind), 1, 1]
    return lanes, columns


def _element(kind: str) -> str:
    """Type of a tensor's elements, or of a number."""
    kind = kind.strip()
    return re.sub(r"^(\d+x)+", "", kind[7:-1]) if kind.startswith("tensor<") else kind


def _bytes(kind: str) -> int:
    """Size of what a pointer, or a tensor of pointers, points to."""
    return -(-_bits(_element(kind).removeprefix("!tt.ptr<").removesuffix(">")) // 8)


def _bits(kind: str) -> int:
    if kind in _FLOATS:
        return _FLOATS[kind]
    if kind == "index" or not kind.startswith("i"):
        raise UnknownCodeError(f"the type {kind}")
    return int(kind[1:])


def _attribute(operation: Operation, name: str) -> str:
    return operation.text.partition(f"{name} = ")[2].partition(" ")[0]


def _unknown(operation: Operation, what: str) -> UnknownCodeError:
    return UnknownCodeError(f"{what} in {operation.name} at line {operation.line}")


def at(
    term: Term, *, of: Run, program: Term = None, lane: Term = None, column: Term = None,
    **others: Term,
) -> Term:  # fmt: skip
    """A term of a run for another place, or with numbers in place of arguments.

    What is unknown of one program or lane (its round, what its loops carry, its floats) is another
    unknown for another.

    Args:
        term: of the run.
        of: the run.
        program: id in the first dimension of the grid; ``program_y`` and ``program_z`` too.
        lane: place in a tensor, in its first dimension.
        column: in its second.
        others: values of arguments.
    """  # fmt: skip
    places = {"program_y": of.programs[1], "program_z": of.programs[2]}
    pairs = [(of.program, program), (of.lane, lane), (of.column, column)]
    pairs += [(places.get(name, of.arguments.get(name)), value) for name, value in others.items()]
    moved = any(new is not None for new in (program, lane, column)) or places.keys() & others.keys()
    if moved:
        for unknown in of.unknowns:
            if isinstance(unknown, z3.FuncDeclRef):
                twin = z3.Function(
                    f"{unknown.name()}'", *(unknown.domain(n) for n in range(2)), unknown.range()
                )
                term = z3.substitute_funs(
                    term, (unknown, twin(*(z3.Var(n, unknown.domain(n)) for n in range(2))))
                )
            else:
                pairs.append((unknown, z3.Const(f"{unknown}'", unknown.sort())))
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
