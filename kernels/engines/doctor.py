"""What works in an engine on this machine, and why the rest does not.

The probes run in the engine's own process. One that raises is answered by the process; one that
ends the process or never answers is found out here, and the probes after it get a new process.
"""

from __future__ import annotations

import base64
import hashlib
import os
import pkgutil
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import Distribution
from typing import IO, Literal, TypeAlias, get_args

import msgspec

from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.probe_process import Answer, Began, Failed, Ready, ShimNote
from kvproof.kernels.engines.probes import Gate, Probe
from kvproof.kernels.engines.store import DISTRIBUTION, Engine

Status: TypeAlias = Literal["ok", "not ok", "skipped"]
Report: TypeAlias = Callable[[str], None]

TABLE = "kvproof.kernels.engines.probes:PROBES"
LIMIT_S = 120.0
"""Seconds until a probe that does not answer is given up. The first one imports the engine."""

LOG_CHARS = 4000

_decoder = msgspec.json.Decoder(Ready | Failed | Began | Answer)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one probe.

    Attributes:
        probe: its name.
        status: ``ok``, ``not ok``, or ``skipped`` where it was not or could not be asked.
        detail: what was found, or the reason why it does not work.
        next_step: what to do about it; empty if nothing.
        log: end of what the process printed meanwhile, for what does not work.
    """

    probe: str
    status: Status
    detail: str
    next_step: str = ""
    log: str = ""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that `doctor` says about one engine.

    Attributes:
        engine: the engine.
        ok: whether nothing fails.
        results: one a probe, in order.
        shims: everything in the engine's process that is not the engine's own.
        stubs: third-party modules that stubs stand in for.
    """

    engine: Engine
    ok: bool
    results: tuple[Result, ...]
    shims: tuple[ShimNote, ...]
    stubs: tuple[str, ...]


@dataclass(kw_only=True)
class _Findings:
    """What the processes of one engine have said so far."""

    results: list[Result] = field(default_factory=list)
    shims: dict[str, ShimNote] = field(default_factory=dict)
    stubs: dict[str, None] = field(default_factory=dict)


def diagnose(
    engine: Engine, *, table: str = TABLE, limit_s: float = LIMIT_S, report: Report | None = None
) -> Diagnosis:
    """Ask an engine every probe.

    Args:
        engine: as found in the store.
        table: ``module:name`` of the probes.
        limit_s: seconds until a probe that does not answer is given up.
        report: told which probe is running.
    """
    if engine.problem is not None:
        result = Result(
            probe="files", status="not ok", detail=engine.problem, next_step=engine.repair
        )
        return Diagnosis(engine=engine, ok=False, results=(result,), shims=(), stubs=())
    say = report or (lambda _: None)
    probes: tuple[Probe, ...] = pkgutil.resolve_name(table)
    findings = _Findings()
    say(f"{engine.name}: files")
    findings.results.append(check_files(engine))
    for gate in get_args(Gate):
        left = [probe.name for probe in probes if probe.gate == gate]
        while left:
            left = _run(engine, table, gate, left, findings, limit_s=limit_s, say=say)
    return Diagnosis(
        engine=engine,
        ok=all(result.status != "not ok" for result in findings.results),
        results=tuple(findings.results),
        shims=tuple(findings.shims.values()),
        stubs=tuple(findings.stubs),
    )


