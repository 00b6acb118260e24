"""The specification as a kernel: rows by the rules, in the order that the rules give.

With the real caches behind it this is the backend ``rules``: quick, and compared with the real
kernels elsewhere. With the reference engine it completes the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from kvproof.model.facts import Fact, Mode, Ran, Read, Started, Wrote
from kvproof.model.player import Forward, Lane
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import (
    DECODE_ORDER,
    PREFILL_ORDER,
    Order,
    decode_reads,
    floored_ring_reads,
    prefill_ring_reads,
    scatter_keeps,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleForward:
    """Rows of each launch by WINDOW-1 to WINDOW-7 and RING-2.

    The orders are parameters, so that a mutant can turn one round.
    """

    window: int
    stride: int
    verify_order: Order
    prefill_order: Order = PREFILL_ORDER
    decode_order: Order = DECODE_ORDER

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One prefill launch."""
        return [*self._launch(lanes, "prefill")]

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One decode launch."""
        return [*self._launch(lanes, "decode")]

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One verify launch: the prefill path where the release reads first, else decode's."""
        return [*self._launch(lanes, "verify")]

    def lane(self, lane: Lane, mode: Mode) -> Iterator[Read | Wrote]:
        """A launch of one lane, one fact at a time: a long one has many rows."""
        return self._launch([lane], mode)

    def _launch(self, lanes: Sequence[Lane], mode: Mode) -> Iterator[Read | Wrote]:
        order = {
            "prefill": self.prefill_order,
            "decode": self.decode_order,
            "verify": self.verify_order,
        }[mode]
        beside = mode == "prefill" or (mode == "verify" and order == "read, then write")
        reads = self._beside_reads(lanes, mode) if beside else self._ring_reads(lanes, mode)
        writes = self._writes(lanes, mode, keep_all=not beside)
        return chain(reads, writes) if order == "read, then write" else chain(writes, reads)

    def _beside_reads(self, lanes: Sequence[Lane], mode: Mode) -> Iterator[Read]:
        for lane in lanes:
            # A query whose window lies within its chunk reads no ring row.
            for position in range(lane.start, min(lane.end, lane.start + self.window - 1)):
                start, end = prefill_ring_reads(
                    Position(position), Position(lane.start), self.window
                )
                if start < end:
                    yield self._read(lane, mode, position, start, end)

    def _ring_reads(self, lanes: Sequence[Lane], mode: Mode) -> Iterator[Read]:
        for lane in lanes:
            for position in range(lane.start, lane.end):
                yield self._read(
                    lane, mode, position, *decode_reads(Position(position), self.window)
                )

    def _read(self, lane: Lane, mode: Mode, position: int, start: int, end: int) -> Read:
        return Read(
            request=lane.request,
            mode=mode,
            slot=lane.slot,
            position=position,
            first=start,
            rows=tuple(
                ring_row(Slot(lane.slot), Position(at), self.stride) for at in range(start, end)
            ),
        )

    def _writes(self, lanes: Sequence[Lane], mode: Mode, *, keep_all: bool) -> Iterator[Wrote]:
        # The decode path calls each token its own final one, so that none is left out.
        for lane in lanes:
            final = Position(lane.end - 1)
            kept = tuple(
                position
                for position in range(lane.start, lane.end)
                if keep_all or scatter_keeps(Position(position), final, self.window)
            )
            yield Wrote(
                request=lane.request,
                mode=mode,
                slot=lane.slot,
                positions=kept,
                rows=tuple(
                    ring_row(Slot(lane.slot), Position(position), self.stride) for position in kept
                ),
            )


@dataclass(frozen=True, slots=True)
class FlooredForward:
    """A forward with another prefill: ring rows below the match are left out (WINDOW-8).

    No release has it; it is one of the policies that `kvproof policy` compares.

    Attributes:
        full: what decodes and verifies, and what a prefill is the rest of.
        window: positions that a query sees.
        matched: length that each occupancy reuses: where its first chunk starts.
    """

    full: Forward
    window: int
    matched: dict[int, int] = field(default_factory=dict)

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One prefill launch."""
        return [
            fact
            for lane in lanes
            for whole in self.full.prefill([lane])
            for fact in self._floored(whole, lane)
        ]

    def _floored(self, fact: Read | Wrote, lane: Lane) -> Iterator[Read | Wrote]:
        if isinstance(fact, Wrote):
            yield fact
            return
        start, end = floored_ring_reads(
            Position(fact.position),
            Position(lane.start),
            self.matched.setdefault(lane.occupancy, lane.start),
            self.window,
        )
        if start < end:
            left_out = start - fact.first
            yield msgspec.structs.replace(
                fact,
                first=start,
                rows=fact.rows[left_out:],
                seen=None if fact.seen is None else fact.seen[left_out:],
            )

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One decode launch."""
        return self.full.decode(lanes)

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One verify launch."""
        return self.full.verify(lanes)


def spelled_out(log: Iterable[Fact]) -> Iterator[Fact]:
    """A log with the reads and writes that its `Ran` facts stand for."""
    rules: RuleForward | None = None
    for fact in log:
        if isinstance(fact, Started) and fact.ring_stride is not None:
            rules = RuleForward(
                window=fact.geometry.window,
                stride=fact.ring_stride,
                verify_order=fact.verify_order,
            )
        if isinstance(fact, Ran) and rules is not None:
            yield from rules.lane(lane_of(fact), fact.mode)
        else:
            yield fact


def lane_of(fact: Ran) -> Lane:
    """The lane that a fact stands for. Its occupancy is the log's to count."""
    return Lane(request=fact.request, slot=fact.slot, occupancy=0, start=fact.start, end=fact.end)
