"""How tests share two processes (``make test``): what costs seconds to start is started once.

A campaign and an engine's process are kept for a session, that is for each process of
pytest-xdist. So the tests of one target stay together, and those of one file elsewhere.
"""

from __future__ import annotations

import pytest

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
