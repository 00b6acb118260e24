from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.version import Version

from kvproof.kernels.catalogue import FAMILIES, family_of
from kvproof.kernels.engines.doctor import check_files, diagnose
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.releases import RELEASES
from kvproof.kernels.engines.store import EngineStore

from .conftest import Workshop

TABLE = """
import os, signal, time
from kvproof.kernels.engines.probes import NotApplicableError, NotWorkingError, Probe

def fine(root): print("chatter"); return f"in {root.name}"
def raises(root): raise RuntimeError("no such luck")
def hangs(root): print("going to sleep", flush=True); time.sleep(600)
def dies(root): print("about to die", flush=True); os.kill(os.getpid(), signal.SIGSEGV)
def leaves(root): os._exit(3)
def knows(root): raise NotWorkingError("it is broken", next_step="mend it")
def does_not_apply(root): raise NotApplicableError("not here")
def lacks(root): import sglang.nowhere

PROBES = tuple(
    Probe(name=run.__name__, run=run, gate="none")
    for run in (fine, raises, hangs, dies, leaves, knows, does_not_apply, lacks)
) + (Probe(name="last", run=fine, gate="none"),)
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "doctor_probes.py").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "doctor_probes:PROBES"


def test_probe_that_fails_in_any_way_is_a_result(workshop: Workshop, table: str) -> None:
    engine = workshop.store.add("1.0")
    started = time.monotonic()
    diagnosis = diagnose(engine, table=table, limit_s=5)
    assert time.monotonic() - started < 60
    results = {result.probe: result for result in diagnosis.results}
    assert list(results) == [
        "files", "fine", "raises", "hangs", "dies", "leaves", "knows", "does_not_apply", "lacks",
        "last",
    ]  # fmt: skip
    assert {name for name, result in results.items() if result.status == "ok"} == {
        "files", "fine", "last",
    }  # fmt: skip
    assert results["does_not_apply"].status == "skipped"
    assert not diagnosis.ok
    assert results["fine"].detail == "in site"
    assert results["raises"].detail == "RuntimeError: no such luck"
    assert "Traceback" in results["raises"].log
    assert results["hangs"].detail == "no answer within 5 s"
    assert "going to sleep" in results["hangs"].log
    assert "SIGSEGV" in results["dies"].detail
    assert "about to die" in results["dies"].log
    assert "going to sleep" not in results["dies"].log
    assert "exit status 3" in results["leaves"].detail
    assert (results["knows"].detail, results["knows"].next_step) == ("it is broken", "mend it")
    assert results["lacks"].detail == "there is no module sglang.nowhere"
    assert all(result.next_step for result in results.values() if result.status == "not ok")


def test_engine_without_a_known_layout_is_a_result(workshop: Workshop) -> None:
    if find_spec("kvproof.kernels.engines.shims") is None:
        pytest.skip("there are no shims")
    diagnosis = diagnose(workshop.store.add("1.0"))
    results = {result.probe: result for result in diagnosis.results}
    assert "no DeepSeek-V4 pool" in results["layout"].detail
    assert results["layout"].next_step
    assert results["shims, gate on"].status == "not ok"
    assert results["scatter kernel"].status == "skipped"


def test_changed_file_of_a_release_is_found(workshop: Workshop) -> None:
    engine = workshop.store.add("1.0")
    assert check_files(engine).status == "ok"
    (engine.root / "sglang" / "__init__.py").write_text("patched = True\n")
    result = check_files(engine)
    assert result.status == "not ok"
    assert "sglang/__init__.py" in result.detail
    (engine.root / "sglang" / "__init__.py").unlink()
    assert check_files(engine).status == "not ok"


def test_unusable_engine_is_a_result(workshop: Workshop, checkout: Path) -> None:
    workshop.store.add_path(checkout)
    (checkout / "sglang" / "__init__.py").unlink()
    (checkout / "sglang" / "_version.py").unlink()
    (checkout / "sglang").rmdir()
    [engine] = workshop.store.list()
    diagnosis = diagnose(engine)
    assert not diagnosis.ok
    assert "no longer holds" in diagnosis.results[0].detail


def test_family_is_told_by_files(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no DeepSeek-V4 pool"):
        family_of(tmp_path)
    for family in reversed(FAMILIES):
        marker = tmp_path / family.marker
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text("")
        assert family_of(tmp_path) is family


@pytest.mark.parametrize("version", RELEASES)
def test_installed_release_has_the_layout_of_its_family(version: str) -> None:
    """The newest family that is not newer than the release."""
    try:
        engine = EngineStore().find(version)
    except EngineError as error:
        pytest.skip(error.cause)
    names = [family.name for family in FAMILIES]
    assert family_of(engine.root).name == next(
        name for name in names if Version(name) <= Version(version)
    )
    assert engine.pinned


def test_everything_works_in_the_newest_release() -> None:
    if find_spec("kvproof.kernels.engines.shims") is None:
        pytest.skip("there are no shims")
    try:
        engine = EngineStore().find("0.5.23")
    except EngineError as error:
        pytest.skip(error.cause)
    diagnosis = diagnose(engine)
    failed = [result for result in diagnosis.results if result.status == "not ok"]
    assert failed == []
    assert {"rocm-gate", "stubs", "host-copies"} <= {shim.name for shim in diagnosis.shims}
    assert all(shim.replaces and shim.reason for shim in diagnosis.shims)
    assert diagnosis.stubs
