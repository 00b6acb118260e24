"""One random launch of a real kernel, and how it differs from what it should do.

Runs in the engine's process, in the interpreter or on a GPU. Kernels that move rows and name them
are compared with the specification's rules, called on Python integers: every cell must be the same.
Attention is compared with `reference.attend` within its tolerance. The release's own wrappers
launch; where the engine launches a kernel from a method of a pool, the kernel is launched as that
method does.
"""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from kvproof.kernels.backends import KernelBackend, device
from kvproof.kernels.cases import (
    FP8_GROUP,
    SHAPES,
    SMALL_SHAPES,
    Queries,
    Sizes,
    Source,
    chunks,
    padded,
    page_lists,
    page_table,
    ragged,
)
from kvproof.kernels.engines.shims import compute_units
from kvproof.kernels.family import Family
from kvproof.kernels.reference import ROUNDED, TRUNCATED, Attention, attend
from kvproof.spec.indices import PADDING_SLOT, FullLoc, Position
from kvproof.spec.pages import is_page_congruent
from kvproof.spec.ring import ring_row
from kvproof.spec.window import decode_reads, prefill_ring_reads, scatter_keeps, window_start


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """What one launch showed.

    Attributes:
        cells: numbers compared.
        worst: largest error in units of the tolerance; where nothing may differ, 0 or infinity.
        says: the first difference beyond the tolerance; empty if there is none.
    """

    cells: int
    worst: float = 0.0
    says: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Where launches are made.

    Attributes:
        family: layout of this process's engine.
        backend: where its kernels run.
    """

    family: Family
    backend: KernelBackend

    @property
    def shapes(self) -> Sequence[tuple[int, int]]:
        """Heads and width of attention; the interpreter's time grows with them."""
        return SMALL_SHAPES if self.backend == "interpreter" else SHAPES

    @property
    def roundoff(self) -> Mapping[torch.dtype, float]:
        """Unit roundoff of a cast there."""
        return TRUNCATED if self.backend == "interpreter" else ROUNDED

    def source(self, seed: int) -> Source:
        """What a launch is drawn from."""
        return Source.seeded(seed, device(self.backend))


Check: TypeAlias = Callable[[Bench, Source], Difference]


# --- Exact comparisons ------------------------------------------------------------------------


def same_bits(found: torch.Tensor, expected: torch.Tensor, what: str) -> Difference:
    """All elements, as the bits that they are."""
    size = expected.element_size()
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    one, other = found.contiguous().view(kind), expected.contiguous().view(kind)
    if one.shape == other.shape and torch.equal(one, other):
        return Difference(cells=expected.numel())
    if one.shape != other.shape:
        says = f"{what} has shape {tuple(one.shape)} instead of {tuple(other.shape)}"
    else:
        [first, *_] = (one != other).nonzero().tolist()
        says = f"{what}{first} is {found[tuple(first)]} instead of {expected[tuple(first)]}"
    return Difference(cells=expected.numel(), worst=math.inf, says=says)


def same_lists(
    found: torch.Tensor, starts: torch.Tensor, expected: Sequence[Sequence[int]], what: str
) -> Difference:
    """Ragged segments, entry by entry, and their bounds."""
    flat: list[int] = found.tolist()
    edges: list[int] = starts.tolist()
    cells = sum(len(one) for one in expected) + len(edges)
    if len(edges) != len(expected) + 1:
        return Difference(cells=cells, worst=math.inf, says=f"{what} has {len(edges)} bounds")
    at = 0
    for index, one in enumerate(expected):
        if edges[index] != at or flat[at : at + len(one)] != one:
            says = (
                f"{what} of query {index}: {flat[edges[index] : edges[index + 1]]} "
                f"instead of {list(one)}"
            )
            return Difference(cells=cells, worst=math.inf, says=says)
        at += len(one)
    if edges[-1] != at:
        return Difference(cells=cells, worst=math.inf, says=f"{what} ends at {edges[-1]}, not {at}")
    return Difference(cells=cells)


