"""``kvproof record``, end to end: a server's processes, their plugins, a log for each scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from kvproof.kernels.catalogue import FAMILIES
from kvproof.kernels.engines.environment import engine_env
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.releases import RELEASES
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Ended, Started, Step, encode_fact, read_log
from kvproof.model.scenario import (
    BadFileError,
    Decode,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    encode_scenario,
)
from kvproof.record import plugin
from kvproof.record.launch import environment, make_reachable, seal

KILLED = ("0.5.13", "0.5.15", "0.5.22")
"""Releases whose server is killed; on the others it ends."""

SERVER = Path(__file__).with_name("server.py")
STORY = Scenario(
    geometry=Geometry(window=4, page_size=4, slots=2, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 17),)),
        Prefill(request="A"),
        Decode(),
        Finish(request="A"),
    ),
)
STARTED = Started(
    target="model", backend="rules", geometry=STORY.geometry, ring_stride=4, reprefill_tail=0
)


def kvproof(*arguments: object, env: dict[str, str] | None = None):
    return subprocess.run(
        [sys.executable, "-c", "from kvproof.cli import main; main()", *map(str, arguments)],
        env=env, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
def test_a_server_is_recorded(tmp_path, release):
    """Through the release's own plugin loader, in a spawned process; a killed one loses little."""
    end = "killed" if release in KILLED else "ended"
    try:
        env = engine_env(EngineStore().find(release))
    except EngineError as error:
        pytest.skip(str(error))
    scenario = tmp_path / "scenario.json"
    scenario.write_bytes(encode_scenario(STORY))
    logs = tmp_path / "logs"
    result = kvproof(
        "record", "--json", "--out", logs, "--", sys.executable, "-P", SERVER, scenario, end,
        env=env | {"SGLANG_PLUGINS": "another"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    [log] = report["logs"]
    assert [Path(log["path"])] == list(logs.iterdir())
    with Path(log["path"]).open("rb") as lines:
        facts = list(read_log(lines))
    steps = [fact.operation for fact in facts if isinstance(fact, Step)]
    assert [type(operation).__name__ for operation in steps] == [
        "Submit", "Prefill", "Decode", "Finish",
    ]  # fmt: skip
    assert facts[-1] == Ended(steps=4)
    assert log["steps"] == 4
    assert log["bytes"] == Path(log["path"]).stat().st_size


def test_nothing_recorded_is_an_error(tmp_path):
    result = kvproof("record", "--out", tmp_path / "logs", "--", sys.executable, "-c", "pass")
    assert result.returncode == 2
    assert "nothing was recorded" in result.stderr


def test_a_command_that_cannot_start_is_an_error(tmp_path):
    result = kvproof("record", "--out", tmp_path / "logs", "--", tmp_path / "no-such-server")
    assert result.returncode == 2
    assert "cannot be started" in result.stderr


def test_an_old_folder_is_not_written_into(tmp_path):
    result = kvproof("record", "--out", tmp_path, "--", sys.executable, "-c", "pass")
    assert result.returncode == 2
    assert "--out" in result.stderr


def test_a_server_without_a_request_to_record_does_nothing(monkeypatch, tmp_path):
    """No variable, or no scheduler in this process: nothing is imported, nothing is made."""
    monkeypatch.delenv(plugin.FOLDER, raising=False)
    plugin.activate()
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path / "logs"))
    plugin.activate()
    assert "sglang" not in sys.modules
    assert not (tmp_path / "logs").exists()


def test_trouble_at_the_start_is_said_and_swallowed(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", None)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "sglang", None)  # type: ignore[arg-type]
    plugin.activate()
    assert "nothing is recorded" in caplog.text


def test_a_release_that_is_not_followed_is_named(monkeypatch, tmp_path, caplog):
    """A layout whose methods nobody has looked up yet."""
    new = replace(FAMILIES[0], name="0.9.0", marker="sglang/new.py", methods={})
    monkeypatch.setattr("kvproof.kernels.catalogue.FAMILIES", (new, *FAMILIES))
    (tmp_path / new.marker).parent.mkdir(parents=True)
    (tmp_path / new.marker).touch()
    sglang = ModuleType("sglang")
    sglang.__path__ = [str(tmp_path / "sglang")]
    monkeypatch.setenv(plugin.FOLDER, str(tmp_path / "logs"))
    monkeypatch.setitem(sys.modules, "sglang.srt.managers.scheduler", ModuleType("scheduler"))
    monkeypatch.setitem(sys.modules, "sglang", sglang)
    plugin.activate()
    assert "does not follow releases like 0.9.0" in caplog.text
    assert "0.5.12, 0.5.13" in caplog.text
    assert not (tmp_path / "logs").exists()


def test_the_recorder_imports_next_to_nothing(tmp_path):
    """It lives in somebody's server: no torch, no solver, nothing that a server may lack."""
    make_reachable(tmp_path)
    script = (
        "import sys, kvproof.record.hooks, kvproof.record.plugin\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(names - sys.stdlib_module_names))\n"
        "print(*sorted({'.'.join(n.split('.')[:2]) for n in sys.modules if 'kvproof.' in n}))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    others, ours = result.stdout.splitlines()
    assert {"kvproof", "msgspec"} <= {*others.split()}
    assert not {"torch", "numpy", "z3", "hypothesis", "typer", "sglang"} & {*others.split()}
    assert ours.split() == [f"kvproof.{name}" for name in ("kernels", "model", "record", "spec")]


def test_environment(tmp_path):
    inherited = {"PYTHONPATH": "theirs", "HOME": "home"}
    env = environment(inherited, reachable=tmp_path, logs=tmp_path / "logs", level="full")
    assert env["PYTHONPATH"] == f"{tmp_path}{os.pathsep}theirs"
    assert (env[plugin.FOLDER], env[plugin.LEVEL]) == (str(tmp_path / "logs"), "full")
    assert "SGLANG_PLUGINS" not in env  # without the list, all plugins are loaded
    assert env["HOME"] == "home"
    assert inherited == {"PYTHONPATH": "theirs", "HOME": "home"}


@pytest.mark.parametrize("cut", range(3))
def test_seal_gives_a_log_its_last_fact(tmp_path, cut):
    path = tmp_path / "log.jsonl"
    steps = [Step(index=index, operation=Decode()) for index in range(3)]
    whole = b"".join(map(encode_fact, [STARTED, *steps]))
    path.write_bytes(whole + encode_fact(steps[0])[: cut * 7])
    sealed = seal(path)
    assert path.read_bytes() == whole + encode_fact(Ended(steps=3))
    assert (sealed.steps, sealed.bytes) == (3, path.stat().st_size)
    assert seal(path) == sealed


def test_seal_refuses_what_is_no_log(tmp_path):
    path = tmp_path / "log.jsonl"
    for content in (b"", b"no newline", b"not a fact\n"):
        path.write_bytes(content)
        with pytest.raises(BadFileError):
            seal(path)
