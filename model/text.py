"""Scenarios as plain text: one operation a line, for people who read, edit and compare them.

    kvproof scenario 2

    # Two requests share a page.
    window 5
    page_size 4
    slots 1
    pool_tokens 64

    submit A: A[0:7]
    prefill A, 4 tokens
    finish A

First the version, then the sizes, a line each, then the operations in order. ``#`` starts a
comment. A prompt is a list of ranges of texts, each from where the last one ends. Names of letters,
digits, ``_``, ``.`` and ``-`` stand as they are, others in double quotes, escaped as in JSON. Text
and JSON hold the same: comments and blank lines are all that the one has and the other has not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from kvproof.model.forwards import (
    ForwardOperation,
    Idle,
    Layer,
    Pad,
    Plan,
    Rebind,
    Release,
    Remap,
    Replay,
    Slide,
)
from kvproof.model.scenario import (
    Abort,
    BadFileError,
    CacheOperation,
    Complete,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
    Verify,
    family_of_operations,
    names_of,
    refuse_newer_schema,
)
from kvproof.model.verdict import Family

TITLE = "kvproof scenario"

_NAME = re.compile(r"[A-Za-z0-9_.\-]+")
_TOKEN = re.compile(r'\s*(?:(?P<name>[A-Za-z0-9_.\-]+)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<sign>.))')
_DIGITS = 20
"""Digits of the longest number that is converted; more than that is out of every range."""

_SHOWN = 60


# Writing


def spell_name(name: str) -> str:
    """A name, quoted if it is not a plain one."""
    return name if _NAME.fullmatch(name) else json.dumps(name)


def spell_prompt(prompt: Prompt) -> str:
    """A prompt as ranges of its texts, e.g. ``A[0:16] C[16:18]``."""
    start, words = 0, []
    for piece in prompt:
        words.append(f"{spell_name(piece.text)}[{start}:{piece.until}]")
        start = max(start, piece.until)
    return " ".join(words)


def spell_operation(operation: Operation) -> str:
    """An operation as one line."""
    if isinstance(operation, ForwardOperation):
        return _spell_forward(operation)
    return _spell_cache(operation)


def _spell_forward(operation: ForwardOperation) -> str:
    match operation:
        case Plan(mode=mode, requests=requests, tokens=tokens, in_graph=in_graph):
            share = f", {tokens} tokens each" if mode == "extend" or tokens != 1 else ""
            part = "" if in_graph else ", outside the graph"
            return f"plan {mode}{_spell_names(requests)}{share}{part}"
        case Replay(mode=mode, requests=requests):
            return f"replay {mode}{_spell_names(requests)}"
        case Pad(rows=rows):
            return f"pad {rows} rows"
        case Idle(rows=rows):
            return f"idle {rows} rows"
        case Slide(request=request):
            return f"slide {spell_name(request)}"
        case Release(request=request):
            return f"release {spell_name(request)}"
        case Rebind():
            return "rebind"
        case Remap():
            return "remap"
        case Layer():
            return "layer"


def _spell_names(names: Iterable[str]) -> str:
    return "".join(f" {spell_name(name)}" for name in names)


def _spell_cache(operation: CacheOperation) -> str:
    match operation:
        case Submit(request=request, prompt=prompt):
            return f"submit {spell_name(request)}: {spell_prompt(prompt)}".rstrip()
        case Prefill(request=request, tokens=tokens):
            share = f", {tokens} tokens" if tokens is not None else ""
            return f"prefill {spell_name(request)}{share}"
        case Decode(pad=pad):
            return "decode" + (f", {pad} padded rows" if pad else "")
        case Verify(accepted=accepted, others=others, pad=pad):
            unlike = "".join(f", {other.tokens} of {spell_name(other.request)}" for other in others)
            padded = f", {pad} padded rows" if pad else ""
            return f"verify, {accepted} accepted{unlike}{padded}"
        case Finish(request=request):
            return f"finish {spell_name(request)}"
        case Abort(request=request):
            return f"abort {spell_name(request)}"
        case Retract(request=request):
            return f"retract {spell_name(request)}"
        case Evict(tokens=tokens, swa_tokens=swa_tokens):
            share = f", {swa_tokens} of the SWA pool" if swa_tokens else ""
            return f"evict {tokens} tokens{share}"
        case Flush():
            return "flush"
        case Complete():
            return "complete"


def spell_scenario(scenario: Scenario) -> str:
    """The whole scenario, with a drawing on top."""
    geometry = scenario.geometry
    fields = {name: getattr(geometry, name) for name in Geometry.__struct_fields__}
    sizes = [f"{name} {size}" for name, size in fields.items() if isinstance(size, int)]
    return "\n".join(
        [
            f"{TITLE} {scenario.schema}",
            "",
            *(f"# {line}".rstrip() for line in draw(scenario)),
            "",
            *sizes,
            "",
            *(spell_operation(operation) for operation in scenario.operations),
            "",
        ]
    )


def encode_text(scenario: Scenario) -> bytes:
    """The scenario as a text file."""
    return spell_scenario(scenario).encode()


# Drawing

_MARKS: dict[type[Operation], str] = {
    Submit: "s", Prefill: "p", Decode: "d", Verify: "v", Finish: "f", Abort: "a", Retract: "r",
    Evict: "E", Flush: "F", Complete: "c",
    Plan: "P", Pad: "+", Rebind: "B", Remap: "M", Layer: "L", Replay: "R", Idle: "I", Slide: "S",
    Release: "X",
}  # fmt: skip
_LEGENDS: dict[Family, str] = {
    "cache": "s submit  p prefill  d decode  v verify  f finish  a abort  r retract  E evict  "
    "F flush  c complete  . alive",
    "translation": "P plan  + pad  B rebind  M remap  L layer  R replay  I idle  S slide  "
    "X release  . alive",
}
_COLUMNS = 24
"""Steps side by side in a drawing; more of them go below."""

_MOST_LETTERS = 16
"""Letters of a request's name that are drawn."""

