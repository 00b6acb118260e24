"""The gate: what a release adds, changes or drops is told by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli import gate as command
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.coverage import Coverage, Shipped, gate, load_coverage
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.scenario import BadFileError

CACHE = Path("sglang/srt/mem_cache")
MEMORY = Path("sglang/kernels/ops/memory")


def installed(name: str) -> Engine:
    try:
        return EngineStore().find(name)
    except EngineError as error:
        pytest.skip(str(error))


def mirror(real: Path, to: Path, copied: Sequence[Path]) -> None:
    """Links to a release, with some of its folders copied, so that they can be changed."""
    for part in copied:
        for folder in reversed(part.parents):
            (to / folder).mkdir(exist_ok=True, parents=True)
        shutil.copytree(real / part, to / part)
    for folder in {folder for part in copied for folder in part.parents}:
        for each in (real / folder).iterdir():
            if not (to / folder / each.name).exists():
                (to / folder / each.name).symlink_to(each)


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """0.5.23 with a new cache class, a new kernel, and another that has one more parameter."""
    real = installed("0.5.23")
    root = tmp_path_factory.mktemp("release")
    mirror(real.root, root, (CACHE, MEMORY))
    (root / CACHE / "paged_ring.py").write_text(
        "from typing import Generic\n"
        "from sglang.srt.mem_cache import memory_pool, radix_cache\n\n\n"
        "class RingTree(radix_cache.RadixCache[int]):\n    pass\n\n\n"
        "class RingTreeForDrafts(RingTree):\n    pass\n\n\n"
        "class RingStatistics(Generic[int]):\n    pass\n"
    )
    kernels = root / MEMORY / "allocator.py"
    text = kernels.read_text().replace("def alloc_decode_kernel(", "def alloc_decode_kernel(extra,")
    kernels.write_text(f"{text}\n\n@triton.jit\ndef alloc_ring_kernel(out):\n    pass\n")
    return Engine(name="next", version="0.5.24", source="path", root=root, deps=real.deps)


def stopped(shipped: Sequence[Shipped]) -> set[tuple[str, str, str]]:
    return {(one.kind, one.name, one.status) for one in shipped if not one.passes}


@pytest.mark.parametrize("name", ["0.5.15", "0.5.16", "0.5.23"])
def test_supported_releases_pass_and_every_entry_says_why(name: str) -> None:
    root = installed(name).root
    shipped = gate(root, family_of(root))
    assert stopped(shipped) == set()
    assert all(one.why for one in shipped)
    covered = {one.name for one in shipped if one.status == "covered"}
    assert {"DeepSeekV4UnifiedKVPool", "_swa_scatter_kernel", "alloc_extend_kernel"} <= covered


@pytest.fixture(scope="module")
def found(next_release: Engine) -> tuple[Shipped, ...]:
    return gate(next_release.root, family_of(next_release.root))


def test_a_new_class_and_a_changed_kernel_fail_by_name(found: tuple[Shipped, ...]) -> None:
    assert stopped(found) == {
        ("class", "RingTree", "new"),
        ("class", "RingTreeForDrafts", "new"),
        ("kernel", "alloc_decode_kernel", "changed"),
        ("kernel", "alloc_ring_kernel", "new"),
    }


def test_command_names_them(
    next_release: Engine, found: tuple[Shipped, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.EngineStore, "find", lambda _self, _name: next_release)
    monkeypatch.setattr(command, "gate", lambda _root, _family: found)
    result = CliRunner().invoke(app, ["gate", "--engine", "next"])
    assert result.exit_code == 1
    assert "RingTree" in result.stdout
    assert "4 not let through" in result.stdout
    told = json.loads(CliRunner().invoke(app, ["gate", "--engine", "next", "--json"]).stdout)
    assert told["good"] is False
    assert {one["status"] for one in told["engines"]["next"]} == {
        "covered", "exempt", "new", "changed",
    }  # fmt: skip


def test_a_covered_kernel_that_is_gone_fails(tmp_path: Path) -> None:
    real = installed("0.5.15")
    shipped = gate(tmp_path, family_of(real.root))
    assert ("kernel", "_swa_scatter_kernel", "gone") in stopped(shipped)
    assert {one.kind for one in shipped} == {"kernel"}


def test_an_exemption_may_be_of_some_families() -> None:
    said = load_coverage()
    assert said.why_exempt("kernel", "assign_extend_cache_locs", "0.5.18")
    assert not said.why_exempt("kernel", "assign_extend_cache_locs", "0.5.23")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[exempt]]\nreason = " "\nclasses = ["A"]\n', "needs a reason"),
        ('[[exempt]]\nreason = "x"\nclasses = ["KVCache"]\n', "KVCache stands twice"),
        ('[[exempt]]\nreason = "x"\nclass = ["A"]\n', "unknown field"),
    ],
)
def test_a_file_without_reasons_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "coverage.toml"
    path.write_text(
        Path(load_coverage.__code__.co_filename).with_name("coverage.toml").read_text() + text
    )
    with pytest.raises(BadFileError, match=said):
        load_coverage(path)


def test_everything_is_new_where_nothing_is_said(tmp_path: Path) -> None:
    root = installed("0.5.15").root
    (tmp_path / CACHE).mkdir(parents=True)
    shutil.copy(root / CACHE / "radix_cache.py", tmp_path / CACHE)
    said = replace(load_coverage(), covered=(), exempt=())
    assert isinstance(said, Coverage)
    shipped = gate(tmp_path, family_of(root), said)
    assert [(one.name, one.status) for one in shipped if one.kind == "class"] == [
        ("RadixCache", "new")
    ]
