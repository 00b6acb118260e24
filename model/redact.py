"""Scenarios and logs without the names of their owner: who asked, and for which text.

Every request and every text gets a name made from a keyed hash of its own. Who shares a prefix with
whom stays the same, and so do the verdicts. Free text (why an operation was skipped, what an engine
said as it died) is left out. Token ids in a log's snapshots stay: they number the texts of the file
in order of appearance and are not a vocabulary's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from kvproof.model.facts import Fact
from kvproof.model.scenario import Piece, Scenario

T = TypeVar("T")

HIDDEN = "redacted"
_FREE_TEXT = {"reason", "message"}


@dataclass(frozen=True, slots=True)
class Redactor:
    """With the same key the same name becomes the same one, in every file."""

    key: bytes

    def name(self, name: str) -> str:
        """What a request or a text is called instead. 16 hexadecimal digits, so that none meet."""
        return hashlib.blake2b(name.encode(), key=self.key[:64], digest_size=8).hexdigest()

    def scenario(self, scenario: Scenario) -> Scenario:
        """The scenario with other names."""
        return self.struct(scenario)

    def log(self, facts: Iterable[Fact]) -> Iterator[Fact]:
        """The facts with other names, one at a time."""
        return map(self.struct, facts)

    def struct(self, struct: T) -> T:
        """Any struct that holds scenarios or facts."""
        changes: dict[str, object] = {}
        assert isinstance(struct, msgspec.Struct)
        for field in struct.__struct_fields__:
            value = getattr(struct, field)
            changed = value
            if isinstance(value, str):
                if field == "request" or (field == "text" and isinstance(struct, Piece)):
                    changed = self.name(value)
                elif field in _FREE_TEXT:
                    changed = HIDDEN
            else:
                changed = self._value(value)
            if changed is not value:
                changes[field] = changed
        return msgspec.structs.replace(struct, **changes) if changes else struct

    def _value(self, value: T) -> T:
        if isinstance(value, msgspec.Struct):
            return self.struct(value)
        if isinstance(value, tuple) and any(isinstance(part, msgspec.Struct) for part in value):
            return tuple(self._value(part) for part in value)  # type: ignore[return-value]
        return value
