"""The monitor: is this log a run that the specification allows?

One monitor for everything: a fuzzed scenario, a counterexample of a proof, a log recorded from a
server, the self-tests. It sees facts only, and streams them. What it keeps grows with the rows, the
pools and the live requests, not with the log; but the texts of a log with snapshots are numbered in
order of appearance, and so all kept.

A `Ran` is judged without a look at rows that are known to be the request's own. What it means is
what `RuleForward` gives for its lane: `Monitor(expand=True)` judges that instead, and both must
come to the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import UNSET

from kvproof.model.allocation import Allocation, Break
from kvproof.model.current import Current
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
    Mode,
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
from kvproof.model.forward import RuleForward, lane_of
from kvproof.model.ghost import Ghost
from kvproof.model.in_flight import InFlight
from kvproof.model.layers import Layers, Stack
from kvproof.model.partition import partition_breaks
from kvproof.model.progress import refusal_breaks
from kvproof.model.scenario import (
    Abort,
    BadFileError,
    Evict,
    Finish,
    Flush,
    Geometry,
    Prompt,
    Retract,
    Submit,
    Verify,
    number_texts,
    prompt_len,
    token_ids,
)
from kvproof.model.snapshot import cached_len, last_cached_page
from kvproof.model.swa import SwaJudge
from kvproof.model.verdict import (
    CAUSES,
    EXACTNESS_INVARIANTS,
    FAMILIES,
    IN_WORDS,
    NEEDS_SWA,
    SEVERITY,
    Cause,
    Departure,
    Invariant,
    Lease,
    StaleRead,
    Violation,
)
from kvproof.model.windows import Windows
from kvproof.model.witness import Witness
from kvproof.spec.cap import capped_bigram_match, capped_match, reprefill_bound
from kvproof.spec.indices import PADDING_SLOT, FullLoc, Occupancy, Page, Position, RingRow, Slot
from kvproof.spec.pages import page_of
from kvproof.spec.ring import is_padding_row, ring_row
from kvproof.spec.schedule import next_occupancy
from kvproof.spec.window import decode_reads, prefill_ring_reads, window_start

NOBODY = Occupancy(0)

FORGET_AT = 1024
"""Occupancies that are kept before those that nothing names are dropped."""


K = TypeVar("K")


class Tally(dict[K, int]):
    """Counts, 0 for what was not counted. Several times as quick as a Counter to count up."""

    def __missing__(self, key: K) -> int:
        return 0


@dataclass(slots=True)
class Monitor:
    """Feed it a log's facts; ask it for violations and witnesses.

    Attributes:
        violations: the first violation of each (invariant, cause), in the order found.
        counts: how often each (invariant, cause) occurred: reads for FRESH-*, else places.
        checked: how often each invariant was put to the test.
        witnesses: how often each interesting state was reached.
        ghost: who wrote each ring row.
        leases: the live ones, by request.
        pools: the last snapshot.
        texts: number of each text in token ids, where there are snapshots to compare with.
        expand: judge the reads and writes that a `Ran` stands for, one by one.
        gap: where facts are missing; nothing after it is judged.
        stack: layers through which EXACT, PURE and non-interference are judged; None to leave them.
        layers: what is known of those.
    """

    violations: dict[tuple[Invariant, Cause], Violation] = field(default_factory=dict)
    counts: Counter[tuple[Invariant, Cause]] = field(default_factory=Counter)
    checked: Tally[Invariant] = field(default_factory=Tally)
    witnesses: Tally[Witness] = field(default_factory=Tally)
    started: Started | None = None
    engine_error: EngineError | None = None
    gap: Gap | None = None
    steps: int = 0
    skipped: int = 0
    ended: bool = False
    expand: bool = False
    stack: Stack | None = None
    layers: Layers | None = None
    _rules: RuleForward | None = None
    _forget_at: int = FORGET_AT
    ghost: Ghost = field(default_factory=lambda: Ghost(0))
    texts: dict[str, int] = field(default_factory=dict)
    _prompts: dict[str, Prompt] = field(default_factory=dict)
    _former_prompt: Prompt | None = None
    leases: dict[str, Lease] = field(default_factory=dict)
    # Kept until the snapshot after the release: a request publishes its answer as it ends.
    _newest_of: dict[str, Occupancy] = field(default_factory=dict)
    _chunk_start: dict[str, int] = field(default_factory=dict)
    # Where the draft ended of which a request's last verify rejected a part.
    _rejected_end: dict[str, int] = field(default_factory=dict)
    _publishers: dict[tuple[Page, int], int] = field(default_factory=dict)
    pools: Pools | None = None
    # Whether there are snapshots from the start, so that their tokens can be told apart.
    _shows_tree: bool = False
    _allocation: Allocation = field(
        default_factory=lambda: Allocation(page_size=1, sizes={"full": 0, "swa": 0})
    )
    _current: Current | None = None
    _swa: SwaJudge | None = None
    _swa_keys: Windows = field(default_factory=Windows)
    _prefilling: set[str] = field(default_factory=set)
    # A request that was retracted waits with its answer behind its prompt.
    _retracted_len: dict[str, int] = field(default_factory=dict)
    _in_flight: InFlight | None = None
    _occupancy: Occupancy = field(default=NOBODY)
    _step: int = -1
    _operation: object = None

    def feed(self, fact: Fact) -> None:
        """Take in the next fact of the log.

        Raises:
            BadFileError: the fact cannot follow on those before it in any log.
        """
        if self.gap is not None:
            self.ended = self.ended or isinstance(fact, Ended)
            return
        self._judge(fact)
        if self.stack is not None:
            self._judge_layers(fact, self.stack)

    def _judge(self, fact: Fact) -> None:
        match fact:
            case Ran():  # this and those below are most of a recorder's log
                self._ran(fact)
            case Advanced():
                self._advanced(fact)
            case Step():
                self._begin(fact)
            case Allocated():
                self._lend(self._allocation.allocated(fact))
            case Freed():
                self._lend(self._allocation.freed(fact))
            case Translated():
                self._lend(self._allocation.translated(fact))
            case Read():
                self._read(fact)
            case Wrote():
                self._wrote(fact)
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
            case Breached():
                self.checked["REFINES"] += 1
                self._break(
                    "REFINES",
                    "assumption",
                    f"a launch of {fact.kernel} breaks {fact.assumption}: {fact.message}",
                )
            case Complained():
                self.checked["REFINES"] += 1
                self._break("REFINES", "own-check", f"the engine's own check says: {fact.message}")
            case EngineError():
                self.engine_error = fact
            case Stored() | Compared():
                pass  # for the layers
            case Ended():
                self.ended = True

    def _judge_layers(self, fact: Fact, stack: Stack) -> None:
        if self.layers is None:
            self.layers = Layers(stack)
        layers = self.layers
        if isinstance(fact, Started):
            if fact.geometry.overlap:
                raise BadFileError(
                    "the log is of overlapped steps, which are not followed through layers: leave "
                    "--layers and --ratios out"
                )
            ratio = stack.misfit(fact.geometry.page_size)
            if ratio is not None:
                raise BadFileError(
                    f"compressed rows of {ratio} tokens do not fill pages of "
                    f"{fact.geometry.page_size}: give --ratios that divide the page size"
                )
        if isinstance(fact, Ran):
            assert self._rules is not None
            for observed in self._rules.lane(lane_of(fact), fact.mode):
                layers.feed(observed)
        else:
            layers.feed(fact)
        for broken in layers.take():
            self._break(broken.invariant, broken.cause, broken.sentence, departure=broken.departure)
        self.checked["EXACT"] = self.checked["NON-INTERFERENCE"] = layers.outputs
        self.checked["PURE"] = layers.published

    def _start(self, fact: Started) -> None:
        self.started = fact
        self.ghost = Ghost(fact.ring_stride or 0)
        self._rules = RuleForward(
            window=fact.geometry.window,
            stride=self.ghost.stride,
            verify_order=fact.verify_order,
        )
        self._allocation = Allocation(
            page_size=fact.geometry.page_size,
            sizes={"full": fact.geometry.pool_tokens, "swa": fact.swa_tokens},
        )
        self._swa = SwaJudge(fact, self.checked, self.witnesses)

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

    def applies(self, invariant: Invariant) -> bool:
        """Whether this log tells what an invariant is about."""
        if invariant == "IN-FLIGHT":
            return self.started is not None and self.started.geometry.overlap == 1
        if invariant not in NEEDS_SWA:
            return True
        if invariant == "LOCK":
            return self.started is not None and self.started.locks != "untold"
        return self.pools is not None and self.pools.swa is not None

    def computed_len(self, request: str) -> int:
        """Tokens that a live request has computed."""
        return self._chunk_start[request]

    def _break(
        self,
        invariant: Invariant,
        cause: Cause,
        sentence: str,
        evidence: StaleRead | None = None,
        times: int = 1,
        departure: Departure | None = None,
    ) -> None:
        self.counts[invariant, cause] += times
        if (invariant, cause) not in self.violations:
            self.violations[invariant, cause] = Violation(
                invariant=invariant,
                cause=cause,
                step=self._step,
                sentence=sentence,
                evidence=evidence,
                departure=UNSET if departure is None else departure,
            )

    def _begin(self, fact: Step) -> None:
        if not self.steps:
            self._shows_tree = self.pools is not None
        self.steps += 1
        self._step = fact.index
        self._operation = fact.operation
        operation = fact.operation
        if isinstance(operation, Submit):
            if self._shows_tree:  # nothing else has tokens to compare with
                number_texts(self.texts, operation.prompt)
            self._former_prompt = self._prompts.get(operation.request)
            self._prompts[operation.request] = operation.prompt
        elif isinstance(operation, Abort) and operation.request not in self.leases:
            self._prompts.pop(operation.request, None)  # it waited, and will not be admitted
            self._retracted_len.pop(operation.request, None)
        elif isinstance(operation, Flush):
            self._allocation.clear()

    def _skipped(self, fact: Skipped) -> None:
        self.skipped += 1
        if fact.no_memory:
            self._refused()
        if isinstance(self._operation, Submit):
            # The name is taken: its request keeps the prompt that it came with.
            if self._former_prompt is None:
                del self._prompts[self._operation.request]
            else:
                self._prompts[self._operation.request] = self._former_prompt

    def _refused(self) -> None:
        assert self.started is not None
        if self.pools is None or self.pools.swa is None:
            return
        self.checked["PROGRESS"] += 1
        named = getattr(self._operation, "request", "")
        for cause, sentence in refusal_breaks(
            self._operation,
            self.pools,
            self.started.geometry,
            computed=self._chunk_start,
            prefilling=self._prefilling,
            prompt_len=self._retracted_len.get(named) or prompt_len(self._prompts.get(named, ())),
            locks=self.started.locks,
        ):
            self._break("PROGRESS", cause, sentence)

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
        for other in self.leases.values():
            if other.slot == fact.slot:
                self._break(
                    "PARTITION",
                    "lent-twice",
                    f"slot {fact.slot} was lent to request {fact.request} while request "
                    f"{other.request} holds it",
                )
        if self._in_flight is not None:
            self._in_flight.lent(fact.slot)
        self._check_match(fact)
        self.leases[fact.request] = lease
        self._newest_of[fact.request] = self._occupancy
        self._chunk_start[fact.request] = fact.matched_len
        self.ghost.lease(lease, self._prompts[fact.request])
        if len(self.ghost.tenants) > self._forget_at:
            live = (other.occupancy for other in self.leases.values())
            self.ghost.forget({*live, *self._newest_of.values(), *self._publishers.values()})
            self._forget_at = max(FORGET_AT, 2 * len(self.ghost.tenants))
        if fact.matched_len and self.ghost.stride:
            first = window_start(Position(fact.matched_len), self.geometry_window)
            if self.ghost.holds_foreign_row(lease, first, fact.matched_len):
                self.witnesses["foreign row in window"] += 1

    def _check_match(self, fact: Admitted) -> None:
        assert self.started is not None
        geometry = self.started.geometry
        if not self._shows_tree:
            self._check_match_alone(fact, geometry)
            return
        assert self.pools is not None
        self.checked["REFINES"] += 1
        # No more than the pool can be cached, whatever length the log names.
        comparable = min(fact.prompt_len, geometry.pool_tokens)
        tokens = token_ids(self.texts, self._prompts[fact.request], 0, comparable)
        cached = cached_len(
            self.pools,
            tokens,
            geometry,
            tombstones_gate=self.started.tombstones_gate,
            bigram_keys=self.started.bigram_keys,
        )
        if fact.loaded_len:
            # The host's part of the tree is not told; the marks of what came from there are.
            self.witnesses["loaded back"] += 1
            cached = max(cached, fact.matched_len)
        if fact.matched_len > cached or fact.matched_len % geometry.page_size:
            self._break(
                "REFINES",
                "match",
                f"request {fact.request} reuses {fact.matched_len} tokens, the tree holds "
                f"{cached} of its prompt in pages of {geometry.page_size}",
            )
        if not cached:
            return
        self.checked["USEFUL"] += 1
        tail = fact.prompt_len - fact.matched_len
        bigram, window, size = self.started.bigram_keys, geometry.window, geometry.page_size
        bound = reprefill_bound(fact.prompt_len, cached, window, size, bigram=bigram)
        if tail > bound:
            self._break(
                "USEFUL",
                "no-reuse",
                f"request {fact.request} prefills {tail} of {fact.prompt_len} tokens though "
                f"{cached} are cached; {bound} would do",
            )
        if fact.matched_len:
            self.witnesses["prefix hit"] += 1
        match = capped_bigram_match if bigram else capped_match
        uncapped = match(cached, fact.prompt_len, 0, size)
        capped = match(cached, fact.prompt_len, window, size)
        if capped < uncapped:
            self.witnesses["cap would bind"] += 1
        if fact.matched_len < uncapped:
            self.witnesses["cap bound"] += 1

    def _check_match_alone(self, fact: Admitted, geometry: Geometry) -> None:
        """A recorder takes no snapshots, so nothing is known of the tree: USEFUL stays untested."""
        self.checked["REFINES"] += 1
        if fact.matched_len >= fact.prompt_len or fact.matched_len % geometry.page_size:
            self._break(
                "REFINES",
                "match",
                f"request {fact.request} reuses {fact.matched_len} of {fact.prompt_len} tokens, "
                f"in pages of {geometry.page_size}",
            )
        if fact.matched_len:
            self.witnesses["prefix hit"] += 1

    def _advanced(self, fact: Advanced) -> None:
        lease = self.leases.get(fact.request)
        if lease is None:
            return
        if isinstance(self._operation, Verify):
            self._count_verify(fact)
        if self.ghost.stride:
            self.ghost.reject_from(lease, fact.computed_len)
        if self.pools is not None and self.pools.swa is not None:
            self._progressed(lease, fact)
        if fact.prefilling:
            self._prefilling.add(fact.request)
        else:
            self._prefilling.discard(fact.request)
        self._chunk_start[fact.request] = fact.computed_len

    def _count_verify(self, fact: Advanced) -> None:
        assert self.started is not None
        start, stride = self._chunk_start[fact.request], self.ghost.stride
        end = start + self.started.geometry.draft_tokens
        self.witnesses["verify"] += 1
        if stride and start % stride + end - start > stride:
            self.witnesses["wrap inside a verify"] += 1
        if stride and self._rejected_end.pop(fact.request, 0) > start:
            self.witnesses["rejected row rewritten"] += 1
        if fact.computed_len < end:
            self.witnesses["draft rejected"] += 1
            self._rejected_end[fact.request] = end

    def _progressed(self, lease: Lease, fact: Advanced) -> None:
        self.checked["PROGRESS"] += 1
        before = self._chunk_start[fact.request]
        if fact.computed_len <= before:
            self._break(
                "PROGRESS",
                "empty-step",
                f"a forward of request {fact.request} in slot {lease.slot} left its computed "
                f"length at {fact.computed_len}, from {before}",
            )

    def _windowed(self, fact: Windowed) -> None:
        lease = self.leases.get(fact.request)
        if lease is None or self.gap is not None:
            return
        self.checked["WINDOW"] += 1
        prompt = self.ghost.tenants[lease.occupancy].prompt
        for cause, sentence in self._swa_keys.windowed(fact, lease, prompt, self._step):
            self._break("WINDOW", cause, sentence)

    def _released(self, fact: Released) -> None:
        for holding in self.pools.holdings if self.pools else ():
            computed_len = self._chunk_start.get(fact.request, len(holding.locs))
            if holding.request == fact.request and len(holding.locs) > computed_len:
                self.witnesses["over-allocation released"] += 1
        self.leases.pop(fact.request, None)
        computed = self._chunk_start.pop(fact.request, 0)
        self._rejected_end.pop(fact.request, None)
        if isinstance(self._operation, Retract) and self._operation.request == fact.request:
            self._retracted_len[fact.request] = computed + 1
        else:
            self._retracted_len.pop(fact.request, None)
        self._prefilling.discard(fact.request)
        if self._current is not None:
            self._current.released(fact)
        if self.pools is None:
            self._newest_of.pop(fact.request, None)
        # One that was retracted waits again, and will be admitted with the same prompt.
        if isinstance(self._operation, Finish | Abort) and (
            self._operation.request == fact.request
        ):
            self._prompts.pop(fact.request, None)

    def _answered(self, fact: Answered) -> None:
        lease = self.leases.get(fact.request)
        if lease is not None:
            if self._shows_tree:
                number_texts(self.texts, fact.tokens)
            self.ghost.answered(lease, fact.tokens)

    # Translation

    def _translates(self, fact: Consumed | Planned | Changed | Mapped) -> None:
        if self._current is None:
            assert self.started is not None
            stride = self.started.ring_stride or 1
            self._current = Current(self.started.geometry, self.witnesses, stride)
        match fact:
            case Consumed():
                self.checked["CURRENT"] += 1
                for cause, sentence in self._current.consumed(fact):
                    self._break("CURRENT", cause, sentence)
            case Planned():
                self._current.planned(fact, self._step)
            case Changed():
                self._current.changed(fact, self._step)
            case Mapped():
                self._current.mapped(fact)

    # Two streams

    def _flies(self, fact: Launched | Completed) -> None:
        if self._in_flight is None:
            assert self.started is not None
            self._in_flight = InFlight(self.started.geometry.page_size, self.witnesses)
            if self.pools is not None:
                self._in_flight.snapshot(self.pools)
        self.checked["IN-FLIGHT"] += 1
        breaks = (
            self._in_flight.launched(fact, self.leases, self._prompts, self._step)
            if isinstance(fact, Launched)
            else self._in_flight.completed(fact, self.leases)
        )
        for cause, sentence in breaks:
            self._break("IN-FLIGHT", cause, sentence)

    # Pools

    def _lend(self, breaks: Iterable[Break]) -> None:
        self.checked["PARTITION"] += 1
        for cause, sentence in breaks:
            self._break("PARTITION", cause, sentence)

    def _snapshot(self, pools: Pools) -> None:
        assert self.started is not None
        self.checked["PARTITION"] += 1
        for cause, sentence in partition_breaks(pools, self.started.geometry):
            self._break("PARTITION", cause, sentence)
        if self._in_flight is not None:
            self._in_flight.snapshot(pools)
        assert self._swa is not None
        for invariant, cause, sentence in self._swa.snapshot(
            pools, computed=self._chunk_start, occupancies=self._newest_of
        ):
            self._break(invariant, cause, sentence)
        for holding in pools.holdings:
            computed = self._chunk_start.get(holding.request)
            if computed is not None and holding.protected_len > computed:
                self._break(
                    "REFINES",
                    "uncomputed",
                    f"the tree answers for {holding.protected_len} tokens of request "
                    f"{holding.request}, which has computed {computed}",
                )
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
        self.pools = pools
        holders = self.leases.keys() | {holding.request for holding in pools.holdings}
        for name in self._newest_of.keys() - holders:
            del self._newest_of[name]

    def _publisher_of(self, page: Page, pools: Pools) -> int:
        """Occupancy that held a page as its own before the tree took it; 0 if none is known."""
        assert self.started is not None
        size = self.started.geometry.page_size
        for snapshot in (self.pools, pools):
            for holding in snapshot.holdings if snapshot else ():
                if any(page_of(FullLoc(loc), size) == page for loc in holding.locs):
                    return self._newest_of.get(holding.request, NOBODY)
        return NOBODY

    # Rows

    def _ran(self, fact: Ran) -> None:
        assert self.started is not None
        assert self._rules is not None
        stride = self._stride()
        mode, start, end = fact.mode, fact.start, fact.end
        if mode != "prefill" and end - start > self.started.geometry.draft_tokens:
            raise BadFileError(
                f"step {self._step + 1}: a {mode} of positions {start} to {end - 1} is longer than "
                f"draft_tokens {self.started.geometry.draft_tokens}"
            )
        lease = self.leases.get(fact.request) if fact.request is not None else None
        if self.expand or lease is None or lease.slot != fact.slot or fact.slot == PADDING_SLOT:
            for observed in self._rules.lane(lane_of(fact), mode):
                self._judge(observed)
        elif mode == "prefill" or (
            mode == "verify" and self.started.verify_order == "read, then write"
        ):
            self._ran_beside(fact, lease, self._rules)
        else:
            self.ghost.write_span(lease, start, end, self._step)
            self._count_writes(start, end, stride)
            if start < end:
                self._count_reads(lease, mode, end - start)
            for position in range(start, end):
                reads = decode_reads(Position(position), self._rules.window)
                for first, last, cause in self.ghost.stale(lease, *reads):
                    self._stale_run(cause, mode, lease, position, reads, first, last - first)

    def _ran_beside(self, fact: Ran, lease: Lease, rules: RuleForward) -> None:
        """Queries that find their own chunk beside the ring, which is scattered afterwards."""
        window, position = rules.window, Position(fact.start)
        start, end = prefill_ring_reads(position, position, window)
        # Those further on have no ring row in their window. Each sees one row less than the last.
        queries = max(0, min(fact.end, fact.start + window - 1) - fact.start) if end else 0
        if queries:
            if fact.start != self._chunk_start[lease.request]:
                self._break_window(lease, fact.mode, position, (start, end), times=queries)
            self._count_reads(lease, fact.mode, queries)
            for first, last, cause in self.ghost.stale(lease, start, end):
                # A key is read by the queries from the chunk's start to a window behind it.
                whole = max(0, min(last, fact.end - window) - first)
                times = whole * (2 * (first + window - fact.start) + whole - 1) // 2
                times += (last - first - whole) * (fact.end - fact.start)
                self._stale_run(cause, fact.mode, lease, position, (start, end), first, times)
        first = max(fact.start, fact.end - window)  # the first that `scatter_keeps`
        self.ghost.write_span(lease, first, fact.end, self._step)
        self._count_writes(first, fact.end, rules.stride)

    def _count_writes(self, start: int, end: int, stride: int) -> None:
        self.checked["REFINES"] += 1
        if start < end > stride:
            self.witnesses["ring wrapped"] += end - max(start, stride)

    def _stale_run(
        self,
        cause: Cause,
        mode: Mode,
        lease: Lease,
        position: int,
        reads: tuple[int, int],
        stands_for: int,
        times: int,
    ) -> None:
        """The query at ``position`` reads by the rules: the first of ``times`` stale reads."""
        invariant: Invariant = "FRESH-PREFILL" if mode == "prefill" else "FRESH-DECODE"
        if (invariant, cause) in self.violations:
            self.counts[invariant, cause] += times
            return
        slot, stride = Slot(lease.slot), self.ghost.stride
        rows = tuple(ring_row(slot, Position(at), stride) for at in range(*reads))
        self._stale(invariant, cause, mode, lease, position, reads[0], rows, stands_for, times)

    def _wrote(self, fact: Wrote) -> None:
        stride = self._stride()
        lease = self.leases.get(fact.request) if fact.request is not None else None
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
            self.ghost.write(lease, position, row, self._step)

    def _stride(self) -> int:
        if not self.ghost.stride:
            raise BadFileError(
                f"step {self._step + 1}: ring rows are named, the target has no ring"
            )
        return self.ghost.stride

    def _check_padding(self, row: int) -> None:
        self.checked["PADDING"] += 1
        self.witnesses["padded row"] += 1
        if not is_padding_row(RingRow(row), self.ghost.stride):
            self._break(
                "PADDING", "padding-escapes", f"a padded row touched row {row}, outside slot 0"
            )

    def _check_row(self, request: str, slot: int, position: int, row: int, verb: str) -> None:
        stride = self.ghost.stride
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
        lease = self.leases.get(fact.request)
        if lease is None:
            self._break(
                "REFINES", "window", f"request {fact.request} reads the ring and holds no slot"
            )
            return
        self._check_window(fact, lease)
        self._count_reads(lease, fact.mode, 1)
        invariant: Invariant = "FRESH-PREFILL" if fact.mode == "prefill" else "FRESH-DECODE"
        for index, row in enumerate(fact.rows):
            stands_for = fact.first + index
            self._check_row(fact.request, lease.slot, stands_for, row, "reads")
            if fact.seen is not None:
                self._check_payload(fact, row, fact.seen[index])
            cause = self.ghost.stale_cause(lease, stands_for, row)
            if cause is not None:
                self._stale(
                    invariant, cause, fact.mode, lease, fact.position, fact.first, fact.rows,
                    stands_for,
                )  # fmt: skip

    def _count_reads(self, lease: Lease, mode: Mode, queries: int) -> None:
        self.checked["REFINES"] += queries
        if mode == "prefill":
            self.checked["FRESH-PREFILL"] += queries
            self.witnesses["ring read by prefill"] += queries
            if self._chunk_start[lease.request] > lease.matched_len:
                self.witnesses["chunk boundary in window"] += queries
        else:
            self.checked["FRESH-DECODE"] += queries
            self.witnesses["ring read by decode"] += queries

    def _check_window(self, fact: Read, lease: Lease) -> None:
        first, end = fact.first, fact.first + len(fact.rows)
        if range(first, end) not in self._windows(lease, fact.mode, Position(fact.position)):
            self._break_window(lease, fact.mode, Position(fact.position), (first, end))

    def _windows(self, lease: Lease, mode: Mode, position: Position) -> tuple[range, ...]:
        """Windows that the rules allow a query, the first one for messages."""
        decode = range(*decode_reads(position, self.geometry_window))
        # A verify of an older release takes the prefill path and finds its draft beside the ring.
        start = Position(self._chunk_start[lease.request])
        prefill = range(*prefill_ring_reads(position, start, self.geometry_window))
        return {"decode": (decode,), "prefill": (prefill,), "verify": (decode, prefill)}[mode]

    def _break_window(
        self,
        lease: Lease,
        mode: Mode,
        position: Position,
        reads: tuple[int, int],
        times: int = 1,
    ) -> None:
        allowed = self._windows(lease, mode, position)[0]
        self._break(
            "REFINES",
            "window",
            f"request {lease.request} at position {position} reads positions {reads[0]} to "
            f"{reads[1] - 1}; the rule gives {allowed.start} to {allowed.stop - 1}",
            times=times,
        )

    def _check_payload(self, fact: Read, row: int, seen: tuple[int, int] | None) -> None:
        written = self.ghost.written(row)
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
        mode: Mode,
        lease: Lease,
        position: int,
        first: int,
        rows: tuple[int, ...],
        stands_for: int,
        times: int = 1,
    ) -> None:
        """A query of ``lease`` at ``position`` reads ``rows`` from ``first`` on; one is stale."""
        if (invariant, cause) in self.violations:
            self.counts[invariant, cause] += times
            return
        row = rows[stands_for - first]
        writer = self.ghost.writer(row)
        evidence = StaleRead(
            position=position,
            row=row,
            stands_for=stands_for,
            writer=writer,
            reader=lease,
            previous=self.ghost.previous(lease),
            publisher=self._publisher(lease),
            ring=self.ghost.ring(lease, first, rows),
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
            f"the {mode} of request {lease.request} at position {position} reads row "
            f"{row} of slot {lease.slot} for its position {stands_for}, {held}: {CAUSES[cause]}",
            evidence,
            times,
        )

    def _publisher(self, lease: Lease) -> Lease | None:
        """Occupancy that computed the last page of a lease's reused prefix."""
        if not (lease.matched_len and self._shows_tree):
            return None
        assert self.started is not None
        assert self.pools is not None
        size = self.started.geometry.page_size
        reused = min(lease.matched_len, self.started.geometry.pool_tokens)
        prompt = self.ghost.tenants[lease.occupancy].prompt
        bigram = self.started.bigram_keys
        tokens = token_ids(self.texts, prompt, 0, reused + bigram)
        page = last_cached_page(self.pools, tokens, size, bigram_keys=bigram)
        if page is None:
            return None
        return self.ghost.lease_of(self._publishers.get((page, tokens[reused - size]), NOBODY))


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