def all_of(parts: Iterable[Difference]) -> Difference:
    """Several comparisons of one launch."""
    found = tuple(parts)
    return Difference(
        cells=sum(part.cells for part in found),
        worst=max((part.worst for part in found), default=0.0),
        says=next((part.says for part in found if part.says), ""),
    )


# --- Rows of the ring -------------------------------------------------------------------------


def _scatter(bench: Bench, source: Source, *, two_pools: bool = False) -> Difference:
    dice, sizes = source.dice, Sizes.random(source.dice)
    longest = 2 * sizes.stride if dice.random() < 0.2 else 5
    tokens = chunks(dice, sizes, longest=longest)

    def rows_of(count: int) -> list[torch.Tensor]:
        if not two_pools:
            return [source.normal(count, dim, dtype=torch.bfloat16)]
        # A packed row is bytes: values, scales and a rest that nobody reads. All of them move.
        packed = source.normal(count, 256, dtype=torch.bfloat16).view(torch.float8_e4m3fn)
        return [packed, source.normal(count, 64, dtype=torch.bfloat16)]

    dim = dice.choice((8, 512))
    pools, before = rows_of(len(tokens)), rows_of(sizes.rows)
    rings = [ring.clone() for ring in before]
    padding = dice.randint(0, 3)  # rows of the batch that carry nothing: slot 0, position 0

    def column(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor([*values, *(0 for _ in range(padding))], device=source.device)

    extra: dict[str, Any] = {}
    first = torch.zeros(padding, dtype=torch.int64, device=source.device)
    sources = [
        torch.cat([pool.view(torch.uint8), pool.view(torch.uint8)[first]]).view(pool.dtype)
        for pool in pools
    ]
    if two_pools:
        extra = {"kv_rope": sources[1], "unified_kv_rope": rings[1]}
    bench.family.launcher("scatter")(
        kv=sources[0],
        state_slot=column([token.slot for token in tokens]),
        positions=column([token.position for token in tokens]),
        unified_kv=rings[0],
        win=sizes.window,
        ring_stride=sizes.stride,
        final_pos=column([token.last for token in tokens]),
        **extra,
    )
    kept = {
        ring_row(token.slot, token.position, sizes.stride): index
        for index, token in enumerate(tokens)
        if scatter_keeps(token.position, token.last, sizes.window)
    }
    rows, origins = (
        torch.tensor(list(part), device=source.device) for part in (kept, kept.values())
    )
    lent = slice((PADDING_SLOT + 1) * sizes.stride, None)  # several padded rows race for one row
    parts = []
    for name, ring, old, pool in zip(("ring", "rope ring"), rings, before, pools, strict=False):
        expected = old.view(torch.uint8).clone()
        expected[rows] = pool.view(torch.uint8)[origins]
        parts.append(same_bits(ring.view(torch.uint8)[lent], expected[lent], name))
    return all_of(parts)


def _scatter_by_location(bench: Bench, source: Source) -> Difference:
    dice, rows = source.dice, 64
    locs = [dice.choice((-1, loc)) for loc in dice.sample(range(rows), dice.randint(1, 20))]
    kv = source.normal(len(locs), dice.choice((8, 512)), dtype=torch.bfloat16)
    before = source.normal(rows, kv.shape[1], dtype=torch.bfloat16)
    ring = before.clone()
    bench.family.launcher("scatter by location")(
        kv=kv, loc=torch.tensor(locs, dtype=torch.int32, device=source.device), unified_kv=ring
    )
    for token, loc in enumerate(locs):
        if loc >= 0:
            before[loc] = kv[token]
    return same_bits(ring, before, "ring")


# --- Index streams ----------------------------------------------------------------------------

_TABLE_WIDTH = 64


def _decode_streams(bench: Bench, source: Source) -> Difference:
    dice, sizes = source.dice, Sizes.random(source.dice)
    slots = sizes.lent(dice, 8)
    positions = [Position(dice.randint(0, 5 * sizes.window)) for _ in slots]
    slots.append(PADDING_SLOT)  # a padded row is a query at position 0 of slot 0
    positions.append(Position(0))
    pages = page_lists(dice, len(slots), width=_TABLE_WIDTH)
    at = torch.tensor(positions, dtype=torch.int32, device=source.device)
    found = bench.family.launcher("decode streams")(
        state_slot=torch.tensor(slots, device=source.device),
        positions=at,
        swa_len=torch.clamp(at + 1, max=sizes.window),
        hca_len=_lengths(pages, source),
        csa_len=torch.zeros_like(at),
        hca_page_indices=page_table(pages, width=_TABLE_WIDTH, device=source.device),
        csa_width=0,
        win=sizes.window,
        ring_stride=sizes.stride,
        swa_pages=sizes.rows,
    )
    window, whole = [], []
    for slot, position, row in zip(slots, positions, pages, strict=True):
        seen = range(*decode_reads(position, sizes.window))
        window.append([ring_row(slot, Position(p), sizes.stride) for p in seen])
        whole.append([*window[-1], *(sizes.rows + page for page in row)])
    swa, swa_starts, hca, hca_starts, csa, csa_starts = found
    return all_of(
        (
            same_lists(swa, swa_starts, window, "swa"),
            same_lists(hca, hca_starts, whole, "hca"),
            same_lists(csa, csa_starts, window, "csa"),
        )
    )


def _prefill_indices(bench: Bench, source: Source, *, compressed: bool) -> Difference:
    dice, sizes = source.dice, Sizes.random(source.dice)
    tokens = chunks(dice, sizes, longest=4 if compressed else 2 * sizes.window)
    pages = page_lists(dice, len(tokens), width=_TABLE_WIDTH if compressed else 0)

    def column(values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), device=source.device)

    table = page_table(pages, width=_TABLE_WIDTH, device=source.device) if compressed else None
    prefix, prefix_starts, extend, extend_starts = bench.family.launcher("prefill indices")(
        compress_ratio=128 if compressed else 0,
        state_slot=column(token.slot for token in tokens),
        positions=column(token.position for token in tokens),
        chunk_start=column(token.first for token in tokens),
        cu_q=column(token.row for token in tokens),
        win=sizes.window,
        ring_stride=sizes.stride,
        swa_pages=sizes.rows,
        c128_page_indices=table,
        c4_sparse_page_indices=None,
    )
    ring, chunk = [], []
    for token, row in zip(tokens, pages, strict=True):
        start, end = prefill_ring_reads(token.position, token.first, sizes.window)
        ring.append(
            [
                *(ring_row(token.slot, Position(p), sizes.stride) for p in range(start, end)),
                *(sizes.rows + page for page in row),
            ]
        )
        own = max(window_start(token.position, sizes.window), token.first)
        chunk.append([token.row + p - token.first for p in range(own, token.position + 1)])
    return all_of(
        (
            same_lists(prefix, prefix_starts, ring, "prefix"),
            same_lists(extend, extend_starts, chunk, "chunk"),
        )
    )


