"""Recorded engines from the store, a process each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Backend, Options
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact, read_log
from kvproof.model.scenario import Scenario

from .worker import HOW, How

CAPPED = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")
"""Releases that prefill a window again behind a hit."""

WORKER = Path(__file__).with_name("worker.py")


@dataclass
class Recorded:
    """An engine whose plays are told twice."""

    process: EngineProcess
    folder: Path
    rocm_gate: bool

    def play(self, scenario: Scenario, **how: Any) -> tuple[list[Fact], list[Fact]]:
        """The driver's log, and the recorder's: empty if nothing was ever prefilled."""
        (self.folder / HOW).write_bytes(msgspec.json.encode(How(**how)))
        backend: Backend = "rules" if self.rocm_gate else "none"
        driven = self.process.play(scenario, timeout=60, backend=backend)
        logs = sorted(self.folder.glob("*.jsonl"))
        assert len(logs) <= 1
        recorded: list[Fact] = []
        for path in logs:
            with path.open("rb") as lines:
                recorded = list(read_log(lines))
        return driven, recorded


Record = Callable[..., Recorded]


@pytest.fixture(scope="session")
def record(keep: Callable[..., EngineProcess], tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Start a recorded engine once for each release and set of options."""
    folders: dict[tuple[str, str, bool], Path] = {}

    def start(release: str, construction: str = "registry", *, rocm_gate: bool = True) -> Recorded:
        try:
            engine = EngineStore().find(release)
        except EngineError as error:
            pytest.skip(str(error))
        key = (release, construction, rocm_gate)
        folder = folders.setdefault(key, tmp_path_factory.mktemp("recorded"))
        options = Options(construction=construction, rocm_gate=rocm_gate)
        command = [
            sys.executable, "-P", str(WORKER), msgspec.json.encode(options).decode(), str(folder),
        ]  # fmt: skip

        def make() -> EngineProcess:
            return EngineProcess(
                name=f"recorded {release}", command=command, env=engine_env(engine)
            )

        return Recorded(keep(("recorded", *key), make), folder, rocm_gate)

    return start
