"""A release's own write resolver on one store: what T2 to T4 are played on.

``python -m kvproof.proofs.resolver`` runs in an engine's process (`kernels.engines.environment`):
one `Store` as JSON a line in, the locations that the release's ``get_swa_out_cache_loc`` gives a
line out. The resolver and the pool's translation are the release's own methods; the objects around
them hold only what those methods read.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from types import MethodType, SimpleNamespace
from typing import IO, Any

import msgspec

from kvproof.kernels.engines.environment import engine_command, engine_env
from kvproof.kernels.engines.store import Engine

_BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend_hip_radix"


class Store(msgspec.Struct, frozen=True, kw_only=True):
    """A forward that was planned and then stores.

    Attributes:
        planned_locs: ``out_cache_loc`` when the forward was planned; empty without a plan.
        planned_map: full-to-SWA map then, an entry a location.
        locs: ``out_cache_loc`` at the store.
        map: the map at the store.
        idle: the forward is idle.
    """

    planned_locs: tuple[int, ...]
    planned_map: tuple[int, ...]
    locs: tuple[int, ...]
    map: tuple[int, ...]
    idle: bool = False

    @property
    def due(self) -> tuple[int, ...]:
        """CURRENT: what the resolver has to give."""
        return tuple(self.map[loc] for loc in self.locs)


class ResolverProcess:
    """The resolver of one engine, in a process of its own."""

    def __init__(self, engine: Engine) -> None:
        self._process = subprocess.Popen(
            engine_command(__name__),
            env=engine_env(engine),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def resolve(self, store: Store) -> tuple[int, ...] | str:
        """Locations for a store, or why the release gave none."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(store) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return "the engine's process ended"
        line = self._process.stdout.readline()
        if not line:
            return "the engine's process ended"
        return msgspec.json.decode(line, type=tuple[int, ...] | str)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def resolve(store: Store) -> tuple[int, ...]:
    """What this process's engine gives."""
    import torch  # noqa: PLC0415  # the shims come before it

    backend: Any = importlib.import_module(_BACKEND)
    pool = SimpleNamespace(
        full_to_swa_index_mapping=torch.tensor(store.planned_map), request_window=None
    )
    pool.translate_loc_from_full_to_swa = MethodType(
        backend.DeepSeekV4TokenToKVPool.translate_loc_from_full_to_swa, pool
    )
    planned = None
    if store.planned_locs:
        locs = torch.tensor(store.planned_locs)
        planned = pool.translate_loc_from_full_to_swa(locs).to(torch.int32)
    holder = SimpleNamespace(
        token_to_kv_pool=pool,
        forward_metadata=SimpleNamespace(
            core_attn_metadata=SimpleNamespace(swa_out_cache_loc=planned)
        ),
    )
    pool.full_to_swa_index_mapping = torch.tensor(store.map)
    mode = backend.ForwardMode.IDLE if store.idle else backend.ForwardMode.DECODE
    forward = SimpleNamespace(forward_mode=mode, out_cache_loc=torch.tensor(store.locs))
    found = backend.DeepseekV4HipRadixBackend.get_swa_out_cache_loc(holder, forward)
    return tuple(found.tolist())


def _serve(lines: IO[bytes], out: IO[bytes]) -> None:
    for line in lines:
        try:
            answer: tuple[int, ...] | str = resolve(msgspec.json.decode(line, type=Store))
        except Exception as error:  # whatever the engine raises is an observation
            answer = f"{type(error).__name__}: {error}"
        out.write(msgspec.json.encode(answer) + b"\n")
        out.flush()


if __name__ == "__main__":
    from kvproof.kernels.engines import shims

    # The engine prints; what it prints must not end up between the answers.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        shims.install(rocm_gate=True)
        _serve(sys.stdin.buffer, wire)
