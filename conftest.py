"""Engines that tests share: what takes seconds to start is started once, and only so many run.

They are kept for a session, that is for each process of pytest-xdist. The tests of a file stay
together (``make test``), so that few are started twice.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

import pytest

from kvproof.fuzz.drivers.process import EngineProcess

AT_ONCE = 4
"""Engines that run beside each other in one session: each takes more than half a gigabyte."""

Keep = Callable[[Hashable, Callable[[], EngineProcess]], EngineProcess]


@pytest.fixture(scope="session")
def keep() -> Iterator[Keep]:
    """Give the process of a key, made once; those that were asked for last are running.

    One that was closed for others starts again when it plays.
    """
    processes: dict[Hashable, EngineProcess] = {}

    def keep(key: Hashable, make: Callable[[], EngineProcess]) -> EngineProcess:
        processes[key] = processes.pop(key) if key in processes else make()
        for older in list(processes)[:-AT_ONCE]:
            processes[older].close()
        return processes[key]

    yield keep
    for process in processes.values():
        process.close()
