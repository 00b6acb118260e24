"""Differential runs: many random launches of every kernel of a release, on one backend.

``python -m kvproof.kernels.compare ORDER`` runs in an engine's process, with the `Order` as JSON; a
line a kernel comes out, before it begins and when it is done. A launch that raises ends the
process, since a GPU gives nothing sensible after a fault: the rest gets another one.
"""

from __future__ import annotations

import hashlib
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from kvproof.kernels.backends import KernelBackend, label, missing
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.differences import COMPARISONS, Bench, Comparison
from kvproof.kernels.engines.order_process import OrderProcess, tell_lines
from kvproof.kernels.engines.store import Engine
from kvproof.kernels.family import Family
from kvproof.kernels.native import NATIVE_COMPARISONS, missing_compiler

TIMEOUT_S = 900.0
"""Seconds for all launches of one kernel."""

Status: TypeAlias = Literal["holds", "violated", "failed", "skipped"]


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's process is asked for.

    Attributes:
        backend: where kernels run.
        launches: of each kernel.
        seed: launches are drawn from it.
        names: comparisons to make, in this order.
        time_limit: seconds after which no more launches of a kernel are made.
    """

    backend: KernelBackend
    launches: int
    seed: int
    names: tuple[str, ...]
    time_limit: float | None = None


class Began(msgspec.Struct, frozen=True, kw_only=True, tag="began"):
    """A comparison begins."""

    name: str


class Compared(msgspec.Struct, frozen=True, kw_only=True, tag="compared"):
    """What came of the launches of one kernel.

    Attributes:
        name: role in the catalogue, form and type.
        release: the engine's name.
        backend: where the kernel ran, with the GPU's architecture; what was asked for if it did
            not.
        dtype: of what the kernel moves or computes with.
        launches: that were made; after a difference, or the time limit, there are no more.
        cells: numbers compared.
        worst: largest error in units of its tolerance. Beyond 1 is a violation; None for a
            difference that no tolerance measures.
        verdict: ``skipped`` and ``failed`` are no results.
        reason: the first difference, and the launch that showed it; or why there is no result.
        known: why it is expected to be violated; see `KNOWN`.
    """

    name: str
    release: str
    backend: str
    dtype: str
    launches: int = 0
    cells: int = 0
    worst: float | None = 0.0
    verdict: Status
    reason: str = ""
    known: str = ""
    seed: int
    seconds: float = 0.0

    @property
    def is_news(self) -> bool:
        """Whether it differs from what is expected: a known violation that is gone is news too."""
        if self.verdict == "failed":
            return True
        return self.verdict != "skipped" and (self.verdict == "violated") != bool(self.known)


KNOWN: Mapping[tuple[str, str], str] = {
    ("0.5.14", "window store, padded rows, fp8"): "the location -1 of a padded row is not skipped: "
    "the row is written in front of the pool; 0.5.16 skips it (main_norm_rope.cuh)",
}
"""Violations that are expected, by family and comparison."""

_lines = msgspec.json.Decoder(Began | Compared)


def compare(
    engine: Engine,
    *,
    backend: KernelBackend,
    launches: int,
    seed: int = 0,
    time_limit: float | None = None,
    wanted: Callable[[Comparison], bool] = lambda _: True,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Compared]:
    """Compare an engine's kernels with what they should do, one result after another.

    Args:
        engine: as found in the store.
        backend: where its kernels run. Where that is not possible here, all are skipped.
        launches: random launches of each.
        seed: they are drawn from it.
        time_limit: seconds for one kernel; the result says how many launches they were.
        wanted: which comparisons to make.
        tell: told what begins.

    Raises:
        EngineError: the engine's layout is not a known one.
    """
    family = family_of(engine.root)
    waiting: list[Comparison] = []
    for one in comparisons_of(family):
        if wanted(one):
            reason = _impossible(one, family, backend)
            if reason is None:
                waiting.append(one)
            else:
                yield _none(one, engine, backend, seed, "skipped", reason)
    while waiting:
        order = Order(
            backend=backend,
            launches=launches,
            seed=seed,
            names=tuple(one.name for one in waiting),
            time_limit=time_limit,
        )
        before = len(waiting)
        with _process(engine, order) as process:
            for line in process.lines():
                if isinstance(line, Began):
                    tell(f"{engine.name}: {line.name}")
                else:
                    assert waiting[0].name == line.name
                    waiting.pop(0)
                    yield line
            if len(waiting) == before:  # it ended while the first one was at work
                yield _none(waiting.pop(0), engine, backend, seed, "failed", process.last_words())


def comparisons_of(family: Family) -> tuple[Comparison, ...]:
    """Those of the kernels that a release has; one without a check for each that is left out."""
    return (
        *(one for one in COMPARISONS if one.role in family.kernels),
        *(one for one in NATIVE_COMPARISONS if one.role in family.native),
        *(Comparison(role=role) for role, one in family.native.items() if one.left_out),
    )


def _impossible(one: Comparison, family: Family, backend: KernelBackend) -> str | None:
    """Why a comparison cannot be made here."""
    reason = missing(backend)
    if reason is None and one.role in family.native:
        reason = family.native[one.role].left_out or missing_compiler(backend)
    return reason


def _none(
    one: Comparison, engine: Engine, backend: str, seed: int, verdict: Status, reason: str
) -> Compared:
    return Compared(
        name=one.name, release=engine.name, backend=backend, dtype=one.dtype, verdict=verdict,
        reason=reason, seed=seed,
    )  # fmt: skip


def _process(engine: Engine, order: Order) -> OrderProcess[Began | Compared]:
    return OrderProcess(
        engine,
        __name__,
        order,
        interpret=order.backend == "interpreter",
        lines=_lines,
        silence_s=TIMEOUT_S,
    )


# --- In the engine's process ------------------------------------------------------------------


def carry_out(order: Order, release: str) -> Iterator[Began | Compared]:
    """Make the comparisons with this process's engine, until one fails."""
    from kvproof.kernels.engines import shims  # noqa: PLC0415  # it goes before triton and sglang

    shims.install(rocm_gate=True, interpret=order.backend == "interpreter")
    bench = Bench(family=shims.engine_family(), backend=order.backend)
    by_name = {one.name: one for one in comparisons_of(bench.family)}
    for name in order.names:
        yield Began(name=name)
        result = _compared(bench, by_name[name], order, release)
        yield result
        if result.verdict == "failed":
            return


