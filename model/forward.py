"""The specification as a kernel: rows by the rules, in the order that the rules give.

With the real caches behind it this is the backend ``rules``: quick, and compared with the real
kernels elsewhere. With the reference engine it completes the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.model.facts import Mode, Ran, Read, Wrote
from kvproof.model.player import Lane
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import (
    DECODE_ORDER,
    PREFILL_ORDER,
    Order,
    decode_reads,
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
        return self._extend(lanes, "prefill", self.prefill_order)

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One decode launch."""
        return self._step(lanes, "decode", self.decode_order)

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One verify launch: the prefill path where the release reads first, else decode's."""
        if self.verify_order == "write, then read":
            return self._step(lanes, "verify", self.verify_order)
        return self._extend(lanes, "verify", self.verify_order)

    def lane(self, lane: Lane, mode: Mode) -> list[Read | Wrote]:
        """A launch of one lane."""
        launch = {"prefill": self.prefill, "decode": self.decode, "verify": self.verify}[mode]
        return launch([lane])

    def _extend(self, lanes: Sequence[Lane], mode: Mode, order: Order) -> list[Read | Wrote]:
        reads = [
            self._read(
                lane, mode, position,
                *prefill_ring_reads(Position(position), Position(lane.start), self.window),
            )
            for lane in lanes
            for position in range(lane.start, lane.end)
        ]  # fmt: skip
        # A query whose window lies within its chunk reads no ring row.
        reads = [read for read in reads if read.rows]
        return self._ordered(order, reads, self._writes(lanes, mode))

    def _step(self, lanes: Sequence[Lane], mode: Mode, order: Order) -> list[Read | Wrote]:
        reads = [
            self._read(lane, mode, position, *decode_reads(Position(position), self.window))
            for lane in lanes
            for position in range(lane.start, lane.end)
        ]
        return self._ordered(order, reads, self._writes(lanes, mode, keep_all=True))

    def _ordered(self, order: Order, reads: list[Read], writes: list[Wrote]) -> list[Read | Wrote]:
        return [*reads, *writes] if order == "read, then write" else [*writes, *reads]

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

    def _writes(self, lanes: Sequence[Lane], mode: Mode, *, keep_all: bool = False) -> list[Wrote]:
        # The decode path calls each token its own final one, so that none is left out.
        writes = []
        for lane in lanes:
            final = Position(lane.end - 1)
            kept = tuple(
                position
                for position in range(lane.start, lane.end)
                if keep_all or scatter_keeps(Position(position), final, self.window)
            )
            writes.append(
                Wrote(
                    request=lane.request,
                    mode=mode,
                    slot=lane.slot,
                    positions=kept,
                    rows=tuple(
                        ring_row(Slot(lane.slot), Position(position), self.stride)
                        for position in kept
                    ),
                )
            )
        return writes


def lane_of(fact: Ran) -> Lane:
    """The lane that a fact stands for. Its occupancy is the log's to count."""
    return Lane(request=fact.request, slot=fact.slot, occupancy=0, start=fact.start, end=fact.end)
