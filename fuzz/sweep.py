"""How long a tail must be for a hit to compute what a cold run computes, on the real kernels.

A query sees what lies before it, so one hit with a long tail shows every tail at once: the state of
its t-th token is the one whose logits a tail of t tokens gives. The two tails around the bound of
the theorem are run by themselves too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.drivers.wire import Backend, Layering
from kvproof.fuzz.manifest import processor
from kvproof.fuzz.targets import Target
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import Admitted, Compared, Fact, Started
from kvproof.model.facts import EngineError as EngineFault
from kvproof.model.files import read_file, renew
from kvproof.model.layers import Stack
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    BadFileError,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
)
from kvproof.spec.exact import exact_logits_tail
from kvproof.spec.pages import page_ceil

PLAY_TIMEOUT_S = 1800.0

BEGIN = "<!-- smallest exact tails: made by `kvproof layers --table`, do not edit -->"
END = "<!-- end of smallest exact tails -->"

Place: TypeAlias = Literal["rules"] | KernelBackend
Key: TypeAlias = tuple[str, str, tuple[int, ...], int, int, int, int, int]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One stack at one size on one target.

    Attributes:
        ratios: of the layers.
        heads: query heads.
        dim: width of a key.
        seed: of the weights.
        matched_len: tokens that the hit reused.
        bound: smallest exact tail of a stack without compressed rows, by theorem X3.
        longest: longest tail that was looked at.
        exact_from: smallest tail from which on all are exact; None if the longest is not.
        exact_below: shorter tails that are exact too.
        confirmed: tails that were also run by themselves, and whether each was exact.
        states: states and rows of which floats and taint were compared.
        disagree: whether they differ anywhere.
        noise: largest relative error between two cold runs.
        seconds: wall time.
        machine: where it was measured.
    """

    target: str
    backend: str
    ratios: tuple[int, ...]
    window: int
    page_size: int
    heads: int
    dim: int
    seed: int
    matched_len: int
    bound: int
    longest: int
    exact_from: int | None
    exact_below: tuple[int, ...]
    confirmed: dict[int, bool]
    states: int
    disagree: bool
    noise: float
    seconds: float
    machine: str

    @property
    def key(self) -> Key:
        """What was measured: a second measurement of it says the same."""
        place = self.backend.partition(":")[0]
        sizes = (self.window, self.page_size, self.heads, self.dim, self.seed)
        return (self.target, place, self.ratios, *sizes)

    @property
    def expected_from(self) -> int | None:
        """What the theorems say of ``exact_from``: X3, and X4 where a row past layer 1 counts."""
        return None if any(self.ratios[1:]) else self.bound

    @property
    def as_expected(self) -> bool:
        """Whether the measurement is the theorem's, and all oracles agree."""
        # Before a compressed row of the tail is complete, nothing reads it (X4's condition).
        rows_from = min((ratio for ratio in self.ratios[1:] if ratio), default=0)
        allowed = range(self.bound, rows_from)
        return (
            self.exact_from == self.expected_from
            and all(tail in allowed for tail in self.exact_below)
            and not self.disagree
            and all(
                exact == (tail in allowed or tail >= (self.exact_from or tail + 1))
                for tail, exact in self.confirmed.items()
            )
        )


