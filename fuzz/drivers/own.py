"""A driver of somebody's own: an engine that kvproof does not know, played like those it knows.

A program that calls `serve_driver` is a target: ``--engine "driver:python my_driver.py"``. One in
another language speaks the protocol of `wire` itself; see docs/drivers.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import msgspec

from kvproof.fuzz.drivers.wire import Ready
from kvproof.fuzz.drivers.worker import Plays, open_wire, serve
from kvproof.kernels.engines.probe_process import ShimNote
from kvproof.model.scenario import Geometry


def serve_driver(
    make: Callable[[Geometry], Plays], *, version: str, shims: Mapping[str, str] | None = None
) -> None:
    """Serve scenarios from stdin until it is closed.

    Args:
        make: gives the player of a fresh engine: `model.player.Player` over an engine's slots,
            pools, tree and scheduler, and over a forward that says which rows are touched.
        version: of the engine.
        shims: what is not real in this process, by name, with the reason.
    """
    notes = tuple(
        ShimNote(name=name, replaces=name, reason=reason) for name, reason in (shims or {}).items()
    )
    with open_wire() as wire:
        ready = Ready(family="own", version=version, shims=notes, stubs=())
        wire.write(msgspec.json.encode(ready) + b"\n")
        wire.flush()
        serve(sys.stdin.buffer, wire, lambda order: make(order.scenario.geometry))
