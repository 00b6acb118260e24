"""The console command in a process of its own, and one run of it that several tests look at."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore, cache_root, platform_tag

Kvproof = Callable[..., subprocess.CompletedProcess[str]]

NO_ENGINES = "KVPROOF_NO_ENGINES"


@pytest.fixture(scope="session")
def kvproof() -> Kvproof:
    """Run the command; its exit code, stdout and stderr."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from kvproof.cli import main; main()", *map(str, arguments)],
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


@pytest.fixture(scope="session")
def engines() -> None:
    """The supported releases are installed; without them the test fails, unless told otherwise."""
    for release in ("0.5.15", "0.5.23"):
        try:
            EngineStore().find(release)
        except EngineError as error:
            if os.environ.get(NO_ENGINES) == "1":
                pytest.skip(str(error))
            pytest.fail(f"{error}. Run `make engines`, or set {NO_ENGINES}=1.", pytrace=False)


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed engines, and no results of earlier runs."""
    engines = cache_root() / platform_tag()
    cache = tmp_path_factory.mktemp("cache")
    if engines.is_dir():
        (cache / platform_tag()).symlink_to(engines)
    monkeypatch.setenv("KVPROOF_CACHE", str(cache))


@dataclass(frozen=True, kw_only=True)
class FuzzRun:
    """What ``kvproof fuzz --json`` printed, and where it left its files."""

    completed: subprocess.CompletedProcess[str]
    out: Path

    @property
    def report(self) -> dict[str, Any]:
        report = json.loads(self.completed.stdout)
        assert isinstance(report, dict)
        return report

    @property
    def scenario(self) -> Path:
        """The shortest stale decode."""
        return self.out / "latest/sglang-0.5.15-registry/FRESH-DECODE-other-request.scenario.json"


@pytest.fixture(scope="session")
def fuzzed(
    engines: None,  # noqa: ARG001  # asked for what it checks
    kvproof: Kvproof,
    shared: Path,
) -> FuzzRun:
    """``kvproof fuzz`` of one release, which takes most of a minute: run once for all workers."""
    folder = shared / "fuzz"
    folder.mkdir(exist_ok=True)
    kept, out = folder / "completed.pickle", folder / "runs"
    with FileLock(shared / "fuzz.lock"):
        if not kept.exists():
            done = kvproof(
                "fuzz", "--engine", "0.5.15:registry", "--profile", "smoke", "--json", "--out", out
            )
            kept.write_bytes(pickle.dumps(done))
    return FuzzRun(completed=pickle.loads(kept.read_bytes()), out=out)
