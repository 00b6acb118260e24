"""Campaigns on the installed engines: one for each target, shared by all tests of a session.

``pytest fuzz/`` runs the profile ``smoke``, ``--hypothesis-profile default`` or ``long`` more.
``--backend cuda`` runs the real kernels compiled on a GPU, with the ring there; everything else of
an engine stays on the CPU. Without such a GPU the tests are skipped, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings

from kvproof.fuzz.campaign import Campaign, Listener, TargetResult
from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.profiles import PROFILES, Profile, register_profiles
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.backends import KERNEL_BACKENDS, KernelBackend, missing
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.verdict import Family

NO_ENGINES = "KVPROOF_NO_ENGINES"
"""Set to 1 where there is no engine and none is wanted: then, and only then, tests are skipped."""

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        choices=KERNEL_BACKENDS,
        default="interpreter",
        help="where the real kernels run: Triton's interpreter, or a GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    # `register_profiles` gives the name of Hypothesis's own default profile to a larger one.
    if not config.getoption("--hypothesis-profile"):
        settings.load_profile("smoke")


def targets(*, family: Family = "cache") -> tuple[Target, ...]:
    """Targets of all installed engines, or none."""
    try:
        return find_targets((), EngineStore(), family=family)
    except EngineError:
        return ()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    found = targets()
    by_fixture = {
        "target": found,
        "release": tuple(target for target in found if target.construction == REGISTRY),
    }
    for name in by_fixture.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(
            name,
            # Without an engine there is still one test of each kind: the one that fails.
            by_fixture[name] or (None,),
            ids=lambda target: target.name if target else "no engine",
            indirect=True,
            scope="session",
        )


def _target(request: pytest.FixtureRequest) -> Target:
    if request.param is None:
        if os.environ.get(NO_ENGINES) == "1":
            pytest.skip(f"no engine is installed, and {NO_ENGINES}=1 says that none is wanted")
        pytest.fail(
            "no engine is installed, so nothing was fuzzed. "
            f"Run `make engines`, or set {NO_ENGINES}=1 to do without.",
            pytrace=False,
        )
    assert isinstance(request.param, Target)
    return request.param


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest) -> Target:
    """One installed engine in one construction."""
    return _target(request)


@pytest.fixture(scope="session")
def release(request: pytest.FixtureRequest) -> Target:
    """One installed engine as its registry builds it."""
    return _target(request)


@pytest.fixture(scope="session")
def profile(pytestconfig: pytest.Config) -> Profile:
    """The profile that was asked for."""
    name = pytestconfig.getoption("--hypothesis-profile") or "smoke"
    if name not in PROFILES:
        pytest.fail(f"no profile {name!r}; choose one of {', '.join(PROFILES)}", pytrace=False)
    return PROFILES[name]


@pytest.fixture(scope="session")
def backend(pytestconfig: pytest.Config) -> KernelBackend:
    """Where the real kernels run; skips where that is not possible."""
    name: KernelBackend = pytestconfig.getoption("--backend")
    reason = missing(name)
    if reason is not None:
        pytest.skip(f"nothing was run on {name}: {reason}")
    return name


Processes = Callable[[Target], EngineProcess]


@pytest.fixture(scope="session")
def process_of(keep: Callable[..., EngineProcess], backend: KernelBackend) -> Processes:
    """The process of a target, started once: an engine's import takes seconds."""
    return lambda target: keep((target.name, backend), lambda: target.process(kernels=backend))


class Logs(Listener):
    """Keeps the log of each finding."""

    def __init__(self) -> None:
        self.by_name: dict[str, list[Fact]] = {}

    def found(self, target: Target, finding: object, log: list[Fact]) -> None:
        self.by_name[finding.name] = log  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A campaign's result, and the log of each of its findings."""

    result: TargetResult
    logs: dict[str, list[Fact]]


@pytest.fixture(scope="session")
def run_of(process_of: Processes, profile: Profile) -> Callable[[Target], Run]:
    """The campaign of a target, with seed 0, run once."""
    runs: dict[str, Run] = {}

    def run_of(target: Target) -> Run:
        if target.name not in runs:
            logs = Logs()
            result = Campaign(
                target=target, process=process_of(target), profile=profile, seed=0, listener=logs
            ).run()
            runs[target.name] = Run(result=result, logs=logs.by_name)
        return runs[target.name]

    return run_of


@pytest.fixture
def run(target: Target, run_of: Callable[[Target], Run]) -> Run:
    """The campaign of this test's target."""
    return run_of(target)


@pytest.fixture
def process(target: Target, process_of: Processes) -> EngineProcess:
    """The process of this test's target."""
    return process_of(target)
