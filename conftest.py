"""Engines that tests share: what takes seconds to start is started once, and only so many run.

They are kept for a session, that is for each process of pytest-xdist. The tests of a file stay
together (``make test``), so that few are started twice.

An engine's process is a fork of one that has imported the release (`tests/fork_server.py`): the
import takes five seconds of a core, and hundreds of processes are asked for, most of them once.
``--fresh-engines`` starts each on its own, as kvproof does.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from filelock import FileLock

from kvproof.fuzz.constructions import has_host_pool, has_ring
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options, Ready
from kvproof.fuzz.targets import TRANSLATIONS
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine

AT_ONCE = 4
"""Engines that run beside each other in one session: each may take half a gigabyte."""

SERVERS_AT_ONCE = 6
"""Processes to fork from that one session holds; they take as much."""

FORK_SERVER = Path(__file__).parent / "tests" / "fork_server.py"

QUICK = ("tests/files/", "tests/model/", "tests/spec/")
"""Folders of many short files, without engines."""

Keep = Callable[[Hashable, Callable[[], EngineProcess]], EngineProcess]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where a fork is not trusted to be what a process of its own is."""
    parser.addoption(
        "--fresh-engines", action="store_true", help="import each engine in a process of its own"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Short files last: a long one at the end leaves a worker of pytest-xdist without work."""
    items.sort(key=lambda item: item.nodeid.startswith(QUICK))


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


class Forks:
    """Gives engines' processes, and holds what they are forked from.

    The workers of pytest-xdist share that: the folder is the same for all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, socket.socket] = {}
        self._environ = dict(os.environ)
        self._lock = threading.Lock()  # a search plays in several threads

    def of_engine(self, engine: Engine, options: Options) -> EngineProcess:
        """In place of `EngineProcess.of_engine`."""
        return _Forked(self, engine, options)

    def socket(self, engine: Engine, options: Options) -> Path:
        """Where processes of the engine with these options are forked, from now on."""
        translates = options.construction in TRANSLATIONS
        # What the shims are told, which a fork asserts, and which adapters are imported.
        key = (
            str(engine.root.resolve()),  # a test may look at the same through a cache of its own
            translates,
            options.rocm_gate and (translates or has_ring(options.construction)),
            options.allocator_twins,
            has_host_pool(options.construction),
        )
        plain = Options(
            construction=options.construction,
            rocm_gate=options.rocm_gate,
            allocator_twins=options.allocator_twins,
        )
        name = sha256(repr(key).encode()).hexdigest()[:12]
        path = self._folder / name
        with self._lock:
            self._held[name] = self._held.pop(name, None) or self._hold(path, engine, plain)
            for older in list(self._held)[:-SERVERS_AT_ONCE]:
                self._held.pop(older).close()
        return path

    def close(self) -> None:
        """Let all go."""
        for held in self._held.values():
            held.close()

    def _hold(self, path: Path, engine: Engine, options: Options) -> socket.socket:
        with FileLock(path.with_suffix(".lock")):
            found = _connect(path)
            if found is None:
                path.unlink(missing_ok=True)
                self._start(path, engine, options)
                found = _connect(path)
        assert found is not None
        return found

    def _start(self, path: Path, engine: Engine, options: Options) -> None:
        with tempfile.TemporaryFile() as errors:
            server = subprocess.Popen(
                [sys.executable, "-P", str(FORK_SERVER), "serve", str(path), encoded(options)],
                env=engine_env(engine, inherited=self._environ), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            )  # fmt: skip
            assert server.stdout is not None
            if b"ready\n" not in server.stdout:  # read up to that line; an import may print others
                errors.seek(0)
                raise EngineError(
                    f"engine {engine.name} cannot be forked: {errors.read().decode()[-2000:]}",
                    fix="pytest --fresh-engines",
                )


def _connect(path: Path) -> socket.socket | None:
    """Hold a fork server, unless there is none or it is about to go."""
    client = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        client.connect(str(path))
        client.sendall(b"h")
        if client.recv(1):
            return client
    client.close()
    return None


class _Forked(EngineProcess):
    def __init__(self, forks: Forks, engine: Engine, options: Options) -> None:
        super().__init__(name=engine.name, command=(), env={}, backend=options.kernels)
        self._asked = forks, engine, options

    def start(self) -> Ready:
        """As ever, once there is what it is forked from."""
        if self._process is None:
            forks, engine, options = self._asked
            path = forks.socket(engine, options)
            self._command = [
                sys.executable, "-I", "-S", str(FORK_SERVER), "join", str(path), encoded(options),
            ]  # fmt: skip
        return super().start()


def encoded(options: Options) -> str:
    """For a command line."""
    return msgspec.json.encode(options).decode()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of pytest-xdist share."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session", autouse=True)
def forks(pytestconfig: pytest.Config, shared: Path) -> Iterator[None]:
    """Fork the engines, where there is no GPU: what was asked of CUDA does not survive a fork."""
    if pytestconfig.getoption("--fresh-engines"):
        yield
        return
    fresh = EngineProcess.of_engine
    forks = Forks(shared)
    with pytest.MonkeyPatch.context() as patch:

        def of_engine(engine: Engine, options: Options) -> EngineProcess:
            import torch  # noqa: PLC0415  # it takes two seconds, for which no other test waits

            return (fresh if torch.cuda.is_available() else forks.of_engine)(engine, options)

        patch.setattr(EngineProcess, "of_engine", of_engine)
        yield
        forks.close()
