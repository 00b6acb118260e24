"""Reads TTIR, the text form of Triton's first intermediate code, as far as it is understood.

Triton's Python bindings do not show where a conditional branch goes, so the text is read. Whatever
is not known by name raises `UnknownCodeError`: a proof about code that was read in part would be
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_NUMBERS = {
    "arith.addi", "arith.andi", "arith.cmpi", "arith.constant", "arith.divsi", "arith.extsi",
    "arith.extui", "arith.maxsi", "arith.minsi", "arith.muli", "arith.ori", "arith.remsi",
    "arith.select", "arith.subi", "arith.trunci", "arith.xori",
}  # fmt: skip
_CONTROL = {
    "cf.br", "cf.cond_br", "scf.for", "scf.if", "scf.yield", "tt.reduce", "tt.reduce.return",
    "tt.return", "ttg.barrier",
}  # fmt: skip
_MEMORY = {
    "tt.addptr", "tt.bitcast", "tt.broadcast", "tt.expand_dims", "tt.get_num_programs",
    "tt.get_program_id", "tt.int_to_ptr", "tt.load", "tt.make_range", "tt.ptr_to_int",
    "tt.reshape", "tt.splat", "tt.store", "tt.trans",
}  # fmt: skip

FLOATS = frozenset(
    {
        "arith.addf", "arith.cmpf", "arith.divf", "arith.extf", "arith.fptosi", "arith.maxnumf",
        "arith.minnumf", "arith.mulf", "arith.negf", "arith.sitofp", "arith.subf", "arith.truncf",
        "math.absf", "math.ceil", "math.exp", "math.exp2", "math.log2", "tt.clampf", "tt.dot",
        "tt.fp_to_fp",
    }
)  # fmt: skip
"""Operations on floats. What they give may be anything: no theorem is about it."""

KNOWN = frozenset(_NUMBERS | _CONTROL | _MEMORY) | FLOATS
"""Operations whose meaning `symbolic` has."""


class UnknownCodeError(Exception):
    """Code that is not modelled. The message names the operation and its source line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        results: names of the values that it defines.
        operands: names of the values that it takes, in order.
        text: what stands between the name and the type, e.g. a comparison's predicate; of a
            reduction the operation that it combines with, and its axis.
        type: what stands after the last colon; of a loop the types of what it carries.
        line: line of the kernel's source file; 0 if the compiler gives none.
        regions: code within it: a loop's body, both sides of a conditional.
        targets: where a branch goes, with the values passed there.
    """

    name: str
    results: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    text: str = ""
    type: str = ""
    line: int = 0
    regions: tuple[Block, ...] = ()
    targets: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Operations in order, the last of which leaves the block."""

    arguments: tuple[str, ...] = ()
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A kernel.

    Attributes:
        arguments: types by name, e.g. ``!tt.ptr<i64>``.
        blocks: by label; execution starts at ``^bb0``.
    """

    name: str
    arguments: Mapping[str, str]
    blocks: Mapping[str, Block]


_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_NAME = r"%[\w$.\-]+"
_DEFINITION = re.compile(rf"^(?:({_NAME})(?::(\d+))? = )?\"?([\w.]+)\"?(.*)$")
_TOO_DEEP = re.compile(r"tensor<\d+x\d+x\d+x")
_LABEL = re.compile(r"^(\^bb\d+)(?:\((.*)\))?:")
_VALUE = re.compile(rf"{_NAME}(?:#\d+)?")
_HEADER = re.compile(r"^tt\.func public @(\w+)\((.*)\)(?: attributes \{.*\})? \{$")
_FOR = re.compile(
    rf"^({_NAME}) = ({_NAME}) to ({_NAME}) step ({_NAME})"
    r"(?: iter_args\((.*?)\) -> \((.*?)\))?\s*: i\d+ \{$"
)


def parse(text: str) -> Function:
    """The one kernel of a module.

    Raises:
        UnknownCodeError: something in it is not modelled.
    """
    return _Reader(text).function()


def strip_locations(text: str) -> str:
    """The code without source locations and blank lines."""
    lines = (_cut_locations(line)[0] for line in text.splitlines() if not line.startswith("#loc"))
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _cut_locations(line: str) -> tuple[str, str]:
    """A line without its ``loc(...)``, and the last of them."""
    last = ""
    while (start := line.find(" loc(")) >= 0:
        depth, end = 0, start
        for end in range(start, len(line)):  # where the parenthesis closes
            depth += {"(": 1, ")": -1}.get(line[end], 0)
            if depth == 0 and line[end] == ")":
                break
        last = line[start + 5 : end]
        line = line[:start] + line[end + 1 :]
    return line, last


@dataclass(slots=True)
class _Reader:
    text: str
    _lines: list[tuple[str, str]] = field(default_factory=list)
    _at: int = 0
    _locations: dict[str, str] = field(default_factory=dict)

    def function(self) -> Function:
        for raw in self.text.splitlines():
            if match := _LOCATION.match(raw):
                self._locations[match[1]] = match[2]
                continue
            line, location = _cut_locations(raw)
            if line.strip():
                self._lines.append((re.sub(r"\s*//.*", "", line).strip(), location))
        headers = [n for n, (line, _) in enumerate(self._lines) if line.startswith("tt.func")]
        if len(headers) != 1:
            raise UnknownCodeError(f"{len(headers)} functions in one module")
        self._at = headers[0]
        header = _HEADER.match(self._next()[0])
        if header is None:
            raise UnknownCodeError("a kernel that returns a value, or is not public")
        arguments = {
            match[1]: match[2].strip()
            for match in re.finditer(r"%(\w+): ([^{,]+(?:<[^>]*>)?)", header[2])
        }
        blocks: dict[str, Block] = {}
        label, names = "^bb0", ()
        while True:
            operations, end = self._operations()
            blocks[label] = Block(arguments=names, operations=operations)
            match = _LABEL.match(end)
            if match is None:
                return Function(name=header[1], arguments=arguments, blocks=blocks)
            label, names = match[1], tuple(_VALUE.findall(match[2] or ""))

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._lines[self._at - 1]

    def _operations(self) -> tuple[tuple[Operation, ...], str]:
        """Operations up to the end of a block, and the line that ends it."""
        found: list[Operation] = []
        while True:
            line, location = self._next()
            if line.startswith("}") or _LABEL.match(line):
                return tuple(found), line
            found.append(self._operation(line, location))

    def _operation(self, line: str, location: str) -> Operation:
        match = _DEFINITION.match(line)
        source = self._source_line(location)
        if match is None or match[3] not in KNOWN:
            what = match[3] if match else line
            raise UnknownCodeError(f"operation {what} at line {source}")
        if _TOO_DEEP.search(line):
            raise UnknownCodeError(
                f"a tensor of more than two dimensions in {match[3]} at line {source}"
            )
        result, count, name, rest = match.groups()
        results: tuple[str, ...] = (result,) if result else ()
        if count:
            results = tuple(f"{result}#{n}" for n in range(int(count)))
        rest = rest.strip()
        if name == "scf.for":
            return self._loop(rest, results, source)
        if name == "scf.if":
            return self._conditional(rest, results, source)
        if name == "tt.reduce":
            return self._reduction(rest, results, source)
        if name in ("cf.br", "cf.cond_br"):
            condition, *_ = [*_VALUE.findall(rest.partition("^")[0]), ""]
            targets = tuple(
                (label, tuple(_VALUE.findall((values or "").partition(":")[0])))
                for label, values in re.findall(r"(\^bb\d+)(?:\((.*?)\))?", rest)
            )
            operands = (condition,) if condition else ()
            return Operation(name=name, operands=operands, targets=targets, line=source)
        body, _, kind = rest.rpartition(" : ") if " : " in rest else (rest, "", "")
        if name == "tt.make_range":  # its attributes have colons of their own
            body, _, kind = rest.rpartition("} : ")
        return Operation(
            name=name,
            results=results,
            operands=tuple(_VALUE.findall(body)),
            text=body,
            type=kind,
            line=source,
        )

    def _loop(self, rest: str, results: tuple[str, ...], line: int) -> Operation:
        match = _FOR.match(rest)
        if match is None:
            raise UnknownCodeError(f"loop of an unknown form at line {line}")
        variable, low, high, step, carried, types = match.groups()
        pairs = re.findall(rf"({_NAME}) = ({_NAME}(?:#\d+)?)", carried or "")
        if len(results) == 0 and pairs:
            raise UnknownCodeError(f"loop whose results are dropped at line {line}")
        body, _ = self._operations()
        return Operation(
            name="scf.for",
            results=results,
            operands=(low, high, step, *(start for _, start in pairs)),
            type=types or "",
            line=line,
            regions=(Block(arguments=(variable, *(name for name, _ in pairs)), operations=body),),
        )

    def _conditional(self, rest: str, results: tuple[str, ...], line: int) -> Operation:
        then, end = self._operations()
        otherwise: tuple[Operation, ...] = ()
        if end.startswith("} else"):
            otherwise, _ = self._operations()
        return Operation(
            name="scf.if",
            results=results,
            operands=(_VALUE.findall(rest)[0],),
            line=line,
            regions=(Block(operations=then), Block(operations=otherwise)),
        )

    def _reduction(self, rest: str, results: tuple[str, ...], line: int) -> Operation:
        label = _LABEL.match(self._next()[0])
        body, end = self._operations()
        steps = [step.name for step in body]
        axis = re.search(r"axis = (\d)", rest)
        if label is None or axis is None or len(results) != 1 or len(steps) != 2:
            raise UnknownCodeError(f"reduction by {', '.join(steps)} at line {line}")
        return Operation(
            name="tt.reduce",
            results=results,
            operands=(_VALUE.findall(rest)[0],),
            text=f"{steps[0]} {axis[1]}",
            type=end.partition(": ")[2],
            line=line,
        )

    def _source_line(self, location: str) -> int:
        """Line in the kernel's own file; for inlined code that of the call."""
        for _ in range(len(self._locations) + 1):
            if " at " in location:
                location = location.rpartition(" at ")[2].rstrip(")")
            elif position := re.match(r'^"[^"]*":(\d+):\d+', location):
                return int(position[1])
            elif named := re.search(r"(#loc\d+)", location):
                location = self._locations.get(named[1], "")
            else:
                break
        return 0


def walk(operations: tuple[Operation, ...]) -> Iterator[Operation]:
    """All operations, those in regions too."""
    for operation in operations:
        yield operation
        for region in operation.regions:
            yield from walk(region.operations)
