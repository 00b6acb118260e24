"""One random launch of a C++ kernel that a release ships as source, and how it differs.

The release's own loader compiles it at run time with the compiler of the GPU (through
apache-tvm-ffi), and its own Python function launches it. What is judged:

- *plans* and *compressors* keep the tokens that are not compressed yet in a ring of their own,
  addressed by the rule of the sliding-window ring (`ring_row`) with a stride of one page, or two
  where pages overlap: every row written must be the rule's, and what is compressed must be the
  weighted sum of the rule's rows.
- *stores* norm, rotate and write a row. The bf16 row is compared with float64; a row in fp8 must
  be, bit for bit, the bf16 row of the same launch as the layout packs it, in the same place, and
  nothing else may change. So both layouts stay in lockstep.
"""

from __future__ import annotations

import importlib.util
import math
import pkgutil
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.cases import Source, lent_slots
from kvproof.kernels.differences import Bench, Comparison, Difference, all_of, same_bits
from kvproof.kernels.reference import EPS, ROUNDED, SECOND_ORDER
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row

DIM = 512
ROPE = 64
NOPE = DIM - ROPE
GROUP = 64
"""Elements that share a scale in the packed fp8 rows."""

_EPSILON = 1e-6
_POSITIONS = 4096
_POOL_ROWS = 4096
_LARGEST_FP8 = 448.0
_SMALLEST_AMAX = 1e-4


def missing_compiler(backend: KernelBackend) -> str | None:
    """Why C++ kernels cannot be built here for a backend; None if they can."""
    if backend == "interpreter":
        return "C++: it is compiled for a GPU"
    compiler = "nvcc" if backend == "cuda" else "hipcc"
    if shutil.which(compiler) is None:
        return f"C++: no {compiler} is on the PATH"
    if importlib.util.find_spec("tvm_ffi") is None:
        return "C++: the loader needs apache-tvm-ffi; run: pip install 'kvproof[gpu]'"
    return None


# --- What is fed to them ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """A row of the compressor's output: it is there for the last of ``ratio`` tokens.

    Attributes:
        kv: its row in the compressor's output.
        token: row in the batch of that last token.
        length: tokens up to and with it.
    """

    kv: int
    token: int
    slot: Slot
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Requests of a decode or prefill step, as the compressor sees them.

    Attributes:
        ratio: tokens that one compressed row stands for.
        lengths: tokens of each request with this step's; ``before`` without.
    """

    ratio: int
    decode: bool
    slots: list[Slot]
    before: list[int]
    lengths: list[int]

    @classmethod
    def random(cls, source: Source, *, ratio: int, decode: bool) -> _Batch:
        """A batch in which at least one row is compressed."""
        dice = source.dice
        slots = lent_slots(dice, 9, most=6)
        before, lengths = [], []
        for index in range(len(slots)):
            start = dice.choice((0, dice.randint(0, 5 * ratio)))
            length = start + (1 if decode else dice.randint(1, 3 * ratio))
            if index == 0 or dice.random() < 0.5:
                length += -length % ratio
            before.append(length - 1 if decode else start)
            lengths.append(length)
        return cls(ratio=ratio, decode=decode, slots=slots, before=before, lengths=lengths)

    @property
    def tokens(self) -> int:
        """Tokens of this step."""
        return sum(self.lengths) - sum(self.before)

    @property
    def rows(self) -> list[_Row]:
        """What is compressed, in the order of the compressor's output."""
        found: list[_Row] = []
        token = 0
        for slot, start, end in zip(self.slots, self.before, self.lengths, strict=True):
            for length in range(start + 1, end + 1):
                if length % self.ratio == 0:
                    kv = token if self.decode else len(found)
                    found.append(_Row(kv=kv, token=token, slot=slot, length=length))
                token += 1
        return found

    def plan(self, bench: Bench, source: Source) -> Any:
        """The release's plan for its request ring."""
        slots = torch.tensor(self.slots, device=source.device)
        lengths = torch.tensor(self.lengths)
        if self.decode:
            decode_plan = _named(bench, "compress plan", "CompressorDecodePlan")
            return decode_plan.generate_legacy(self.ratio, slots, lengths.to(source.device))
        return _named(bench, "compress plan", "CompressorPrefillPlan").generate_legacy(
            self.ratio,
            slots,
            lengths,
            lengths - torch.tensor(self.before),
            self.tokens,
            torch.device(source.device),
        )


