"""WIDTH: how large a pool, a launch or a position may be before a kernel's arithmetic wraps around.

Each computation that an address, a mask or a stored value depends on must stay in the type that
Triton gave it. For each kernel and each size this finds the smallest value that breaks one, with
Z3's optimiser over the exact integers, and shows with bit-vectors that it is a real overflow: the
same code with numbers of the true widths gives another address or value there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import z3

from kvproof.kernels.recipes import COMPRESSED, WINDOW
from kvproof.kernels.symbolic import Access, Integers, Run, Term, must_fit

STRIDE = WINDOW + 3
"""Rows per slot with four draft tokens."""

REFERENCE: Mapping[str, int] = {
    # 288 GB, the largest GPU that ROCm drives today, in rows of 1 KiB, as if one layer had it all.
    "rows": 281_250_000,
    "tokens": 65_536,
    "positions": 1 << 20,
    # Tokens of a launch times their widest segment: the window, and a million positions by 128.
    "entries": 65_536 * (WINDOW + 8192),
}
"""Sizes that no configuration passes: rows of a pool, tokens of a launch, positions of a request,
entries of one index stream."""

_KINDS: Mapping[str, str] = {
    "state_slot_ptr": "slot",
    "state_slot_per_seq_ptr": "slot",
    "slot_ptr": "slot",
    "positions_ptr": "positions",
    "pos_ptr": "positions",
    "final_pos_ptr": "positions",
    "chunk_start_ptr": "positions",
    "batch_id_per_token_ptr": "tokens",
    "cu_q_ptr": "tokens",
    "loc_ptr": "rows",
    "page_idx_ptr": "pages",
    "tail_page_ptr": "pages",
    "indptr_ptr": "entries",
    "swa_indptr_ptr": "entries",
    "csa_indptr_ptr": "entries",
    "hca_indptr_ptr": "entries",
    "pre_indptr_ptr": "entries",
    "ext_indptr_ptr": "entries",
    "prefix_len_ptr": "window",
    "valid_len_ptr": "width",
    "tail_len_ptr": "width",
}
"""What buffers hold. A name that is not here has no limit, and its kernel no proof."""

_ARGUMENTS: Mapping[str, str] = {"n_rows": "tokens", "swa_pages": "rows"}


class Breaking(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest size that breaks a kernel.

    Attributes:
        size: which size: ``rows``, ``tokens``, ``positions`` or ``entries``.
        smallest: that many break it, the other sizes being at most the reference; None if no
            number below 2**40 does.
        line: line of the computation.
        exact: what it should give.
        bits: its type's width.
        wraps: where the same launch in bit-vectors stores or loads something else; empty if
            nothing that is stored or loaded differs.
    """

    kernel: str
    size: str
    smallest: int | None
    line: int = 0
    exact: int = 0
    bits: int = 0
    wraps: str = ""


def limits(run: Run, sizes: Mapping[str, Term | int]) -> tuple[Term, ...]:
    """What sizes mean for everything that a program is given and loads."""
    facts = [*run.facts, run.program < sizes["tokens"], run.lane >= 0]
    for name, value in run.arguments.items():
        if name == "ring_stride":
            facts.append(value == STRIDE)
        elif name in _ARGUMENTS:
            facts += [value >= 0, value <= sizes[_ARGUMENTS[name]]]
    for load in run.loads:
        facts += _loaded(run, load, sizes)
    for loop in run.loops:
        # K4: a count of pages so far, which is no more than the table is wide.
        facts += [z3.And(each >= 0, each <= loop.high) for each in (*loop.head, *loop.result)]
    facts += [z3.And(each.result >= 0, each.result <= each.lanes) for each in run.reductions]
    facts.append(run.lane < max(access.lanes for access in (*run.loads, *run.stores)))
    return tuple(facts)


