"""TOML files as structs."""

from __future__ import annotations

import tomllib
from typing import TypeVar

import msgspec

from kvproof.model.scenario import BadFileError

T = TypeVar("T")


def decode_toml(data: bytes, kind: type[T], *, part: str) -> T:
    """``part`` of a file, e.g. a table of expected results.

    Raises:
        BadFileError: the bytes are no such part; the message says where.
    """
    try:
        return msgspec.convert(tomllib.loads(data.decode()), kind)
    except UnicodeDecodeError as error:
        raise BadFileError(f"not a {part}: no UTF-8 text (byte {error.start})") from error
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise BadFileError(f"not a {part}: {error}") from error
