"""An engine's process that carries out one order and says a line of JSON for each result."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.store import Engine

Line = TypeVar("Line", bound=msgspec.Struct)


class OrderProcess(Generic[Line]):
    """Runs ``python -m MODULE ORDER ENGINE``; the order is JSON.

    Args:
        engine: whose process it is.
        module: of kvproof, by its full name; its `main` ends in `tell_lines`.
        order: what it is asked for.
        interpret: kernels run in Triton's interpreter.
        lines: reads what comes out.
        silence_s: seconds without a line after which the process is killed.
    """

    def __init__(
        self,
        engine: Engine,
        module: str,
        order: msgspec.Struct,
        *,
        interpret: bool,
        lines: msgspec.json.Decoder[Line],
        silence_s: float,
    ) -> None:
        self._lines, self._silence_s = lines, silence_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._running = subprocess.Popen(
            engine_command(module, msgspec.json.encode(order).decode(), engine.name),
            env=engine_env(engine, interpret=interpret),
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def __enter__(self) -> OrderProcess[Line]:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._running.kill()
        self._running.communicate()
        self._errors.close()

    def lines(self) -> Iterator[Line]:
        """What the process says, until it ends or is silent for too long."""
        assert self._running.stdout is not None
        while True:
            watchdog = threading.Timer(self._silence_s, self._running.kill)
            watchdog.start()
            try:
                line = self._running.stdout.readline()
            finally:
                watchdog.cancel()
            if not line:
                return
            yield self._lines.decode(line)

    def last_words(self) -> str:
        """How it ended."""
        code = self._running.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"the engine's process ended with {code}, or after {self._silence_s:g} s: {said}"


def tell_lines(lines: Iterable[msgspec.Struct]) -> None:
    """In the process: results go to standard output, what the engine prints does not."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in lines:
            wire.write(msgspec.json.encode(line) + b"\n")
            wire.flush()