def _named(bench: Bench, role: str, name: str) -> Any:
    """Something beside a role's own function in the release."""
    place = bench.family.native[role].launch
    return pkgutil.resolve_name(f"{place.partition(':')[0]}:{name}")


def _launch(bench: Bench, role: str) -> Any:
    place = bench.family.native[role].launch
    return pkgutil.resolve_name(place)


# --- Plans and compressors --------------------------------------------------------------------


def _plan(bench: Bench, source: Source, *, decode: bool) -> Difference:
    """The plan that the engine makes: where tokens go and what is read."""
    ratio = 128
    dice = source.dice
    ring = ratio * dice.choice((1, 2))
    swa_page = ring  # the planner asks for whole rings in a page
    batch = _Batch.random(source, ratio=ratio, decode=decode)
    slots = torch.tensor(batch.slots, device=source.device)
    lengths = torch.tensor(batch.lengths, device=source.device)
    table = torch.zeros(9, 2048, dtype=torch.int32, device=source.device)
    mapping = torch.zeros(2048, dtype=torch.int64, device=source.device)
    where = {
        (slot, position): ring_row(slot, Position(position), ring)
        for slot, end in zip(batch.slots, batch.lengths, strict=True)
        for position in range(end)
    }

    def pages(slot: Slot, length: int) -> tuple[int, int]:
        """Pages of the page before and of the last token's."""
        last = length - 1
        return where[slot, max(last - ratio, 0)] // ratio, where[slot, last] // ratio

    if decode:
        plan = _named(bench, "compress plan", "CompressorDecodePlan").generate(
            ratio, slots, table, mapping, lengths, swa_page, ring
        )
        expected = [
            (length, where[slot, length - 1], *pages(slot, length))
            for slot, length in zip(batch.slots, batch.lengths, strict=True)
        ]
        found = [tuple(row) for row in plan.plan_d.view(torch.int32).tolist()]
        return _same_rows(found, expected, "plan")
    extends = lengths - torch.tensor(batch.before, device=source.device)
    plan = _named(bench, "compress plan", "CompressorPrefillPlan").generate(
        ratio, slots, lengths, extends, table, mapping, swa_page, ring, batch.tokens
    )
    starts = dict(zip(batch.slots, batch.before, strict=True))
    compressed = []
    for row in batch.rows:
        from_ring = max(ratio - (row.length - starts[row.slot]), 0)
        # A page that lies in this step's tokens alone is not read from the ring.
        read = pages(row.slot, row.length) if from_ring else None
        compressed.append((row.length, row.token, from_ring, read))
    found_c = []
    for length, packed, one, other in plan.plan_c.view(torch.int32).tolist():
        if length != -1:
            token, from_ring = packed & 0xFFFF, packed >> 16
            found_c.append((length, token, from_ring, (one, other) if from_ring else None))
    # Programs take places in the plan in any order.
    parts = [_same_rows(sorted(found_c), sorted(compressed), "compressed")]
    kept, token = [], 0
    for slot, start, end in zip(batch.slots, batch.before, batch.lengths, strict=True):
        for position in range(start, end):
            if position >= end - end % ratio:
                kept.append((token, where[slot, position]))
            token += 1
    written = {tuple(row) for row in plan.plan_w.view(torch.int32).tolist() if row[0] != -1}
    # It may keep more than the page that is not full yet, each in its row.
    beyond = {
        (token, where[slot, position]) for token, (slot, position) in enumerate(_tokens(batch))
    }
    says = ""
    if not set(kept) <= written:
        says = f"not kept: {sorted(set(kept) - written)}"
    elif not written <= beyond:
        says = f"kept elsewhere: {sorted(written - beyond)}"
    parts.append(Difference(cells=2 * len(written), worst=math.inf if says else 0.0, says=says))
    return all_of(parts)


def _tokens(batch: _Batch) -> Iterator[tuple[Slot, int]]:
    for slot, start, end in zip(batch.slots, batch.before, batch.lengths, strict=True):
        for position in range(start, end):
            yield slot, position


def _same_rows(found: Sequence[Any], expected: Sequence[Any], what: str) -> Difference:
    cells = 4 * len(expected)
    if list(found) == list(expected):
        return Difference(cells=cells)
    wrong = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
    says = (
        f"{what}: {wrong[0][0]} instead of {wrong[0][1]}" if wrong else f"{what}: {len(found)} rows"
    )
    return Difference(cells=cells, worst=math.inf, says=says)


