"""A small engine as a wheel, an index that holds it, and a store that knows its hash."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvproof.kernels.engines.store import EngineStore


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Write a wheel of pure Python files and return its path."""
    info = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """A local index with sglang 1.0, 2.0 (both pinned) and 3.0 (not pinned)."""

    index: Path
    store: EngineStore
    said: list[str]


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    index = tmp_path / "index"
    wheels = {
        version: make_wheel(
            index, "sglang", version, {"sglang/__init__.py": f'__version__ = "{version}"\n'}
        )
        for version in ("1.0", "2.0", "3.0")
    }
    dependency = make_wheel(index, "tinydep", "1", {"tinydep.py": "VALUE = 1\n"})
    lock = tmp_path / "requirements.lock"
    lock.write_text(f"tinydep==1 --hash=sha256:{sha256(dependency)}\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    said: list[str] = []
    store = EngineStore(
        cache=tmp_path / "cache",
        releases={
            version: {wheels[version].name: sha256(wheels[version])} for version in ("1.0", "2.0")
        },
        lock_file=lock,
        report=said.append,
    )
    return Workshop(index=index, store=store, said=said)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The folder ``python`` of a checkout called my-sglang."""
    python = tmp_path / "my-sglang" / "python"
    (python / "sglang").mkdir(parents=True)
    (python / "sglang" / "__init__.py").write_text("")
    (python / "sglang" / "_version.py").write_text("__version__ = version = '0.5.99.dev1'\n")
    return python
