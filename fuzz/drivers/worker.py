"""The engine's own process: reads scenarios, plays them, streams facts.

``python -m kvproof.fuzz.drivers.worker OPTIONS`` with OPTIONS as JSON (`wire.Options`), started by
`process.EngineProcess` with the environment of one engine.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import IO, Any, Protocol

import msgspec
from msgspec.structs import replace

from kvproof.fuzz.constructions import BY_FAMILY, has_host_pool, has_ring, no_overlap
from kvproof.fuzz.drivers import mutants
from kvproof.fuzz.drivers.wire import (
    Backend,
    FunctionEdit,
    Layering,
    Options,
    Play,
    Ready,
    Unusable,
    play_decoder,
)
from kvproof.kernels import backends
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.engines import import_stubs, shims
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.kernels.engines.probe_process import ShimNote
from kvproof.kernels.family import Family
from kvproof.kernels.guarantees import Breach, watch
from kvproof.model.facts import Breached, EngineError, Fact, Started, encode_fact
from kvproof.model.forward import RuleForward
from kvproof.model.forward_player import ForwardPlayer
from kvproof.model.overlap import OverlapPlayer
from kvproof.model.player import Forward, Player, RefusedError
from kvproof.model.scenario import Geometry, Operation, Scenario


class Plays(Protocol):
    """What gives the facts of a scenario: the player of a family of operations."""

    def play(self, scenario: Scenario) -> Iterator[Fact]:
        """Yield the facts as they happen."""


Build = Callable[[Play], Plays]

_ADAPTERS = {
    "0.5.12": "sglang_0_5_12",
    "0.5.13": "sglang_0_5_13",
    "0.5.14": "sglang_0_5_13",
    "0.5.16": "sglang_0_5_16",
    "0.5.17": "sglang_0_5_16",
    "0.5.18": "sglang_0_5_16",
    "0.5.19": "sglang_0_5_19",
    "0.5.20": "sglang_0_5_20",
    "0.5.21": "sglang_0_5_21",
    "0.5.22": "sglang_0_5_22",
    "0.5.23": "sglang_0_5_22",
}
"""Module of this package with the adapter, by family."""

_TRANSLATIONS = {
    "triton": "translation_triton",
    "dsv4": "translation_dsv4",
    "dsv4-any": "translation_dsv4",
    "dsv4-ring": "translation_ring",
}
"""The same by construction; these find out themselves what the release has."""

_MESSAGE_CHARS = 300


_broken: list[Breach] = []
"""What launches broke of what the kernel proofs assume, since the last fact."""


def serve(lines: Iterable[bytes], wire: IO[bytes], build: Build) -> None:
    """Play one scenario a line; an engine that raises ends its scenario, not the process."""
    for line in lines:
        play(play_decoder.decode(line), wire, build)


@dataclass
class _NoOverlap(Player):
    """Refuses every operation of a scenario that overlaps, where nothing plays it."""

    reason: str = ""

    def _play(self, operation: Operation) -> Iterator[Fact]:
        raise RefusedError(self.reason)


def play(order: Play, wire: IO[bytes], build: Build) -> None:
    """Play one scenario on a fresh engine; each fact is out before the engine goes on."""
    _broken.clear()
    try:
        for fact in build(order).play(order.scenario):
            _tell(wire, fact)
    except Exception as error:  # whatever the engine raises is an observation, not our failure
        traceback.print_exc(file=sys.stderr)
        _tell(wire, EngineError(cause="raised", message=describe(error)))


def _tell(wire: IO[bytes], fact: Fact) -> None:
    """Write a fact, before it what the launches behind it broke: a log begins and ends as ever."""
    if not isinstance(fact, Started):
        for breach in _broken:
            broken = Breached(
                assumption=breach.assumption, kernel=breach.kernel, message=breach.message
            )
            wire.write(encode_fact(broken))
        _broken.clear()
    wire.write(encode_fact(fact))
    wire.flush()


def describe(error: BaseException) -> str:
    """Exception type, message and the innermost line outside this package, without folders."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = PurePath(frame.filename).as_posix()
        _, in_engine, tail = path.rpartition("/sglang/")
        if in_engine:
            place = f" at sglang/{tail}:{frame.lineno} in {frame.name}"
    text = " ".join(str(error).split())
    if len(text) > _MESSAGE_CHARS:
        text = text[:_MESSAGE_CHARS] + "..."
    return f"{type(error).__name__}: {text}{place}"


