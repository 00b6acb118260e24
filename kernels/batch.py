"""Many independent scenarios in one launch, so that the real ring kernels run at their own speed.

Every slot plays a scenario of its own: requests come and go in it, with random prompts, matches and
chunks, and decode or verify in between. One launch serves all slots. What a scheduler decides is
drawn (the match obeys the cap, CAP-3, with the tail that the order names); scatter and index
kernels are the release's, and each row that a query reads is checked twice: against the rows that
the rules name, and by the payload that the row holds against who should have written it.

``python -m kvproof.kernels.batch ORDER`` runs in an engine's process, with the `Play` as JSON; a
`Batched` comes out after every round, the last one is the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import torch

from kvproof.kernels.backends import KernelBackend, device, label
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.order_process import OrderProcess, tell_lines
from kvproof.kernels.engines.store import Engine
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.spec.cap import capped_match
from kvproof.spec.indices import PADDING_SLOT
from kvproof.spec.pages import page_floor
from kvproof.spec.ring import ring_row, ring_stride
from kvproof.spec.terms import register_conditional
from kvproof.spec.window import Order, decode_reads, prefill_ring_reads, scatter_keeps

register_conditional(torch.Tensor, torch.where)  # a tensor of conditions

Property: TypeAlias = Literal["FRESH-DECODE", "FRESH-PREFILL", "REFINES rows", "REFINES payload"]

HEAD_DIM = 16
"""Elements of a row: a mark, four digits of the occupancy, four of the position, and zeros."""

_DIGITS = 4
_DIGIT_BITS = 7  # bf16 holds every integer up to 256
_MOST = 2 ** (_DIGITS * _DIGIT_BITS)

_STEPS = 16
"""Decode steps of a round; a quarter of the slots gets a new request before it."""

_ENTRIES = 2**26
"""Rows read by one launch at most; prefills of more slots take several."""

_PADDED_ROWS = 3

SILENCE_S = 300.0
"""Seconds for one round."""


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's process is asked for.

    Attributes:
        backend: where kernels run.
        slots: scenarios, one slot each; slot 0 comes on top and takes padded rows.
        window: positions that a query sees, itself included.
        page_size: of the matches.
        draft_tokens: tokens that a verify writes; 1 for plain decoding.
        reprefill_tail: tokens that the cap holds back.
        short: rows that a slot lacks to the stride that the rules ask for.
        seconds: to play; one round is played in any case.
        seed: everything is drawn from it.
    """

    backend: KernelBackend
    slots: int
    window: int
    page_size: int
    draft_tokens: int
    reprefill_tail: int
    short: int
    seconds: float
    seed: int


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """One query that read what it should not have, and how its slot came to that.

    Attributes:
        slot: of the query's request.
        position: of the query.
        stands_for: position that the row was read for.
        found: who wrote it, as (occupancy, position).
        occupancy: of the reading request.
        previous_end: positions that the slot's requests before it had written.
        prompt_len: of the request.
        matched_len: of it.
        chunk_end: where its first chunk ended.
        accepted: tokens kept in each step before the query's.
    """

    slot: int
    position: int
    stands_for: int
    found: tuple[int, int]
    occupancy: int
    previous_end: int
    prompt_len: int
    matched_len: int
    chunk_end: int
    accepted: tuple[int, ...]


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one property.

    Attributes:
        name: of the property.
        checked: rows that were looked at.
        broken: how many of them were wrong.
        past_match: how many of these stood at or past the match: no cap explains them.
        expected: whether theorem and order say that some are wrong.
        why: the theorem.
        example: one of them.
    """

    name: Property
    checked: int = 0
    broken: int = 0
    past_match: int = 0
    expected: bool
    why: str
    example: Example | None = None

    @property
    def as_expected(self) -> bool:
        """Whether it broke exactly if it should."""
        return bool(self.checked) and bool(self.broken) == self.expected


class Batched(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch has shown so far.

    Attributes:
        release: the engine's name.
        backend: with the GPU's architecture.
        order: what was asked for.
        stride: rows per slot.
        verify_order: of the release.
        rounds: played; the first one compiles the kernels.
        decodes: decode and verify queries whose rows were all checked.
        prefills: the same of prefill queries that read the ring.
        hits: requests that reused something.
        wrapped: queries whose window lay across the end of the ring.
        rejected: drafted tokens that were not kept.
        seconds: of all rounds.
        timed_decodes: decodes after the first round.
        timed_seconds: time after the first round, prefills and checks included.
        judged: the properties.
    """

    release: str
    backend: str
    order: Play
    stride: int
    verify_order: Order
    rounds: int = 0
    decodes: int = 0
    prefills: int = 0
    hits: int = 0
    wrapped: int = 0
    rejected: int = 0
    seconds: float = 0.0
    timed_decodes: int = 0
    timed_seconds: float = 0.0
    judged: tuple[Judged, ...] = ()

    @property
    def decodes_per_second(self) -> float | None:
        """Checked decodes a second; None before the second round."""
        return self.timed_decodes / self.timed_seconds if self.timed_seconds else None

    @property
    def as_expected(self) -> bool:
        """Whether each property broke exactly if it should, and every witness was reached."""
        return not self.missing and all(one.as_expected for one in self.judged)

    @property
    def missing(self) -> tuple[str, ...]:
        """Witnesses that were not reached."""
        reached = {"a hit": self.hits, "a wrapped window": self.wrapped}
        if self.order.draft_tokens > 1:
            reached["a rejected draft token"] = self.rejected
        return tuple(name for name, count in reached.items() if not count)


