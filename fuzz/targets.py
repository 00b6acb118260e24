"""Targets: an installed engine, in one of the constructions that it can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Options
from kvproof.fuzz.strategies import Sizes
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.verdict import Family

REGISTRY = "registry"
"""The construction that the release's own registry and configuration code choose."""

SWA_TREE = "SWARadixCache"
"""The tree that the registry no longer takes; the fix of PR #30339 is in it (theorem C5)."""

RING = "dsv4-ring"

TRANSLATIONS = ("triton", "dsv4", "dsv4-any", RING)
"""Targets that play forwards: the Triton backend; DeepSeek-V4's resolver; the same with callers who
change a forward after its plan, which no caller of a release does; and its other resolver, which
names ring rows."""

TRANSLATING = frozenset({"0.5.14", "0.5.16", "0.5.23"})
"""Families that have them: those on whose releases their driver was run."""

CONSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "0.5.12": (REGISTRY,),
    "0.5.13": (REGISTRY,),
    "0.5.14": (REGISTRY,),
    "0.5.16": (REGISTRY, SWA_TREE),
    "0.5.17": (REGISTRY, SWA_TREE),
    "0.5.18": (REGISTRY, SWA_TREE),
    "0.5.19": (REGISTRY, SWA_TREE),
    "0.5.20": (REGISTRY, SWA_TREE),
    "0.5.21": (REGISTRY,),
    "0.5.22": (REGISTRY,),
    "0.5.23": (REGISTRY,),
}
"""Constructions by release family."""


PAGE_HOLDS_WINDOW = frozenset({"0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22"})
"""Families whose registry's tree goes wrong where a page is smaller than the window.

They give SWA pages back before each insert, with a margin of ``max(W, P)``, and then match what
they inserted: the match can be shorter (theorem P5). The request is left with pages that the tree
owns and nobody locks, and 0.5.20 to 0.5.22 may end in an assertion. Their backend takes no such
pages: it asserts 256 tokens, and the window of the model is 128.
"""


WITHOUT_OVERLAP = frozenset({"0.5.12"})
"""Families whose results the drivers cannot take later: 0.5.12 has it in the scheduler itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One engine in one construction; named ``<engine>:<construction>``.

    Attributes:
        has_ring: whether the release has unified_kv, with the gate on or off.
        sizes: geometries that it can be asked to play.
    """

    engine: Engine
    construction: str
    has_ring: bool = True
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def name(self) -> str:
        """Name in reports and in the table of expected results."""
        return f"{self.engine.name}:{self.construction}"

    @property
    def overlaps(self) -> bool:
        """Whether it is asked to play overlap scheduling."""
        return self.family == "cache" and 1 in self.sizes.overlaps

    @property
    def family(self) -> Family:
        """What operations the target plays."""
        return "translation" if self.construction in TRANSLATIONS else "cache"

    def process(
        self,
        *,
        rocm_gate: bool = True,
        allocator_twins: bool = True,
        kernels: KernelBackend = "interpreter",
    ) -> EngineProcess:
        """The target's process, not yet started.

        Raises:
            EngineError: the target's kernels cannot run there.
        """
        if self.family == "translation" and kernels != "interpreter":
            raise EngineError(
                f"{self.name} runs its kernels in the interpreter alone, not on {kernels}",
                fix="leave the backend out",
            )
        return EngineProcess.of_engine(
            self.engine,
            Options(
                construction=self.construction,
                # With the gate on the SWA pool is a ring, and there is nothing to translate.
                rocm_gate=rocm_gate and (self.family == "cache" or self.construction == RING),
                allocator_twins=allocator_twins,
                kernels=kernels,
            ),
        )


def targets_of(engine: Engine) -> tuple[Target, ...]:
    """All constructions of an engine."""
    family = family_of(engine.root)
    return tuple(
        Target(
            engine=engine,
            construction=construction,
            has_ring=family.has_ring,
            # The tree of the older releases asserts no such thing.
            sizes=Sizes(
                page_holds_window=family.name in PAGE_HOLDS_WINDOW and construction == REGISTRY,
                overlaps=(0,) if family.name in WITHOUT_OVERLAP else Sizes().overlaps,
            ),
        )
        for construction in (
            *CONSTRUCTIONS[family.name],
            *(TRANSLATIONS if family.name in TRANSLATING else ()),
        )
    )


def find_targets(
    names: Sequence[str], store: EngineStore, *, family: Family = "cache"
) -> tuple[Target, ...]:
    """Targets by name: ``0.5.16`` for the family's constructions, ``0.5.16:registry`` for one.

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
        return tuple(
            target for engine in usable for target in targets_of(engine) if target.family == family
        )
    found: list[Target] = []
    for name in names:
        engine_name, _, construction = name.partition(":")
        targets = targets_of(store.find(engine_name))
        chosen = [
            t
            for t in targets
            if t.construction == construction or (not construction and t.family == family)
        ]
        if not chosen:
            raise EngineError(
                f"{engine_name} has no construction {construction!r}",
                fix=f"choose one of {', '.join(t.name for t in targets)}",
            )
        found += chosen
    return tuple(dict.fromkeys(found))