def _verify_streams(bench: Bench, source: Source) -> Difference:
    dice = source.dice
    window, drafts, group = dice.choice((4, 16, 128)), dice.randint(1, 7), dice.choice((1, 2, 4))
    sizes = Sizes(window=window, stride=window + max(drafts, group) - 1, slots=dice.randint(3, 9))
    slots = sizes.lent(dice, 5)
    firsts = [dice.choice((0, dice.randint(0, 4 * window))) for _ in slots]
    pages = page_lists(dice, len(slots), width=_TABLE_WIDTH)
    table = page_table(pages, width=_TABLE_WIDTH, device=source.device)
    indices, starts, queries = bench.family.launcher("verify streams")(
        state_slot=torch.tensor(slots, device=source.device).repeat_interleave(drafts),
        positions=torch.tensor(
            [first + draft for first in firsts for draft in range(drafts)], device=source.device
        ),
        hca_len=_lengths(pages, source).repeat_interleave(drafts),
        hca_page_indices=table.repeat_interleave(drafts, dim=0),
        win=window,
        ring_stride=sizes.stride,
        swa_pages=sizes.rows,
        num_draft=drafts,
        block_q=group,
    )
    expected, asked = [], []
    for slot, first, row in zip(slots, firsts, pages, strict=True):
        for begin in range(0, drafts, group):
            members = range(first + begin, first + min(begin + group, drafts))
            # One stream for all of them: from what the first sees to the last itself.
            seen = range(window_start(Position(members[0]), window), members[-1] + 1)
            tail = [sizes.rows + page for page in row]
            expected.append([*tail, *(ring_row(slot, Position(p), sizes.stride) for p in seen)])
            asked.append(len(members))
    totals = [sum(asked[:index]) for index in range(len(asked) + 1)]
    counts = torch.tensor(totals, dtype=torch.int32, device=source.device)
    return all_of(
        (same_lists(indices, starts, expected, "stream"), same_bits(queries, counts, "queries"))
    )


