"""Targets: an installed engine, in one of the constructions that it can reach."""

from __future__ import annotations

import inspect
import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version

from kvproof.fuzz.constructions import (
    BY_FAMILY,
    CONSTRUCTIONS,
    DFLASH,
    EAGLE,
    PYTHON_CORE,
    REGISTRY,
    has_host_pool,
    has_ring,
    no_overlap,
    releases_early,
    slides,
)
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import FunctionEdit, Layering, Options
from kvproof.fuzz.strategies import Sizes
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.releases import RELEASES
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.verdict import Family
from kvproof.model.witness import Witness, required_of

RING = "dsv4-ring"

TRANSLATIONS = ("triton", "dsv4", "dsv4-any", RING)
"""Targets that play forwards: the Triton backend; DeepSeek-V4's resolver; the same with callers who
change a forward after its plan, which no caller of a release does; and its other resolver, which
names ring rows."""

TRANSLATING = frozenset({"0.5.14", "0.5.16", "0.5.23"})
"""Families that have them: those on whose releases their driver was run."""

PAGE_HOLDS_WINDOW = frozenset({"0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22"})
"""Families whose registry's tree goes wrong where a page is smaller than the window.

They give SWA pages back before each insert, with a margin of ``max(W, P)``, and then match what
they inserted: the match can be shorter (theorem P5). The request is left with pages that the tree
owns and nobody locks, and 0.5.20 to 0.5.22 may end in an assertion. Their backend takes no such
pages: it asserts 256 tokens, and the window of the model is 128. With a paged SWA pool smaller
pages are in use, and go wrong only for windows that are neither 0 nor -1 modulo the page.
"""

KEEPS_SWA_PAGES = frozenset({"0.5.14", "0.5.16", "0.5.17"})
"""Families whose DFLASH gives no SWA page back before a request ends (#34924), so that no run sees
that."""

DRAFTS = (1, 1, 3, 2, 4)
"""Tokens that a verify writes; 1 for an engine without speculation."""

OVERLAPS = (0, 1)
"""Without and with overlap scheduling."""


DRIVER = "driver:"
"""``driver:COMMAND`` stands for an engine that brings its own driver."""

OWN = "own"
"""Construction of such an engine."""

_DRIVER = "write e.g. --engine 'driver:python my_driver.py'; see docs/drivers.md"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One engine in one construction; named ``<engine>:<construction>``.

    Attributes:
        has_ring: whether it can have unified_kv's rings, with the gate on or off.
        gives_back: whether running requests give back the SWA pages that their windows have left.
        sizes: geometries that it can be asked to play.
    """

    engine: Engine
    construction: str
    has_ring: bool = True
    gives_back: bool = True
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def name(self) -> str:
        """Name in reports and in the table of expected results."""
        return f"{self.engine.name}:{self.construction}"

    @property
    def asked(self) -> str:
        """What ``--engine`` takes for it."""
        return self.name

    @property
    def family(self) -> Family:
        """What operations the target plays."""
        return "translation" if self.construction in TRANSLATIONS else "cache"

    @property
    def reuses(self) -> bool:
        """Whether there is a tree that keeps prefixes."""
        construction = CONSTRUCTIONS.get(self.construction)
        return construction is None or construction.reuses

    @property
    def witnesses(self) -> tuple[Witness, ...]:
        """What a run on the target must have reached to mean anything, besides the cap."""
        return required_of(
            self.construction,
            has_ring=self.has_ring,
            drafts=max(self.sizes.draft_tokens) > 1,
            has_swa=bool(self.sizes.swa_shares),
            reuses=self.reuses,
            releases_early=releases_early(self.construction),
            overlaps=1 in self.sizes.overlaps,
            overlaps_drafts=any(
                overlap and drafted > 1 for drafted, overlap in self.sizes.drafts_and_overlaps()
            ),
            has_host_pool=has_host_pool(self.construction),
            slides=slides(self.construction),
            gives_back=self.gives_back,
        )

    def process(
        self,
        *,
        rocm_gate: bool = True,
        allocator_twins: bool = True,
        kernels: KernelBackend = "interpreter",
        layering: Layering | None = None,
        held_back: int | None = None,
        mutants: tuple[FunctionEdit, ...] = (),
    ) -> EngineProcess:
        """The target's process, not yet started.

        Args:
            rocm_gate: see `Options`, as for the others.
            allocator_twins: pages by the kernels' rule in Python.
            kernels: where the real kernels run.
            layering: layers to run on them.
            held_back: tokens that its cap is to hold back, instead of what the release says.
            mutants: edits of its code that a play may ask for.

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
                rocm_gate=rocm_gate and (has_ring(self.construction) or self.construction == RING),
                allocator_twins=allocator_twins,
                kernels=kernels,
                layering=layering,
                held_back=held_back,
                mutants=mutants,
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverTarget(Target):
    """An engine that brings its own driver.

    Attributes:
        command: starts the driver, which speaks the protocol of `fuzz.drivers.wire`.
    """

    command: tuple[str, ...]

    @classmethod
    def of_command(cls, text: str) -> DriverTarget:
        """The target of a command line; it is named after the program's file.

        Raises:
            EngineError: there is no such program, or none is named.
        """
        try:
            command = tuple(shlex.split(text))
        except ValueError as error:
            raise EngineError(f"{text!r} is no command line: {error}", fix=_DRIVER) from error
        if not command:
            raise EngineError(f"`{DRIVER}` names no command", fix=_DRIVER)
        if shutil.which(command[0]) is None:
            raise EngineError(f"there is no program {command[0]!r}", fix=_DRIVER)
        files = [Path(word) for word in command if Path(word).is_file()]
        program = (files[-1] if files else Path(command[0])).absolute()
        folder = program.parent
        engine = Engine(
            name=program.stem, version="unknown", source="driver", root=folder, deps=folder
        )
        return cls(engine=engine, construction=OWN, command=command)

    @property
    def asked(self) -> str:
        """What ``--engine`` takes for it."""
        return DRIVER + shlex.join(self.command)

    def process(self, *, kernels: KernelBackend = "interpreter", **options: Any) -> EngineProcess:
        """The driver's process, not yet started. It is its own to say how it plays.

        Raises:
            EngineError: another way was asked for than its own.
        """
        known = inspect.signature(Target.process).parameters
        changed = [name for name, value in options.items() if value != known[name].default]
        if changed:
            raise EngineError(
                f"{self.name} has a driver of its own, which {', '.join(changed)} does not reach",
                fix="leave the option out, or give it to the driver in its command line",
            )
        return EngineProcess(
            name=self.engine.name, command=self.command, env=dict(os.environ), backend=kernels
        )