def points(
    targets: Sequence[Target],
    *,
    stacks: Sequence[tuple[int, ...]],
    sizes: Sequence[tuple[int, int]],
    heads: int,
    dim: int,
    seed: int,
    backend: Place,
    confirm: bool = True,
    known: Collection[Key] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Point]:
    """Measure each stack at each size on each target.

    Args:
        targets: engines with a ring.
        stacks: ratios of each.
        sizes: windows and page sizes.
        heads: query heads.
        dim: width of a key.
        seed: of the weights.
        backend: where the real kernels run, or the rules in their place.
        confirm: run the tails around the bound by themselves too.
        known: what is left out.
        tell: told what begins.

    Raises:
        EngineError: an engine cannot be used, or raises.
    """
    for target, ratios in product(targets, stacks):
        layering = Layering(ratios=ratios, heads=heads, dim=dim, seed=seed)
        kernels: KernelBackend = "interpreter" if backend == "rules" else backend
        with target.process(kernels=kernels, layering=layering) as process:
            for window, page_size in sizes:
                stack = Stack(ratios=ratios)
                key = (target.name, backend, ratios, window, page_size, heads, dim, seed)
                if stack.misfit(page_size) is None and key not in known:
                    tell(f"{target.name}: ratios {_words(ratios)}, window {window}, "
                         f"pages of {page_size}")  # fmt: skip
                    yield _point(
                        process, target, layering, window, page_size, backend, confirm=confirm
                    )


def _words(ratios: Sequence[int]) -> str:
    return ",".join(map(str, ratios))


def hit(*, window: int, page_size: int, tail: int, slots: int) -> Scenario:
    """A is cached, B takes its slot, C reuses what A computed and prefills ``tail`` tokens.

    The match is a window rounded up to pages. 0.5.23 counts free slots as free sliding-window
    memory: with one slot it evicts what A left. It lends the slot that was given back last, so with
    four C gets the one that A and B had; older releases lend them in turn.
    """
    matched = page_ceil(window, page_size)
    length = matched + tail
    room = sum(page_ceil(each, page_size) + page_size for each in (matched, matched, length))
    return Scenario(
        geometry=Geometry(window=window, page_size=page_size, slots=slots, pool_tokens=room),
        operations=(
            Submit(request="A", prompt=(Piece("A", matched),)),
            Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("B", matched),)),
            Prefill(request="B"),
            Finish(request="B"),
            Submit(request="C", prompt=(Piece("A", matched), Piece("C", length))),
            Prefill(request="C"),
        ),
    )


def _point(
    process: EngineProcess, target: Target, layering: Layering, window: int, page_size: int,
    backend: Backend, *, confirm: bool,
) -> Point:  # fmt: skip
    began = time.monotonic()
    stack = Stack(ratios=layering.ratios)
    bound = exact_logits_tail(stack.layers, window)
    longest = bound + max(window, page_size, *stack.ratios)
    facts, matched, found = _play(process, window, page_size, longest, backend)
    monitor = check(facts, stack=stack)
    states = monitor.layers.compared if monitor.layers else 0
    disagree = ("EXACT", "oracles-differ") in monitor.violations
    exact = [error <= found.noise for error in found.states[-1]]
    last_inexact = max((tail for tail, good in enumerate(exact, 1) if not good), default=0)
    confirmed = {}
    for tail in (bound - 1, bound):
        # A capped release matches less where the tail is shorter than the window.
        if confirm and tail >= window:
            facts, _, alone = _play(process, window, page_size, tail, backend)
            disagree |= ("EXACT", "oracles-differ") in check(facts, stack=stack).violations
            confirmed[tail] = alone.states[-1][-1] <= alone.noise
    assert isinstance(facts[0], Started)
    return Point(
        target=target.name,
        backend=facts[0].backend,
        ratios=stack.ratios,
        window=window,
        page_size=page_size,
        heads=layering.heads,
        dim=layering.dim,
        seed=layering.seed,
        matched_len=matched,
        bound=bound,
        longest=longest,
        exact_from=last_inexact + 1 if last_inexact < longest else None,
        exact_below=tuple(
            tail for tail, good in enumerate(exact, 1) if good and tail < last_inexact
        ),
        confirmed=confirmed,
        states=states,
        disagree=disagree,
        noise=found.noise,
        seconds=round(time.monotonic() - began, 1),
        machine=f"{processor()}, {os.cpu_count()} CPUs",
    )


