from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from packaging.version import Version

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.releases import RELEASES
from kvproof.kernels.engines.store import EngineStore, cache_root, release_version

from .conftest import Workshop, make_wheel, sha256


def test_added_release_is_found_by_all_its_names(workshop: Workshop) -> None:
    added = workshop.store.add("sglang==1.0")
    for name in ("1.0", "sglang==1.0", "sglang-1.0", " sglang == 1.0 "):
        assert workshop.store.find(name) == added
    assert added.version == "1.0"
    assert added.pinned
    assert added.problem is None
    assert (added.root / "sglang" / "__init__.py").is_file()
    assert (added.deps / "tinydep.py").is_file()


def test_releases_live_side_by_side_and_share_their_dependencies(workshop: Workshop) -> None:
    one, two = workshop.store.add("1.0"), workshop.store.add("2.0")
    assert one.root != two.root
    assert one.deps == two.deps
    assert [engine.name for engine in workshop.store.list()] == ["sglang-1.0", "sglang-2.0"]


def test_second_add_downloads_nothing(workshop: Workshop) -> None:
    first = workshop.store.add("1.0")
    shutil.rmtree(workshop.index)
    workshop.said.clear()
    assert workshop.store.add("1.0") == first
    assert workshop.said == []


def test_wheel_with_another_hash_is_refused_and_leaves_nothing(workshop: Workshop) -> None:
    wheel = make_wheel(workshop.index, "sglang", "1.0", {"sglang/__init__.py": "evil = True\n"})
    with pytest.raises(EngineError, match="is pinned; nothing was installed") as caught:
        workshop.store.add("1.0")
    assert sha256(wheel) in caught.value.cause
    assert "index" in caught.value.fix
    assert workshop.store.list() == ()
    assert not list(workshop.store.cache.rglob("__init__.py"))


def test_wheel_that_is_not_pinned_is_refused(workshop: Workshop) -> None:
    store = replace(workshop.store, releases={"1.0": {"sglang-1.0-other.whl": "0" * 64}})
    with pytest.raises(EngineError, match="not one of the pinned wheels"):
        store.add("1.0")
    assert store.list() == ()


def test_unpinned_release_needs_the_flag_and_keeps_its_first_hash(workshop: Workshop) -> None:
    with pytest.raises(EngineError, match="not one of the supported releases") as caught:
        workshop.store.add("3.0")
    assert "--unpinned" in caught.value.fix
    engine = workshop.store.add("3.0", unpinned=True)
    assert not engine.pinned
    assert engine.sha256 == sha256(workshop.index / str(engine.wheel))
    workshop.store.remove("3.0")
    make_wheel(workshop.index, "sglang", "3.0", {"sglang/__init__.py": "evil = True\n"})
    with pytest.raises(EngineError, match="when it was first installed"):
        workshop.store.add("3.0", unpinned=True)
    assert workshop.store.list() == ()


def test_release_that_the_index_lacks(workshop: Workshop) -> None:
    with pytest.raises(EngineError, match=r"pip download failed: No matching distribution"):
        workshop.store.add("4.0", unpinned=True)


def test_dependency_with_another_hash_is_refused(workshop: Workshop) -> None:
    make_wheel(workshop.index, "tinydep", "1", {"tinydep.py": "VALUE = 2\n"})
    with pytest.raises(EngineError, match="pip install failed"):
        workshop.store.add("1.0")
    assert not workshop.store.deps.exists()
    [engine] = workshop.store.list()
    assert engine.problem is not None
    assert "packages that engines need" in engine.problem


def test_unknown_engine_names_the_installed_ones(workshop: Workshop) -> None:
    workshop.store.add("2.0")
    for name in ("1.0", "sglang==1.0", "nonsense", "../../etc", ""):
        with pytest.raises(EngineError, match=r"not installed; installed: sglang-2\.0") as caught:
            workshop.store.find(name)
        assert "kvproof engine add" in caught.value.fix
        with pytest.raises(EngineError, match="is not installed"):
            workshop.store.remove(name)
    assert [engine.name for engine in workshop.store.list()] == ["sglang-2.0"]


def test_removed_release_is_gone(workshop: Workshop) -> None:
    engine = workshop.store.add("1.0")
    assert workshop.store.remove("sglang==1.0") == engine
    assert not engine.root.exists()
    assert workshop.store.list() == ()
    workshop.store.add("1.0")
    assert len(workshop.store.list()) == 1


def test_checkout_stays_where_it_is(workshop: Workshop, checkout: Path) -> None:
    engine = workshop.store.add_path(checkout)
    assert engine.name == "my-sglang"
    assert engine.version == "0.5.99.dev1"
    assert engine.root == checkout
    assert workshop.store.add_path(checkout.parent) == engine
    assert workshop.store.find("my-sglang") == engine
    workshop.store.remove("my-sglang")
    assert (checkout / "sglang" / "__init__.py").is_file()