def _lengths(pages: Sequence[Sequence[int]], source: Source) -> torch.Tensor:
    lengths = [len(one) for one in pages]
    return torch.tensor(lengths, dtype=torch.int32, device=source.device)


# --- Locations --------------------------------------------------------------------------------


def _followed(
    last: FullLoc, start: int, end: int, pages: Iterable[int], page_size: int
) -> list[FullLoc]:
    """Locations of positions ``[start, end)`` of one request whose last location is ``last``."""
    fresh, locs = iter(pages), [last]
    for position in range(start, end):
        follows = FullLoc(locs[-1] + 1)
        locs.append(follows if position % page_size else FullLoc(next(fresh) * page_size))
        assert is_page_congruent(position, locs[-1], page_size)
    return locs[1:]


def _allocate(bench: Bench, source: Source, *, step: str) -> Difference:
    dice = source.dice
    page_size = dice.choice((1, 4, 64))
    count = dice.randint(1, 6)
    pages = dice.sample(range(1, 4096), 200)
    taken, free = pages[:count], pages[count:]
    before = [dice.choice((0, dice.randint(0, 3 * page_size))) for _ in range(count)]
    if step == "allocate decode":
        before = [length or page_size for length in before]  # a running request holds something
    after = [
        n + (1 if step == "allocate decode" else dice.randint(1, 3 * page_size)) for n in before
    ]
    lasts = [
        FullLoc(page * page_size + (length - 1) % page_size if length else -1)
        for page, length in zip(taken, before, strict=True)
    ]
    left = iter(free)
    expected = [
        loc
        for last, start, end in zip(lasts, before, after, strict=True)
        for loc in _followed(last, start, end, left, page_size)
    ]
    out = torch.full((len(expected),), -7, dtype=torch.int64, device=source.device)
    place = [torch.tensor(part, device=source.device) for part in (before, after, lasts, free)]
    upper = 1 << (count - 1).bit_length()
    [kernel] = bench.family.jit(step)
    kernel[(count,)](*(place if step == "allocate extend" else place[1:]), out, upper, page_size)
    return same_bits(out, torch.tensor(expected, device=source.device), "location")


