"""An engine's process whose scheduler is recorded: `fuzz.drivers.worker`, with the recorder on.

The driver's log goes over the pipe as ever; the recorder's lies in a folder that is emptied before
each scenario. Run as a script: ``worker.py OPTIONS FOLDER LEVEL SABOTAGED``; the last is empty, or
names a function of the recorder that raises whenever it is called.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from pathlib import Path

import msgspec

from kvproof.fuzz.drivers.wire import Options, play_decoder
from kvproof.fuzz.drivers.worker import describe, load
from kvproof.kernels.engines import shims
from kvproof.model.facts import EngineError, Fact, encode_fact
from kvproof.record.hooks import Instrumentation

KEY = b"a key that the tests know"


def recorded(folder: Path, level: str) -> Instrumentation:
    """A fresh recorder, installed."""
    for old in folder.glob("*.jsonl"):
        old.unlink()
    recorder = Instrumentation(
        shims.engine_family(),
        folder=folder,
        level=level,  # type: ignore[arg-type]
        key=KEY,
    )
    recorder.install()
    return recorder


def sabotage(place: str) -> None:
    """Make a function of the recorder raise."""
    owner, _, name = place.rpartition(".")

    def fail(*_: object, **__: object) -> None:
        raise LookupError("sabotaged")

    setattr(pkgutil.resolve_name(owner), name, fail)


def main(options: Options, folder: Path, level: str) -> None:
    """Serve scenarios from stdin until it is closed."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        ready, build = load(options)
        wire.write(msgspec.json.encode(ready) + b"\n")
        wire.flush()
        for line in sys.stdin.buffer:
            order = play_decoder.decode(line)
            recorder = recorded(folder, level)
            facts: list[Fact] = []
            try:
                for fact in build(order).play(order.scenario):
                    facts.append(fact)
            except Exception as error:
                facts.append(EngineError(cause="raised", message=describe(error)))
            recorder.close()
            recorder.remove()
            wire.write(b"".join(map(encode_fact, facts)))
            wire.flush()


if __name__ == "__main__":
    if sys.argv[4]:
        sabotage(sys.argv[4])
    main(msgspec.json.decode(sys.argv[1], type=Options), Path(sys.argv[2]), sys.argv[3])