def load(options: Options) -> tuple[Ready, Build]:
    """Import the engine of this process.

    Raises:
        SetupError: the engine has not what the options ask for.
        Exception: whatever the engine's import raises.
    """
    reason = backends.missing(options.kernels)
    if reason is not None:
        raise SetupError(
            f"no kernels can run on {options.kernels}: {reason}",
            fix="use --backend interpreter, or a machine with such a GPU",
        )
    rings = options.rocm_gate and (
        options.construction in _TRANSLATIONS or has_ring(options.construction)
    )
    notes = shims.install(
        rocm_gate=rings,
        allocator_twins=options.allocator_twins,
        host_pool=has_host_pool(options.construction),
        interpret=options.kernels == "interpreter",
        scheduler=True,
    )
    if options.kernels == "interpreter":
        watch(_broken)
    family = shims.engine_family()
    if options.construction in _TRANSLATIONS:
        return _ready(family, notes), _forward_builder(options.construction)
    adapter = importlib.import_module(f"{__package__}.{_ADAPTERS[family.name]}").Engine
    offered = BY_FAMILY[family.name]
    if options.construction not in offered:
        raise SetupError(
            f"this engine has no construction {options.construction!r}",
            fix=f"choose one of {', '.join(offered)}",
        )
    # The scheduler runs without autograd.
    importlib.import_module("torch").set_grad_enabled(False)
    named = family.has_ring and rings
    if options.layering is not None:
        if not named:
            raise SetupError(
                "this engine has no ring, so there are no layers to run over it",
                fix="choose a release with unified_kv, with the ROCm gate on",
            )
        return _ready(family, notes), _layered_builder(family, options, adapter, options.layering)
    if has_host_pool(options.construction):
        return _ready(family, notes), _host_builder(family, options, adapter)
    forwards = _forwards(family, options.kernels) if named else {"none": lambda _engine: None}
    labels: dict[Backend, str] = {options.kernels: backends.label(options.kernels)}
    if options.draft_worker:
        if not named:
            raise SetupError(
                "this engine has no ring, so its draft worker has none",
                fix="choose a release with unified_kv, with the ROCm gate on",
            )
        forwards = _draft_forwards(family, options.kernels)
        labels = {backend: f"{label}, draft worker" for backend, label in labels.items()}

    def build(order: Play) -> Player:
        # Without a ring there are no rows that could be named.
        backend = order.backend if named else "none"
        geometry = order.scenario.geometry
        reason = no_overlap(family.name, options.construction) if geometry.overlap else ""
        overlaps = bool(geometry.overlap) and not reason
        engine = (_overlapping(adapter) if overlaps else adapter)(
            geometry=geometry,
            construction=options.construction,
            backend=labels.get(backend, backend),
            rows_short=options.rows_short,
            held_back=options.held_back,
        )
        if reason:
            return _NoOverlap(engine=engine, forward=None, reason=reason)
        player = OverlapPlayer if overlaps else Player
        return player(engine=engine, forward=forwards[backend](engine), snapshots=order.snapshots)

    return _ready(family, notes), build


class _MutatedPlays:
    """A player of an engine that is edited for as long as it plays, and whose logs say so."""

    def __init__(self, build: Build, order: Play, mutant: mutants.Prepared) -> None:
        self._build = build
        self._order = order
        self._mutant = mutant

    def play(self, scenario: Scenario) -> Iterator[Fact]:
        """Yield the facts as they happen; the first names the mutant with the target."""
        with self._mutant.applied():
            for fact in self._build(self._order).play(scenario):
                if isinstance(fact, Started):
                    yield replace(fact, target=f"{fact.target}, mutant {self._order.mutant!r}")
                else:
                    yield fact


def with_mutants(build: Build, edits: Iterable[FunctionEdit]) -> Build:
    """Have a play edit the engine where it asks for it.

    Raises:
        SetupError: the engine has not what an edit changes.
    """
    prepared = {edit.name: mutants.prepare(edit) for edit in edits}

    def build_mutated(order: Play) -> Plays:
        if not order.mutant:
            return build(order)
        return _MutatedPlays(build, order, prepared[order.mutant])

    return build_mutated


@cache
def _overlapping(adapter: Any) -> Any:
    """Imported when it is asked for: 0.5.12 has not what it needs."""
    return importlib.import_module(f"{__package__}.overlap").overlapping(adapter)


def _ready(family: Family, notes: Iterable[shims.Shim]) -> Ready:
    return Ready(
        family=family.name,
        version=importlib.import_module("sglang").__version__,
        shims=tuple(
            ShimNote(name=shim.name, replaces=shim.replaces, reason=shim.reason) for shim in notes
        ),
        stubs=tuple(import_stubs.stubbed_modules()),
    )


def _forward_builder(construction: str) -> Build:
    """What makes the player of operations on forwards."""
    importlib.import_module("torch").set_grad_enabled(False)
    adapter = importlib.import_module(f"{__package__}.{_TRANSLATIONS[construction]}").Engine

    def build(order: Play) -> ForwardPlayer:
        geometry = order.scenario.geometry
        # The index kernels run in the interpreter whatever the order says: there is no other way.
        engine = adapter(geometry=geometry, construction=construction, backend="interpreter")
        return ForwardPlayer(engine, geometry)

    return build


