"""Scenarios: a geometry and a list of operations, as plain data.

A scenario stays valid whatever operation is dropped or shortened. Requests are named, not
numbered; a prompt is spelled out as pieces of named texts, not as a reference to an earlier
request; an operation that finds nothing to do is skipped by the player. That is what makes a
failing scenario shrink well.

A *text* is an endless stream of tokens of its own: token ``p`` of text ``A`` differs from every
token of text ``B`` and from every other position of ``A``. Two prompts share a prefix exactly as
far as they name the same texts. A request continues the last text of its prompt, so prompting
with a longer piece of a text replays an earlier request's answer, as a chat turn does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from kvproof.model.forwards import ForwardOperation, Plan, Replay
from kvproof.model.verdict import Family
from kvproof.spec.ring import ring_stride

SCHEMA = 3
"""Version of the scenario and log files. Files of a newer version are refused.

Version 2 added the facts of a recorder (`Ran` and what follows it in `model.facts`), version 3
the SWA pool in snapshots.
"""

TEXT_TOKENS = 1_000_000
"""Tokens of one text; token ids are ``text ordinal * TEXT_TOKENS + position``."""


MAX_SIZE = 2**24
"""Upper bound of every size in a file, so that a damaged one asks for no endless work."""

MAX_WIDTH = 2**15
"""Upper bound of a window and of a draft. Work grows with their product; models have up to 8192."""

Size: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIZE)]
Width: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_SIZE)]
Schema: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]

T = TypeVar("T")


_MOST_MESSAGE = 450


class BadFileError(ValueError):
    """A file that is none of a kind and version that this kvproof reads.

    A long message, which quotes the file, is cut in its middle.
    """

    def __init__(self, message: str) -> None:
        if len(message) > _MOST_MESSAGE:
            message = f"{message[: _MOST_MESSAGE // 2]} ... {message[-_MOST_MESSAGE // 3 :]}"
        super().__init__(message)


class Geometry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes that a target is built with. Tokens unless said otherwise.

    Attributes:
        window: positions that a query sees, itself included (``sliding_window_size``).
        page_size: tokens per page of the full pool.
        slots: request slots that can be lent; slot 0 comes on top and is never lent.
        pool_tokens: capacity of the full pool, a multiple of ``page_size``.
        draft_tokens: tokens that one verify step writes; 1 without speculation.
        swa_tokens: capacity of the SWA pool, a multiple of ``page_size``; left out where it is as
            large as the full pool.
        overlap: 1 where the host takes a step's result after the next step was launched (overlap
            scheduling); 0, or left out, where it waits for it.
    """

    window: Width
    page_size: Size
    slots: Size
    pool_tokens: Size
    draft_tokens: Width = 1
    swa_tokens: Size | msgspec.UnsetType = msgspec.UNSET
    overlap: Annotated[int, msgspec.Meta(ge=0, le=1)] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Refuse sizes that no engine can be built with."""
        for name in ("window", "page_size", "slots", "draft_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"geometry.{name} must be at least 1, got {getattr(self, name)}")
        if self.pool_tokens < self.page_size or self.pool_tokens % self.page_size:
            raise ValueError(
                f"geometry.pool_tokens must be a positive multiple of page_size "
                f"{self.page_size}, got {self.pool_tokens}"
            )
        if self.swa_pool_tokens < self.page_size or self.swa_pool_tokens % self.page_size:
            raise ValueError(
                f"geometry.swa_tokens must be a positive multiple of page_size "
                f"{self.page_size}, got {self.swa_tokens}"
            )

    @property
    def swa_pool_tokens(self) -> int:
        """Capacity of the SWA pool."""
        return self.pool_tokens if self.swa_tokens is msgspec.UNSET else self.swa_tokens

    @property
    def ring_stride(self) -> int:
        """Rows per slot that the specification asks for (RING-1)."""
        return ring_stride(self.window, self.draft_tokens)


class Piece(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Positions of a prompt up to ``until`` (exclusive) come from ``text``."""

    text: str
    until: Annotated[int, msgspec.Meta(ge=0, le=TEXT_TOKENS)]


Prompt: TypeAlias = tuple[Piece, ...]


class _Operation(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower,
    forbid_unknown_fields=True,
):  # fmt: skip
    pass


class Submit(_Operation, frozen=True, kw_only=True):
    """Queue a request. Skipped while a request of that name is alive."""

    request: str
    prompt: Prompt


class Prefill(_Operation, frozen=True, kw_only=True):
    """Run one prefill chunk of a request: admit it if it waits, else its next chunk.

    Attributes:
        tokens: the chunk's token budget; None for all that is left.
    """

    request: str
    tokens: Count | None = None