_MOST_CELLS = 4000
"""Steps times requests of the largest scenario that is drawn."""


def draw(scenario: Scenario) -> list[str]:
    """The sizes, and requests against steps: what is asked for, not what an engine makes of it."""
    geometry = scenario.geometry
    lines = [
        f"ring_stride {geometry.ring_stride}, pages {geometry.pool_tokens // geometry.page_size}, "
        f"steps {len(scenario.operations)}"
    ]
    rows = _timeline(scenario)
    if not scenario.operations or len(rows) * len(scenario.operations) > _MOST_CELLS:
        return lines
    width = min(max(map(len, rows)), _MOST_LETTERS)
    for first in range(0, len(scenario.operations), _COLUMNS):
        numbers = range(first, min(first + _COLUMNS, len(scenario.operations)))
        lines += ["", " " * width + "".join(f"{number + 1:>4}" for number in numbers)]
        for name, marks in rows.items():
            drawn = "".join(f"{marks[number]:>4}" for number in numbers)
            if drawn.strip():
                lines.append(name[:width].ljust(width) + drawn)
    return [*lines, "", _LEGENDS[family_of_operations(scenario.operations)]]


def _timeline(scenario: Scenario) -> dict[str, list[str]]:
    """Marks by request and step; the cache's own operations have a row with an empty name."""
    rows: dict[str, list[str]] = {}
    alive: dict[str, bool] = {}  # and whether it was prefilled, so that it takes part in decodes

    def mark(name: str, number: int, sign: str) -> None:
        rows.setdefault(name, [""] * len(scenario.operations))[number] = sign

    for number, operation in enumerate(scenario.operations):
        for name in alive:
            mark(name, number, ".")
        sign = _MARKS[type(operation)]
        match operation:
            case Decode() | Verify():
                taking_part = [name for name, is_prefilled in alive.items() if is_prefilled]
                for name in taking_part or [""]:
                    mark(name, number, sign)
            case _:
                names = [spell_name(name) for name in names_of(operation)]
                for name in names or [""]:
                    mark(name, number, sign)
                for name in names:
                    if isinstance(operation, Finish | Abort | Release):
                        alive.pop(name, None)
                    elif not isinstance(operation, Replay | Slide):
                        alive[name] = isinstance(operation, Prefill)
    return rows


# Reading


def is_text(data: bytes) -> bool:
    """Whether a scenario file is meant as text: by its first words."""
    start = data.lstrip()
    return start.startswith((b"#", TITLE.split(maxsplit=1)[0].encode()))