_lines = msgspec.json.Decoder(Batched)


def play_batch(
    engine: Engine, order: Play, *, tell: Callable[[Batched], None] = lambda _: None
) -> Batched:
    """Play a batch with an engine's kernels.

    Args:
        engine: as found in the store.
        order: what to play.
        tell: told what there is after every round.

    Raises:
        EngineError: the engine's process ended before a round was played.
    """
    result: Batched | None = None
    with OrderProcess(
        engine,
        __name__,
        order,
        interpret=order.backend == "interpreter",
        lines=_lines,
        silence_s=SILENCE_S,
    ) as process:
        for result in process.lines():
            tell(result)
        words = process.last_words()
    if result is None or not words.startswith("the engine's process ended with 0,"):
        raise EngineError(words, fix="try fewer slots (--slots), or kvproof engine doctor")
    return result


# --- In the engine's process ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Queries:
    """Tokens of one launch, one entry each, request by request.

    Attributes:
        lane: index of the request's state; the last one is the padding's.
        slot: its slot.
        position: the token's.
        chunk_start: first position of its request's chunk.
        first_row: index of that token in the launch.
        final: last position of its request in the launch.
    """

    lane: torch.Tensor
    slot: Any  # tensors too: the rules are written for integers
    position: Any
    chunk_start: Any
    first_row: torch.Tensor
    final: Any


@dataclass(slots=True)
class _Count:
    checked: int = 0
    broken: int = 0
    past_match: int = 0
    example: Example | None = None


