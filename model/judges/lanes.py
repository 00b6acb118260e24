"""Lanes of a recorder (`Ran`), judged without a look at rows that are known to be the reader's own.

What a lane means is what `RuleForward` gives for it. A property test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.facts import Ran, Read, Started
from kvproof.model.forward import RuleForward, lane_of
from kvproof.model.judges.rows import Rows
from kvproof.model.scenario import BadFileError
from kvproof.model.verdict import Lease
from kvproof.spec.indices import PADDING_SLOT, Position
from kvproof.spec.window import decode_reads, prefill_ring_reads


@dataclass(slots=True)
class Lanes:
    """Judges the lanes of one log.

    Attributes:
        rules: what a lane stands for.
        rows: who judges that row by row.
        expand: leave every lane to them.
    """

    started: Started
    rules: RuleForward
    rows: Rows
    expand: bool

    def ran(self, fact: Ran) -> None:
        """A lane of a forward ran."""
        rows = self.rows
        stride = rows.stride()
        mode, start, end = fact.mode, fact.start, fact.end
        if mode != "prefill" and end - start > self.started.geometry.draft_tokens:
            raise BadFileError(
                f"step {rows.findings.step + 1}: a {mode} of positions {start} to {end - 1} is "
                f"longer than draft_tokens {self.started.geometry.draft_tokens}"
            )
        lease = rows.requests.leases.get(fact.request) if fact.request is not None else None
        if self.expand or lease is None or lease.slot != fact.slot or fact.slot == PADDING_SLOT:
            self._row_by_row(fact)
        elif mode == "prefill" or (
            mode == "verify" and self.started.verify_order == "read, then write"
        ):
            self._beside(fact, lease)
        else:
            ghost = rows.ghost
            ghost.write_span(lease, start, end, rows.findings.step)
            self._count_writes(start, end, stride)
            if start < end:
                rows.count_reads(lease, mode, end - start)
            for position in range(start, end):
                reads = decode_reads(Position(position), rows.window)
                for first, last, cause in ghost.stale(lease, *reads):
                    rows.stale.by_the_rules(
                        cause, mode, lease, position, reads, first, last - first
                    )

    def _row_by_row(self, fact: Ran) -> None:
        for observed in self.rules.lane(lane_of(fact), fact.mode):
            if isinstance(observed, Read):
                self.rows.read(observed)
            else:
                self.rows.wrote(observed)

    def _beside(self, fact: Ran, lease: Lease) -> None:
        """Queries that find their own chunk beside the ring, which is scattered afterwards."""
        rows = self.rows
        window, position = rows.window, Position(fact.start)
        start, end = prefill_ring_reads(position, position, window)
        # Those further on have no ring row in their window. Each sees one row less than the last.
        queries = max(0, min(fact.end, fact.start + window - 1) - fact.start) if end else 0
        if queries:
            if fact.start != rows.requests.computed[lease.request]:
                rows.wrong_window(lease, fact.mode, position, (start, end), times=queries)
            rows.count_reads(lease, fact.mode, queries)
            for first, last, cause in rows.ghost.stale(lease, start, end):
                # A key is read by the queries from the chunk's start to a window behind it.
                whole = max(0, min(last, fact.end - window) - first)
                times = whole * (2 * (first + window - fact.start) + whole - 1) // 2
                times += (last - first - whole) * (fact.end - fact.start)
                rows.stale.by_the_rules(
                    cause, fact.mode, lease, position, (start, end), first, times
                )
        first = max(fact.start, fact.end - window)  # the first that `scatter_keeps`
        rows.ghost.write_span(lease, first, fact.end, rows.findings.step)
        self._count_writes(first, fact.end, rows.ghost.stride)

    def _count_writes(self, start: int, end: int, stride: int) -> None:
        findings = self.rows.findings
        findings.checked["REFINES"] += 1
        if start < end > stride:
            findings.witnesses["ring wrapped"] += end - max(start, stride)
