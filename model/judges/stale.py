"""FRESH-DECODE and FRESH-PREFILL: what is told of a query that reads a row that is not its own."""

from __future__ import annotations

from dataclasses import dataclass

from kvproof.model.facts import Mode, Started
from kvproof.model.findings import Findings
from kvproof.model.ghost import Ghost
from kvproof.model.judges.published import Published
from kvproof.model.verdict import CAUSES, Cause, Invariant, Lease, StaleRead
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row


@dataclass(slots=True)
class StaleReads:
    """Puts the evidence of the first of each kind together, and counts the others."""

    started: Started
    ghost: Ghost
    published: Published
    findings: Findings

    def by_the_rules(
        self,
        cause: Cause,
        mode: Mode,
        lease: Lease,
        position: int,
        reads: tuple[int, int],
        stands_for: int,
        times: int,
    ) -> None:
        """A query reads ``reads`` by the rules, and this is the first of ``times`` stale reads."""
        if self.findings.again(fresh(mode), cause, times=times):
            return
        slot, stride = Slot(lease.slot), self.ghost.stride
        rows = tuple(ring_row(slot, Position(at), stride) for at in range(*reads))
        self.add(cause, mode, lease, position, reads[0], rows, stands_for, times)

    def add(
        self,
        cause: Cause,
        mode: Mode,
        lease: Lease,
        position: int,
        first: int,
        rows: tuple[int, ...],
        stands_for: int,
        times: int = 1,
    ) -> None:
        """A query of ``lease`` at ``position`` reads ``rows`` from ``first`` on; one is stale."""
        if self.findings.again(fresh(mode), cause, times=times):
            return
        row = rows[stands_for - first]
        ghost = self.ghost
        writer = ghost.writer(row)
        prompt = ghost.tenants[lease.occupancy].prompt
        evidence = StaleRead(
            position=position,
            row=row,
            stands_for=stands_for,
            writer=writer,
            reader=lease,
            previous=ghost.previous(lease),
            publisher=ghost.lease_of(self.published.publisher(lease, prompt, self.started)),
            ring=ghost.ring(lease, first, rows),
        )
        held = (
            "which nobody has written"
            if writer is None
            else f"which holds position {writer.position} of request {writer.request} "
            f"(occupancy {writer.occupancy}, written in step {writer.step + 1})"
        )
        self.findings.broken(
            fresh(mode),
            cause,
            f"the {mode} of request {lease.request} at position {position} reads row "
            f"{row} of slot {lease.slot} for its position {stands_for}, {held}: {CAUSES[cause]}",
            evidence=evidence,
            times=times,
        )


def fresh(mode: Mode) -> Invariant:
    """The invariant that a query's rows are judged by."""
    return "FRESH-PREFILL" if mode == "prefill" else "FRESH-DECODE"
