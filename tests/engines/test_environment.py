from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.kernels.engines import environment
from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.errors import EngineError

from .conftest import Workshop


def test_process_imports_this_engine_its_dependencies_and_this_kvproof(workshop: Workshop) -> None:
    for version in ("1.0", "2.0"):
        engine = workshop.store.add(version)
        code = (
            "import sglang, tinydep, kvproof.kernels.engines.environment as environment\n"
            "print(sglang.__version__, tinydep.VALUE, environment.__file__, sep='\\n')"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env=engine_env(engine), capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines() == [version, "1", environment.__file__]


def test_nothing_of_the_shell_reaches_the_engine(workshop: Workshop) -> None:
    engine = workshop.store.add("1.0")
    inherited = {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": "mine", "PATH": "kept"}
    env = engine_env(engine, inherited=inherited, extra={"SGLANG_UNDER_TEST": "1"})
    assert "SGLANG_USE_CPU_ENGINE" not in env
    assert env["SGLANG_UNDER_TEST"] == "1"
    assert env["SGLANG_HACK_FLASHMLA_BACKEND"] == "unified_kv_triton"
    assert env["PATH"] == "kept"
    assert env["PYTHONPATH"].split(os.pathsep) == [str(engine.root), str(engine.deps), "mine"]
    assert env["TRITON_INTERPRET"] == env["HF_HUB_OFFLINE"] == "1"


def test_interpreter_can_be_left_off(workshop: Workshop) -> None:
    env = engine_env(
        workshop.store.add("1.0"), interpret=False, inherited={"TRITON_INTERPRET": "1"}
    )
    assert "TRITON_INTERPRET" not in env


def test_checkout_that_would_hide_kvproof_is_refused(workshop: Workshop, checkout: Path) -> None:
    engine = workshop.store.add_path(checkout)
    (checkout / "kvproof").mkdir()
    with pytest.raises(EngineError, match="holds a folder kvproof"):
        engine_env(engine)


def test_command_does_not_import_from_the_working_directory() -> None:
    assert engine_command("some.module", "1") == [sys.executable, "-P", "-m", "some.module", "1"]
