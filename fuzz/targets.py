"""Targets: an installed engine, in one of the constructions that it can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore

REGISTRY = "registry"
"""The construction that the release's own registry and configuration code choose."""

CONSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "0.5.15": (REGISTRY,),
    # The fix of PR #30339 is in a class that this release's registry no longer takes (C5).
    "0.5.16": (REGISTRY, "SWARadixCache"),
    "0.5.23": (REGISTRY,),
}
"""Constructions by release family."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One engine in one construction; named ``<engine>:<construction>``."""

    engine: Engine
    construction: str

    @property
    def name(self) -> str:
        """Name in reports and in the table of expected results."""
        return f"{self.engine.name}:{self.construction}"

    def process(
        self,
        *,
        rocm_gate: bool = True,
        allocator_twins: bool = True,
        kernels: KernelBackend = "interpreter",
    ) -> EngineProcess:
        """The target's process, not yet started."""
        return EngineProcess.of_engine(
            self.engine,
            Options(
                construction=self.construction,
                rocm_gate=rocm_gate,
                allocator_twins=allocator_twins,
                kernels=kernels,
            ),
        )


def targets_of(engine: Engine) -> tuple[Target, ...]:
    """All constructions of an engine."""
    return tuple(
        Target(engine=engine, construction=construction)
        for construction in CONSTRUCTIONS[family_of(engine.root).name]
    )


def find_targets(names: Sequence[str], store: EngineStore) -> tuple[Target, ...]:
    """Targets by name: ``0.5.16`` for all its constructions, ``0.5.16:registry`` for one.

    No names stand for every installed engine.

    Raises:
        EngineError: nothing is installed, or a name is of no engine or construction.
    """
    if not names:
        usable = [engine for engine in store.list() if engine.problem is None]
        if not usable:
            raise EngineError(
                "no engine is installed", fix="run: kvproof engine add sglang==0.5.15"
            )
        return tuple(target for engine in usable for target in targets_of(engine))
    found: list[Target] = []
    for name in names:
        engine_name, _, construction = name.partition(":")
        targets = targets_of(store.find(engine_name))
        chosen = [t for t in targets if construction in ("", t.construction)]
        if not chosen:
            raise EngineError(
                f"{engine_name} has no construction {construction!r}",
                fix=f"choose one of {', '.join(t.name for t in targets)}",
            )
        found += chosen
    return tuple(dict.fromkeys(found))
