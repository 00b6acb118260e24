"""A tokenizer from the user's disk, for servers that have no endpoint for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvproof.kernels.engines.errors import EngineError


class LocalTokenizer:
    """``tokenizer.json`` of a model, read by the library ``tokenizers`` (an optional extra)."""

    def __init__(self, path: Path) -> None:
        """Load it.

        Args:
            path: the file, or a model's folder with it.

        Raises:
            EngineError: the library is missing, or the file is none of its kind.
        """
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415  # an optional extra
        except ImportError as error:
            raise EngineError(
                "the library `tokenizers` is not installed",
                fix="pip install 'kvproof[tokenizer]', or leave --tokenizer out",
            ) from error
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare exceptions
            raise EngineError(
                f"{file} is no tokenizer: {error}",
                fix="give a model's tokenizer.json, or the folder that holds it",
            ) from error

    def encode(self, text: str) -> list[int]:
        """Token ids, without those that mark a beginning or an end."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
