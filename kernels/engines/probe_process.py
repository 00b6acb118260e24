"""The engine's side of `doctor`: runs probes and says what came of each, one JSON object a line.

Started as ``python -P -m kvproof.kernels.engines.probe_process ROOT TABLE GATE PROBE...`` with
the engine's environment; TABLE is the ``module:name`` of a tuple of `Probe`.
"""

from __future__ import annotations

import os
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import IO

import msgspec

from kvproof.kernels.engines import import_stubs
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.probes import Gate, NotApplicableError, NotWorkingError, Probe


class ShimNote(msgspec.Struct, frozen=True, kw_only=True):
    """A shim as it is listed: see `kvproof.kernels.engines.shims`."""

    name: str
    replaces: str
    reason: str


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The shims are in place."""

    shims: list[ShimNote]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The shims cannot be put in place; nothing else is tried."""

    reason: str


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """A probe begins; what happens until its answer is its doing.

    Attributes:
        probe: its name.
        printed: bytes that the process has printed so far; what follows is the probe's.
    """

    probe: str
    printed: int


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag="answer"):
    """What came of a probe, and the modules stubbed so far in this process."""

    probe: str
    status: str
    detail: str
    next_step: str
    stubs: list[str]


def main(root: Path, table: str, gate: Gate, names: list[str], wire: IO[bytes]) -> None:
    """Install the shims that the gate asks for, then run the named probes in order."""
    probes: tuple[Probe, ...] = pkgutil.resolve_name(table)
    notes: list[ShimNote] = []
    if gate != "none":
        from kvproof.kernels.engines import shims

        try:
            # Host pools are played with the gate off, where there is no ring.
            installed = shims.install(
                rocm_gate=gate == "on", allocator_twins=True, host_pool=gate == "off"
            )
        except Exception as error:
            traceback.print_exc()
            _send(wire, Failed(reason=f"{type(error).__name__}: {error}"))
            return
        notes = [
            ShimNote(name=shim.name, replaces=shim.replaces, reason=shim.reason)
            for shim in installed
        ]
    _send(wire, Ready(shims=notes))
    for probe in probes:
        if probe.name not in names:
            continue
        sys.stdout.flush()
        _send(wire, Began(probe=probe.name, printed=os.fstat(2).st_size))
        status, detail, next_step = _ask(probe, root)
        stubs = import_stubs.stubbed_modules()
        _send(
            wire,
            Answer(
                probe=probe.name, status=status, detail=detail, next_step=next_step, stubs=stubs
            ),
        )


def _ask(probe: Probe, root: Path) -> tuple[str, str, str]:
    try:
        return "ok", probe.run(root), ""
    except NotApplicableError as reason:
        return "skipped", str(reason), ""
    except NotWorkingError as failure:
        return "not ok", str(failure), failure.next_step
    except EngineError as error:
        return "not ok", error.cause, error.fix
    except ModuleNotFoundError as error:
        step = (
            "this release keeps it elsewhere: add its layout to kernels/catalogue.py"
            if str(error.name).startswith("sglang")
            else "the stub finder does not stand in for it: see kernels/engines/shims.py"
        )
        traceback.print_exc()
        return "not ok", f"there is no module {error.name}", step
    except Exception as error:
        traceback.print_exc()
        return "not ok", f"{type(error).__name__}: {error}", "see the traceback: add --log"


def _send(wire: IO[bytes], message: Ready | Failed | Began | Answer) -> None:
    wire.write(msgspec.json.encode(message) + b"\n")
    wire.flush()


if __name__ == "__main__":
    # What the engine prints must not get between the messages.
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    [_, root, table, gate, *names] = sys.argv
    main(Path(root), table, msgspec.convert(gate, Gate), names, private)
