"""Files as a user names them: a path, or ``-`` for standard input; plain or gzipped."""

from __future__ import annotations

import gzip
import io
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kvproof.model.scenario import BadFileError, Scenario, decode_scenario
from kvproof.model.text import is_text, parse_scenario

STDIN = Path("-")

MAX_FILE = 2**26
"""Bytes of the largest file that is read as a whole; a log is not."""

BLOCK = 2**18
POLL_S = 0.2
"""Seconds between two looks at a file that is followed."""

_GZIP = b"\x1f\x8b"


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unzipped.

    Raises:
        BadFileError: it cannot be opened or read; what the block raises gets the path in front.
    """
    name = "standard input" if path == STDIN else str(path)
    try:
        if path == STDIN:
            buffer: Any = sys.stdin.buffer
            # Where a test puts bytes in its place, they cannot be looked ahead into.
            yield _unzipped(buffer if hasattr(buffer, "peek") else io.BufferedReader(buffer))
        else:
            with path.open("rb") as file:
                yield _unzipped(file)
    except OSError as error:  # gzip's own are of this kind too
        raise BadFileError(f"{name}: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise BadFileError(f"{name}: the gzip file is damaged or cut off: {error}") from error
    except BadFileError as error:
        raise BadFileError(f"{name}: {error}") from error


def _unzipped(file: io.BufferedReader) -> BinaryIO:
    if file.peek(2)[:2] == _GZIP:
        return gzip.GzipFile(fileobj=file, mode="rb")  # type: ignore[return-value]
    return file


def blocks(file: BinaryIO, *, follow: bool = False) -> Iterator[bytes]:
    """The file's bytes as they come; with ``follow`` its end is waited at, for ever."""
    while True:
        block = file.read1(BLOCK)  # type: ignore[attr-defined]
        if block:
            yield block
        elif follow:
            time.sleep(POLL_S)
        else:
            return


def read_file(path: Path) -> bytes:
    """All bytes of a file of a bounded size; raises BadFileError with the path in its message."""
    with open_file(path) as file:
        data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise BadFileError(f"it has more than {MAX_FILE} bytes")
        return data


def is_log(start: bytes) -> bool:
    """Whether a file is a log, by its first line; else it is a scenario, or nothing of ours."""
    line = start.partition(b"\n")[0]
    try:
        return b"fact" in line and "fact" in msgspec.json.decode(line, type=dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def read_scenario(data: bytes) -> Scenario:
    """Scenario from either form, told by its content.

    Raises:
        BadFileError: the bytes are no scenario of a version that this kvproof reads.
    """
    return parse_scenario(data) if is_text(data) else decode_scenario(data)


def load_scenario(path: Path) -> Scenario:
    """Scenario from a file in either form; raises BadFileError with the path in its message."""
    data = read_file(path)
    try:
        return read_scenario(data)
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error


class NoMarkersError(ValueError):
    """The document has no place for a generated table."""


def renew(document: Path, *, begin: str, end: str, table: str) -> bool:
    """Put a generated table between two lines of a document; True if that changed it.

    Raises:
        NoMarkersError: the document lacks the lines.
    """
    text = document.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise NoMarkersError(f"{document} lacks the lines {begin!r} and {end!r}")
    new = f"{before}{begin}\n{table}\n{end}{after}"
    if new != text:
        document.write_text(new, encoding="utf-8")
    return new != text
