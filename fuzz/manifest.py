"""What a run needs to be repeated: versions, hashes, seed, environment, command line."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import msgspec

import kvproof.fuzz
import kvproof.kernels
import kvproof.model
import kvproof.spec
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.strategies import Sizes
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.files import read_file
from kvproof.model.scenario import BadFileError, read_part

PACKAGES = ("hypothesis", "msgspec", "numpy", "torch", "triton", "z3-solver")
"""Of which a run depends on the version."""

ENVIRONMENT = ("OMP_NUM_THREADS", "PYTHONHASHSEED")
"""Variables that are written down. All others stay out: they may hold secrets."""

FILE = "run.json"


class EngineUsed(msgspec.Struct, frozen=True, kw_only=True):
    """One engine: its version as it names it, and the hash of its wheel, None for a checkout."""

    name: str
    version: str
    sha256: str | None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of ``run.json``.

    One of another version is read too: what it lacks has its default, which is what was done before
    it could be said otherwise, and what is not known here is named.

    Attributes:
        kvproof: version of kvproof; ``sources`` is a hash of its code, which changes oftener.
        requirements: hash of the lock file of what engines need.
        command: as it was given, the home folder as ``~``, a random seed as the number drawn.
        drawn_from: by target, what its geometries were drawn from; forwards have their own sizes.
        sizes: of older manifests, which have no ``drawn_from``: the default sizes, whatever the
            targets' were.
        unknown: names in the file that this kvproof does not know, as JSON pointers; absent if
            there are none.
    """

    kvproof: str
    sources: str
    python: str
    platform: str
    processors: int | None
    packages: dict[str, str]
    requirements: str
    environment: dict[str, str]
    command: tuple[str, ...]
    seed: int
    profile: Profile
    drawn_from: dict[str, Sizes] = {}
    sizes: Sizes | msgspec.UnsetType | None = msgspec.UNSET
    time_limit: float | None
    redacted: bool
    targets: tuple[str, ...]
    engines: tuple[EngineUsed, ...]
    unknown: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


def manifest_of(
    targets: Sequence[Target],
    *,
    profile: Profile,
    seed: int,
    time_limit: float | None,
    redacted: bool,
    store: EngineStore,
    command: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Manifest:
    """The manifest of a run that begins now, in this process."""
    environment = os.environ if environment is None else environment
    engines = {target.engine.name: target.engine for target in targets}.values()
    return Manifest(
        kvproof=version("kvproof"),
        sources=_sources_hash(),
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        processors=os.cpu_count(),
        packages={name: version(name) for name in PACKAGES},
        requirements=hashlib.sha256(store.lock_file.read_bytes()).hexdigest(),
        environment={name: environment[name] for name in ENVIRONMENT if name in environment},
        command=_command(sys.argv if command is None else command, seed),
        seed=seed,
        profile=profile,
        drawn_from={target.name: target.sizes for target in targets if target.family == "cache"},
        time_limit=time_limit,
        redacted=redacted,
        targets=tuple(target.name for target in targets),
        engines=tuple(
            EngineUsed(name=engine.name, version=engine.version, sha256=engine.sha256)
            for engine in engines
        ),
    )


def decode_manifest(data: bytes) -> Manifest:
    """Manifest from JSON; raises BadFileError."""
    manifest, unknown = read_part(data, Manifest, part="manifest of a run")
    if "swarm" not in msgspec.json.decode(data)["profile"]:
        # Before it could be said, all kinds of operations were drawn.
        profile = dataclasses.replace(manifest.profile, swarm=False)
        manifest = msgspec.structs.replace(manifest, profile=profile)
    if unknown:
        known_before = manifest.unknown or ()
        manifest = msgspec.structs.replace(manifest, unknown=(*known_before, *unknown))
    return manifest


def load_manifest(folder: Path) -> Manifest:
    """Manifest of a run folder; raises BadFileError with the path in its message."""
    path = folder / FILE
    data = read_file(path)
    try:
        return decode_manifest(data)
    except BadFileError as error:
        raise BadFileError(f"{path}: {error}") from error


def processor() -> str:
    """What the machine calls its processor."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _command(words: Sequence[str], seed: int) -> tuple[str, ...]:
    """The command line that gives this run again, without the user's name in its paths."""
    given = [word.replace(str(Path.home()), "~") for word in words[1:]]
    return ("kvproof", *(str(seed) if word == "random" else word for word in given))


def _sources_hash() -> str:
    digest = hashlib.sha256()
    for package in (kvproof.fuzz, kvproof.kernels, kvproof.model, kvproof.spec):
        folder = Path(next(iter(package.__path__)))
        for path in _sources(folder):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _sources(folder: Path) -> Iterable[Path]:
    return sorted(path for path in folder.rglob("*.py") if "tests" not in path.parts)
