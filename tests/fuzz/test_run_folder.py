"""What was found is on disk at once, whatever happens to the run."""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Barrier

import pytest

from kvproof.fuzz.campaign import Break
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.run_folder import RunFolder
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.model.facts import read_log
from kvproof.model.files import load_scenario
from kvproof.model.monitor import check
from kvproof.model.reference import reference_player

from .conftest import UNCAPPED, FakeProcess, Keeper, campaign


def latest(root: Path) -> str:
    link = root / "latest"
    assert link.is_symlink()
    assert link.resolve().parent == root.resolve()
    return link.resolve().name


def test_runs_are_numbered_and_latest_is_the_last(tmp_path: Path) -> None:
    for number in ("0001", "0002", "0003"):
        assert RunFolder.create(tmp_path).path == tmp_path / number
        assert latest(tmp_path) == number


def test_numbers_go_on_after_what_is_there(tmp_path: Path) -> None:
    for name in ("0041", "notes", "7.old", "latest.txt"):
        (tmp_path / name).mkdir()
    assert RunFolder.create(tmp_path).path.name == "0042"
    assert latest(tmp_path) == "0042"


def test_folders_above_are_made(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path / "a" / "b").path == tmp_path / "a" / "b" / "0001"


def test_runs_that_start_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    runs, rounds = 8, 20
    barrier = Barrier(runs, timeout=30)  # a run that fails must not leave the others waiting

    def start(_: int) -> list[str]:
        names = []
        for _ in range(rounds):
            barrier.wait()
            names.append(RunFolder.create(tmp_path).path.name)
        return names

    with ThreadPoolExecutor(runs) as pool:
        names = [name for some in pool.map(start, range(runs)) for name in some]
    assert sorted(names) == [f"{number:04}" for number in range(1, runs * rounds + 1)]
    assert latest(tmp_path) in names
    assert sorted(p.name for p in tmp_path.iterdir()) == [*sorted(names), "latest"]


def test_a_folder_that_cannot_be_made_is_an_error_with_a_fix(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for root in (file, file / "runs"):
        with pytest.raises(SetupError, match=f"{root} cannot be written") as error:
            RunFolder.create(root)
        assert "--out" in error.value.fix


def test_a_folder_that_cannot_be_written_is_an_error_with_a_fix() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs a file system that refuses everybody, the superuser too")
    with pytest.raises(SetupError, match="cannot be written") as error:
        RunFolder.create(Path("/proc/self/fd"))
    assert "--out" in error.value.fix


def test_a_finding_s_files(keeper: Keeper) -> None:
    result = campaign(FakeProcess(), listener=keeper, profile=Profile(sequences=15)).run()
    folder = keeper.folder.path / "fake-registry"
    assert result.findings
    for finding in result.findings:
        scenario = load_scenario(folder / f"{finding.name}.scenario.json")
        assert scenario == finding.scenario
        with (folder / f"{finding.name}.log.jsonl").open("rb") as lines:
            violations = check(read_log(lines)).violations
        broken = (finding.violation.invariant, finding.violation.cause)
        assert violations[broken] == finding.violation
        assert (folder / f"{finding.name}.txt").read_text().startswith(finding.violation.invariant)
        assert not (folder / f"{finding.name}.unshrunk.json").exists()
    # What was not shrunk is still there: other causes of the same invariants.
    names = {finding.name for finding in result.findings}
    for invariant, cause in keeper.breaks:
        if f"{invariant}-{cause}" not in names:
            assert (folder / f"{invariant}-{cause}.unshrunk.json").exists()


def test_the_result_is_json(keeper: Keeper) -> None:
    result = campaign(FakeProcess(rules=UNCAPPED), profile=Profile(sequences=2)).run()
    keeper.folder.result(result)
    kept = json.loads((keeper.folder.path / "result.json").read_text())
    assert kept["sequences"] == 2
    assert kept["target"] == "fake:registry"


def shrink_forever(root: Path, is_shrinking: Event) -> None:
    """A run that says when it shrinks, and stays there."""

    class Stuck(Keeper):
        def shrinking(self, target: Target, broken: Break, operations: int) -> None:
            is_shrinking.set()
            signal.pause()

    campaign(FakeProcess(), listener=Stuck(RunFolder.create(root))).run()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is killed like this there")
def test_a_run_that_is_killed_while_it_shrinks_loses_nothing(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    is_shrinking = fork.Event()
    run = fork.Process(target=shrink_forever, args=(tmp_path, is_shrinking))
    run.start()
    try:
        assert is_shrinking.wait(timeout=60)
    finally:
        run.kill()
        run.join()
    assert run.exitcode == -signal.SIGKILL
    folder = tmp_path / "latest" / "fake-registry"
    assert not list(folder.glob("*.scenario.json"))
    found = [*folder.glob("FRESH-DECODE-*.unshrunk.json")]
    assert found
    for kept in map(load_scenario, found):
        monitor = check(reference_player(kept.geometry, UNCAPPED).play(kept))
        assert monitor.worst_of("FRESH-DECODE") is not None
    # The next run has a folder of its own.
    assert RunFolder.create(tmp_path).path.name == "0002"
