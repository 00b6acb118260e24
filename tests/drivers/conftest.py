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


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """Start an engine's process once for each release and set of options."""
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
        return running[key]

    yield start
    for process in running.values():
        process.close()