def targets_of(engine: Engine) -> tuple[Target, ...]:
    """All constructions of an engine."""
    family = family_of(engine.root)
    return tuple(
        Target(
            engine=engine,
            construction=name,
            has_ring=family.has_ring and (name in TRANSLATIONS or has_ring(name)),
            gives_back=not (name == DFLASH and family.name in KEEPS_SWA_PAGES),
            sizes=_sizes(family.name, name),
        )
        for name in _constructions(family.name)
    )


def _constructions(family: str) -> tuple[str, ...]:
    return (*BY_FAMILY[family], *(TRANSLATIONS if family in TRANSLATING else ()))


@cache
def released_targets() -> tuple[str, ...]:
    """Names of all constructions of every supported release, installed or not.

    A family is named after the oldest release that has it.
    """
    families = sorted((Version(family) for family in BY_FAMILY), reverse=True)
    return tuple(
        f"sglang-{release}:{construction}"
        for release in RELEASES
        for construction in _constructions(
            str(next(family for family in families if family <= Version(release)))
        )
    )


def _sizes(family: str, name: str) -> Sizes:
    construction = CONSTRUCTIONS.get(name)
    reason = (
        "a forward is planned and run in one operation"
        if construction is None
        else no_overlap(family, name)
    )
    overlaps = (0,) if reason else OVERLAPS
    if construction is not None and not construction.slides:
        # Each query sees all before it: a window would only make the bound of USEFUL looser.
        return Sizes(
            windows=(1,), overlaps=overlaps, no_overlap=reason, host_pool=construction.has_host_pool
        )
    if construction is not None and construction.paged:
        broken = family in PAGE_HOLDS_WINDOW and not construction.tree and construction.reuses
        return Sizes(
            # What comes from the host needs room besides, twice in some releases.
            swa_shares=(1, 2) if construction.has_host_pool else (1, 2, 4),
            windows_in_pages=broken,
            draft_tokens=(1,) if construction.drafter == EAGLE else (3, 2, 4),
            overlaps=overlaps,
            no_overlap=reason,
            host_pool=construction.has_host_pool,
            reuses=construction.reuses,
        )
    # The tree of the older releases asserts no such thing.
    unified = name in {REGISTRY, PYTHON_CORE}
    return Sizes(
        draft_tokens=DRAFTS,
        page_holds_window=family in PAGE_HOLDS_WINDOW and unified,
        overlaps=overlaps,
        no_overlap=reason,
        reuses=construction is None or construction.reuses,
    )


EVERY = "all"
"""Stands for every construction of an engine."""


def find_targets(
    names: Sequence[str], store: EngineStore, *, family: Family = "cache"
) -> tuple[Target, ...]:
    """Targets by name.

    ``0.5.16:registry`` is one; ``0.5.16`` stands for the engine's constructions but those that are
    variants of another; ``0.5.16:all`` for all; ``driver:COMMAND`` for an engine with a driver of
    its own. No names stand for every installed engine.

    Raises:
        EngineError: nothing is installed, or a name is of no engine or construction.
    """
    if not names:
        names = [engine.name for engine in store.list() if engine.problem is None]
        if not names:
            raise EngineError(
                "no engine is installed", fix="run: kvproof engine add sglang==0.5.15"
            )
    found: list[Target] = []
    for name in names:
        if name.startswith(DRIVER):
            found.append(DriverTarget.of_command(name.removeprefix(DRIVER)))
            continue
        engine_name, _, construction = name.partition(":")
        if construction == OWN:
            raise EngineError(
                f"{name} brings its own driver, which is not in the store", fix=_DRIVER
            )
        targets = targets_of(store.find(engine_name))
        chosen = [t for t in targets if _is_meant(t, construction, family)]
        if not chosen:
            raise EngineError(
                f"{engine_name} has no construction {construction!r}",
                fix=f"choose one of {', '.join(t.name for t in targets)}",
            )
        found += chosen
    return tuple(dict.fromkeys(found))


def _is_meant(target: Target, construction: str, family: Family) -> bool:
    if construction not in {"", EVERY}:
        return target.construction == construction
    known = CONSTRUCTIONS.get(target.construction)
    by_name = known is not None and known.by_name
    return target.family == family and (construction == EVERY or not by_name)