@dataclass(slots=True)
class Batch:
    """Slots, ring and ghost state of one order, on its device.

    Attributes:
        order: what is played.
        kernels: of this process's engine.
        stride: rows per slot.
        ring: the buffer that the kernels write and read.
        ghost: who wrote each row, by the rules: the code of the occupancy, and above it that of
            the position.
        slot: of each lane; there is a lane a slot, and the last one is the padding's.
        occupancy: of each lane's request; 0 for padding.
        name: its code; see `_spread`.
        end: positions that it has committed.
        matched: of its prompt, what it reused.
        prompt: its length.
        chunk_end: where its first chunk ended.
        since: steps of the batch before it came.
        before: positions that the requests before it had committed.
        steps: tokens kept in each step of the batch.
    """

    order: Play
    kernels: RingKernels
    device: str = field(init=False)
    dice: torch.Generator = field(init=False)
    stride: int = field(init=False)
    ring: Ring = field(init=False)
    ghost: torch.Tensor = field(init=False)
    slot: torch.Tensor = field(init=False)
    occupancy: torch.Tensor = field(init=False)
    name: torch.Tensor = field(init=False)
    end: torch.Tensor = field(init=False)
    matched: torch.Tensor = field(init=False)
    prompt: torch.Tensor = field(init=False)
    chunk_end: torch.Tensor = field(init=False)
    since: torch.Tensor = field(init=False)
    before: torch.Tensor = field(init=False)
    rounds: int = 0
    decodes: int = 0
    prefills: int = 0
    hits: int = 0
    wrapped: int = 0
    rejected: int = 0
    lent: int = 0
    steps: list[int] = field(default_factory=list)
    counts: dict[Property, _Count] = field(default_factory=dict)

    def __post_init__(self) -> None:
        order = self.order
        self.stride = ring_stride(order.window, order.draft_tokens) - order.short
        self.device = device(order.backend)
        self.dice = torch.Generator(self.device).manual_seed(order.seed)
        rows = (order.slots + 1) * self.stride
        self.ring = Ring(
            rows=torch.zeros(rows, HEAD_DIM, dtype=torch.bfloat16, device=self.device),
            window=order.window,
            stride=self.stride,
            pages=rows,
        )
        self.ghost = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.counts = {
            "FRESH-DECODE": _Count(), "FRESH-PREFILL": _Count(),
            "REFINES rows": _Count(), "REFINES payload": _Count(),
        }  # fmt: skip
        # One lane a slot; the last lane is the padding's.
        self.slot = torch.cat([self._numbers(order.slots) + 1, self._zeros(1) + PADDING_SLOT])
        lanes = order.slots + 1
        self.occupancy, self.name, self.end, self.matched = (self._zeros(lanes) for _ in range(4))
        self.prompt, self.chunk_end, self.since, self.before = (
            self._zeros(lanes) for _ in range(4)
        )

    # --- operations -----------------------------------------------------------------------

    def play_round(self) -> None:
        """New requests in some slots, then steps of all."""
        order = self.order
        fresh = self._random(order.slots, 4) == 0
        self._admit(self._numbers(order.slots) if not self.rounds else fresh.nonzero()[:, 0])
        self._compare_all_rows()
        for _ in range(_STEPS):
            self._step()
        self._compare_all_rows()
        self.rounds += 1

    def _admit(self, lanes: torch.Tensor) -> None:
        order, count = self.order, len(lanes)
        if self.lent + count >= _MOST:
            raise OverflowError(f"the payload counts {_MOST} occupancies; play fewer rounds")
        # The rules are written for integers, and mean the same on tensors of them.
        prompt: Any = self._random(count, 4 * order.window) + 1
        cached: Any = page_floor(self._up_to(prompt), order.page_size)
        cached = torch.where(self._random(count, 3) == 0, 0, cached)
        matched: Any = capped_match(cached, prompt, order.reprefill_tail, order.page_size)
        self.before[lanes] = self.end[lanes]
        self.prompt[lanes], self.matched[lanes] = prompt, matched
        self.occupancy[lanes] = self.lent + 1 + self._numbers(count)
        self.name[lanes] = _spread(self.occupancy[lanes])
        self.lent += count
        self.since[lanes] = len(self.steps)
        # A chunk ends at a page, or with the prompt.
        cut: Any = page_floor(matched + self._up_to(prompt - matched), order.page_size)
        self.chunk_end[lanes] = torch.where(cut <= matched, prompt, cut)
        self.hits += int((matched > 0).sum())
        at_once = max(1, _ENTRIES // (4 * order.window + order.window**2 // 2))
        for some in torch.split(lanes, at_once):
            self._prefill(some, self.matched[some], self.chunk_end[some])
            self._prefill(some, self.chunk_end[some], self.prompt[some])
        self.end[lanes] = prompt

    def _prefill(self, lanes: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> None:
        some = start < end
        if not bool(some.any()):
            return
        queries = self._queries(lanes[some], start[some], end[some])
        self._read_beside(queries, "FRESH-PREFILL")
        self._scatter(queries, queries.final)

    def _step(self) -> None:
        order = self.order
        lanes = torch.cat([self._numbers(order.slots), self._zeros(_PADDED_ROWS) + order.slots])
        queries = self._queries(lanes, self.end[lanes], self.end[lanes] + order.draft_tokens)
        beside = order.draft_tokens > 1 and self.kernels.verify_order == "read, then write"
        if beside:
            self._read_beside(queries, "FRESH-DECODE")
            self._scatter(queries, queries.final)
        else:
            # The index streams are built before the layers run, and they are what is read later.
            named = self.kernels.decode_index(
                self.ring, slots=queries.slot, positions=queries.position
            )
            # Each token is its own last one here, so that none is filtered out.
            self._scatter(queries, queries.position)
            start, end = decode_reads(queries.position, order.window)
            self._check(queries, start, end, named, "FRESH-DECODE")
        accepted = 1 + int(torch.randint(order.draft_tokens, (1,), generator=self.dice,
                                         device=self.device))  # fmt: skip
        self.steps.append(accepted)
        self.end[: order.slots] += accepted
        self.decodes += order.slots * order.draft_tokens
        self.rejected += order.slots * (order.draft_tokens - accepted)

    # --- launches -------------------------------------------------------------------------

    def _queries(self, lanes: torch.Tensor, start: torch.Tensor, end: torch.Tensor) -> _Queries:
        lengths = end - start
        edges = _edges(lengths)
        each = torch.repeat_interleave(self._numbers(len(lanes)), lengths)
        first_row = edges[each]
        return _Queries(
            lane=lanes[each],
            slot=self.slot[lanes[each]],
            position=start[each] + self._numbers(len(each)) - first_row,
            chunk_start=start[each],
            first_row=first_row,
            final=end[each] - 1,
        )

    def _read_beside(self, queries: _Queries, judged: Property) -> None:
        """Reads of the rows below the chunk; the rest of a window is the chunk's own."""
        named = self.kernels.prefill_index(
            self.ring,
            slots=queries.slot,
            positions=queries.position,
            chunk_starts=queries.chunk_start,
            first_rows=queries.first_row,
        )
        start, end = prefill_ring_reads(queries.position, queries.chunk_start, self.order.window)
        self._check(queries, start, end, named, judged)

    def _scatter(self, queries: _Queries, final: Any) -> None:
        code = self.name[queries.lane] | _spread(queries.position) << 32
        self.kernels.scatter(
            self.ring,
            _payload(code),
            slots=queries.slot,
            positions=queries.position,
            final_positions=final,
        )
        kept = scatter_keeps(queries.position, final, self.order.window)
        rows: Any = ring_row(queries.slot, queries.position, self.stride)
        self.ghost[rows[kept]] = code[kept]

    # --- checks ---------------------------------------------------------------------------

    def _check(
        self,
        queries: _Queries,
        start: Any,
        end: Any,
        named: tuple[torch.Tensor, torch.Tensor],
        judged: Property,
    ) -> None:
        """Rows that queries read, against the rule, the payload and the ghost state."""
        lengths = (end - start).clamp(min=0)
        edges = _edges(lengths)
        total = int(edges[-1])
        rows, starts = named
        refines = self.counts["REFINES rows"]
        refines.checked += total
        if not torch.equal(starts, edges.to(starts.dtype)):
            refines.broken += total  # nothing can be said of rows that belong to nobody
            return
        query = torch.repeat_interleave(self._numbers(len(lengths)), lengths, output_size=total)
        position: Any = start[query] + self._numbers(total) - edges[query]
        given = rows[:total].long()
        slot, lane = queries.slot[query], queries.lane[query]
        rule: Any = ring_row(slot, position, self.stride)
        inside = given.clamp(0, len(self.ghost) - 1)
        seen, ghost = _seen(self.ring.rows[inside]), self.ghost[inside]
        wanted = self.name[lane] | _spread(position) << 32
        # A padded row is nobody's: what it reads is not asked for.
        stale = ((ghost != wanted) | (seen != wanted)) & (slot != PADDING_SLOT)
        # One answer for all three: each is a wait for the device.
        misnamed, torn, broken = torch.stack(
            [(given != rule).sum(), (seen != ghost).sum(), stale.sum()]
        ).tolist()
        refines.broken += misnamed
        payload = self.counts["REFINES payload"]
        payload.checked += total
        payload.broken += torn
        count = self.counts[judged]
        count.checked += total
        if broken:
            count.broken += broken
            count.past_match += int((stale & (position >= self.matched[lane])).sum())
            if count.example is None:
                count.example = self._example(stale, query, position, seen, queries)
        if judged == "FRESH-PREFILL":
            self.prefills += int((lengths > 0).sum())
        else:
            wraps = start // self.stride != (end - 1) // self.stride
            self.wrapped += int((wraps & (lengths > 0)).sum())

    def _compare_all_rows(self) -> None:
        """The whole buffer, bit by bit: a row that no query reads may not be torn either."""
        expected = torch.where(self.ghost[:, None] == 0, 0, _payload(self.ghost))
        # Padding writes occupancy 0 at position 0, whose code is that of an unwritten row.
        differs = (self.ring.rows.view(torch.int16) != expected.view(torch.int16)).any(1)
        differs[: self.stride] = False
        count = self.counts["REFINES payload"]
        count.checked += len(differs)
        count.broken += int(differs.sum())

    def _example(
        self,
        stale: torch.Tensor,
        query: torch.Tensor,
        position: torch.Tensor,
        seen: torch.Tensor,
        queries: _Queries,
    ) -> Example:
        """The stale read of the request with the shortest prompt."""
        found = stale.nonzero()[:, 0]
        at = found[self.prompt[queries.lane[query[found]]].argmin()]
        lane, writer = queries.lane[query[at]], seen[at]
        return Example(
            slot=int(self.slot[lane]),
            position=int(queries.position[query[at]]),
            stands_for=int(position[at]),
            found=(_number(writer), _number(writer >> 32)),
            occupancy=int(self.occupancy[lane]),
            previous_end=int(self.before[lane]),
            prompt_len=int(self.prompt[lane]),
            matched_len=int(self.matched[lane]),
            chunk_end=int(self.chunk_end[lane]),
            accepted=tuple(self.steps[int(self.since[lane]) :]),
        )

    # --- results --------------------------------------------------------------------------

    def report(self, *, release: str, backend: str, **times: Any) -> Batched:
        """What there is so far; ``times`` are fields of `Batched`."""
        return Batched(
            release=release, backend=backend, order=self.order, stride=self.stride,
            verify_order=self.kernels.verify_order, rounds=self.rounds, decodes=self.decodes,
            prefills=self.prefills, hits=self.hits, wrapped=self.wrapped,
            rejected=self.rejected, judged=tuple(self._judged()), **times,
        )  # fmt: skip

    def _judged(self) -> Iterator[Judged]:
        """Each property, and what the theorems say of this order."""
        order = self.order
        reads_first = order.draft_tokens > 1 and self.kernels.verify_order == "read, then write"
        spare = 1 if reads_first else 0
        held_back = max(order.reprefill_tail, 1)
        capped = held_back >= order.window - 1
        too_short = order.short > spare
        says = {
            "FRESH-DECODE": (
                not capped or too_short,
                "R5, R6, R7: the stride is too short" if too_short else
                "C3: the cap holds back W - 1 tokens" if capped else
                "C3: the cap holds back less than W - 1 tokens",
            ),
            "FRESH-PREFILL": (order.window > 1, "X1: every hit reads below its match"),
            "REFINES rows": (False, "the kernels name the rows of the rules"),
            "REFINES payload": (False, "what went in comes out"),
        }  # fmt: skip
        for name, count in self.counts.items():
            expected, why = says[name]
            yield Judged(
                name=name, checked=count.checked, broken=count.broken,
                past_match=count.past_match, expected=expected, why=why, example=count.example,
            )  # fmt: skip

    # --- tensors --------------------------------------------------------------------------

    def _zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int64, device=self.device)

    def _numbers(self, count: int) -> torch.Tensor:
        return torch.arange(count, device=self.device)

    def _up_to(self, limits: torch.Tensor) -> Any:
        """A number from 0 to each limit, inclusive."""
        drawn = torch.rand(len(limits), generator=self.dice, device=self.device)
        return (drawn * (limits + 1)).long()

    def _random(self, count: int, below: int) -> torch.Tensor:
        return torch.randint(below, (count,), generator=self.dice, device=self.device)


def _edges(lengths: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def _spread(numbers: torch.Tensor) -> torch.Tensor:
    """Code of a number: its digits, one a byte."""
    digits = [(numbers >> _DIGIT_BITS * at & 127) << 8 * at for at in range(_DIGITS)]
    return digits[0] | digits[1] | digits[2] | digits[3]


def _number(code: torch.Tensor) -> int:
    """The number whose digits are a code's lower four bytes."""
    return sum((int(code) >> 8 * at & 127) << _DIGIT_BITS * at for at in range(_DIGITS))


def _payload(code: torch.Tensor) -> torch.Tensor:
    """``[tokens, HEAD_DIM]``, bf16: a mark, the digits, zeros."""
    rows = torch.zeros(len(code), HEAD_DIM, dtype=torch.bfloat16, device=code.device)
    rows[:, 0] = 1
    rows[:, 1 : 2 * _DIGITS + 1] = code[:, None].view(torch.uint8)
    return rows


def _seen(rows: torch.Tensor) -> torch.Tensor:
    """The code that rows of the ring hold."""
    return rows[:, 1 : 2 * _DIGITS + 1].to(torch.uint8).contiguous().view(torch.int64)[:, 0]


def carry_out(order: Play, release: str) -> Iterator[Batched]:
    """Play rounds with this process's engine for as long as the order says."""
    from kvproof.kernels.engines import shims  # noqa: PLC0415  # it goes before triton and sglang

    shims.install(rocm_gate=True, interpret=order.backend == "interpreter")
    batch = Batch(order=order, kernels=RingKernels.of_family(shims.engine_family()))
    where = label(order.backend)
    began = first_ended = time.monotonic()
    first_decodes = 0
    while True:
        batch.play_round()  # ends in counts on the host, so the device is done
        now = time.monotonic()
        if batch.rounds == 1:
            first_ended, first_decodes = now, batch.decodes
        yield batch.report(
            release=release, backend=where, seconds=now - began,
            timed_decodes=batch.decodes - first_decodes, timed_seconds=now - first_ended,
        )  # fmt: skip
        if now - began >= order.seconds:
            return


def main(arguments: Sequence[str]) -> None:
    """Carry out one order."""
    order = msgspec.json.decode(arguments[0], type=Play)
    tell_lines(carry_out(order, arguments[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
