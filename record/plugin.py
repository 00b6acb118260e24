"""Turns the recorder on in an engine's process: SGLang calls `activate` through its plugins.

Every process of a server loads its plugins, each time that a server is started with kvproof in
reach. Without the environment variable this does nothing.
"""

from __future__ import annotations

import logging
import os
import sys
from multiprocessing import util
from pathlib import Path
from typing import cast, get_args

NAME = "kvproof-record"
"""Name of the entry point, as ``SGLANG_PLUGINS`` lists them."""

GROUP = "sglang.srt.plugins"
"""Entry points that SGLang calls in each of its processes, in all releases since 0.5.12."""

FOLDER = "KVPROOF_RECORD"
"""Environment variable: folder for the logs. Unset or empty: nothing is recorded."""

LEVEL = "KVPROOF_RECORD_LEVEL"
"""Environment variable: ``requests``, ``host`` (the default) or ``full``; see `record.locs`."""

_SCHEDULER = "sglang.srt.managers.scheduler"

_log = logging.getLogger("kvproof.record")


def activate() -> None:
    """Record the scheduler of this process, if it is asked for and has one.

    Whatever goes wrong is said in the server's log, and the server goes on without a recorder.
    """
    folder = os.environ.get(FOLDER)
    # A process without a scheduler would import half the engine for nothing.
    if not folder or _SCHEDULER not in sys.modules:
        return
    try:
        _install(Path(folder), os.environ.get(LEVEL) or "host")
    except Exception as error:
        _log.warning("kvproof: nothing is recorded: %s: %s", type(error).__name__, error)


def _install(folder: Path, level: str) -> None:
    # Imported here, so that a server that records nothing loads nothing of kvproof.
    import sglang

    from kvproof.kernels.catalogue import FAMILIES, family_of
    from kvproof.record.hooks import Instrumentation
    from kvproof.record.locs import Level

    if level not in get_args(Level):
        raise ValueError(f"{LEVEL} is {level!r}, not one of {', '.join(get_args(Level))}")
    family = family_of(Path(sglang.__path__[0]).parent)
    if not family.methods:
        followed = ", ".join(each.name for each in reversed(FAMILIES) if each.methods)
        raise ValueError(
            f"the recorder does not follow releases like {family.name} yet, only those like "
            f"{followed}; see Family.methods in kernels/catalogue.py"
        )
    instrumentation = Instrumentation(family, folder=folder, level=cast(Level, level))
    instrumentation.install()
    # Unlike atexit's, these run at the end of a process that multiprocessing started.
    util.Finalize(None, instrumentation.close, exitpriority=0)