def _loaded(run: Run, load: Access, sizes: Mapping[str, Term | int]) -> list[Term]:
    kind, value = _KINDS.get(load.base, ""), load.value
    if kind == "slot":
        return [value >= 0, (value + 1) * STRIDE <= sizes["rows"]]
    if kind == "positions":
        return [value >= 0, value < sizes["positions"]]
    if kind == "tokens":
        return [value >= -1, value < sizes["tokens"]]
    if kind == "rows":
        return [value >= -1, value < sizes["rows"]]
    if kind == "pages":
        # A page's row is behind the ring: swa_pages + page is a row of the pool.
        pages = run.arguments.get("swa_pages", 0)
        return [value >= -1, value + pages < sizes["rows"]]
    if kind in ("window", "width"):
        return [value >= 0, value <= {"window": WINDOW, "width": COMPRESSED}[kind]]
    if kind == "entries":
        return [value >= 0, value <= sizes["entries"]]
    return []


def smallest_breaking(
    name: str, run: Run, bits: Run, size: str, *, timeout_s: float = 20.0
) -> Breaking:
    """The smallest value of one size that breaks a kernel.

    Args:
        name: of the kernel and the launch it was met in.
        run: the kernel with the constants it is launched with, in integers.
        bits: the same in bit-vectors.
        size: which one; the others are at most the reference.
        timeout_s: for the optimiser; no answer is an error, not a verdict.

    Raises:
        TimeoutError: the optimiser gave no answer.
    """
    unknown = z3.Int(size)
    due = must_fit(run, (*run.loads, *run.stores))
    broken = [
        z3.And(condition, z3.Not(Integers().in_range(step.term, step.bits)))
        for step, condition in due
    ]
    optimiser = z3.Optimize()
    optimiser.set("timeout", round(1000 * timeout_s))
    optimiser.add(*limits(run, {**REFERENCE, size: unknown}), z3.Or(*broken))
    optimiser.add(unknown >= 1, unknown < 1 << 40)
    optimiser.minimize(unknown)
    answer = optimiser.check()
    if answer == z3.unsat:
        return Breaking(kernel=name, size=size, smallest=None)
    if answer == z3.unknown:
        raise TimeoutError(f"no smallest {size} for {name}: {optimiser.reason_unknown()}")
    model = optimiser.model()
    step = next(
        step
        for (step, _), broke in zip(due, broken, strict=True)
        if z3.is_true(model.eval(broke, model_completion=True))
    )
    return Breaking(
        kernel=name,
        size=size,
        smallest=_number(model, unknown),
        line=step.line,
        exact=_number(model, step.term),
        bits=step.bits,
        wraps=_wraps(run, bits, model),
    )


def _number(model: z3.ModelRef, term: Term) -> int:
    value: int = model.eval(term, model_completion=True).as_long()
    return value


def _wraps(run: Run, bits: Run, model: z3.ModelRef) -> str:
    """Play a model on bit-vectors: the first access that comes out differently."""
    solver = z3.Solver()
    numbers = [(run.program, bits.program), (run.lane, bits.lane)]
    numbers += [(value, bits.arguments[name]) for name, value in run.arguments.items()]
    numbers += [
        (one.counter, other.counter) for one, other in zip(run.loops, bits.loops, strict=True)
    ]
    for number, vector in numbers:
        solver.add(vector == _number(model, number))
    for one, other in zip(run.loads, bits.loads, strict=True):
        # What a load gives is the same; where it is from is what may differ.
        if z3.is_true(model.eval(one.when, model_completion=True)):
            solver.add(other.value == _number(model, one.value))
    if solver.check() != z3.sat:
        return ""
    vectors = solver.model()
    for one, other in zip((*run.loads, *run.stores), (*bits.loads, *bits.stores), strict=True):
        if not z3.is_true(model.eval(one.when, model_completion=True)):
            continue
        for what, number, vector in (
            ("address", one.offset, other.offset),
            ("value", one.value, other.value),
        ):
            exact = _number(model, number)
            found = vectors.eval(vector, model_completion=True).as_signed_long()
            if found != exact and vector.size() > 16:
                return f"line {one.line}: {what} {found:,} instead of {exact:,}"
    return ""
