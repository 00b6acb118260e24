"""What goes over the pipes between an engine's process and its parent.

Down, one JSON line a `Play`. Up, one JSON line a record: first `Ready` or `Unusable`, then for
each scenario its facts, the last of them `Ended` or `EngineError`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.engines.probe_process import ShimNote
from kvproof.model.layers import Reading
from kvproof.model.scenario import Scenario

Backend: TypeAlias = Literal["none", "rules"] | KernelBackend
"""Who names the ring rows: nobody, the specification's arithmetic, the real kernels there."""


class Layering(msgspec.Struct, frozen=True, kw_only=True):
    """A stack of layers to run on the real kernels.

    Attributes:
        ratios: one a layer, 0 for a layer without compressed rows; see `model.layers.Stack`.
        heads: query heads.
        dim: width of a key; at least 32 where a decode's keys are split.
        seed: of the weights.
        reading: what a prefill does about a reused prefix; no release does but ``cap``.
        compared: how the names of requests begin that are compared with a cold run; empty for all.
    """

    ratios: tuple[int, ...]
    heads: int = 2
    dim: int = 32
    seed: int = 0
    reading: Reading = "cap"
    compared: str = ""


class FunctionEdit(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant of an engine: one place of one of its functions replaced, in memory.

    The text is a key to a place in the release's own source, which stays where it is installed.

    Attributes:
        name: a few words; every log of the mutated engine names it.
        place: ``module:function`` or ``module:Class.method``, as `pkgutil.resolve_name` takes it.
        text: what is replaced; occurs once in the function's body.
        by: what stands there instead.
    """

    name: str
    place: str
    text: str
    by: str


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an engine's process plays scenarios.

    Attributes:
        construction: how the radix cache is built; ``registry`` is the release's own way.
        rocm_gate: unified_kv on; off is the negative control.
        allocator_twins: page allocation by the kernels' rule in Python, not by the kernels.
        kernels: where the real kernels run; a process has one such place.
        rows_short: rows that each ring has less than the release gives it: a seeded fault.
        pages_rolled: pages by which what a host pool gives back is rolled: a seeded fault.
        held_back: what the tree's own `swa_reprefill_tail_tokens` is made to return: another
            policy through the release's own cap; None to leave it alone.
        draft_worker: play the launches of the draft model in its own ring instead of the target's.
        layering: layers to run behind the ring; None for the rows of a single one alone.
        mutants: edits of the engine's code that a play may ask for; see `Play.mutant`.
    """

    construction: str = "registry"
    rocm_gate: bool = True
    allocator_twins: bool = True
    kernels: KernelBackend = "interpreter"
    rows_short: int = 0
    pages_rolled: int = 0
    held_back: int | None = None
    draft_worker: bool = False
    layering: Layering | None = None
    mutants: tuple[FunctionEdit, ...] = ()


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario to play on a fresh engine.

    Attributes:
        backend: who names its ring rows.
        snapshots: whether pools and tree are part of the log; with large ones they are most of it.
        mutant: name of the process's mutant that is in place while this is played; empty for the
            release as it is.
    """

    scenario: Scenario
    backend: Backend
    snapshots: bool = True
    mutant: str = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine is imported.

    Attributes:
        family: layout that the engine has.
        version: the engine's own.
        shims: what is not real in this process.
        stubs: third-party modules that are stubs.
    """

    family: str
    version: str
    shims: tuple[ShimNote, ...]
    stubs: tuple[str, ...]


class Unusable(msgspec.Struct, frozen=True, kw_only=True, tag="unusable"):
    """The engine cannot be imported, or has not what the options ask for."""

    cause: str
    fix: str


Greeting: TypeAlias = Ready | Unusable

play_decoder = msgspec.json.Decoder(Play)

greeting_decoder = msgspec.json.Decoder(Greeting)
