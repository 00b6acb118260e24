"""Results kept on disk: the same scenario on the same code is not played again."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import threading
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, cache_root

FILE = "triage.sqlite3"

_UNKNOWN = secrets.token_hex()


class ResultCache:
    """Results by key, in one file that several processes may share."""

    def __init__(self, path: Path | None = None) -> None:
        """Open or make the file; None stands for the one in kvproof's cache folder.

        Raises:
            EngineError: it cannot be opened.
        """
        path = cache_root() / FILE if path is None else path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Each statement is its own transaction, so an interrupted run keeps what it has.
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            # What a power cut takes is worked out again.
            self._file.execute("PRAGMA synchronous=OFF")
            self._file.execute("CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, value)")
        except (OSError, sqlite3.Error) as error:
            raise EngineError(
                f"{path} cannot be used: {error}",
                fix="delete the file, or set KVPROOF_CACHE to another folder",
            ) from error

    def get(self, key: bytes) -> bytes | None:
        """The result of that key, None if there is none."""
        with self._lock:
            row = self._file.execute("SELECT value FROM results WHERE key = ?", [key]).fetchone()
        return None if row is None else row[0]

    def put(self, key: bytes, value: bytes) -> None:
        """Keep a result."""
        with self._lock:
            self._file.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", [key, value])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def key_of(*parts: str | bytes) -> bytes:
    """Key of the result that these parts determine, together with kvproof's own code."""
    digest = hashlib.sha256(own_code().encode())
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode()
        digest.update(f"{len(data)}\0".encode() + data)
    return digest.digest()


@cache
def own_code() -> str:
    """Hash of the code of kvproof that a play's symptoms depend on."""
    package = Path(__file__).parent.parent
    # Resolved one by one: an editable install links each folder on its own.
    folders = [package / name for name in ("fuzz", "kernels", "model", "spec", "triage")]
    return _hash(path for folder in folders for path in folder.rglob("*.py"))


def engine_code(engine: Engine) -> str:
    """Hash of an engine's code: its wheel's, or a checkout's Python files as they are now.

    What an engine with a driver of its own is made of is not known: it has a code of this process.
    """
    if engine.source == "driver":
        return _UNKNOWN
    if engine.sha256 is not None:
        return engine.sha256
    return _hash((engine.root / "sglang").rglob("*.py"))


def _hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    # A link may lead nowhere: an editable install keeps one to a file that was removed.
    for path in sorted(path for path in paths if path.is_file()):
        digest.update(f"{path.name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
