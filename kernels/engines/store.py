"""The cache folder of installed engines: added, listed, found and removed by name.

Layout, under the XDG cache folder or ``$KVPROOF_CACHE``::

    cp311-linux-x86_64/             one folder a Python version and platform: wheels hold binaries
        engines/sglang-0.5.15/      engine.json, and the unpacked wheel in site/
        engines/my-branch/          engine.json alone: a checkout stays where it is
        engine-deps/<lock hash>/    what every engine needs besides itself, installed once
        hashes.json                 hashes first seen of wheels that are not pinned
        locks/

A folder is made under a name that starts with a dot and renamed when it is complete, so whatever
carries its final name is whole. A file lock a name keeps two processes from making it at once.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import filelock
import msgspec
from packaging.version import InvalidVersion, Version
from platformdirs import user_cache_path

from kvproof.kernels.engines.checkout import checkout_version
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.releases import RELEASES, Pins

DISTRIBUTION = "sglang"
LOCK_FILE = Path(__file__).with_name("requirements.lock")
LOCK_WAIT_S = 900.0

Source: TypeAlias = Literal["pypi", "path", "driver"]
Report: TypeAlias = Callable[[str], None]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
_RELEASE = re.compile(rf"(?:{DISTRIBUTION}\s*(?:==|-)\s*)?(\d[A-Za-z0-9.+!_-]*)")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """An installed engine.

    Attributes:
        name: what the user calls it, e.g. ``sglang-0.5.15``.
        version: its own version; for a checkout what git says now, ``unknown`` if nothing does.
        source: ``pypi`` for a release, ``path`` for a checkout; ``driver`` for what is not in the
            store, but brings its own driver.
        root: folder to put on ``sys.path``; it holds ``sglang/``.
        deps: folder with what the engine needs besides itself.
        wheel: file name of the wheel, None for a checkout.
        sha256: hash of that wheel, None for a checkout.
        pinned: whether that hash is one of `RELEASES`, not just the one seen first.
        problem: why it cannot be used as it is, None if it can.
    """

    name: str
    version: str
    source: Source
    root: Path
    deps: Path
    wheel: str | None = None
    sha256: str | None = None
    pinned: bool = False
    problem: str | None = None

    @property
    def repair(self) -> str:
        """What to do about the `problem`."""
        if self.source == "pypi":
            return f"run: kvproof engine add {self.name}"
        if (self.root / DISTRIBUTION).is_dir():
            return f"run: kvproof engine add --path {self.root} --name {self.name}"
        return f"put the checkout back, or run: kvproof engine remove {self.name}"


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Contents of an ``engine.json``; the paths of a release follow from where it lies."""

    source: Source
    version: str | None = None
    path: str | None = None
    wheel: str | None = None
    sha256: str | None = None


def cache_root() -> Path:
    """``$KVPROOF_CACHE``, else the user's cache folder for kvproof."""
    override = os.environ.get("KVPROOF_CACHE")
    return Path(override).expanduser().absolute() if override else user_cache_path("kvproof")