def _write_request_rows(bench: Bench, source: Source) -> Difference:
    dice = source.dice
    count, width = dice.randint(1, 5), 2048
    slots = dice.sample(range(8), count)
    cached = [dice.choice((0, dice.randint(1, 40), 600)) for _ in slots]
    fresh = [dice.choice((1, dice.randint(1, 40), 600)) for _ in slots]
    before = torch.full((8, width), -1, dtype=torch.int32, device=source.device)
    prefixes = [
        torch.tensor([dice.randrange(1 << 30) for _ in range(n)] or [0], device=source.device)[:n]
        for n in cached
    ]
    locs = torch.tensor([dice.randrange(1 << 30) for _ in range(sum(fresh))], device=source.device)
    table = before.clone()
    ends = [a + b for a, b in zip(cached, fresh, strict=True)]
    [kernel] = bench.family.jit("write request rows")
    kernel[(count,)](
        table,
        torch.tensor(slots, device=source.device),
        torch.tensor([p.data_ptr() for p in prefixes], dtype=torch.uint64, device=source.device),
        torch.tensor(cached, device=source.device),
        torch.tensor(ends, device=source.device),
        torch.tensor(fresh, device=source.device),
        locs,
        width,
    )
    at = 0
    for slot, prefix, length in zip(slots, prefixes, fresh, strict=True):
        before[slot, : len(prefix)] = prefix
        before[slot, len(prefix) : len(prefix) + length] = locs[at : at + length]
        at += length
    return same_bits(table, before, "table")


def _last_location(bench: Bench, source: Source, *, wrapper: str) -> Difference:
    dice = source.dice
    table = [[dice.randrange(1 << 30) for _ in range(64)] for _ in range(8)]
    lengths = [dice.choice((0, dice.randint(1, 64))) for _ in range(dice.randint(1, 300))]
    slots = [dice.randrange(8) for _ in lengths]
    module = bench.family.kernels["last location"].jit[0].partition(":")[0]
    found = pkgutil.resolve_name(f"{module}:{wrapper}")(
        torch.tensor(table, dtype=torch.int32, device=source.device),
        torch.tensor(slots, device=source.device),
        torch.tensor(lengths, device=source.device),
    )
    expected = [table[s][n - 1] if n else -1 for s, n in zip(slots, lengths, strict=True)]
    return same_bits(found, torch.tensor(expected, device=source.device), "location")


# --- Attention --------------------------------------------------------------------------------


