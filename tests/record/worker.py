"""An engine's process whose scheduler is recorded: `fuzz.drivers.worker`, with the recorder on.

The driver's log goes over the pipe as ever; the recorder's lies in a folder that is emptied before
each scenario. Run as a script: ``worker.py OPTIONS FOLDER``. How to record is in a file of the
folder, read before each scenario (`How`).
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from kvproof.fuzz.drivers.wire import Options, play_decoder
from kvproof.fuzz.drivers.worker import describe, load
from kvproof.kernels.engines import shims
from kvproof.model.facts import EngineError, Fact, encode_fact
from kvproof.record.hooks import Instrumentation
from kvproof.record.locs import Level

KEY = b"a key that the tests know"
HOW = "how.json"


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How one scenario is recorded.

    Attributes:
        sabotaged: function of the recorder that raises whenever it is called.
        freed_twice: the engine's allocator takes each page back twice.
    """

    level: Level = "host"
    sabotaged: str | None = None
    freed_twice: bool = False


@contextmanager
def sabotage(place: str | None) -> Iterator[None]:
    """Make a function of the recorder raise."""
    if place is None:
        yield
        return
    owner, _, name = place.rpartition(".")
    thing = pkgutil.resolve_name(owner)
    original = getattr(thing, name)

    def fail(*_: object, **__: object) -> None:
        raise LookupError("sabotaged")

    setattr(thing, name, fail)
    try:
        yield
    finally:
        setattr(thing, name, original)


@contextmanager
def double_free() -> Iterator[None]:
    """Make the engine's page allocator, as it is recorded, take back twice what it is given."""
    methods = shims.engine_family().methods
    [place, *_] = methods.get("free pages", methods["free"])
    owner, _, name = place.rpartition(".")
    allocator = pkgutil.resolve_name(owner)
    original = getattr(allocator, name)

    def free(*given: object) -> None:
        original(*given)
        original(*given)

    setattr(allocator, name, free)
    try:
        yield
    finally:
        setattr(allocator, name, original)


@contextmanager
def recorder(folder: Path, how: How) -> Iterator[None]:
    """A fresh recorder, installed."""
    for old in folder.glob("*.jsonl"):
        old.unlink()
    instrumentation = Instrumentation(
        shims.engine_family(), folder=folder, level=how.level, key=KEY
    )
    instrumentation.install()
    try:
        with double_free() if how.freed_twice else nullcontext():
            yield
    finally:
        instrumentation.close()
        instrumentation.remove()


def main(options: Options, folder: Path) -> None:
    """Serve scenarios from stdin until it is closed."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        ready, build = load(options)
        wire.write(msgspec.json.encode(ready) + b"\n")
        wire.flush()
        for line in sys.stdin.buffer:
            order = play_decoder.decode(line)
            how = msgspec.json.decode((folder / HOW).read_bytes(), type=How)
            facts: list[Fact] = []
            with sabotage(how.sabotaged), recorder(folder, how):
                try:
                    for fact in build(order).play(order.scenario):
                        facts.append(fact)
                except Exception as error:
                    facts.append(EngineError(cause="raised", message=describe(error)))
            wire.write(b"".join(map(encode_fact, facts)))
            wire.flush()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Options), Path(sys.argv[2]))