def _compressor(bench: Bench, source: Source, *, ratio: int, decode: bool) -> Difference:
    """Softmax over the tokens of a page, and of the page before where pages overlap."""
    overlaps = ratio == 4
    dim = DIM
    width = dim * (4 if overlaps else 2)
    stride = ratio * (2 if overlaps else 1)
    batch = _Batch.random(source, ratio=ratio, decode=decode)
    state = source.normal(9 * stride, width, dtype=torch.float32)
    tokens = source.normal(batch.tokens, width, dtype=torch.float32) * 2
    bias = source.normal(stride, dim, dtype=torch.float32)
    before = state.clone()
    rows = batch.rows
    out = torch.zeros(
        batch.tokens if decode else len(rows), dim, dtype=torch.float32, device=source.device
    )
    _launch(bench, "compressor")(
        state.view(-1, ratio, width), tokens, bias, batch.plan(bench, source),
        head_dim=dim, compress_ratio=ratio, out=out,
    )  # fmt: skip
    first, at = {}, 0
    for slot, start, end in zip(batch.slots, batch.before, batch.lengths, strict=True):
        first[slot] = (start, at)
        at += end - start
    parts = []
    for row in rows:
        start, offset = first[row.slot]
        positions = range(row.length - stride, row.length)
        picked = torch.stack(
            [
                before[ring_row(row.slot, Position(position % stride), stride)]
                if position < start
                else tokens[offset + position - start]
                for position in positions
            ]
        ).double()
        parts.append(
            _within(
                out[row.kv][None],
                *_pooled(picked, bias.double(), dim, overlaps, fresh=row.length <= ratio),
                f"row {row.kv}",
            )
        )
    for token, (slot, position) in enumerate(_tokens(batch)):
        end = batch.lengths[batch.slots.index(slot)]
        if decode or position >= end - end % ratio - (ratio if overlaps else 0):
            before[ring_row(slot, Position(position), stride)] = tokens[token]
    parts.append(same_bits(state, before, "state"))
    return all_of(parts)