class _OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU: the wrappers refuse queries that are not."""

    is_cuda = True


def _judged(found: torch.Tensor, exact: Attention) -> Difference:
    found = found.as_subclass(torch.Tensor)
    worst = exact.worst(found)
    says = ""
    if worst > 1:
        errors = (found.double() - exact.out).abs() / exact.tolerance
        at = torch.nan_to_num(errors, nan=torch.inf, posinf=torch.inf).argmax()
        says = (
            f"output {at} is {found.flatten()[at]} instead of {exact.out.flatten()[at]:.6g}, "
            f"{worst:.3g} times its tolerance"
        )
    return Difference(cells=exact.out.numel(), worst=worst, says=says)


def _split(source: Source, batch: Queries, *, split: bool) -> None:
    """Have the wrapper cut each query's keys into pieces, or not."""
    tokens, heads, _ = batch.q.shape
    tile = max(16, 1 << (min(heads, 64) - 1).bit_length())
    pieces = source.dice.choice((2, 8)) if split else 0
    # The wrapper fills two programs for each unit.
    compute_units(-(-tokens * -(-heads // tile) * pieces // 2))


def _decode_attention(
    bench: Bench, source: Source, *, dtype: torch.dtype, split: bool, quantised: bool = False
) -> Difference:
    shapes = [(h, d) for h, d in bench.shapes if not (quantised and d % FP8_GROUP)]
    batch = source.queries(dtype, shapes)
    indices, starts = ragged(batch.picks, source.device)
    rows, pool, extra = batch.pool.double(), batch.pool, {}
    if quantised:
        groups = pool.shape[1] // FP8_GROUP
        pool = (batch.pool * 16).to(torch.float8_e4m3fn)
        scales = (
            torch.rand(len(pool), groups, generator=source.generator, device=source.device) * 0.1
            + 0.02
        )
        rows = pool.double() * scales.double().repeat_interleave(FP8_GROUP, dim=1)
        extra = {"kv_scales": scales}
    _split(source, batch, split=split)
    found = bench.family.launcher("decode attention")(
        batch.q.as_subclass(_OnGpu),
        pool,
        indices,
        starts,
        batch.sink,
        batch.scale,
        **extra,
    )
    exact = attend(
        q=batch.q,
        rows=rows,
        picks=padded(batch.picks, source.device),
        sink=batch.sink,
        scale=batch.scale,
        roundoff=bench.roundoff[dtype],
        rescaled=quantised,
    )
    return _judged(found, exact)


def _prefill_attention(bench: Bench, source: Source, *, dtype: torch.dtype) -> Difference:
    batch = source.queries(dtype, bench.shapes)
    chunk = source.normal(source.dice.randint(1, 80), batch.q.shape[2], dtype=dtype)
    prefix = [source.picks(len(batch.pool), gaps=True) for _ in batch.picks]
    own = [source.picks(len(chunk), gaps=source.dice.random() < 0.1) for _ in batch.picks]
    found = bench.family.launcher("prefill attention")(
        batch.q.as_subclass(_OnGpu),
        batch.pool,
        *ragged(prefix, source.device),
        chunk,
        *ragged(own, source.device),
        batch.sink,
        batch.scale,
    )
    both = [
        [*a, *(row + len(batch.pool) if row >= 0 else -1 for row in b)]
        for a, b in zip(prefix, own, strict=True)
    ]
    exact = attend(
        q=batch.q,
        rows=torch.cat([batch.pool, chunk]).double(),
        picks=padded(both, source.device),
        sink=batch.sink,
        scale=batch.scale,
        roundoff=bench.roundoff[dtype],
    )
    return _judged(found, exact)


# --- All of them ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A kernel in one of its forms.

    Attributes:
        role: the catalogue's name of it.
        form: which of its paths is taken; empty if it has one.
        dtype: of what it moves or computes with.
        check: makes a launch and compares; None for a kernel that is only listed.
    """

    role: str
    form: str = ""
    dtype: str = ""
    check: Check | None = None

    @property
    def name(self) -> str:
        """Role, form and type."""
        return ", ".join(part for part in (self.role, self.form, self.dtype) if part)


def _attention() -> Iterator[Comparison]:
    for name, dtype in {"bf16": torch.bfloat16, "fp16": torch.float16}.items():
        for form in ("fused", "split-K"):
            check = partial(_decode_attention, dtype=dtype, split=form == "split-K")
            yield Comparison(role="decode attention", form=form, dtype=name, check=check)
        check = partial(_prefill_attention, dtype=dtype)
        yield Comparison(role="prefill attention", dtype=name, check=check)
    for form in ("fused", "split-K"):
        check = partial(
            _decode_attention, dtype=torch.bfloat16, split=form == "split-K", quantised=True
        )
        yield Comparison(role="decode attention", form=form, dtype="fp8 with scales", check=check)


def _index_kernels() -> Iterator[Comparison]:
    yield Comparison(role="scatter", dtype="bf16", check=_scatter)
    check = partial(_scatter, two_pools=True)
    yield Comparison(role="scatter into two pools", dtype="fp8 and bf16", check=check)
    yield Comparison(role="scatter by location", dtype="bf16", check=_scatter_by_location)
    yield Comparison(role="decode streams", dtype="int32", check=_decode_streams)
    for form in ("window", "compressed"):
        check = partial(_prefill_indices, compressed=form == "compressed")
        yield Comparison(role="prefill indices", form=form, dtype="int32", check=check)
    yield Comparison(role="verify streams", dtype="int32", check=_verify_streams)
    for role in ("allocate extend", "allocate decode"):
        yield Comparison(role=role, dtype="int64", check=partial(_allocate, step=role))
    yield Comparison(role="write request rows", dtype="int32", check=_write_request_rows)
    for form, wrapper in (("plain", "get_last_loc_triton"), ("safe", "get_last_loc_triton_safe")):
        check = partial(_last_location, wrapper=wrapper)
        yield Comparison(role="last location", form=form, dtype="int64", check=check)


COMPARISONS = (*_index_kernels(), *_attention())
"""What is compared of the Triton kernels."""
