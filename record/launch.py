"""Puts the recorder within reach of a server that knows nothing of kvproof.

The server has a Python of its own. A folder on its ``PYTHONPATH`` shows it the recorder, what the
recorder imports, and an entry point; nothing else of kvproof's environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import msgspec

from kvproof.model.facts import Ended, EngineError, Step, decode_fact, encode_fact
from kvproof.model.scenario import BadFileError
from kvproof.record import plugin
from kvproof.record.locs import Level

_NEEDED = ("kernels", "model", "record", "spec")
"""Packages that the recorder imports from."""

_TAIL_BYTES = 1 << 20
"""How much of a log's end is read to find its last step; a step takes some 100 bytes."""


def make_reachable(folder: Path) -> None:
    """Fill an empty folder with links to the recorder and with its entry point."""
    packages = folder / "kvproof"
    packages.mkdir()
    for name in _NEEDED:
        [source] = import_module(f"kvproof.{name}").__path__
        (packages / name).symlink_to(Path(source).resolve(), target_is_directory=True)
    info = folder / "kvproof_record-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvproof-record\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        f"[{plugin.GROUP}]\n{plugin.NAME} = kvproof.record.plugin:activate\n"
    )


def environment(
    inherited: Mapping[str, str], *, reachable: Path, logs: Path, level: Level
) -> dict[str, str]:
    """Environment that a server is started with, to be recorded.

    Args:
        inherited: what to start from.
        reachable: folder as `make_reachable` fills it.
        logs: folder for the logs.
        level: how much is recorded of locations.
    """
    env = dict(inherited)
    env[plugin.FOLDER] = str(logs.absolute())
    env[plugin.LEVEL] = level
    path = [str(reachable), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(path)
    allowed = env.get("SGLANG_PLUGINS")
    if allowed:  # a list of the plugins that are loaded; without it all are
        env["SGLANG_PLUGINS"] = f"{allowed},{plugin.NAME}"
    return env


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """One log after its server has ended."""

    path: Path
    bytes: int
    steps: int


def seal(path: Path) -> Sealed:
    """Give a log its last fact, where the server was killed before the recorder could.

    What is there is a whole beginning of what happened, which can be judged as it is. A line that
    was cut off is taken away.

    Raises:
        BadFileError: the file is no log.
    """
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        whole = tail[: tail.rfind(b"\n") + 1]
        if not whole:
            raise BadFileError(f"{path}: the log is empty")
        file.truncate(size - len(tail) + len(whole))
        lines = whole.splitlines(keepends=True)
        last = decode_fact(lines[-1])
        steps = next(_steps(lines), 0)
        if not isinstance(last, Ended | EngineError):
            file.seek(0, os.SEEK_END)
            file.write(encode_fact(Ended(steps=steps)))
        return Sealed(path=path, bytes=file.seek(0, os.SEEK_END), steps=steps)


def _steps(lines: list[bytes]) -> Iterator[int]:
    """Number of steps, by the last that is told; the first line may lack its beginning."""
    for line in reversed(lines):
        if line.startswith(b'{"fact":"step"'):
            fact = decode_fact(line)
            assert isinstance(fact, Step)
            yield fact.index + 1