class Decode(_Operation, frozen=True, kw_only=True):
    """One decode step of every running request, padded with ``pad`` CUDA-graph rows.

    Where no request runs it is an idle step: the padded rows alone.
    """

    pad: Count = 0


class Accepted(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How many of its draft's tokens one request keeps."""

    request: str
    tokens: Count


class Verify(_Operation, frozen=True, kw_only=True, omit_defaults=True):
    """One speculative step of every running request, padded with ``pad`` CUDA-graph rows.

    Attributes:
        accepted: how many of the ``draft_tokens`` written tokens are kept, at least 1.
        others: requests that keep another number.
        pad: padded rows of the batch, each of as many tokens.
    """

    accepted: Count
    others: tuple[Accepted, ...] = ()
    pad: Count = 0

    def accepted_of(self, request: str, draft_tokens: int) -> int:
        """Tokens that a request keeps of a draft of ``draft_tokens``."""
        tokens = next((o.tokens for o in self.others if o.request == request), self.accepted)
        return max(1, min(tokens, draft_tokens))


class Finish(_Operation, frozen=True, kw_only=True):
    """A running request ends and publishes what it computed."""

    request: str


class Abort(_Operation, frozen=True, kw_only=True):
    """A request is cancelled in whatever state it is."""

    request: str


class Retract(_Operation, frozen=True, kw_only=True):
    """A running request is put back into the queue, its memory taken away."""

    request: str


class Evict(_Operation, frozen=True, kw_only=True):
    """The tree is asked to give memory back.

    Attributes:
        tokens: at least so many tokens of the full pool.
        swa_tokens: at least so many of the SWA pool: nodes become tombstones.
    """

    tokens: Count
    swa_tokens: Count = 0


class Flush(_Operation, frozen=True, kw_only=True):
    """The cache is cleared. Skipped while any request holds memory."""


class Complete(_Operation, frozen=True, kw_only=True):
    """With overlap: the host takes the result of the oldest step, and launches nothing.

    So it does where nothing can run, and between two steps that must not overlap.
    """


CacheOperation: TypeAlias = (
    Submit | Prefill | Decode | Verify | Finish | Abort | Retract | Evict | Flush | Complete
)

Operation: TypeAlias = CacheOperation | ForwardOperation
"""Of either family; an engine skips the operations of the family that it does not play."""


def family_of_operations(operations: Sequence[Operation]) -> Family:
    """The family that operations are of; those of one family do nothing in the other."""
    forwards = any(isinstance(operation, ForwardOperation) for operation in operations)
    return "translation" if forwards else "cache"


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A geometry and the operations to play on it."""

    geometry: Geometry
    operations: tuple[Operation, ...]
    schema: Schema = SCHEMA


_decoder = msgspec.json.Decoder(Scenario)


def text_at(prompt: Prompt, position: int) -> str:
    """Text that the token at ``position`` of a request with ``prompt`` belongs to.

    Past the end of the prompt the last text goes on: that is the request's answer.
    """
    for piece in prompt:
        if position < piece.until:
            return piece.text
    return prompt[-1].text if prompt else ""


def prompt_len(prompt: Prompt) -> int:
    """Number of tokens in a prompt; a piece that ends before it starts adds none."""
    return max((piece.until for piece in prompt), default=0)


def same_prefix(one: Prompt, other: Prompt, length: int) -> bool:
    """Whether two requests agree on their first ``length`` tokens, answers included."""
    return agreed_len(one, other) >= length


def agreed_len(one: Prompt, other: Prompt) -> float:
    """How many leading tokens two requests share, answers included; perhaps all there ever are."""
    edges = {0, *(piece.until for piece in one), *(piece.until for piece in other)}
    return min((at for at in edges if text_at(one, at) != text_at(other, at)), default=math.inf)


def number_texts(texts: dict[str, int], prompt: Prompt) -> None:
    """Number the texts of a prompt in order of appearance, from 1, into ``texts``."""
    for piece in prompt:
        texts.setdefault(piece.text, len(texts) + 1)


def token_ids(texts: Mapping[str, int], prompt: Prompt, start: int, end: int) -> list[int]:
    """Token ids of positions ``[start, end)``; ``texts`` comes from `number_texts`."""
    ids: list[int] = []
    at, first = start, 0
    for piece in prompt:
        first = texts[piece.text] * TEXT_TOKENS
        if at < piece.until:
            ids += range(first + at, first + min(piece.until, end))
            at = piece.until
            if at >= end:
                return ids
    # The last text goes on as the request's answer.
    ids += range(first + at, first + end)
    return ids


def refuse_newer_schema(found: object, *, what: str) -> None:
    """Raise BadFileError if ``found`` is a schema version of a newer kvproof."""
    if isinstance(found, int) and found > SCHEMA:
        raise BadFileError(
            f"this {what} has schema version {found}, and this kvproof reads up to {SCHEMA}: "
            "update kvproof"
        )


def decode_json(decoder: msgspec.json.Decoder[T], data: bytes, *, part: str, file: str) -> T:
    """``part`` of a ``file``, e.g. one fact of a log.

    Raises:
        BadFileError: the bytes are no such part, or the file is of a newer version.
    """
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        # A newer version may hold what this one does not know: say that, not what is unknown.
        refuse_newer_schema(_schema_of(data), what=file)
        raise BadFileError(f"not a {part}: {_cause(error, data)}") from error


def decode_part(data: bytes, kind: type[T], *, part: str) -> T:
    """A JSON file of another kind than scenario and log; raises BadFileError."""
    value, unknown = read_part(data, kind, part=part)
    if unknown:
        raise BadFileError(f"not a {part}: this kvproof does not know {unknown[0]!r}")
    return value


def read_part(data: bytes, kind: type[T], *, part: str) -> tuple[T, tuple[str, ...]]:
    """The same of a file that another version may have written.

    What the file lacks has its default. The names in it that this kvproof does not know come with
    it, as JSON pointers (RFC 6901).

    Raises:
        BadFileError: the bytes are no such file, or a value would be read as another.
    """
    value = decode_json(msgspec.json.Decoder(kind), data, part=part, file=part)
    refuse_repeated_names(data, part=part)
    kept = msgspec.json.decode(msgspec.json.encode(value))
    return value, tuple(_unknown(msgspec.json.decode(data), kept, "", part=part))


def _unknown(given: object, kept: object, at: str, *, part: str) -> Iterator[str]:
    """Names in a JSON value that were not kept; raises BadFileError where another value was."""
    match given, kept:
        case dict(), dict():
            for name, value in given.items():
                place = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
                if name in kept:
                    yield from _unknown(value, kept[name], place, part=part)
                else:
                    yield place
        case list(), list() if len(given) == len(kept):
            for number, pair in enumerate(zip(given, kept, strict=True)):
                yield from _unknown(*pair, f"{at}/{number}", part=part)
        case _ if given != kept:
            raise BadFileError(f"not a {part}: {at} is what this kvproof does not write")


def _schema_of(data: bytes) -> object:
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return raw.get("schema") if isinstance(raw, dict) else None


def _cause(error: Exception, data: bytes) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    try:
        data.decode()
    except UnicodeDecodeError as wrong:
        return f"no UTF-8 text (byte {wrong.start})"
    return str(error)


def encode_scenario(scenario: Scenario) -> bytes:
    """Scenario as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(scenario), indent=1) + b"\n"


