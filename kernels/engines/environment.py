"""How a Python process of an engine is started.

Every engine is called ``sglang``, so each needs a process of its own. It runs kvproof's Python,
with the engine and its dependencies put in front of the installed packages by ``PYTHONPATH``: an
``sglang`` or ``transformers`` that happens to be installed beside kvproof must not be what is
tested. The dependencies folder holds nothing that kvproof itself requires (see
``requirements.in``), so there is one version of msgspec, numpy and torch in the process: kvproof's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine

# What could change the code under test must come from kvproof, not from somebody's shell: a run
# is replayed from its scenario alone.
_DROPPED = ("SGLANG_", "TRITON_INTERPRET")

_FIXED = {
    # The attention backend whose caches are under test; see the gate in shims.py.
    "SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton",
    # No network: nothing of a model is needed.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # The same scenario gives the same bytes.
    "PYTHONHASHSEED": "0",
    # Neither the working directory nor the script's folder is imported from.
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def engine_command(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module of kvproof in an engine's process.

    Args:
        module: full name, e.g. ``kvproof.fuzz.worker``.
        arguments: passed on to it.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def engine_env(
    engine: Engine,
    *,
    interpret: bool = True,
    extra: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Environment that a process of the engine is started with.

    Args:
        engine: as found in the store.
        interpret: Triton kernels run in the interpreter, on a CPU.
        extra: set on top, e.g. an engine switch that is under test.
        inherited: what to start from; by default this process's environment.

    Raises:
        EngineError: the engine would hide kvproof from its own process.
    """
    for folder in (engine.root, engine.deps):
        if (folder / "kvproof").exists():
            raise EngineError(
                f"{folder} holds a folder kvproof, which would be imported instead of this one",
                fix="remove it",
            )
    source = os.environ if inherited is None else inherited
    env = {name: value for name, value in source.items() if not name.startswith(_DROPPED)}
    if engine.source == "pypi":
        # The cache is ours to keep byte code in, and an import without it takes twice as long.
        env.pop("PYTHONDONTWRITEBYTECODE", None)
    path = [str(engine.root), str(engine.deps)]
    if env.get("PYTHONPATH"):
        path.append(env["PYTHONPATH"])
    env.update(_FIXED, PYTHONPATH=os.pathsep.join(path))
    # Small tensors: threads cost more than they give, and workers of several engines share a CPU.
    env.setdefault("OMP_NUM_THREADS", "1")
    # An engine has half a gigabyte to find its way in: in huge pages, where glibc and the kernel
    # know of them, its misses cost less (benchmarks/throughput.py: a tenth of the time).
    env.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    env.setdefault("PYTHONMALLOC", "malloc")
    if interpret:
        env["TRITON_INTERPRET"] = "1"
    env.update(extra or {})
    return env
