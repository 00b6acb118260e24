"""The monitor: is this log a run that the specification allows?

One monitor for everything: a fuzzed scenario, a counterexample of a proof, a log recorded from a
server, the self-tests. It sees facts only, and streams them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Breached,
    Ended,
    EngineError,
    Fact,
    Pools,
    Ran,
    Read,
    Released,
    Skipped,
    Started,
    Step,
    Wrote,
)
from kvproof.model.forward import RuleForward, lane_of
from kvproof.model.ghost import Ghost, Written
from kvproof.model.partition import partition_breaks
from kvproof.model.scenario import (
    BadFileError,
    Evict,
    Prompt,
    Submit,
    number_texts,
    token_ids,
)
from kvproof.model.verdict import (
    CAUSES,
    INVARIANTS,
    SEVERITY,
    Cause,
    Invariant,
    Lease,
    StaleRead,
    Violation,
)
from kvproof.model.witness import Witness
from kvproof.spec.cap import capped_match, reprefill_bound
from kvproof.spec.indices import PADDING_SLOT, FullLoc, Occupancy, Page, Position, RingRow, Slot
from kvproof.spec.pages import page_of
from kvproof.spec.radix import cached_pages, window_match
from kvproof.spec.ring import is_padding_row, ring_row
from kvproof.spec.schedule import next_occupancy
from kvproof.spec.window import decode_reads, prefill_ring_reads, window_start

NOBODY = Occupancy(0)


@dataclass(slots=True)
class Monitor:
    """Feed it a log's facts; ask it for violations and witnesses.

    Attributes:
        violations: the first violation of each (invariant, cause), in the order found.
        counts: how often each (invariant, cause) occurred: reads for FRESH-*, else places.
        checked: how often each invariant was put to the test.
        witnesses: how often each interesting state was reached.
    """

    violations: dict[tuple[Invariant, Cause], Violation] = field(default_factory=dict)
    counts: Counter[tuple[Invariant, Cause]] = field(default_factory=Counter)
    checked: Counter[Invariant] = field(default_factory=Counter)
    witnesses: Counter[Witness] = field(default_factory=Counter)
    started: Started | None = None
    engine_error: EngineError | None = None
    steps: int = 0
    skipped: int = 0
    ended: bool = False
    _ghost: Ghost = field(default_factory=lambda: Ghost(0))
    _texts: dict[str, int] = field(default_factory=dict)
    _prompts: dict[str, Prompt] = field(default_factory=dict)
    _former_prompt: Prompt | None = None
    _leases: dict[str, Lease] = field(default_factory=dict)
    # Kept after the release: a request publishes its answer as it ends.
    _newest_of: dict[str, Occupancy] = field(default_factory=dict)
    _chunk_start: dict[str, int] = field(default_factory=dict)
    _publishers: dict[tuple[Page, int], int] = field(default_factory=dict)
    _pools: Pools | None = None
    _occupancy: Occupancy = field(default=NOBODY)
    _step: int = -1
    _operation: object = None

    def feed(self, fact: Fact) -> None:
        """Take in the next fact of the log.

        Raises:
            BadFileError: the fact cannot follow on those before it in any log.
        """
        match fact:
            case Read():
                self._read(fact)
            case Wrote():
                self._wrote(fact)
            case Ran():
                self._ran(fact)
            case Step():
                self._begin(fact)
            case Pools():
                self._snapshot(fact)
            case Admitted():
                self._admitted(fact)
            case Advanced():
                self._advanced(fact)
            case Released():
                self._released(fact)
            case Skipped():
                self._skipped()
            case Started():
                self.started = fact
                self._ghost = Ghost(fact.ring_stride or 0)
            case Breached():
                self.checked["REFINES"] += 1
                self._break(
                    "REFINES",
                    "assumption",
                    f"a launch of {fact.kernel} breaks {fact.assumption}: {fact.message}",
                )
            case EngineError():
                self.engine_error = fact
            case Ended():
                self.ended = True

    def by_severity(self) -> list[Violation]:
        """Violations in the ladder's order, then by how bad their cause is."""
        return sorted(self.violations.values(), key=lambda v: SEVERITY[v.invariant, v.cause])

    def worst(self) -> Violation | None:
        """The violation to report first."""
        return next(iter(self.by_severity()), None)

    def worst_of(self, invariant: Invariant) -> Violation | None:
        """The violation of one invariant to report first."""
        return next((v for v in self.by_severity() if v.invariant == invariant), None)

    @property
    def geometry_window(self) -> int:
        """The log's window."""
        assert self.started is not None, "a log starts with a 'started' fact"
        return self.started.geometry.window

    def _break(
        self,
        invariant: Invariant,
        cause: Cause,
        sentence: str,
        evidence: StaleRead | None = None,
    ) -> None:
        self.counts[invariant, cause] += 1
        if (invariant, cause) not in self.violations:
            self.violations[invariant, cause] = Violation(
                invariant=invariant,
                cause=cause,
                step=self._step,
                sentence=sentence,
                evidence=evidence,
            )

    def _begin(self, fact: Step) -> None:
        self.steps += 1
        self._step = fact.index
        self._operation = fact.operation
        if isinstance(fact.operation, Submit):
            number_texts(self._texts, fact.operation.prompt)
            self._former_prompt = self._prompts.get(fact.operation.request)
            self._prompts[fact.operation.request] = fact.operation.prompt

    def _skipped(self) -> None:
        self.skipped += 1
        if isinstance(self._operation, Submit):
            # The name is taken: its request keeps the prompt that it came with.
            if self._former_prompt is None:
                del self._prompts[self._operation.request]
            else:
                self._prompts[self._operation.request] = self._former_prompt

    # Admission

    def _admitted(self, fact: Admitted) -> None:
        assert self.started is not None
        if not self._prompts.get(fact.request):
            raise BadFileError(
                f"step {self._step + 1}: request {fact.request} is admitted and was never "
                "submitted with a prompt"
            )
        self._occupancy = next_occupancy(self._occupancy)
        lease = Lease(
            occupancy=self._occupancy,
            request=fact.request,
            slot=fact.slot,
            prompt_len=fact.prompt_len,
            matched_len=fact.matched_len,
            step=self._step,
        )
        self.checked["PARTITION"] += 1
        if fact.slot == PADDING_SLOT:
            self._break("PARTITION", "lent-twice", f"slot 0 was lent to request {fact.request}")
        for other in self._leases.values():
            if other.slot == fact.slot:
                self._break(
                    "PARTITION",
                    "lent-twice",
                    f"slot {fact.slot} was lent to request {fact.request} while request "
                    f"{other.request} holds it",
                )
        self._check_match(fact)
        self._leases[fact.request] = lease
        self._newest_of[fact.request] = self._occupancy
        self._chunk_start[fact.request] = fact.matched_len
        self._ghost.lease(lease, self._prompts[fact.request])
        if fact.matched_len and self._ghost.stride:
            first = window_start(Position(fact.matched_len), self.geometry_window)
            if self._ghost.holds_foreign_row(lease, first, fact.matched_len):
                self.witnesses["foreign row in window"] += 1

    def _check_match(self, fact: Admitted) -> None:
        assert self.started is not None
        geometry = self.started.geometry
        # No more than the pool can be cached, whatever length the log names.
        comparable = min(fact.prompt_len, geometry.pool_tokens)
        tokens = token_ids(self._texts, self._prompts[fact.request], 0, comparable)
        cached_len = self._cached_len(tokens)
        self.checked["REFINES"] += 1
        if fact.matched_len > cached_len or fact.matched_len % geometry.page_size:
            self._break(
                "REFINES",
                "match",
                f"request {fact.request} reuses {fact.matched_len} tokens, the tree holds "
                f"{cached_len} of its prompt in pages of {geometry.page_size}",
            )
        if not cached_len:
            return
        self.checked["USEFUL"] += 1
        tail = fact.prompt_len - fact.matched_len
        bound = reprefill_bound(fact.prompt_len, cached_len, geometry.window, geometry.page_size)
        if tail > bound:
            self._break(
                "USEFUL",
                "no-reuse",
                f"request {fact.request} prefills {tail} of {fact.prompt_len} tokens though "
                f"{cached_len} are cached; {bound} would do",
            )
        if fact.matched_len:
            self.witnesses["prefix hit"] += 1
        uncapped = capped_match(cached_len, fact.prompt_len, 0, geometry.page_size)
        capped = capped_match(cached_len, fact.prompt_len, geometry.window, geometry.page_size)
        if capped < uncapped:
            self.witnesses["cap would bind"] += 1
        if fact.matched_len < uncapped:
            self.witnesses["cap bound"] += 1

    def _cached_len(self, tokens: list[int]) -> int:
        """Tokens of the longest match that the last snapshot's tree can give."""
        assert self.started is not None
        geometry = self.started.geometry
        if self._pools is None:
            return 0
        size = geometry.page_size
        depth: list[int] = []
        matched: set[int] = set()
        path: list[bool] = []
        for number, node in enumerate(self._pools.nodes):
            start = 0
            if node.parent >= 0:
                if node.parent not in matched:
                    depth.append(0)
                    continue
                start = depth[node.parent]
            depth.append(start + len(node.tokens))
            agreed = 0
            for mine, theirs in zip(tokens[start:], node.tokens, strict=False):
                if mine != theirs:
                    break
                agreed += 1
            path += [not node.tombstone] * (agreed // size)
            if agreed == len(node.tokens):
                matched.add(number)
        if self.started.tombstones_gate:
            return window_match(path, size, geometry.window) * size
        return len(path) * size

    def _advanced(self, fact: Advanced) -> None:
        lease = self._leases.get(fact.request)
        if lease is None:
            return
        if self._ghost.stride:
            self._ghost.reject_from(lease, fact.computed_len)
        self._chunk_start[fact.request] = fact.computed_len

    def _released(self, fact: Released) -> None:
        self._leases.pop(fact.request, None)

    # Pools

    def _snapshot(self, pools: Pools) -> None:
        assert self.started is not None
        self.checked["PARTITION"] += 1
        for cause, sentence in partition_breaks(pools, self.started.geometry):
            self._break("PARTITION", cause, sentence)
        size = self.started.geometry.page_size
        # With its first token: one operation may evict a page and publish it again for another.
        in_tree = {
            (page_of(FullLoc(loc), size), token)
            for node in pools.nodes
            for loc, token in zip(node.locs[::size], node.tokens[::size], strict=False)
        }
        evicted = self._publishers.keys() - in_tree
        for page_and_token in evicted:
            del self._publishers[page_and_token]
        for page, token in in_tree - self._publishers.keys():
            self._publishers[page, token] = self._publisher_of(page, pools)
        if evicted and isinstance(self._operation, Evict):
            self.witnesses["page evicted"] += 1
        self._pools = pools

    def _publisher_of(self, page: Page, pools: Pools) -> int:
        """Occupancy that held a page as its own before the tree took it; 0 if none is known."""
        assert self.started is not None
        size = self.started.geometry.page_size
        for snapshot in (self._pools, pools):
            for holding in snapshot.holdings if snapshot else ():
                if any(page_of(FullLoc(loc), size) == page for loc in holding.locs):
                    return self._newest_of.get(holding.request, NOBODY)
        return NOBODY

    # Rows

    def _ran(self, fact: Ran) -> None:
        assert self.started is not None
        rules = RuleForward(
            window=self.geometry_window,
            stride=self._stride(),
            verify_order=self.started.verify_order,
        )
        for observed in rules.lane(lane_of(fact), fact.mode):
            self.feed(observed)

    def _wrote(self, fact: Wrote) -> None:
        stride = self._stride()
        lease = self._leases.get(fact.request) if fact.request is not None else None
        slot = lease.slot if lease else fact.slot
        self.checked["REFINES"] += 1
        if fact.request is not None and lease is None:
            self._break("REFINES", "row", f"request {fact.request} writes the ring without a slot")
        for position, row in zip(fact.positions, fact.rows, strict=True):
            if fact.request is None:
                self._check_padding(row)
            else:
                self._check_row(fact.request, slot, position, row, "writes")
                if position >= stride:
                    self.witnesses["ring wrapped"] += 1
            self._ghost.rows[row] = Written(
                occupancy=lease.occupancy if lease else 0, position=position, step=self._step
            )

    def _stride(self) -> int:
        if not self._ghost.stride:
            raise BadFileError(
                f"step {self._step + 1}: ring rows are named, the target has no ring"
            )
        return self._ghost.stride

    def _check_padding(self, row: int) -> None:
        self.checked["PADDING"] += 1
        self.witnesses["padded row"] += 1
        if not is_padding_row(RingRow(row), self._ghost.stride):
            self._break(
                "PADDING", "padding-escapes", f"a padded row touched row {row}, outside slot 0"
            )

    def _check_row(self, request: str, slot: int, position: int, row: int, verb: str) -> None:
        stride = self._ghost.stride
        if is_padding_row(RingRow(row), stride):
            self._break(
                "PADDING",
                "request-in-padding",
                f"request {request} {verb} row {row} of the padding slot",
            )
        expected = ring_row(Slot(slot), Position(position), stride)
        if row != expected:
            self._break(
                "REFINES",
                "row",
                f"request {request} {verb} position {position} of slot {slot} at row {row}; "
                f"the rule gives row {expected}",
            )

    def _read(self, fact: Read) -> None:
        self._stride()
        if fact.request is None:
            for row in fact.rows:
                self._check_padding(row)
            return
        lease = self._leases.get(fact.request)
        if lease is None:
            self._break(
                "REFINES", "window", f"request {fact.request} reads the ring and holds no slot"
            )
            return
        self._check_window(fact, lease)
        self.checked["REFINES"] += 1
        invariant: Invariant = "FRESH-PREFILL" if fact.mode == "prefill" else "FRESH-DECODE"
        self.checked[invariant] += 1
        if fact.mode == "prefill":
            self.witnesses["ring read by prefill"] += 1
            if self._chunk_start[fact.request] > lease.matched_len:
                self.witnesses["chunk boundary in window"] += 1
        else:
            self.witnesses["ring read by decode"] += 1
        for index, row in enumerate(fact.rows):
            stands_for = fact.first + index
            self._check_row(fact.request, lease.slot, stands_for, row, "reads")
            if fact.seen is not None:
                self._check_payload(fact, row, fact.seen[index])
            cause = self._ghost.stale_cause(lease, stands_for, row)
            if cause is not None:
                self._stale(invariant, cause, fact, lease, index)

    def _check_window(self, fact: Read, lease: Lease) -> None:
        position, window = Position(fact.position), self.geometry_window
        decode = range(*decode_reads(position, window))
        # A verify of an older release takes the prefill path and finds its draft beside the ring.
        start = Position(self._chunk_start[lease.request])
        prefill = range(*prefill_ring_reads(position, start, window))
        allowed = {
            "decode": (decode,),
            "prefill": (prefill,),
            "verify": (decode, prefill),
        }[fact.mode]
        if range(fact.first, fact.first + len(fact.rows)) not in allowed:
            self._break(
                "REFINES",
                "window",
                f"request {lease.request} at position {position} reads positions {fact.first} to "
                f"{fact.first + len(fact.rows) - 1}; the rule gives {allowed[0].start} to "
                f"{allowed[0].stop - 1}",
            )

    def _check_payload(self, fact: Read, row: int, seen: tuple[int, int] | None) -> None:
        written = self._ghost.rows.get(row)
        known = (written.occupancy, written.position) if written else None
        if seen != known:
            self._break(
                "REFINES",
                "payload",
                f"request {fact.request} found {seen} (occupancy, position) in row {row}, where "
                f"the log says {known} was written",
            )

    def _stale(
        self,
        invariant: Invariant,
        cause: Cause,
        fact: Read,
        lease: Lease,
        index: int,
    ) -> None:
        row, stands_for = fact.rows[index], fact.first + index
        if (invariant, cause) in self.violations:
            self.counts[invariant, cause] += 1
            return
        writer = self._ghost.writer(row)
        leases = self._ghost.leases
        evidence = StaleRead(
            position=fact.position,
            row=row,
            stands_for=stands_for,
            writer=writer,
            reader=lease,
            previous=leases.get(self._ghost.previous_in_slot.get(lease.occupancy, 0)),
            publisher=self._publisher(lease),
            ring=self._ghost.ring(lease, fact.first, fact.rows),
        )
        held = (
            "which nobody has written"
            if writer is None
            else f"which holds position {writer.position} of request {writer.request} "
            f"(occupancy {writer.occupancy}, written in step {writer.step + 1})"
        )
        self._break(
            invariant,
            cause,
            f"the {fact.mode} of request {lease.request} at position {fact.position} reads row "
            f"{row} of slot {lease.slot} for its position {stands_for}, {held}: {CAUSES[cause]}",
            evidence,
        )

    def _publisher(self, lease: Lease) -> Lease | None:
        """Occupancy that computed the last page of a lease's reused prefix."""
        if not lease.matched_len or self._pools is None or self.started is None:
            return None
        size = self.started.geometry.page_size
        reused = min(lease.matched_len, self.started.geometry.pool_tokens)
        tokens = token_ids(self._texts, self._prompts[lease.request], 0, reused)
        first_token = tokens[-size:][0]
        pages = {}
        starts: list[tuple[int, ...]] = []
        for node in self._pools.nodes:
            prefix = (starts[node.parent] if node.parent >= 0 else ()) + node.tokens
            starts.append(prefix)
            base = len(prefix) - len(node.tokens)
            for at in range(0, len(node.locs) - size + 1, size):
                pages[prefix[: base + at + size]] = page_of(FullLoc(node.locs[at]), size)
        found = cached_pages(pages, tokens, size)
        if not found:
            return None
        return self._ghost.leases.get(self._publishers.get((found[-1], first_token), NOBODY))


def check(log: Iterable[Fact]) -> Monitor:
    """Monitor of a whole log."""
    monitor = Monitor()
    for fact in log:
        monitor.feed(fact)
    return monitor


def statuses(monitor: Monitor) -> dict[Invariant, str]:
    """Status word of each invariant for one log: never 'holds' for what was not put to the test."""
    words = {}
    for invariant in INVARIANTS:
        if monitor.worst_of(invariant) is not None:
            words[invariant] = "violated"
        elif monitor.engine_error is not None:
            words[invariant] = "engine error"
        elif monitor.checked[invariant]:
            words[invariant] = "holds"
        else:
            words[invariant] = "unknown"
    return words