def check_files(engine: Engine) -> Result:
    """Compare a release's files with the hashes that its wheel lists."""
    if engine.source == "path":
        return Result(probe="files", status="skipped", detail=f"a checkout: {engine.root}")
    folders = list(engine.root.glob(f"{DISTRIBUTION}-*.dist-info"))
    listed = [
        file
        for folder in folders
        for file in Distribution.at(folder).files or ()
        # Console scripts are listed where pip would have put them without --target.
        if file.hash and file.parts[0] == DISTRIBUTION
    ]
    changed = []
    for file in listed:
        path = engine.root / file
        assert file.hash is not None
        found = hashlib.new(file.hash.mode, path.read_bytes()).digest() if path.is_file() else b""
        if base64.urlsafe_b64encode(found).rstrip(b"=").decode() != file.hash.value:
            changed.append(str(file))
    if changed or not listed:
        what = f"changed since it was installed: {', '.join(changed[:3])}" if changed else (
            "its list of files is gone"
        )  # fmt: skip
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        return Result(
            probe="files", status="not ok", detail=what + more,
            next_step=f"run: kvproof engine remove {engine.name}, then "
            f"kvproof engine add {engine.name}",
        )  # fmt: skip
    return Result(probe="files", status="ok", detail=f"{len(listed)} files as in the wheel")


def _run(
    engine: Engine,
    table: str,
    gate: Gate,
    names: Sequence[str],
    findings: _Findings,
    *,
    limit_s: float,
    say: Report,
) -> list[str]:
    """Ask probes in one process; returns those that it did not come to."""
    setup = "process" if gate == "none" else f"shims, gate {gate}"
    asked, left = setup, list(names)
    command = engine_command(
        "kvproof.kernels.engines.probe_process", str(engine.root), table, gate, *names
    )
    with tempfile.TemporaryFile() as log, _started(engine, command, log) as (process, lines):
        mark = 0
        while True:
            say(f"{engine.name}: {asked}")
            try:
                line = lines.get(timeout=limit_s)
            except queue.Empty:
                detail = f"no answer within {limit_s:g} s"
                step = "see where it hangs: add --log, or give it longer: --limit SECONDS"
                break
            if not line:
                detail, step = _ending(process.wait()), "see what it printed: add --log"
                break
            match _decoder.decode(line):
                case Ready(shims=shims):
                    findings.shims.update({shim.name: shim for shim in shims})
                    asked = left[0]
                case Failed(reason=reason):
                    detail, step = reason, "see the traceback: add --log"
                    break
                case Began(probe=probe, printed=printed):
                    asked, mark = probe, printed
                case Answer() as answer:
                    left.remove(answer.probe)
                    findings.stubs.update(dict.fromkeys(answer.stubs))
                    result = Result(
                        probe=answer.probe,
                        status=msgspec.convert(answer.status, Status),
                        detail=answer.detail,
                        next_step=answer.next_step,
                    )
                    if result.status == "not ok":
                        result = replace(result, log=_tail(log, mark))
                    findings.results.append(result)
                    if not left:
                        return []
                    asked = left[0]
        findings.results.append(
            Result(probe=asked, status="not ok", detail=detail, next_step=step,
                   log=_tail(log, mark))
        )  # fmt: skip
    if asked == setup:
        findings.results.extend(
            Result(probe=name, status="skipped", detail=f"{setup}: not ok") for name in left
        )
        return []
    left.remove(asked)
    return left


@contextmanager
def _started(
    engine: Engine, command: Sequence[str], log: IO[bytes]
) -> Iterator[tuple[subprocess.Popen[bytes], queue.Queue[bytes]]]:
    """A process of the engine and its lines as they come, the last one empty."""
    lines: queue.Queue[bytes] = queue.Queue()
    process = subprocess.Popen(
        command, env=engine_env(engine), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=log, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    stdout = process.stdout

    def read() -> None:
        for line in stdout:
            lines.put(line)
        lines.put(b"")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield process, lines
    finally:
        # The whole group: an engine may have started processes of its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(timeout=5)
        stdout.close()


def _ending(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with exit status {status}"


def _tail(log: IO[bytes], mark: int) -> str:
    """End of what was printed since ``mark``."""
    # Not by seeking: the process writes at the same offset.
    descriptor = log.fileno()
    data = os.pread(descriptor, os.fstat(descriptor).st_size - mark, mark)
    return data.decode(errors="replace")[-LOG_CHARS:].strip()