@dataclass(slots=True)
class _Line:
    """One line, taken apart from left to right. Raises ValueError where it does not go on so."""

    rest: str

    def _next(self) -> re.Match[str] | None:
        found = _TOKEN.match(self.rest)
        if found is not None:
            self.rest = self.rest[found.end() :]
        return found

    def name(self, what: str) -> str:
        """A name, quoted or not."""
        found = self._next()
        if found is None or found["sign"]:
            raise ValueError(f"expected {what}" + (f", not {found['sign']!r}" if found else ""))
        if found["name"]:
            return found["name"]
        try:
            return msgspec.json.decode(found["quoted"].encode(), type=str)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise ValueError(f"{found['quoted'][:_SHOWN]} is no JSON string: {error}") from error

    def names(self, what: str) -> list[str]:
        """Names up to a comma or the end."""
        found = []
        while not (self.is_over or self.rest.lstrip().startswith(",")):
            found.append(self.name(what))
        return found

    def number(self, what: str) -> int:
        """A number without a sign."""
        found = self._next()
        word = (found["name"] or "") if found else ""
        if not (word.isascii() and word.isdecimal()):
            raise ValueError(f"expected {what}, a whole number")
        if len(word) > _DIGITS:
            raise ValueError(f"{what} has {len(word)} digits")
        return int(word)

    def sign(self, sign: str) -> None:
        """One sign."""
        found = self._next()
        if found is None or found["sign"] != sign:
            raise ValueError(f"expected {sign!r}")

    def words(self, *expected: str) -> None:
        """Words as given; of one with an ``s`` at its end that may be missing."""
        for word in expected:
            found = self._next()
            if found is None or found["name"] not in {word, word.removesuffix("s")}:
                raise ValueError(f"expected {word!r}")

    @property
    def is_over(self) -> bool:
        """Whether nothing is left but a comment."""
        left = self.rest.lstrip()
        return not left or left.startswith("#")

    def end(self) -> None:
        """Nothing more."""
        if not self.is_over:
            raise ValueError(f"nothing follows here, not {self.rest.strip()[:_SHOWN]!r}")


def _prompt(line: _Line) -> list[tuple[str, int]]:
    """Pieces as JSON has them, so that they are checked as those are."""
    pieces: list[tuple[str, int]] = []
    reached = 0
    while not line.is_over:
        text = line.name("a text")
        line.sign("[")
        start = line.number("the start of a range")
        line.sign(":")
        until = line.number("the end of a range")
        line.sign("]")
        if start != reached:
            raise ValueError(f"the range starts at {start}, and the one before ends at {reached}")
        reached = max(reached, until)
        pieces.append((text, until))
    return pieces


def _submit(line: _Line) -> dict[str, object]:
    request = line.name("the name of a request")
    line.sign(":")
    return {"request": request, "prompt": _prompt(line)}


def _prefill(line: _Line) -> dict[str, object]:
    fields: dict[str, object] = {"request": line.name("the name of a request")}
    if not line.is_over:
        line.sign(",")
        fields["tokens"] = line.number("how many tokens")
        line.words("tokens")
    return fields


def _decode(line: _Line) -> dict[str, object]:
    if line.is_over:
        return {}
    line.sign(",")
    pad = line.number("how many padded rows")
    line.words("padded", "rows")
    return {"pad": pad}


def _verify(line: _Line) -> dict[str, object]:
    line.sign(",")
    fields: dict[str, object] = {"accepted": line.number("how many tokens are accepted")}
    line.words("accepted")
    others: list[tuple[str, int]] = []
    while not line.is_over:
        line.sign(",")
        number = line.number("how many tokens, or padded rows")
        if line.rest.split(maxsplit=1)[:1] == ["of"]:
            line.words("of")
            others.append((line.name("the name of a request"), number))
        else:
            line.words("padded", "rows")
            fields["pad"] = number
            line.end()
    return fields | {"others": others} if others else fields


def _request(line: _Line) -> dict[str, object]:
    return {"request": line.name("the name of a request")}


def _evict(line: _Line) -> dict[str, object]:
    tokens = line.number("how many tokens")
    line.words("tokens")
    if line.is_over:
        return {"tokens": tokens}
    line.sign(",")
    swa_tokens = line.number("how many tokens of the SWA pool")
    line.words("of", "the", "SWA", "pool")
    return {"tokens": tokens, "swa_tokens": swa_tokens}


def _plan(line: _Line) -> dict[str, object]:
    fields = _mode_and_requests(line)
    while not line.is_over:
        line.sign(",")
        if line.rest.split(maxsplit=1)[:1] == ["outside"]:
            line.words("outside", "the", "graph")
            fields["in_graph"] = False
            line.end()
        elif "tokens" in fields:
            raise ValueError("expected 'outside the graph'")
        else:
            fields["tokens"] = line.number("how many tokens")
            line.words("tokens", "each")
    return fields


def _mode_and_requests(line: _Line) -> dict[str, object]:
    return {"mode": line.name("a mode"), "requests": line.names("the name of a request")}


