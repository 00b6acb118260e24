"""How the tests share processes: what takes seconds to start is started once, and only so many run.

A campaign and an engine's process are kept for a session, that is for each process of
pytest-xdist. So the tests of one target stay together, and those of one file elsewhere.
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


_TARGETS = ("target", "release")
"""Parameters that name an engine with its construction, of the tests in ``fuzz/``."""


def _group(item: pytest.Item) -> str:
    parameters = getattr(item, "callspec", None)
    for name in _TARGETS:
        target = parameters.params.get(name) if parameters else None
        if hasattr(target, "construction"):
            return str(target.name)
    return item.location[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Name the group of each test, where there is a plugin that asks for it."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
