"""Engines from the store: whatever is installed on this machine is tested."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore

Start = Callable[..., EngineProcess]


@pytest.fixture(scope="session")
def start(keep: Callable[..., EngineProcess]) -> Start:
    """Start an engine's process once for each release and set of options."""

    def start(release: str, **options: object) -> EngineProcess:
        chosen = Options(**options)  # type: ignore[arg-type]
        try:
            engine = EngineStore().find(release)
        except EngineError as error:
            pytest.skip(str(error))
        return keep(
            (release, msgspec.json.encode(chosen)), lambda: EngineProcess.of_engine(engine, chosen)
        )

    return start