def test_checkout_version_is_what_git_says_now(workshop: Workshop, checkout: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        subprocess.run(["git", *identity, *arguments], cwd=checkout, check=True)

    git("init", "-q", "..")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("tag", "v0.6.0")
    assert workshop.store.add_path(checkout).version == "0.6.0"
    (checkout / "sglang" / "__init__.py").write_text("changed = True\n")
    assert workshop.store.find("my-sglang").version == "0.6.0-dirty"


def test_checkout_with_a_bad_path_or_name(workshop: Workshop, checkout: Path) -> None:
    with pytest.raises(EngineError, match="holds no sglang/ package"):
        workshop.store.add_path(checkout / "nowhere")
    for name in ("0.5.15", "sglang-0.5.15", "a/b", "..", ""):
        with pytest.raises(EngineError, match="cannot be the name"):
            workshop.store.add_path(checkout, name=name)
    workshop.store.add_path(checkout, name="mine")
    other = checkout.parent.parent / "other"
    shutil.copytree(checkout, other)
    with pytest.raises(EngineError, match="the name mine is taken"):
        workshop.store.add_path(other, name="mine")
    assert workshop.store.add_path(other).name == "other"


def test_checkout_that_went_away_is_listed_with_its_problem(
    workshop: Workshop, checkout: Path
) -> None:
    workshop.store.add_path(checkout)
    shutil.rmtree(checkout)
    [engine] = workshop.store.list()
    assert engine.problem is not None
    with pytest.raises(EngineError, match="no longer holds") as caught:
        workshop.store.find("my-sglang")
    assert "kvproof engine remove my-sglang" in caught.value.fix


def test_damaged_record_is_repaired_by_adding_again(workshop: Workshop) -> None:
    engine = workshop.store.add("1.0")
    (engine.root.parent / "engine.json").write_text("{")
    with pytest.raises(EngineError, match=r"engine\.json is damaged") as caught:
        workshop.store.find("1.0")
    assert "kvproof engine add sglang-1.0" in caught.value.fix
    assert workshop.store.add("sglang-1.0") == engine


def test_engine_whose_pin_changed_is_not_used(workshop: Workshop) -> None:
    engine = workshop.store.add("1.0")
    stricter = replace(workshop.store, releases={"1.0": {str(engine.wheel): "0" * 64}})
    with pytest.raises(EngineError, match="does not have a pinned hash"):
        stricter.find("1.0")


def test_changed_lock_asks_for_the_dependencies_again(workshop: Workshop) -> None:
    workshop.store.add("1.0")
    lock = workshop.store.lock_file
    lock.write_text(lock.read_text() + "# changed\n")
    with pytest.raises(EngineError, match="their lock has changed"):
        workshop.store.find("1.0")
    workshop.said.clear()
    workshop.store.add("1.0")
    assert workshop.said == ["installing what engines need besides themselves"]


def test_what_a_killed_process_left_is_cleared(workshop: Workshop) -> None:
    engine = workshop.store.add("1.0")
    half = engine.root.parent.with_name(".sglang-2.0.partial") / "site" / "sglang"
    half.mkdir(parents=True)
    (half / "stale.py").write_text("")
    assert [each.name for each in workshop.store.list()] == ["sglang-1.0"]
    added = workshop.store.add("2.0")
    assert not (added.root / "sglang" / "stale.py").exists()


def test_two_processes_add_the_same_release(workshop: Workshop) -> None:
    store = workshop.store
    script = (
        "import sys, msgspec; from pathlib import Path\n"
        "from kvproof.kernels.engines.store import EngineStore\n"
        "cache, lock, releases = sys.argv[1:]\n"
        "store = EngineStore(cache=Path(cache), lock_file=Path(lock), report=print,\n"
        "                    releases=msgspec.json.decode(releases))\n"
        "print(store.add('1.0').root)\n"
    )
    pins = msgspec.json.encode({v: dict(pins) for v, pins in store.releases.items()}).decode()
    command = [sys.executable, "-c", script, str(store.cache), str(store.lock_file), pins]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum(output.count("downloading sglang 1.0") for output in outputs) == 1
    assert {output.splitlines()[-1] for output in outputs} == {str(store.find("1.0").root)}


def test_cache_that_cannot_be_written(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = replace(workshop.store, cache=tmp_path / "file")
    with pytest.raises(EngineError, match="cannot write to the cache") as caught:
        store.add("1.0")
    assert "KVPROOF_CACHE" in caught.value.fix


def test_cache_root_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path / "here"))
    assert cache_root() == tmp_path / "here"
    assert EngineStore().cache == tmp_path / "here"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("0.5.15", "0.5.15"),
        ("sglang==0.5.15", "0.5.15"),
        ("sglang-0.5.15", "0.5.15"),
        ("sglang>=0.5.15", None),
        ("vllm==0.5.15", None),
        ("1x", None),
        ("", None),
    ],
)
def test_release_names(name: str, version: str | None) -> None:
    assert release_version(name) == version


def test_pinned_table_is_well_formed() -> None:
    assert list(RELEASES) == sorted(RELEASES, key=Version)
    assert (next(iter(RELEASES)), next(reversed(RELEASES))) == ("0.5.12", "0.5.23")
    for version, pins in RELEASES.items():
        assert len(pins) == 6
        assert len(set(pins.values())) == 6
        for wheel, digest in pins.items():
            assert wheel.startswith(f"sglang-{version}-cp3")
            assert len(bytes.fromhex(digest)) == 32
