"""The parent's side of an engine's process: plays scenarios there, whatever happens to it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Literal

import msgspec

from kvproof.fuzz.drivers.wire import Backend, Options, Play, Ready, Unusable, greeting_decoder
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.kernels.engines.store import Engine
from kvproof.model.facts import Ended, EngineError, Fact, decode_fact
from kvproof.model.scenario import BadFileError, Scenario

START_TIMEOUT_S = 180.0
"""Seconds that the import of an engine may take on a slow machine; it takes about five."""

_DOCTOR = "run `kvproof engine doctor` for what it lacks"
_STDERR_BYTES = 4096
_STDERR_LINES = 5
_FOLDERS = re.compile(r"(?:/[\w.+@-]+)+/(?=[\w.+@-])")


class _GoneError(Exception):
    """The process gave no more lines; the fact says how it ended."""

    def __init__(self, cause: Literal["timed out", "died"], message: str) -> None:
        super().__init__(message)
        self.fact = EngineError(cause=cause, message=message)


class EngineProcess:
    """One engine in a process of its own, started when first used and restarted when lost.

    Use it as a context manager. It serves one caller at a time.
    """

    def __init__(
        self,
        *,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str],
        backend: KernelBackend = "interpreter",
    ) -> None:
        """Describe the process.

        Args:
            name: what messages call the engine.
            command: command line of a worker; see `worker`.
            env: its whole environment.
            backend: where it runs the real kernels.
        """
        self.name = name
        self.backend: KernelBackend = backend
        self._command = list(command)
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._buffer = b""
        self._ready: Ready | None = None

    @classmethod
    def of_engine(cls, engine: Engine, options: Options) -> EngineProcess:
        """The process of an engine from the store."""
        return cls(
            name=engine.name,
            command=engine_command(
                "kvproof.fuzz.drivers.worker", msgspec.json.encode(options).decode()
            ),
            env=engine_env(engine, interpret=options.kernels == "interpreter"),
            backend=options.kernels,
        )

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def start(self) -> Ready:
        """Start the process if it does not run; what it says about itself.

        Raises:
            kernels.engines.errors.EngineError: the engine cannot be used; names cause and fix.
        """
        if self._process is not None and self._ready is not None:
            return self._ready
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in _kill
        self._buffer = b""
        self._process = subprocess.Popen(
            self._command,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Ctrl-C is the parent's to handle, and a kill reaches whatever the engine started.
            start_new_session=True,
        )
        try:
            line = self._line(time.monotonic() + START_TIMEOUT_S, START_TIMEOUT_S)
            greeting = greeting_decoder.decode(line)
        except (_GoneError, msgspec.DecodeError) as error:
            self._kill()
            raise SetupError(f"engine {self.name} does not start: {error}", fix=_DOCTOR) from error
        if isinstance(greeting, Unusable):
            self._kill()
            raise SetupError(f"engine {self.name}: {greeting.cause}", fix=greeting.fix)
        self._ready = greeting
        return greeting

    def play(
        self,
        scenario: Scenario,
        *,
        timeout: float,
        backend: Backend | None = None,
        snapshots: bool = True,
        mutant: str = "",
    ) -> list[Fact]:
        """Play one scenario on a fresh engine.

        Args:
            scenario: any scenario.
            backend: who names the ring rows; by default the real kernels, where this process
                runs them.
            timeout: seconds for the whole scenario; the engine's import is not part of it.
            snapshots: see `wire.Play`.
            mutant: see `wire.Play`.

        Returns:
            The log. It ends with `Ended`, or with the `EngineError` that ended it early.

        Raises:
            kernels.engines.errors.EngineError: the engine cannot be started.
        """
        facts = self.stream(
            scenario, timeout=timeout, backend=backend, snapshots=snapshots, mutant=mutant
        )
        return list(facts)

    def stream(
        self,
        scenario: Scenario,
        *,
        timeout: float,
        backend: Backend | None = None,
        snapshots: bool = True,
        mutant: str = "",
    ) -> Iterator[Fact]:
        """`play`, fact by fact as they come, for a log that is too long to hold."""
        self.start()
        deadline = time.monotonic() + timeout
        try:
            order = Play(
                scenario=scenario, backend=backend or self.backend, snapshots=snapshots,
                mutant=mutant,
            )  # fmt: skip
            self._send(msgspec.json.encode(order) + b"\n")
            while True:
                fact = self._fact(deadline, timeout)
                yield fact
                if isinstance(fact, Ended | EngineError):
                    return
        except _GoneError as gone:
            self._kill()
            yield gone.fact
        except BaseException:
            self._kill()  # what is left of this scenario must not be read as the next one's
            raise

    def interrupt(self) -> None:
        """Kill the process from another thread; a play that waits for it ends with an error."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):  # it is gone already
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._kill()

    def _fact(self, deadline: float, timeout: float) -> Fact:
        line = self._line(deadline, timeout)
        try:
            return decode_fact(line)
        except BadFileError as error:
            raise _GoneError("died", f"the process wrote what is no fact: {error}") from error

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._death() from error

    def _line(self, deadline: float, timeout: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise _GoneError("timed out", f"no end within {timeout:g} s")
            data = os.read(output, 1 << 16)
            if not data:
                raise self._death()
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _death(self) -> _GoneError:
        assert self._process is not None
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return _GoneError("died", "the process closed its output and lives on")
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        tail = self._stderr_tail()
        return _GoneError("died", f"{how}: {tail}" if tail else how)

    def _stderr_tail(self) -> str:
        assert self._errors is not None
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _STDERR_BYTES))
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = [line.strip() for line in lines if line.strip()][-_STDERR_LINES:]
        return _FOLDERS.sub("", " | ".join(last))

    def _kill(self) -> None:
        process, self._process, self._ready = self._process, None, None
        assert process is not None
        with suppress(ProcessLookupError):  # it is gone already
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, self._errors):
            if pipe is not None:
                with suppress(BrokenPipeError):  # bytes that nobody will read
                    pipe.close()
        self._errors = None