def refuse_repeated_names(data: bytes, *, part: str) -> None:
    """Raise BadFileError if an object of the JSON has a name twice: only one would be read."""

    def unique(pairs: list[tuple[str, object]]) -> None:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise BadFileError(f"not a {part}: {name!r} stands twice in one object")

    try:
        text = data.decode()
    except UnicodeDecodeError as wrong:  # in a part that msgspec did not look at
        raise BadFileError(f"not a {part}: no UTF-8 text (byte {wrong.start})") from wrong
    # Numbers are left as they stand: Python refuses to convert very long ones.
    json.loads(text, object_pairs_hook=unique, parse_int=str, parse_float=str)


def decode_scenario(data: bytes) -> Scenario:
    """Scenario from JSON.

    Raises:
        BadFileError: the bytes are no scenario, or one of a newer version; the message says where.
    """
    scenario = decode_json(_decoder, data, part="scenario", file="scenario")
    refuse_repeated_names(data, part="scenario")
    refuse_newer_schema(scenario.schema, what="scenario")
    return scenario


def request_of(operation: Operation) -> str | None:
    """Name of the one request that an operation is about; None for one that is about several."""
    return getattr(operation, "request", None)


def names_of(operation: Operation) -> tuple[str, ...]:
    """Names of the requests that an operation names; none where it is about all there are."""
    if isinstance(operation, Plan | Replay):
        return operation.requests
    name = request_of(operation)
    return () if name is None else (name,)


def requests_of(operations: Sequence[Operation]) -> list[str]:
    """Names of the requests that are submitted or planned, in order of first appearance."""
    asked = (op for op in operations if isinstance(op, Submit | Plan))
    return list(dict.fromkeys(name for operation in asked for name in names_of(operation)))
