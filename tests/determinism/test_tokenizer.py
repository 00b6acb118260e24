"""A tokenizer from disk: the library's own file, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.determinism.prompts import FILLER
from kvproof.determinism.tokenizer import LocalTokenizer
from kvproof.kernels.engines.errors import EngineError

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a tokenizer of whole words."""
    words = {word: number for number, word in enumerate(dict.fromkeys(FILLER.split()))}
    model = tokenizers.models.WordLevel(words | {"?": len(words)}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_file_and_folder_are_the_same(folder: Path) -> None:
    ids = LocalTokenizer(folder).encode(FILLER)
    assert ids == LocalTokenizer(folder / "tokenizer.json").encode(FILLER)
    assert len(ids) == len(FILLER.split())
    assert LocalTokenizer(folder).decode(ids[:3]) == "The history of"


def test_what_is_no_tokenizer_is_told(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match="is no tokenizer") as told:
        LocalTokenizer(tmp_path)
    assert "tokenizer.json" in told.value.fix
