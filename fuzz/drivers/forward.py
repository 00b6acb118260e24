"""A forward of one sliding-window layer with the real scatter and index kernels of a release.

What is reported is observed: rows written are the rows of the ring that changed, rows read are
the ones that the index kernel named, and what a read saw is decoded from the rows gathered at the
moment of the read. Attention itself is not computed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kvproof.fuzz.drivers import payload
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.model.facts import Mode, Read, Wrote
from kvproof.model.player import Lane


class KernelForward:
    """`kvproof.model.player.Forward` on a release's own ring tensor."""

    def __init__(self, *, kernels: RingKernels, ring: Ring) -> None:
        self.kernels = kernels
        self.ring = ring
        self.launches = 0

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """Read the old window, then scatter the chunk."""
        return self._read_then_write(lanes, "prefill")

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """Scatter the queries' own keys, then read."""
        return self._write_then_read(lanes, "decode")

    def decode_windows(self, lanes: Sequence[Lane], *, ends: Sequence[int]) -> list[Read | Wrote]:
        """A decode whose windows end elsewhere: at the position ``ends`` gives each lane."""
        return self._write_then_read(lanes, "decode", ends=ends)

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """Scatter and read the draft in the release's order."""
        if self.kernels.verify_order == "write, then read":
            return self._write_then_read(lanes, "verify")
        return self._read_then_write(lanes, "verify")

    def _read_then_write(self, lanes: Sequence[Lane], mode: Mode) -> list[Read | Wrote]:
        tokens = [(lane, position) for lane in lanes for position in range(lane.start, lane.end)]
        firsts = np.cumsum([0, *(lane.end - lane.start for lane in lanes)]).tolist()
        first_rows = [
            first
            for lane, first in zip(lanes, firsts, strict=False)
            for _ in range(lane.start, lane.end)
        ]
        named = self.kernels.prefill_rows(
            self.ring,
            slots=[lane.slot for lane, _ in tokens],
            positions=[position for _, position in tokens],
            chunk_starts=[lane.start for lane, _ in tokens],
            first_rows=first_rows,
        )
        reads = self._reads(tokens, named, mode, ends=[position for _, position in tokens])
        writes = self._scatter(tokens, mode)
        return [*reads, *writes]

    def _write_then_read(
        self, lanes: Sequence[Lane], mode: Mode, *, ends: Sequence[int] | None = None
    ) -> list[Read | Wrote]:
        tokens = [(lane, position) for lane in lanes for position in range(lane.start, lane.end)]
        if ends is None:
            ends = [position for _, position in tokens]
        # The index streams are built once, before the first layer runs.
        named = self.kernels.decode_rows(
            self.ring, slots=[lane.slot for lane, _ in tokens], positions=ends
        )
        # Each token is its own last one here, so that none is filtered out.
        writes = self._scatter(tokens, mode, each_is_final=True)
        return [*writes, *self._reads(tokens, named, mode, ends=ends)]

    def _reads(
        self,
        tokens: Sequence[tuple[Lane, int]],
        named: Sequence[Sequence[int]],
        mode: Mode,
        *,
        ends: Sequence[int],
    ) -> list[Read]:
        rows = [row for query in named for row in query]
        seen = payload.decode(self._gather(rows))
        reads = []
        at = 0
        for (lane, position), query, end in zip(tokens, named, ends, strict=True):
            # A query whose window lies within its chunk reads no ring row.
            if query:
                reads.append(
                    Read(
                        request=lane.request,
                        mode=mode,
                        slot=lane.slot,
                        position=position,
                        first=max(0, end - self.ring.window + 1),
                        rows=tuple(query),
                        seen=tuple(seen[at : at + len(query)]),
                    )
                )
            at += len(query)
        return reads

    def _scatter(
        self, tokens: Sequence[tuple[Lane, int]], mode: Mode, *, each_is_final: bool = False
    ) -> list[Wrote]:
        positions = [position for _, position in tokens]
        self.launches += 1
        rows = payload.encode(
            occupancies=np.array([lane.occupancy for lane, _ in tokens], dtype=np.int64),
            positions=np.array(positions, dtype=np.int64),
            launch=self.launches,
            head_dim=self.ring.rows.shape[1],
        )
        before = self._bits().copy()
        self.kernels.scatter(
            self.ring,
            torch.from_numpy(rows).to(self.ring.rows),
            slots=[lane.slot for lane, _ in tokens],
            positions=positions,
            final_positions=positions if each_is_final else [lane.end - 1 for lane, _ in tokens],
        )
        changed = np.flatnonzero((before != self._bits()).any(axis=1)).tolist()
        found: dict[int, list[tuple[int, int]]] = {}
        for row, writer in zip(changed, payload.decode(self._gather(changed)), strict=True):
            assert writer is not None, f"row {row} was wiped"
            found.setdefault(writer[0], []).append((writer[1], row))
        wrote = []
        for lane in {lane.occupancy: lane for lane, _ in tokens}.values():
            pairs = sorted(found.pop(lane.occupancy, ()))
            if pairs:
                wrote.append(
                    Wrote(
                        request=lane.request,
                        mode=mode,
                        slot=lane.slot,
                        positions=tuple(position for position, _ in pairs),
                        rows=tuple(row for _, row in pairs),
                    )
                )
        assert not found, f"rows of no lane of this launch changed: {found}"
        return wrote

    def _gather(self, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        wide = self._bits()[np.array(rows, dtype=np.int64)].astype(np.uint32) << 16
        return wide.view(np.float32)

    def _bits(self) -> npt.NDArray[np.uint16]:
        """The ring as it is now; bf16 is float32's upper half, so its bits can be widened."""
        bits: npt.NDArray[np.uint16] = self.ring.rows.view(torch.uint16).cpu().numpy()
        return bits