def _compared(bench: Bench, one: Comparison, order: Order, release: str) -> Compared:
    verdict: Status = "holds"
    made, cells, worst, reason = 0, 0, 0.0, ""
    began = time.monotonic()
    limit = math.inf if order.time_limit is None else began + order.time_limit
    # One launch at least: a kernel is not said to hold for none.
    while made < order.launches and verdict == "holds" and (not made or time.monotonic() < limit):
        try:
            assert one.check is not None
            difference = one.check(bench, bench.source(launch_seed(order.seed, one.name, made)))
        except Exception as error:  # whatever the engine or the GPU raises is what was looked for
            traceback.print_exc(file=sys.stderr)
            verdict, reason = "failed", f"launch {made}: {type(error).__name__}: {error}"
            break
        cells += difference.cells
        worst = max(worst, difference.worst)
        if difference.says:
            verdict, reason = "violated", f"launch {made}: {difference.says}"
        made += 1
    return Compared(
        name=one.name, release=release, backend=label(order.backend), dtype=one.dtype,
        launches=made, cells=cells, worst=worst if math.isfinite(worst) else None,
        verdict=verdict, reason=reason, seed=order.seed,
        known=KNOWN.get((bench.family.name, one.name), ""), seconds=time.monotonic() - began,
    )  # fmt: skip


def launch_seed(seed: int, name: str, launch: int) -> int:
    """Seed of one launch: whatever else is compared, it is the same one."""
    digest = hashlib.sha256(f"{seed} {name} {launch}".encode()).digest()
    return int.from_bytes(digest[:7])


def main(arguments: Sequence[str]) -> None:
    """Carry out one order; results go to standard output, what the engine prints does not."""
    order = msgspec.json.decode(arguments[0], type=Order)
    tell_lines(carry_out(order, arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