def platform_tag() -> str:
    """Python version and platform that installed wheels fit, e.g. ``cp311-linux-x86_64``."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{sysconfig.get_platform()}"


def release_version(name: str) -> str | None:
    """Version that ``0.5.15``, ``sglang==0.5.15`` or ``sglang-0.5.15`` name; None if none."""
    match = _RELEASE.fullmatch(name.strip())
    if match is None:
        return None
    try:
        return str(Version(match[1]))
    except InvalidVersion:
        return None


def _quiet(_: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True, kw_only=True)
class EngineStore:
    """Engines in a cache folder.

    Attributes:
        cache: the cache folder; made when something is added.
        releases: pinned wheels by version.
        lock_file: pinned requirements that all engines share.
        report: told what is being done, for a progress display.
    """

    cache: Path = field(default_factory=cache_root)
    releases: Mapping[str, Pins] = field(default_factory=lambda: RELEASES)
    lock_file: Path = LOCK_FILE
    report: Report = _quiet

    @property
    def _home(self) -> Path:
        return self.cache / platform_tag()

    @property
    def _engines(self) -> Path:
        return self._home / "engines"

    @property
    def deps(self) -> Path:
        """Folder of the shared dependencies, whether or not they are installed yet."""
        digest = hashlib.sha256(self.lock_file.read_bytes()).hexdigest()
        return self._home / "engine-deps" / digest[:16]

    def list(self) -> tuple[Engine, ...]:
        """All engines, by name; those that cannot be used carry a `problem`."""
        if not self._engines.is_dir():
            return ()
        names = (folder.name for folder in self._engines.iterdir())
        engines = (self._load(name) for name in sorted(names))
        return tuple(self._with_deps(engine) for engine in engines if engine is not None)

    def find(self, name: str) -> Engine:
        """The engine of that name, ready to be started.

        Args:
            name: ``0.5.15``, ``sglang==0.5.15``, ``sglang-0.5.15``, or a checkout's name.

        Raises:
            EngineError: it is not installed, or cannot be used as it is.
        """
        engine = self._load(name.strip())
        version = release_version(name)
        if engine is None and version is not None:
            engine = self._load(f"{DISTRIBUTION}-{version}")
        if engine is None:
            known = ", ".join(each.name for each in self.list()) or "none"
            wanted = f"{DISTRIBUTION}=={version}" if version else "--path FOLDER --name NAME"
            raise EngineError(
                f"engine {name!r} is not installed; installed: {known}",
                fix=f"run: kvproof engine add {wanted}",
            )
        engine = self._with_deps(engine)
        if engine.problem is not None:
            raise EngineError(f"engine {engine.name}: {engine.problem}", fix=engine.repair)
        return engine

    def add(self, requirement: str, *, unpinned: bool = False) -> Engine:
        """Install a release from PyPI; at once if it is installed already.

        Args:
            requirement: ``sglang==0.5.15``, or just ``0.5.15``.
            unpinned: accept a release without pinned hashes. The hash seen the first time is
                recorded, and later downloads of the same wheel must have it.

        Raises:
            EngineError: no such release, no wheel for this machine, a hash that differs, or a
                failed download. Nothing is left behind.
        """
        version = release_version(requirement)
        if version is None:
            raise EngineError(
                f"{requirement!r} names no release",
                fix="write sglang==0.5.15, or use --path for a checkout",
            )
        pins = self.releases.get(version)
        if pins is None and not unpinned:
            raise EngineError(
                f"sglang {version} is not one of the supported releases "
                f"({', '.join(self.releases)}), so its hash is not pinned",
                fix="pass --unpinned to install it all the same, its hash unchecked",
            )
        name = f"{DISTRIBUTION}-{version}"
        with self._making(name) as partial:
            engine = self._load(name)
            if engine is None or engine.problem is not None:
                self._install_wheel(version, pins, partial)
            self._install_deps()
        return self.find(name)

    def add_path(self, path: Path, *, name: str | None = None) -> Engine:
        """Register the ``python`` folder of a checkout, which stays where it is.

        Args:
            path: folder that holds ``sglang/``; the checkout's own folder does too.
            name: what to call it; by default the name of the checkout's folder.

        Raises:
            EngineError: the folder holds no engine, or the name is bad or taken.
        """
        root = path.expanduser().absolute()
        if not (root / DISTRIBUTION).is_dir() and (root / "python" / DISTRIBUTION).is_dir():
            root = root / "python"
        if not (root / DISTRIBUTION / "__init__.py").is_file():
            raise EngineError(
                f"{root} holds no {DISTRIBUTION}/ package",
                fix="give the folder `python` of an SGLang checkout",
            )
        if name is None:
            name = (root.parent if root.name == "python" else root).name
        if not _NAME.fullmatch(name) or release_version(name) is not None:
            raise EngineError(
                f"{name!r} cannot be the name of a checkout",
                fix="pass --name with letters, digits and . _ + - that is no release's name",
            )
        with self._making(name) as partial:
            taken = self._load(name)
            if taken is not None and taken.root != root:
                raise EngineError(
                    f"the name {name} is taken by {taken.root}",
                    fix=f"pass another --name, or run: kvproof engine remove {name}",
                )
            if taken is None:
                self._commit(partial, _Record(source="path", path=str(root)))
            self._install_deps()
        return self.find(name)

    def remove(self, name: str) -> Engine:
        """Forget an engine; a release's files are deleted, a checkout's are left alone.

        Raises:
            EngineError: it is not installed.
        """
        version = release_version(name)
        name = f"{DISTRIBUTION}-{version}" if version is not None else name.strip()
        engine = self._load(name)
        if engine is None:
            known = ", ".join(each.name for each in self.list()) or "none"
            raise EngineError(
                f"engine {name!r} is not installed; installed: {known}",
                fix="run: kvproof engine list",
            )
        with self._making(name) as partial:
            if (self._engines / name).exists():
                # Renamed first, so that no half-deleted engine carries the name.
                (self._engines / name).rename(partial)
        return engine

    def _load(self, name: str) -> Engine | None:
        folder = self._engines / name
        if not _NAME.fullmatch(name) or not (folder / "engine.json").is_file():
            return None
        damage: str | None = None
        try:
            record = msgspec.json.decode((folder / "engine.json").read_bytes(), type=_Record)
        except msgspec.DecodeError as error:
            record, damage = _Record(source="pypi"), f"engine.json is damaged: {error}"
        root = Path(record.path) if record.path else folder / "site"
        version = record.version or (checkout_version(root) if record.path else "unknown")
        pins = self.releases.get(version, {})
        pinned = record.wheel is not None and pins.get(record.wheel) == record.sha256
        if damage is None and not (root / DISTRIBUTION).is_dir():
            damage = f"{root} no longer holds {DISTRIBUTION}/"
        if damage is None and record.source == "pypi" and pins and not pinned:
            damage = f"its wheel {record.wheel} does not have a pinned hash"
        return Engine(
            name=name, version=version, source=record.source, root=root, deps=self.deps,
            wheel=record.wheel, sha256=record.sha256, pinned=pinned, problem=damage,
        )  # fmt: skip

    def _with_deps(self, engine: Engine) -> Engine:
        if engine.problem is not None or self.deps.is_dir():
            return engine
        missing = "the packages that engines need are not installed, or their lock has changed"
        return replace(engine, problem=missing)

    def _install_wheel(self, version: str, pins: Pins | None, partial: Path) -> None:
        self.report(f"downloading {DISTRIBUTION} {version}")
        _pip(
            "download", "--no-deps", "--only-binary=:all:", "--dest", str(partial / "wheel"),
            f"{DISTRIBUTION}=={version}",
            fix="check the network and the version; releases have wheels for Linux, glibc 2.34 "
            "or newer, Python 3.11 to 3.13",
        )  # fmt: skip
        [wheel] = (partial / "wheel").iterdir()
        with wheel.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if pins is None:
            self._check_first_seen(wheel.name, found)
        elif wheel.name not in pins:
            raise EngineError(
                f"{wheel.name} is not one of the pinned wheels of {DISTRIBUTION} {version}",
                fix="use Python 3.11 to 3.13 on Linux, or add its hash to releases.py",
            )
        elif found != pins[wheel.name]:
            raise EngineError(
                f"{wheel.name} has SHA-256 {found}, but {pins[wheel.name]} is pinned; "
                "nothing was installed",
                fix="find out which package index served it; do not use it",
            )
        self.report(f"unpacking {DISTRIBUTION} {version}")
        # Byte code is written by the first import, for the few modules that are imported.
        _pip(
            "install", "--no-deps", "--no-index", "--no-compile",
            "--target", str(partial / "site"), str(wheel),
            fix="remove what is in the way in the cache folder, or set KVPROOF_CACHE",
        )  # fmt: skip
        shutil.rmtree(wheel.parent)
        record = _Record(source="pypi", version=version, wheel=wheel.name, sha256=found)
        self._commit(partial, record)

    def _check_first_seen(self, wheel: str, found: str) -> None:
        """Trust an unpinned wheel on first use, and hold later downloads to its hash."""
        path = self._home / "hashes.json"
        with self._locked("_hashes"):
            text = path.read_bytes() if path.exists() else b"{}"
            seen = msgspec.json.decode(text, type=dict[str, str])
            if seen.setdefault(wheel, found) != found:
                raise EngineError(
                    f"{wheel} has SHA-256 {found}, but it had {seen[wheel]} when it was first "
                    "installed; nothing was installed",
                    fix=f"find out which package index served it, or delete its line in {path}",
                )
            _write(path, msgspec.json.format(msgspec.json.encode(seen)))

    def _install_deps(self) -> None:
        deps = self.deps
        with self._making(deps.name, parent=deps.parent) as partial:
            if deps.is_dir():
                return
            self.report("installing what engines need besides themselves")
            _pip(
                "install", "--no-deps", "--no-compile", "--require-hashes",
                "--only-binary=:all:", "--target", str(partial), "-r", str(self.lock_file),
                fix="check the network; the packages and hashes are in requirements.lock",
            )  # fmt: skip
            partial.rename(deps)

    def _commit(self, partial: Path, record: _Record) -> None:
        """Write the record and give the finished folder its name, in place of an unusable one."""
        _write(partial / "engine.json", msgspec.json.format(msgspec.json.encode(record)))
        final = partial.with_name(partial.name.removeprefix(".").removesuffix(".partial"))
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)

    @contextmanager
    def _making(self, name: str, *, parent: Path | None = None) -> Iterator[Path]:
        """A folder of one's own to make ``name`` in; whatever is left of it is removed."""
        partial = (parent or self._engines) / f".{name}.partial"
        with self._locked(name):
            # One that is there now was left by a process that died: the lock is ours.
            shutil.rmtree(partial, ignore_errors=True)
            try:
                partial.mkdir(parents=True)
                yield partial
            except OSError as error:
                raise EngineError(
                    f"cannot write to the cache: {error}",
                    fix="free some space, or set KVPROOF_CACHE to another folder",
                ) from error
            finally:
                shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        folder = self._home / "locks"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(folder / f"{name}.lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                self.report(f"waiting for another kvproof process that works on {name}")
                lock.acquire(timeout=LOCK_WAIT_S)
        except filelock.Timeout as error:
            raise EngineError(
                f"another process has been working on {name} for {LOCK_WAIT_S:.0f} s",
                fix=f"end it; it holds {folder / name}.lock",
            ) from error
        except OSError as error:
            raise EngineError(
                f"cannot write to the cache: {error}",
                fix="free some space, or set KVPROOF_CACHE to another folder",
            ) from error
        try:
            yield
        finally:
            lock.release()


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(data + b"\n")
    temporary.replace(path)


def _pip(verb: str, *arguments: str, fix: str) -> None:
    """Run pip of this Python; its own last error becomes the cause."""
    command: Sequence[str] = [sys.executable, "-m", "pip", verb, "--no-input", *arguments]
    # A user-wide `user = true` in pip's configuration cannot be combined with --target.
    environment = {**os.environ, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        said = (errors or lines or [f"exit status {done.returncode}"])[-1]
        raise EngineError(f"pip {verb} failed: {said}", fix=fix)