def _rows(line: _Line) -> dict[str, object]:
    rows = line.number("how many rows")
    line.words("rows")
    return {"rows": rows}


def _nothing(_: _Line) -> dict[str, object]:
    return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Form:
    """How an operation is written: for people, and by what the rest of its line is read."""

    usage: str
    kind: type[Operation]
    read: Callable[[_Line], dict[str, object]]


FORMS = {
    form.usage.split(",")[0].split()[0]: form
    for form in (
        _Form(usage="submit NAME: TEXT[0:4] TEXT[4:9]", kind=Submit, read=_submit),
        _Form(usage="prefill NAME, N tokens", kind=Prefill, read=_prefill),
        _Form(usage="decode, N padded rows", kind=Decode, read=_decode),
        _Form(usage="verify, N accepted, N of NAME, N padded rows", kind=Verify, read=_verify),
        _Form(usage="finish NAME", kind=Finish, read=_request),
        _Form(usage="abort NAME", kind=Abort, read=_request),
        _Form(usage="retract NAME", kind=Retract, read=_request),
        _Form(usage="evict N tokens, N of the SWA pool", kind=Evict, read=_evict),
        _Form(usage="flush", kind=Flush, read=_nothing),
        _Form(usage="complete", kind=Complete, read=_nothing),
        _Form(usage="plan MODE NAME NAME, N tokens each, outside the graph", kind=Plan, read=_plan),
        _Form(usage="pad N rows", kind=Pad, read=_rows),
        _Form(usage="rebind", kind=Rebind, read=_nothing),
        _Form(usage="remap", kind=Remap, read=_nothing),
        _Form(usage="layer", kind=Layer, read=_nothing),
        _Form(usage="replay MODE NAME NAME", kind=Replay, read=_mode_and_requests),
        _Form(usage="idle N rows", kind=Idle, read=_rows),
        _Form(usage="slide NAME", kind=Slide, read=_request),
        _Form(usage="release NAME", kind=Release, read=_request),
    )
}
"""By the first word of a line."""


def parse_scenario(data: bytes) -> Scenario:
    """Scenario from text.

    Raises:
        BadFileError: with the number of the line, what is wrong and what is allowed there.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadFileError(f"no UTF-8 text (byte {error.start})") from error
    lines = _lines(text)
    schema = _title(lines)
    sizes: dict[str, int] = {}
    operations: list[Operation] = []
    for number, content in lines:
        line = _Line(content)
        try:
            word = line.name("the name of a size or an operation")
            if word in Geometry.__struct_fields__:
                if operations:
                    raise ValueError("sizes come before the operations")
                if word in sizes:
                    raise ValueError(f"{word} stands twice")
                sizes[word] = line.number("a size")
                line.end()
            else:
                operations.append(_operation(word, line))
        except (ValueError, msgspec.ValidationError) as error:
            raise BadFileError(
                f"line {number}: {content.strip()[:_SHOWN]!r}: {error}{_allowed(content)}"
            ) from error
    try:
        geometry = msgspec.convert(sizes, Geometry)
        return Scenario(geometry=geometry, operations=tuple(operations), schema=schema)
    except (msgspec.ValidationError, ValueError) as error:
        raise BadFileError(f"sizes: {error}") from error


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, content in enumerate(text.split("\n"), start=1):
        if not _Line(content).is_over:
            yield number, content


def _title(lines: Iterator[tuple[int, str]]) -> int:
    number, content = next(lines, (1, ""))
    line = _Line(content)
    try:
        line.words(*TITLE.split())
        schema = line.number("the version")
        line.end()
        if schema < 1:
            raise ValueError("versions start at 1")
    except ValueError as error:
        raise BadFileError(
            f"line {number}: {content.strip()[:_SHOWN]!r}: {error}; a scenario starts with a line "
            f"like '{TITLE} 2'"
        ) from error
    refuse_newer_schema(schema, what="scenario")
    return schema


def _operation(word: str, line: _Line) -> Operation:
    form = FORMS.get(word)
    if form is None:
        raise ValueError(f"{word[:_SHOWN]!r} is no size and no operation")
    fields = form.read(line)
    line.end()
    return msgspec.convert({"op": word, **fields}, form.kind)


def _allowed(content: str) -> str:
    words = content.split()
    form = FORMS.get(words[0].strip(",:")) if words else None
    if form is not None:
        return f"; allowed: {form.usage}"
    return f"; allowed: {', '.join([*Geometry.__struct_fields__, *FORMS])}"
