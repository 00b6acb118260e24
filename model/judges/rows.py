"""Ring rows that a log names one by one: the rules (REFINES), padding (PADDING), FRESH-*."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.facts import Mode, Read, Wrote
from kvproof.model.findings import Findings
from kvproof.model.ghost import Ghost
from kvproof.model.judges.stale import StaleReads
from kvproof.model.requests import Requests
from kvproof.model.scenario import BadFileError
from kvproof.model.verdict import Lease
from kvproof.spec.indices import Position, RingRow, Slot
from kvproof.spec.ring import is_padding_row, ring_row
from kvproof.spec.window import decode_reads, prefill_ring_reads, window_start


@dataclass(slots=True)
class Rows:
    """Judges reads and writes of one log's ring, and tells the ghost who wrote.

    Attributes:
        window: positions that a query sees.
        stale: what is told of a row that is not the reader's own.
    """

    window: int
    ghost: Ghost
    requests: Requests
    findings: Findings
    stale: StaleReads

    def admitted(self, lease: Lease) -> None:
        """Count a recycled slot that holds another's row where the new tenant will look."""
        if lease.matched_len and self.ghost.stride:
            first = window_start(Position(lease.matched_len), self.window)
            if self.ghost.holds_foreign_row(lease, first, lease.matched_len):
                self.findings.witnesses["foreign row in window"] += 1

    def wrote(self, fact: Wrote) -> None:
        """Keys went to rows."""
        stride, findings = self.stride(), self.findings
        lease = self.requests.leases.get(fact.request) if fact.request is not None else None
        slot = lease.slot if lease else fact.slot
        findings.checked["REFINES"] += 1
        if fact.request is not None and lease is None:
            findings.broken(
                "REFINES", "row", f"request {fact.request} writes the ring without a slot"
            )
        for position, row in zip(fact.positions, fact.rows, strict=True):
            if fact.request is None:
                self._padding(row)
            else:
                self._by_rule(fact.request, slot, position, row, "writes")
                if position >= stride:
                    findings.witnesses["ring wrapped"] += 1
            self.ghost.write(lease, position, row, findings.step)

    def read(self, fact: Read) -> None:
        """A query found what rows hold."""
        self.stride()
        if fact.request is None:
            for row in fact.rows:
                self._padding(row)
            return
        lease = self.requests.leases.get(fact.request)
        if lease is None:
            self.findings.broken(
                "REFINES", "window", f"request {fact.request} reads the ring and holds no slot"
            )
            return
        self._check_window(fact, lease)
        self.count_reads(lease, fact.mode, 1)
        for index, row in enumerate(fact.rows):
            stands_for = fact.first + index
            self._by_rule(fact.request, lease.slot, stands_for, row, "reads")
            if fact.seen is not None:
                self._payload(fact, row, fact.seen[index])
            cause = self.ghost.stale_cause(lease, stands_for, row)
            if cause is not None:
                self.stale.add(
                    cause, fact.mode, lease, fact.position, fact.first, fact.rows, stands_for
                )

    def stride(self) -> int:
        """Rows of a slot; raises BadFileError where there is no ring."""
        if not self.ghost.stride:
            raise BadFileError(
                f"step {self.findings.step + 1}: ring rows are named, the target has no ring"
            )
        return self.ghost.stride

    def count_reads(self, lease: Lease, mode: Mode, queries: int) -> None:
        """So many queries of a request read the ring."""
        checked, witnesses = self.findings.checked, self.findings.witnesses
        checked["REFINES"] += queries
        if mode == "prefill":
            checked["FRESH-PREFILL"] += queries
            witnesses["ring read by prefill"] += queries
            if self.requests.computed[lease.request] > lease.matched_len:
                witnesses["chunk boundary in window"] += queries
        else:
            checked["FRESH-DECODE"] += queries
            witnesses["ring read by decode"] += queries

    def wrong_window(
        self, lease: Lease, mode: Mode, position: int, reads: tuple[int, int], times: int = 1
    ) -> None:
        """So many queries, that at ``position`` first, read other positions than the rules say."""
        allowed = self._windows(lease, mode, Position(position))[0]
        self.findings.broken(
            "REFINES",
            "window",
            f"request {lease.request} at position {position} reads positions {reads[0]} to "
            f"{reads[1] - 1}; the rule gives {allowed.start} to {allowed.stop - 1}",
            times=times,
        )

    def _check_window(self, fact: Read, lease: Lease) -> None:
        first, end = fact.first, fact.first + len(fact.rows)
        if range(first, end) not in self._windows(lease, fact.mode, Position(fact.position)):
            self.wrong_window(lease, fact.mode, fact.position, (first, end))

    def _windows(self, lease: Lease, mode: Mode, position: Position) -> tuple[range, ...]:
        """Windows that the rules allow a query, the first one for messages."""
        decode = range(*decode_reads(position, self.window))
        # A verify of an older release takes the prefill path and finds its draft beside the ring.
        start = Position(self.requests.computed[lease.request])
        prefill = range(*prefill_ring_reads(position, start, self.window))
        return {"decode": (decode,), "prefill": (prefill,), "verify": (decode, prefill)}[mode]

    def _padding(self, row: int) -> None:
        self.findings.checked["PADDING"] += 1
        self.findings.witnesses["padded row"] += 1
        if not is_padding_row(RingRow(row), self.ghost.stride):
            self.findings.broken(
                "PADDING", "padding-escapes", f"a padded row touched row {row}, outside slot 0"
            )

    def _by_rule(self, request: str, slot: int, position: int, row: int, verb: str) -> None:
        stride = self.ghost.stride
        if is_padding_row(RingRow(row), stride):
            self.findings.broken(
                "PADDING",
                "request-in-padding",
                f"request {request} {verb} row {row} of the padding slot",
            )
        expected = ring_row(Slot(slot), Position(position), stride)
        if row != expected:
            self.findings.broken(
                "REFINES",
                "row",
                f"request {request} {verb} position {position} of slot {slot} at row {row}; "
                f"the rule gives row {expected}",
            )

    def _payload(self, fact: Read, row: int, seen: tuple[int, int] | None) -> None:
        written = self.ghost.written(row)
        known = (written.occupancy, written.position) if written else None
        if seen != known:
            self.findings.broken(
                "REFINES",
                "payload",
                f"request {fact.request} found {seen} (occupancy, position) in row {row}, where "
                f"the log says {known} was written",
            )