def _pooled(
    rows: torch.Tensor, bias: torch.Tensor, dim: int, overlaps: bool, *, fresh: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sum of ``[tokens, width]`` rows, and how far off float32 may be."""
    if overlaps:
        # A row holds keys and scores twice: for the page that follows, and for its own.
        keys = torch.cat([rows[:4, :dim], rows[4:, dim : 2 * dim]])
        scores = torch.cat([rows[:4, 2 * dim : 3 * dim], rows[4:, 3 * dim :]])
    else:
        keys, scores = rows[:, :dim], rows[:, dim:]
    scores = scores + bias
    if overlaps and fresh:  # there is no page before the first one
        keys, scores = keys[4:], scores[4:]
    weights = scores.softmax(dim=0)
    out, spread = (weights * keys).sum(dim=0), (weights * keys.abs()).sum(dim=0)
    off = 8 * EPS * (scores.abs() + scores.abs().amax(dim=0)) + 16 * EPS
    moved = (weights * off * keys.abs()).sum(dim=0) + (weights * off).sum(dim=0) * spread
    tolerance = moved + (len(keys) + 8) * EPS * spread + 4 * EPS * out.abs()
    return out[None], tolerance[None]


# --- Stores -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rotation:
    """Norm and rotary embedding of rows, exactly.

    Attributes:
        rows: ``[rows, 512]``, float64.
        off: how far off float32 may be.
    """

    rows: torch.Tensor
    off: torch.Tensor

    @classmethod
    def of(
        cls, kv: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor, positions: Sequence[int]
    ) -> _Rotation:
        """Norm over all elements, then rotate the last 64 as 32 pairs.

        Args:
            kv: ``[rows, 512]``.
            weight: ``[512]``.
            angles: ``[positions, 32]``, complex.
            positions: of each row.
        """
        exact = kv.double()
        factor = torch.rsqrt(exact.square().mean(dim=1, keepdim=True) + _EPSILON)
        rows = exact * factor * weight.double()
        # A float32 sum of 512 squares, its root, and two products.
        relative = (DIM / 2 + 8) * EPS
        off = rows.abs() * relative
        pairs = torch.view_as_complex(rows[:, NOPE:].reshape(len(rows), -1, 2))
        turned = torch.view_as_real(pairs * angles[list(positions)].to(torch.complex128))
        sizes = rows[:, NOPE:].abs().reshape(len(rows), -1, 2).sum(dim=2, keepdim=True)
        rows[:, NOPE:] = turned.reshape(len(rows), -1)
        off[:, NOPE:] = (sizes * (relative + 4 * EPS)).expand(-1, -1, 2).reshape(len(rows), -1)
        return cls(rows=rows, off=off)


def _within(
    found: torch.Tensor, exact: torch.Tensor, tolerance: torch.Tensor, what: str
) -> Difference:
    tolerance = SECOND_ORDER * tolerance + torch.finfo(torch.float32).tiny
    errors = torch.nan_to_num(
        (found.double() - exact).abs() / tolerance, nan=torch.inf, posinf=torch.inf
    )
    worst = float(errors.max()) if errors.numel() else 0.0
    says = ""
    if worst > 1:
        at = int(errors.argmax())
        says = f"{what}, element {at}: {found.flatten()[at]} instead of {exact.flatten()[at]:.6g}"
    return Difference(cells=exact.numel(), worst=worst, says=says)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Packed:
    """Rows in fp8: values, scales that are powers of two, and the rotated part in bf16."""

    values: torch.Tensor
    scales: torch.Tensor
    rope: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> _Packed:
        """Pack ``[rows, 512]`` as the layout says, scale by scale."""
        groups = rows[:, :NOPE].float().reshape(len(rows), -1, GROUP)
        scales = _scale_bytes(groups.abs().amax(dim=2))
        powers = torch.exp2(127.0 - scales.float())[:, :, None]
        values = (groups * powers).clamp(-_LARGEST_FP8, _LARGEST_FP8)
        return cls(
            values=values.to(torch.float8_e4m3fn).view(torch.uint8).reshape(len(rows), -1),
            scales=scales.to(torch.uint8),
            rope=rows[:, NOPE:].contiguous().view(torch.uint8),
        )


def _scale_bytes(largest: torch.Tensor) -> torch.Tensor:
    """Exponent of the smallest power of two that is not below largest / 448, biased by 127."""
    bits = (largest.float().clamp(min=_SMALLEST_AMAX) / _LARGEST_FP8).view(torch.int32)
    return (bits >> 23 & 0xFF) + (bits & 0x7FFFFF != 0).int()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Store:
    """What a store writes and where.

    Attributes:
        kv: rows of the batch, normed or not.
        locs: where each token's row belongs, one a token; distinct.
        rows: of what is written: row of ``kv``, position, location.
    """

    kv: torch.Tensor
    weight: torch.Tensor
    angles: torch.Tensor
    locs: list[int]
    rows: list[tuple[int, int, int]]

    @property
    def exact(self) -> _Rotation:
        """What is written."""
        picked = [row for row, _, _ in self.rows]
        positions = [position for _, position, _ in self.rows]
        return _Rotation.of(self.kv[picked], self.weight, self.angles, positions)

    @property
    def places(self) -> list[int]:
        """Where it is written."""
        return [loc for _, _, loc in self.rows]


def _model(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    weight = source.normal(DIM, dtype=torch.bfloat16) * 0.5 + 1
    phase = torch.rand(_POSITIONS, ROPE // 2, generator=source.generator, device=source.device)
    return weight, torch.polar(torch.ones_like(phase), phase * 2 * math.pi)


def _compressed_store(bench: Bench, source: Source, *, layout: str, decode: bool) -> Difference:
    batch = _Batch.random(source, ratio=source.dice.choice((4, 128)), decode=decode)
    rows = batch.rows
    weight, angles = _model(source)
    swa_pages = source.dice.randint(1, 500)
    locs = [swa_pages + loc for loc in source.dice.sample(range(_POOL_ROWS), batch.tokens)]
    store = _Store(
        kv=source.normal(batch.tokens if decode else len(rows), DIM, dtype=torch.bfloat16) * 3,
        weight=weight,
        angles=angles,
        locs=locs,
        # A compressed row is rotated by the position of its first token.
        rows=[(row.kv, row.length - batch.ratio, locs[row.token]) for row in rows],
    )
    plan = batch.plan(bench, source)
    pool_rows = swa_pages + _POOL_ROWS

    def run(kvcache: torch.Tensor, page_size: int, **layout: Any) -> None:
        _launch(bench, "compressed store")(
            store.kv, plan, norm_weight=store.weight, norm_eps=_EPSILON, freq_cis=store.angles,
            out_loc=torch.tensor(locs, device=source.device), kvcache=kvcache,
            page_size=page_size, **layout,
        )  # fmt: skip

    plain = _bytes(source, pool_rows, 2 * DIM)
    before = plain.clone()
    run(plain, 1, bf16_store=True)
    places = torch.tensor(store.places, device=source.device)
    written = plain[places].view(torch.bfloat16)
    exact = store.exact
    parts = [
        _within(written, exact.rows, ROUNDED[torch.bfloat16] * exact.rows.abs() + exact.off, "row")
    ]
    before[places] = plain[places]
    parts.append(same_bits(plain, before, "pool beside the rows"))
    packed = _Packed.of(written)
    if layout == "two pools":
        nope, rope = _bytes(source, pool_rows, 512), _bytes(source, pool_rows, 2 * ROPE)
        expected, expected_rope = nope.clone(), rope.clone()
        run(nope, 1, fp8_2buff=True, kvcache_rope=rope)
        expected[places, :NOPE] = packed.values
        # Each scale twice: the reader loads it so.
        scales = packed.scales.repeat_interleave(2, dim=1)
        expected[places, NOPE : NOPE + scales.shape[1]] = scales
        expected_rope[places] = packed.rope
        parts += [
            same_bits(nope, expected, "nope pool"),
            same_bits(rope, expected_rope, "rope pool"),
        ]
    elif layout == "paged fp8":
        pages = _Pages.for_rows(pool_rows)
        cache = pages.fresh(source)
        expected = cache.clone()
        run(cache, pages.size)
        pages.put(expected, store.places, packed)
        parts.append(same_bits(cache, expected, "paged pool"))
    return all_of(parts)


def _bytes(source: Source, *shape: int) -> torch.Tensor:
    return torch.randint(
        0, 256, shape, generator=source.generator, device=source.device, dtype=torch.uint8
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pages:
    """The paged fp8 layout: a page's rows of 576 bytes, then its scales, 8 bytes a row."""

    size: int
    count: int

    @classmethod
    def for_rows(cls, rows: int) -> _Pages:
        """Pages for so many rows. Each size is compiled for, so there is one."""
        size = 64
        return cls(size=size, count=-(-rows // size))

    @property
    def bytes(self) -> int:
        """Of a page: padded to whole rows."""
        return -(-584 * self.size // 576) * 576

    def fresh(self, source: Source, *, guard: int = 0) -> torch.Tensor:
        """A pool with whatever was in memory, and ``guard`` pages in front of it."""
        return _bytes(source, guard + self.count, self.bytes)

    def put(self, pool: torch.Tensor, locs: Sequence[int], rows: _Packed) -> None:
        """Write rows as the layout says."""
        for index, loc in enumerate(locs):
            page, row = divmod(loc, self.size)
            data, scale = 576 * row, 576 * self.size + 8 * row
            pool[page, data : data + NOPE] = rows.values[index]
            pool[page, data + NOPE : data + 576] = rows.rope[index]
            pool[page, scale : scale + 7] = rows.scales[index]


def _paged_store(bench: Bench, source: Source) -> Difference:
    """Rows that are normed and rotated already."""
    dice = source.dice
    tokens = dice.randint(1, 40)
    kv = source.normal(tokens, DIM, dtype=torch.bfloat16) * dice.choice((0.0001, 1.0, 30.0))
    locs = dice.sample(range(1024), tokens)
    kind = dice.choice((torch.int32, torch.int64))
    pages = _Pages.for_rows(1024)
    pool = pages.fresh(source)
    expected = pool.clone()
    _launch(bench, "paged store")(
        kv, pool, torch.tensor(locs, dtype=kind, device=source.device),
        page_size=pages.size, type="flashmla",
    )  # fmt: skip
    pages.put(expected, locs, _Packed.of(kv))
    return same_bits(pool, expected, "paged pool")


def _window_store(bench: Bench, source: Source, *, padded: bool) -> Difference:
    """Norm, rotate and write rows of the sliding window's own pool.

    ``padded``: some rows have the location -1, and write nothing.
    """
    dice = source.dice
    tokens = dice.randint(1, 40)
    weight, angles = _model(source)
    locs = dice.sample(range(1024), tokens)
    if padded:
        locs = [-1, *(dice.choice((loc, loc, loc, -1)) for loc in locs[1:])]
    positions = [dice.randrange(_POSITIONS) for _ in locs]
    kv = source.normal(tokens, DIM, dtype=torch.bfloat16) * 3
    pages = _Pages.for_rows(1024)
    # A page in front: a kernel that takes -1 for a location writes there, and nowhere worse.
    guarded = pages.fresh(source, guard=1)
    pool = guarded[1:]
    before = guarded.clone()
    _launch(bench, "window store")(
        kv, weight, _EPSILON, angles, torch.tensor(positions, device=source.device),
        torch.tensor(locs, dtype=torch.int32, device=source.device), pool, pages.size,
    )  # fmt: skip
    exact = _Rotation.of(kv, weight, angles, positions)
    parts = []
    for index, loc in enumerate(locs):
        if loc < 0:
            continue
        page, row = divmod(loc, pages.size)
        data, scale = 576 * row, 576 * pages.size + 8 * row
        found = pool[page, data : data + 576]
        scales = pool[page, scale : scale + 7]
        parts.append(_packed_within(found, scales, exact.rows[index], exact.off[index]))
        before[1 + page, data : data + 576] = found
        before[1 + page, scale : scale + 7] = scales
    parts.append(same_bits(guarded[0], before[0], "memory in front of the pool"))
    parts.append(same_bits(pool, before[1:], "pool beside the rows"))
    return all_of(parts)


def _packed_within(
    data: torch.Tensor, scales: torch.Tensor, exact: torch.Tensor, off: torch.Tensor
) -> Difference:
    """A packed row that was quantised before it was ever rounded to bf16."""
    largest = exact[:NOPE].abs().reshape(-1, GROUP).amax(dim=1)
    # Rounding may carry the largest element over a power of two, or not.
    low, high = (_scale_bytes(largest * (1 + shift)) for shift in (-(2.0**-12), 2.0**-12))
    if bool(((scales < low) | (scales > high)).any()):
        says = f"scales {scales.tolist()} instead of {low.tolist()}"
        return Difference(cells=7, worst=math.inf, says=says)
    power = torch.exp2(scales.double() - 127).repeat_interleave(GROUP)
    values = data[:NOPE].contiguous().view(torch.float8_e4m3fn).double() * power
    # Three bits behind the point; below 2^-6 a fixed step of 2^-9.
    step = 2.0**-4 * exact[:NOPE].abs() + 2.0**-10 * power + off[:NOPE]
    rope = data[NOPE:].contiguous().view(torch.bfloat16)
    half = ROUNDED[torch.bfloat16] * exact[NOPE:].abs() + off[NOPE:]
    return all_of(
        (_within(values, exact[:NOPE], step, "value"), _within(rope, exact[NOPE:], half, "rope"))
    )


# --- All of them ------------------------------------------------------------------------------


def _comparisons() -> Iterator[Comparison]:
    for form in ("decode", "prefill"):
        decode = form == "decode"
        yield Comparison(
            role="compress plan", form=form, dtype="int32", check=partial(_plan, decode=decode)
        )
        for ratio in (4, 128):
            yield Comparison(
                role="compressor", form=f"{ratio} tokens, {form}", dtype="fp32",
                check=partial(_compressor, ratio=ratio, decode=decode),
            )  # fmt: skip
        for layout, dtype in (("bf16 rows", "bf16"), ("paged fp8", "fp8")):
            yield Comparison(
                role="compressed store", form=f"{layout}, {form}", dtype=dtype,
                check=partial(_compressed_store, layout=layout, decode=decode),
            )  # fmt: skip
        yield Comparison(
            role="compressed store into two pools", form=form, dtype="fp8",
            check=partial(_compressed_store, layout="two pools", decode=decode),
        )  # fmt: skip
    yield Comparison(role="paged store", dtype="fp8", check=_paged_store)
    yield Comparison(role="window store", dtype="fp8", check=partial(_window_store, padded=False))
    yield Comparison(
        role="window store", form="padded rows", dtype="fp8",
        check=partial(_window_store, padded=True),
    )  # fmt: skip


NATIVE_COMPARISONS = tuple(_comparisons())
"""What is compared of the C++ kernels."""