def _play(
    process: EngineProcess, window: int, page_size: int, tail: int, backend: Backend
) -> tuple[list[Fact], int, Compared]:
    """The log, what C matched, and how it departs."""
    for slots in (1, 4):
        scenario = hit(window=window, page_size=page_size, tail=tail, slots=slots)
        # Whether it hits at all is the caches' matter: quick to see by the rules.
        if not _matched(_played(process, scenario, "rules")):
            continue
        facts = _played(process, scenario, backend)
        [found] = [f for f in facts if isinstance(f, Compared) and f.request == "C"]
        return facts, _matched(facts), found
    raise EngineError(
        f"{process.name} reuses nothing of a prefix of {page_ceil(window, page_size)} tokens",
        fix="give another --size",
    )


def _played(process: EngineProcess, scenario: Scenario, backend: Backend) -> list[Fact]:
    facts = process.play(scenario, timeout=PLAY_TIMEOUT_S, backend=backend)
    if isinstance(facts[-1], EngineFault):
        raise EngineError(
            f"{process.name} {facts[-1].cause}: {facts[-1].message}",
            fix="this is a finding: play the scenario with kvproof replay",
        )
    return facts


def _matched(facts: Sequence[Fact]) -> int:
    """Tokens that C reuses."""
    return max(
        (f.matched_len for f in facts if isinstance(f, Admitted) and f.request == "C"), default=0
    )


def load(file: Path) -> list[Point]:
    """Points of a saved sweep; none if there is no such file yet.

    Raises:
        BadFileError: it is none.
    """
    if not file.exists():
        return []
    try:
        return [msgspec.json.decode(line, type=Point) for line in read_file(file).splitlines()]
    except msgspec.DecodeError as error:
        raise BadFileError(f"{file}: not a saved sweep: {error}") from error


def save(file: Path, point: Point) -> None:
    """Append a point to a saved sweep."""
    with file.open("ab") as saved:
        saved.write(msgspec.json.encode(point) + b"\n")


def markdown(measured: Iterable[Point]) -> str:
    """One row a stack and size; the targets where it came out the same stand together."""
    lines = [
        "| layers | ratios | window | page | bound L(W - 1) + 1 | exact from | shorter | on "
        "| run by | compared | s |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row, group in groupby(sorted(measured, key=_order), key=_row):
        points = [*group]
        targets = ", ".join(_release(point.target) for point in points)
        compared = sum(point.states for point in points)
        seconds = "-".join(dict.fromkeys(f"{edge:.0f}" for edge in _edges(points)))
        lines.append(f"| {' | '.join([*row[:-1], targets, row[-1], str(compared), seconds])} |")
    machines = "; ".join(sorted({point.machine for point in measured}))
    return "\n".join([*lines, "", f"Measured on: {machines}."])


def update(document: Path, measured: Sequence[Point]) -> bool:
    """Put the table between the document's markers; True if that changed it.

    Raises:
        NoMarkersError: the document has no markers.
    """
    return renew(document, begin=BEGIN, end=END, table=markdown(measured))


def _order(point: Point) -> tuple[object, ...]:
    first = (point.backend == "rules", point.backend, any(point.ratios), len(point.ratios))
    sizes = (point.ratios, point.window, point.page_size, point.heads, point.dim, point.seed)
    return (*first, *sizes, _row(point), point.target)


def _row(point: Point) -> tuple[str, ...]:
    ratios = _words(point.ratios) if any(point.ratios) else "0"
    found = f"none to {point.longest}" if point.exact_from is None else str(point.exact_from)
    shorter = _words(point.exact_below) or "none"
    size = f"{point.heads} heads of {point.dim}"
    return (
        str(len(point.ratios)), ratios, str(point.window), str(point.page_size), str(point.bound),
        found, shorter, f"{point.backend}, {size}",
    )  # fmt: skip


def _release(target: str) -> str:
    return target.removeprefix("sglang-").removesuffix(":registry")


def _edges(points: Sequence[Point]) -> tuple[float, float]:
    seconds = [point.seconds for point in points]
    return min(seconds), max(seconds)
