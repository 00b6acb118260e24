"""Installed releases and their captured kernels; each release is started once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvproof.kernels.capture import KernelProcess, Order, Report
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.proofs.kernels.mutants import MUTANTS

Start = Callable[[str], KernelProcess]
Capture = Callable[[str], Report]


@pytest.fixture(scope="session")
def start() -> Iterator[Start]:
    """The kernel process of a release."""
    running: dict[str, KernelProcess] = {}

    def start(release: str) -> KernelProcess:
        if release not in running:
            try:
                running[release] = KernelProcess(EngineStore().find(release))
            except EngineError as error:
                pytest.skip(str(error))
        return running[release]

    yield start
    for process in running.values():
        process.close()


@pytest.fixture(scope="session")
def capture(start: Start) -> Capture:
    """A release's kernels and their mutants."""
    reports: dict[str, Report] = {}

    def capture(release: str) -> Report:
        if release not in reports:
            reports[release] = start(release).ask(Order(work="capture", edits=MUTANTS))
        return reports[release]

    return capture
