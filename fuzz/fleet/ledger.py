"""The ledger of a campaign: a line of JSON for all that happened, never changed, on disk at once.

What is not in the ledger did not happen: nothing is shown before its line is on the disk. A line
that a kill cut off was never shown, and is dropped when the ledger is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
from filelock import FileLock, Timeout

from kvproof.fuzz.fleet.units import Lost, Plan, Searched, Shrunk
from kvproof.fuzz.manifest import Manifest
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.scenario import BadFileError, decode_json

FILE = "campaign.jsonl"


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """A session begins: the first one, or one that resumes.

    Attributes:
        names: of the subjects, canaries included.
        seconds: that the whole campaign is to take, all sessions together.
        lanes: units at a time, in words.
    """

    names: tuple[str, ...]
    seed: int
    seconds: float
    lanes: str
    plan: Plan
    manifest: Manifest
    elapsed: float = 0.0


class Closed(msgspec.Struct, frozen=True, kw_only=True, tag="closed"):
    """A session ended by itself, and no failure was left to be made small."""

    elapsed: float


Entry: TypeAlias = Begun | Searched | Shrunk | Lost | Closed

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)


class Ledger:
    """An open ledger; one process at a time has it. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Open the ledger of a campaign's folder, or begin one.

        Raises:
            EngineError: another campaign writes there.
        """
        self.path = folder / FILE
        self._lock = FileLock(folder / f"{FILE}.lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise EngineError(
                f"another process runs the campaign in {folder}",
                fix="wait for it, end it, or begin another campaign",
            ) from error
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, len(_whole_lines(self.path.read_bytes())))
        _sync_folder(folder)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_raised: object) -> None:
        os.close(self._file)
        self._lock.release()

    def append(self, entry: Entry) -> None:
        """Write an entry; it is on the disk when this returns."""
        line = memoryview(_encoder.encode(entry) + b"\n")
        while line:
            line = line[os.write(self._file, line) :]
        os.fsync(self._file)


def read_ledger(path: Path) -> Iterator[Entry]:
    """Entries of a ledger, without a line that was cut off.

    Raises:
        BadFileError: a line is no entry; names file and line.
    """
    for number, line in enumerate(_whole_lines(path.read_bytes()).splitlines(), start=1):
        try:
            yield decode_entry(line)
        except BadFileError as error:
            raise BadFileError(f"{path}, line {number}: {error}") from error


def decode_entry(line: bytes) -> Entry:
    """Entry from JSON; raises BadFileError."""
    entry: Entry = decode_json(_decoder, line, part="entry of a campaign's ledger", file="ledger")
    return entry


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def _sync_folder(folder: Path) -> None:
    """A new file's name has to reach the disk too."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
