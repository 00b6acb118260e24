"""Engines from the store: whatever is installed on this machine is tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec
import pytest

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore

Start = Callable[..., EngineProcess]

AT_ONCE = 4
"""Engines that run at the same time: each takes more than half a gigabyte."""


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """Give an engine's process for each release and set of options.

    Those that were asked for last are running; another starts again when it plays.
    """
    running: dict[tuple[str, bytes], EngineProcess] = {}

    def start(release: str, **options: object) -> EngineProcess:
        chosen = Options(**options)  # type: ignore[arg-type]
        key = (release, msgspec.json.encode(chosen))
        if key not in running:
            try:
                engine = EngineStore().find(release)
            except EngineError as error:
                pytest.skip(str(error))
            running[key] = EngineProcess.of_engine(engine, chosen)
        running[key] = running.pop(key)
        for older in list(running)[:-AT_ONCE]:
            running[older].close()
        return running[key]

    yield start
    for process in running.values():
        process.close()
