"""The monitor: is this log a run that the specification allows?

One monitor for everything: a fuzzed scenario, a counterexample of a proof, a log recorded from a
server, the self-tests. It sees facts only, and streams them. It keeps what is known of the requests
(`model.requests`), the rows (`model.ghost`) and the tree (`model.judges.published`), and gives each
fact to the judges that it concerns (`model.judges`). They write what they find into one book
(`model.findings`).

What is kept grows with the rows, the pools and the live requests, not with the log; but the texts
of a log with snapshots are numbered in order of appearance, and so all kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Answered,
    Breached,
    Changed,
    Compared,
    Complained,
    Completed,
    Consumed,
    Ended,
    EngineError,
    Fact,
    Freed,
    Gap,
    Launched,
    Mapped,
    Planned,
    Pools,
    Ran,
    Read,
    Released,
    Skipped,
    Started,
    Step,
    Stored,
    Translated,
    Windowed,
    Wrote,
)
from kvproof.model.findings import Break, Findings, Tally
from kvproof.model.forward import RuleForward
from kvproof.model.ghost import Ghost
from kvproof.model.judges.admission import Matches, slot_breaks
from kvproof.model.judges.allocation import Allocation
from kvproof.model.judges.current import Current
from kvproof.model.judges.drafts import Drafts
from kvproof.model.judges.exactness import Exactness
from kvproof.model.judges.in_flight import InFlight
from kvproof.model.judges.lanes import Lanes
from kvproof.model.judges.partition import partition_breaks
from kvproof.model.judges.progress import advance_breaks, refusal_breaks
from kvproof.model.judges.published import Published, uncomputed_breaks
from kvproof.model.judges.rows import Rows
from kvproof.model.judges.stale import StaleReads
from kvproof.model.judges.swa import SwaJudge
from kvproof.model.judges.windows import Windows
from kvproof.model.layers import Layers, Stack
from kvproof.model.requests import Requests
from kvproof.model.scenario import Evict, Flush, Submit, Verify
from kvproof.model.verdict import (
    EXACTNESS_INVARIANTS,
    FAMILIES,
    IN_WORDS,
    NEEDS_SWA,
    Cause,
    Invariant,
    Lease,
    Violation,
)
from kvproof.model.witness import Witness

FORGET_AT = 1024
"""Occupancies that are kept before those that nothing names are dropped."""


@dataclass(slots=True)
class _Judges:
    """Those of one log, which its `Started` fact calls, and those that its other facts call."""

    allocation: Allocation
    drafts: Drafts
    lanes: Lanes
    matches: Matches
    rows: Rows
    rules: RuleForward
    swa: SwaJudge
    windows: Windows = field(default_factory=Windows)
    current: Current | None = None
    in_flight: InFlight | None = None


@dataclass(slots=True)
class Monitor:
    """Feed it a log's facts; ask it for violations and witnesses.

    Attributes:
        expand: judge the reads and writes that a `Ran` stands for, one by one. That must come to
            the same.
        stack: layers through which EXACT, PURE and non-interference are judged; None to leave them.
        gap: where facts are missing; nothing after it is judged.
        findings: what the judges found.
        requests: what is known of the requests.
        published: what is known of the tree.
        ghost: who wrote each ring row.
    """

    expand: bool = False
    stack: Stack | None = None
    started: Started | None = None
    engine_error: EngineError | None = None
    gap: Gap | None = None
    steps: int = 0
    skipped: int = 0
    ended: bool = False
    findings: Findings = field(default_factory=Findings)
    requests: Requests = field(default_factory=Requests)
    published: Published = field(default_factory=Published)
    ghost: Ghost = field(default_factory=lambda: Ghost(0))
    _judges: _Judges = field(init=False, repr=False, compare=False)
    _exactness: Exactness | None = field(init=False)
    _forget_at: int = FORGET_AT

    def __post_init__(self) -> None:
        """Call those who judge layers, if any are named."""
        self._exactness = None if self.stack is None else Exactness(self.stack)

    def feed(self, fact: Fact) -> None:
        """Take in the next fact of the log, which starts with `Started`.

        Raises:
            BadFileError: the fact cannot follow on those before it in any log.
        """
        if self.gap is not None:
            self.ended = self.ended or isinstance(fact, Ended)
            return
        match fact:
            case Ran():  # this and those below are most of a recorder's log
                self._judges.lanes.ran(fact)
            case Advanced():
                self._advanced(fact)
            case Step():
                self._begin(fact)
            case Allocated():
                self._lend(self._judges.allocation.allocated(fact))
            case Freed():
                self._lend(self._judges.allocation.freed(fact))
            case Translated():
                self._lend(self._judges.allocation.translated(fact))
            case Read():
                self._judges.rows.read(fact)
            case Wrote():
                self._judges.rows.wrote(fact)
            case Windowed():
                self._windowed(fact)
            case Pools():
                self._snapshot(fact)
            case Admitted():
                self._admitted(fact)
            case Released():
                self._released(fact)
            case Consumed() | Planned() | Changed() | Mapped():
                self._translates(fact)
            case Skipped():
                self._skipped(fact)
            case Launched() | Completed():
                self._flies(fact)
            case Answered():
                self._answered(fact)
            case Gap():
                self.gap = fact
            case Started():
                self._start(fact)
            case Breached() | Complained():
                self._complains(fact)
            case EngineError():
                self.engine_error = fact
            case Stored() | Compared():
                pass  # for the layers
            case Ended():
                self.ended = True
        if self._exactness is not None:
            self._exactness.feed(fact, self._judges.rules, self.findings)

    def _start(self, fact: Started) -> None:
        self.started = fact
        findings, geometry = self.findings, fact.geometry
        self.ghost = Ghost(fact.ring_stride or 0)
        stride = self.ghost.stride
        rules = RuleForward(window=geometry.window, stride=stride, verify_order=fact.verify_order)
        rows = Rows(
            window=geometry.window,
            ghost=self.ghost,
            requests=self.requests,
            findings=findings,
            stale=StaleReads(fact, self.ghost, self.published, findings),
        )
        self._judges = _Judges(
            allocation=Allocation(
                page_size=geometry.page_size,
                sizes={"full": geometry.pool_tokens, "swa": fact.swa_tokens},
            ),
            drafts=Drafts(geometry.draft_tokens, stride, findings.witnesses),
            lanes=Lanes(fact, rules, rows, self.expand),
            matches=Matches(fact, self.published, findings),
            rows=rows,
            rules=rules,
            swa=SwaJudge(fact, findings.checked, findings.witnesses),
        )

    # Steps

    def _begin(self, fact: Step) -> None:
        if not self.steps:
            self.published.begin()
        self.steps += 1
        self.findings.step = fact.index
        operation = fact.operation
        self.requests.begin(operation)
        if isinstance(operation, Submit):
            self.published.read(operation.prompt)
        elif isinstance(operation, Flush):
            self._judges.allocation.clear()

    def _skipped(self, fact: Skipped) -> None:
        self.skipped += 1
        if fact.no_memory and self.published.tells_swa:
            self._refused()
        self.requests.skipped()

    def _refused(self) -> None:
        assert self.started is not None
        assert self.published.pools is not None
        requests = self.requests
        self.findings.checked["PROGRESS"] += 1
        breaks = refusal_breaks(
            requests.operation,
            self.published.pools,
            self.started.geometry,
            computed=requests.computed,
            processed={name: self._processed(name) for name in requests.computed},
            prefilling=requests.prefilling,
            prompt_len=requests.prompt_len(getattr(requests.operation, "request", "")),
            locks=self.started.locks,
        )
        self.findings.broken_by("PROGRESS", breaks)

    def _processed(self, request: str) -> int:
        computed, in_flight = self.requests.computed[request], self._judges.in_flight
        if in_flight is None:
            return computed
        return in_flight.processed(request, self.leases.get(request), computed)

    def _complains(self, fact: Breached | Complained) -> None:
        self.findings.checked["REFINES"] += 1
        if isinstance(fact, Complained):
            self.findings.broken(
                "REFINES", "own-check", f"the engine's own check says: {fact.message}"
            )
        else:
            self.findings.broken(
                "REFINES",
                "assumption",
                f"a launch of {fact.kernel} breaks {fact.assumption}: {fact.message}",
            )

    # Requests

    def _admitted(self, fact: Admitted) -> None:
        requests, findings, judges = self.requests, self.findings, self._judges
        lease = requests.occupy(fact, findings.step)
        prompt = requests.prompts[fact.request]
        findings.checked["PARTITION"] += 1
        findings.broken_by("PARTITION", slot_breaks(fact, requests.leases.values()))
        if judges.in_flight is not None:
            judges.in_flight.lent(fact.slot)
        judges.matches.admitted(fact, prompt)
        requests.admitted(lease)
        self.ghost.lease(lease, prompt)
        self._forget()
        judges.rows.admitted(lease)

    def _forget(self) -> None:
        if len(self.ghost.tenants) > self._forget_at:
            live = (lease.occupancy for lease in self.leases.values())
            newest, publishers = self.requests.newest, self.published.publishers
            self.ghost.forget({*live, *newest.values(), *publishers.values()})
            self._forget_at = max(FORGET_AT, 2 * len(self.ghost.tenants))

    def _advanced(self, fact: Advanced) -> None:
        requests = self.requests
        lease = requests.leases.get(fact.request)
        if lease is None:
            return
        before = requests.computed[fact.request]
        if isinstance(requests.operation, Verify):
            self._judges.drafts.verified(fact, before)
        if self.ghost.stride:
            self.ghost.reject_from(lease, fact.computed_len)
        if self.published.tells_swa:
            self.findings.checked["PROGRESS"] += 1
            self.findings.broken_by("PROGRESS", advance_breaks(fact, lease, before))
        requests.advanced(fact)

    def _windowed(self, fact: Windowed) -> None:
        lease = self.leases.get(fact.request)
        if lease is None:
            return
        self.findings.checked["WINDOW"] += 1
        prompt = self.ghost.tenants[lease.occupancy].prompt
        breaks = self._judges.windows.windowed(fact, lease, prompt, self.findings.step)
        self.findings.broken_by("WINDOW", breaks)

    def _answered(self, fact: Answered) -> None:
        lease = self.leases.get(fact.request)
        if lease is not None:
            self.published.read(fact.tokens)
            self.ghost.answered(lease, fact.tokens)

    def _released(self, fact: Released) -> None:
        judges, requests = self._judges, self.requests
        for holding in self.pools.holdings if self.pools else ():
            computed_len = requests.computed.get(fact.request, len(holding.locs))
            if holding.request == fact.request and len(holding.locs) > computed_len:
                self.witnesses["over-allocation released"] += 1
        judges.drafts.released(fact.request)
        if judges.current is not None:
            judges.current.released(fact)
        requests.released(fact)
        if self.pools is None:
            requests.newest.pop(fact.request, None)

    # Translation

    def _translates(self, fact: Consumed | Planned | Changed | Mapped) -> None:
        current, step = self._judges.current, self.findings.step
        if current is None:
            assert self.started is not None
            stride = self.started.ring_stride or 1
            current = Current(self.started.geometry, self.witnesses, stride)
            self._judges.current = current
        match fact:
            case Consumed():
                self.findings.checked["CURRENT"] += 1
                self.findings.broken_by("CURRENT", current.consumed(fact))
            case Planned():
                current.planned(fact, step)
            case Changed():
                current.changed(fact, step)
            case Mapped():
                current.mapped(fact)

    # Two streams

    def _flies(self, fact: Launched | Completed) -> None:
        in_flight, requests = self._judges.in_flight, self.requests
        if in_flight is None:
            assert self.started is not None
            in_flight = InFlight(self.started.geometry.page_size, self.witnesses)
            if self.pools is not None:
                in_flight.snapshot(self.pools)
            self._judges.in_flight = in_flight
        self.findings.checked["IN-FLIGHT"] += 1
        breaks = (
            in_flight.launched(fact, requests.leases, requests.prompts, self.findings.step)
            if isinstance(fact, Launched)
            else in_flight.completed(fact, requests.leases)
        )
        self.findings.broken_by("IN-FLIGHT", breaks)

    # Pools

    def _lend(self, breaks: Iterable[Break]) -> None:
        self.findings.checked["PARTITION"] += 1
        self.findings.broken_by("PARTITION", breaks)

    def _snapshot(self, pools: Pools) -> None:
        assert self.started is not None
        geometry, judges, requests = self.started.geometry, self._judges, self.requests
        self._lend(partition_breaks(pools, geometry))
        if judges.in_flight is not None:
            judges.in_flight.snapshot(pools)
        for invariant, cause, sentence in judges.swa.snapshot(
            pools, computed=requests.computed, occupancies=requests.newest
        ):
            self.findings.broken(invariant, cause, sentence)
        self.findings.broken_by("REFINES", uncomputed_breaks(pools, requests))
        evicted = self.published.snapshot(pools, requests, geometry.page_size)
        if evicted and isinstance(requests.operation, Evict):
            self.witnesses["page evicted"] += 1

    # What there is to ask

    @property
    def violations(self) -> dict[tuple[Invariant, Cause], Violation]:
        """The first violation of each (invariant, cause), in the order found."""
        return self.findings.violations

    @property
    def counts(self) -> Counter[tuple[Invariant, Cause]]:
        """How often each (invariant, cause) occurred: reads for FRESH-*, else places."""
        return self.findings.counts

    @property
    def checked(self) -> Tally[Invariant]:
        """How often each invariant was put to the test."""
        return self.findings.checked

    @property
    def witnesses(self) -> Tally[Witness]:
        """How often each interesting state was reached."""
        return self.findings.witnesses

    @property
    def leases(self) -> dict[str, Lease]:
        """The live ones, by request."""
        return self.requests.leases

    @property
    def pools(self) -> Pools | None:
        """The last snapshot."""
        return self.published.pools

    @property
    def texts(self) -> dict[str, int]:
        """Number of each text in token ids, where there are snapshots to compare with."""
        return self.published.texts

    @property
    def layers(self) -> Layers | None:
        """What is known of a stack's layers."""
        return None if self._exactness is None else self._exactness.layers

    def computed_len(self, request: str) -> int:
        """Tokens that a live request has computed."""
        return self.requests.computed[request]

    def by_severity(self) -> list[Violation]:
        """Violations in the ladder's order, then by how bad their cause is."""
        return self.findings.by_severity()

    def worst(self) -> Violation | None:
        """The violation to report first."""
        return self.findings.worst()

    def worst_of(self, invariant: Invariant) -> Violation | None:
        """The violation of one invariant to report first."""
        return self.findings.worst(invariant)

    def applies(self, invariant: Invariant) -> bool:
        """Whether this log tells what an invariant is about."""
        if invariant == "IN-FLIGHT":
            return self.started is not None and self.started.geometry.overlap == 1
        if invariant not in NEEDS_SWA:
            return True
        if invariant == "LOCK":
            return self.started is not None and self.started.locks != "untold"
        return self.published.tells_swa


def check(log: Iterable[Fact], *, stack: Stack | None = None) -> Monitor:
    """Monitor of a whole log; with a stack, EXACT and PURE are asked too."""
    monitor = Monitor(stack=stack)
    for fact in log:
        monitor.feed(fact)
    return monitor


def statuses(monitor: Monitor) -> dict[Invariant, str]:
    """Status word of each invariant for one log: never 'holds' for what was not put to the test."""
    words = {}
    family = monitor.started.family if monitor.started else "cache"
    asked = FAMILIES[family] | (EXACTNESS_INVARIANTS if monitor.stack is not None else {})
    for invariant in IN_WORDS:
        if invariant not in asked and monitor.worst_of(invariant) is None:
            continue
        if monitor.worst_of(invariant) is not None:
            words[invariant] = "violated"
        elif monitor.engine_error is not None:
            words[invariant] = "engine error"
        elif monitor.gap is not None:
            words[invariant] = "unknown"
        elif monitor.checked[invariant]:
            words[invariant] = "holds"
        elif not monitor.applies(invariant):
            words[invariant] = "skipped"
        else:
            words[invariant] = "unknown"
    return words
