"""The files of a run: a cell is on disk as soon as it is done, and a run can be taken up again.

``run.json`` holds what was asked for and of whom, ``cells.jsonl`` a line a cell, ``result.json``
the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import msgspec

from kvproof.determinism.judge import Judgement
from kvproof.determinism.plan import Cell, Settings
from kvproof.determinism.server import Described
from kvproof.fuzz.run_folder import RunFolder
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.files import read_file
from kvproof.model.scenario import BadFileError, decode_json, decode_part

DEFAULT_ROOT = Path(".kvproof/determinism")


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Contents of ``run.json``.

    Attributes:
        filler: token ids that prompts are made of.
        target: the server as it described itself.
    """

    kvproof: str
    settings: Settings
    filler: tuple[int, ...]
    target: Described


_cell_decoder = msgspec.json.Decoder(Cell)


@dataclass(frozen=True, slots=True)
class Record:
    """A run's folder."""

    path: Path
    run: Run

    @classmethod
    def create(
        cls, root: Path, *, settings: Settings, filler: tuple[int, ...], target: Described
    ) -> Record:
        """Begin a run in the next numbered folder; raises EngineError if it cannot be written."""
        run = Run(kvproof=version("kvproof"), settings=settings, filler=filler, target=target)
        record = cls(RunFolder.create(root).path, run)
        record._write("run.json", run)
        return record

    @classmethod
    def open(cls, path: Path) -> Record:
        """A run that was begun before.

        Raises:
            BadFileError: the folder holds no such run.
        """
        data = read_file(path / "run.json")
        try:
            return cls(path, decode_part(data, Run, part="determinism run"))
        except BadFileError as error:
            raise BadFileError(f"{path / 'run.json'}: {error}") from error

    def cells(self) -> list[Cell]:
        """Cells that are done. A line that was cut off as the run ended counts for nothing."""
        path = self.path / "cells.jsonl"
        if not path.exists():
            return []
        whole = read_file(path).split(b"\n")[:-1]
        return [
            decode_json(_cell_decoder, line, part="cell", file="determinism run") for line in whole
        ]

    def done(self, cell: Cell) -> None:
        """Keep a cell."""
        path = self.path / "cells.jsonl"
        try:
            kept = path.read_bytes() if path.exists() else b""
            if kept and not kept.endswith(b"\n"):
                path.write_bytes(kept[: kept.rfind(b"\n") + 1])
            with path.open("ab") as file:
                file.write(msgspec.json.encode(cell) + b"\n")
        except OSError as error:
            raise EngineError(
                f"{path} cannot be written: {error.strerror}",
                fix="make room, then take the run up again with --resume",
            ) from error

    def judged(self, judgement: Judgement) -> None:
        """Keep the verdict."""
        self._write("result.json", judgement)

    def _write(self, name: str, value: object) -> None:
        data = msgspec.json.format(msgspec.json.encode(value))
        (self.path / name).write_bytes(data + b"\n")
