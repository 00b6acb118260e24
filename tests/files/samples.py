"""What the tests of files write, read and damage."""

from __future__ import annotations

from typing import Any

import msgspec

from kvproof.model.facts import Fact, encode_fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.model.traffic import Traffic

SCENARIO = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=2, pool_tokens=32, draft_tokens=2),
    operations=(
        Submit(request="A", prompt=(Piece("A", 8),)), Prefill(request="A", tokens=4),
        Prefill(request="A"), Decode(pad=1), Verify(accepted=1), Retract(request="A"),
        Prefill(request="A"), Finish(request="A"), Evict(tokens=2),
        Submit(request='odd "ü" name', prompt=(Piece("A", 6), Piece("C", 9))),
        Prefill(request='odd "ü" name'), Decode(), Abort(request='odd "ü" name'), Flush(),
    ),
)  # fmt: skip


def played() -> list[Fact]:
    return [*reference_player(SCENARIO.geometry, Policy(reprefill_tail=0)).play(SCENARIO)]


def recorded() -> list[Fact]:
    geometry = Geometry(window=4, page_size=2, slots=2, pool_tokens=512)
    return [*Traffic(geometry=geometry, requests=3, answer=4, reprefill_tail=0).log()]


def write_log(facts: list[Fact]) -> bytes:
    return b"".join(map(encode_fact, facts))


def complete(value: Any) -> Any:
    """A value as JSON with all its fields, defaults too."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {
            name: complete(getattr(value, field))
            for field, name in zip(
                value.__struct_fields__, value.__struct_encode_fields__, strict=True
            )
        }
        if config.array_like:
            return [*fields.values()]
        return ({config.tag_field: config.tag} if config.tag else {}) | fields
    if isinstance(value, tuple | list):
        return [complete(part) for part in value]
    if isinstance(value, dict):
        return {name: complete(part) for name, part in value.items()}
    return msgspec.json.decode(msgspec.json.encode(value))