def _host_builder(family: Family, options: Options, adapter: Any) -> Build:
    """What makes the player of a cache with host pools, whose rows are marked."""
    from kvproof.fuzz.drivers.hicache import HostPlayer, Marking, hierarchical

    with_hosts: Any = hierarchical(adapter)

    def build(order: Play) -> Player:
        engine = with_hosts(
            geometry=order.scenario.geometry,
            construction=options.construction,
            backend="none",
            held_back=options.held_back,
            pages_rolled=options.pages_rolled,
        )
        if order.scenario.geometry.overlap:
            reason = no_overlap(family.name, options.construction)
            return _NoOverlap(engine=engine, forward=None, reason=reason)
        return HostPlayer(engine=engine, forward=Marking(engine), snapshots=order.snapshots)

    return build


def _layered_builder(family: Family, options: Options, adapter: Any, layering: Layering) -> Build:
    """What makes the player that runs a stack of layers, on the real kernels or by the rules."""
    from kvproof.fuzz.drivers.forward import KernelForward
    from kvproof.fuzz.drivers.layered import LayeredForward, LayeredPlayer
    from kvproof.kernels.exact_model import ExactModel
    from kvproof.kernels.launch import Ring
    from kvproof.kernels.layer import LayerKernels, LayerLaunches, LayerRules

    kernels = LayerKernels.of_family(family)
    rules = LayerRules(verify_order=family.verify_order)
    model = ExactModel.seeded(
        layering.seed, layers=len(layering.ratios), heads=layering.heads, dim=layering.dim,
        device=backends.device(options.kernels),
    )  # fmt: skip
    label = backends.label(options.kernels)

    def by_kernels(ring: Ring) -> Forward:
        return KernelForward(kernels=kernels.ring, ring=ring)

    def by_rules(ring: Ring) -> Forward:
        return RuleForward(window=ring.window, stride=ring.stride, verify_order=family.verify_order)

    def build(order: Play) -> LayeredPlayer:
        launches: LayerLaunches = rules if order.backend == "rules" else kernels
        follow = by_rules if order.backend == "rules" else by_kernels

        def make(geometry: Geometry, *, alone: bool) -> tuple[Any, LayeredForward]:
            engine = adapter(
                geometry=geometry,
                construction=options.construction,
                backend="rules" if order.backend == "rules" else label,
                rows_short=0 if alone else options.rows_short,
                held_back=None if alone else options.held_back,
            )
            return engine, LayeredForward(
                engine=engine, launches=launches, follow=follow, model=model,
                ratios=layering.ratios, reading="cap" if alone else layering.reading,
            )  # fmt: skip

        return LayeredPlayer(make=make, ratios=layering.ratios, compared=layering.compared)

    return build


def _forwards(
    family: Family, place: KernelBackend
) -> dict[Backend, Callable[[Any], Forward | None]]:
    """What makes the forward of a fresh engine, by backend."""
    from kvproof.fuzz.drivers.forward import KernelForward
    from kvproof.kernels.launch import Ring, RingKernels

    kernels = RingKernels.of_family(family)
    return {
        "none": lambda _engine: None,
        "rules": lambda engine: RuleForward(
            window=engine.kv_pool.unified_swa_window,
            stride=engine.kv_pool.unified_swa_ring_size,
            verify_order=family.verify_order,
        ),
        # Pools, tree and allocator stay on the CPU; the ring goes where the kernels are.
        place: lambda engine: KernelForward(
            kernels=kernels, ring=Ring.of_pool(engine.kv_pool).on(backends.device(place))
        ),
    }


def _draft_forwards(
    family: Family, place: KernelBackend
) -> dict[Backend, Callable[[Any], Forward | None]]:
    """What makes the forward of a fresh engine's draft worker: by the kernels alone."""
    from kvproof.fuzz.drivers.draft_worker import DraftForward
    from kvproof.kernels.launch import Ring, RingKernels

    kernels = RingKernels.of_family(family)
    return {
        "none": lambda _engine: None,
        # The target's launches are not played, so its pool stands for the draft worker's: the
        # same class, by the same numbers.
        place: lambda engine: DraftForward(
            kernels=kernels,
            ring=Ring.of_pool(engine.kv_pool).on(backends.device(place)),
            draft_tokens=engine.geometry.draft_tokens,
        ),
    }


@contextmanager
def open_wire() -> Iterator[IO[bytes]]:
    """Where facts go: stdout as it was. What an engine prints must not end up between them."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield wire


def main(arguments: list[str]) -> None:
    """Serve scenarios from stdin until it is closed."""
    options = msgspec.json.decode(arguments[0], type=Options)
    with open_wire() as wire:
        try:
            ready, build = load(options)
            build = with_mutants(build, options.mutants)
        except SetupError as error:
            wire.write(msgspec.json.encode(Unusable(cause=error.cause, fix=error.fix)) + b"\n")
            return
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            wire.write(
                msgspec.json.encode(
                    Unusable(
                        cause=f"the engine cannot be imported: {describe(error)}",
                        fix="run `kvproof engine doctor` for what it lacks",
                    )
                )
                + b"\n"
            )
            return
        # What an engine's import leaves stays for ever: a collection need not look at all of it.
        gc.freeze()
        wire.write(msgspec.json.encode(ready) + b"\n")
        wire.flush()
        serve(sys.stdin.buffer, wire, build)


if __name__ == "__main__":
    main(sys.argv[1:])
