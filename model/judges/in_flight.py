"""IN-FLIGHT: what a launched, unfinished step uses stays what it is until the step has run.

The device runs steps in order, so what they do to pages is ordered (STREAM-1): this keeps which key
each location holds after the newest launch. Pages may be given back and lent again behind a step in
flight; releases do that all the time. What may not be is said in `kvproof.spec.streams`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvproof.model.facts import Completed, Launched, Pools, TableLane
from kvproof.model.findings import Break
from kvproof.model.scenario import Prompt, agreed_len
from kvproof.model.verdict import Lease
from kvproof.model.witness import Witness
from kvproof.spec.indices import FullLoc, Page
from kvproof.spec.pages import page_of
from kvproof.spec.streams import may_rewrite, sees


@dataclass(frozen=True, kw_only=True, slots=True)
class _Key:
    """What a location holds: the key of one position of a request, written by one launch."""

    lease: Lease
    prompt: Prompt
    position: int
    launch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reader:
    """A lane's request as it was at the launch; ``lease`` is None for one that held no slot."""

    lane: TableLane
    lease: Lease | None
    prompt: Prompt


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    launch: int
    mode: str
    step: int
    readers: tuple[_Reader, ...]
    pages: frozenset[Page]


@dataclass(slots=True)
class InFlight:
    """Feed it launches, completions and snapshots of one log.

    Attributes:
        page_size: tokens per page of the full pool.
        witnesses: where reached states are counted.
    """

    page_size: int
    witnesses: dict[Witness, int]
    _keys: dict[int, _Key] = field(default_factory=dict)
    _steps: deque[_Step] = field(default_factory=deque)
    _free: frozenset[Page] = frozenset()

    def launched(
        self, fact: Launched, leases: Mapping[str, Lease], prompts: Mapping[str, Prompt], step: int
    ) -> Iterator[Break]:
        """A step is queued; each way in which it finds what is not its own, with a sentence."""
        if self._steps:
            self.witnesses["step in flight"] += 1
        if fact.mode == "verify" and any(step.mode == "verify" for step in self._steps):
            self.witnesses["verify in flight"] += 1
        readers = tuple(
            _Reader(lane=lane, lease=leases.get(lane.request), prompt=prompts.get(lane.request, ()))
            for lane in fact.lanes
        )
        for reader in readers:
            yield from self._reads(fact, reader)
        for reader in readers:
            self._write(fact.launch, reader)
        pages = frozenset(self._page(loc) for lane in fact.lanes for loc in lane.locs)
        self._steps.append(
            _Step(launch=fact.launch, mode=fact.mode, step=step, readers=readers, pages=pages)
        )

    def completed(self, fact: Completed, leases: Mapping[str, Lease]) -> Iterator[Break]:
        """The oldest step has run; what the host rewrote under it, with a sentence each."""
        if not self._steps or self._steps[0].launch != fact.launch:
            yield (
                "not-launched",
                f"the engine took the result of launch {fact.launch}, which is not the oldest in "
                "flight",
            )
            return
        step = self._steps.popleft()
        for reader in step.readers:
            dropped = reader.lease is None or leases.get(reader.lane.request) != reader.lease
            if dropped and step.mode != "prefill":
                self.witnesses["decoded after its end"] += 1
                if step.mode == "verify":
                    self.witnesses["verified after its end"] += 1
        for rewritten in fact.rewritten:
            self.witnesses["table rewritten in flight"] += 1
            reader = step.readers[rewritten.lane]
            dropped = reader.lease is None or leases.get(reader.lane.request) != reader.lease
            for position, loc in enumerate(rewritten.locs, rewritten.position):
                was = reader.lane.locs[position - reader.lane.first]
                if loc != was and not may_rewrite(
                    dropped=dropped,
                    writes_by_table=reader.lane.writes_by_table and position >= reader.lane.start,
                    same_key=self._holds(loc, reader, position, step.launch),
                ):
                    yield "rewritten", self._rewrite(step, reader, position, was, loc)
                    break

    def processed(self, request: str, lease: Lease | None, computed: int) -> int:
        """Length of a request that the host may go by: up to where its steps in flight start."""
        starts = (
            reader.lane.start
            for step in self._steps
            for reader in step.readers
            if reader.lane.request == request and reader.lease == lease
        )
        return min(starts, default=computed)

    def lent(self, slot: int) -> None:
        """A slot was lent."""
        if any(reader.lane.slot == slot for step in self._steps for reader in step.readers):
            self.witnesses["lent again in flight"] += 1

    def snapshot(self, pools: Pools) -> None:
        """What is free from now on."""
        free = frozenset(Page(page) for page in pools.free)
        newly = free - self._free
        if any(newly & step.pages for step in self._steps):
            self.witnesses["freed in flight"] += 1
        self._free = free

    def _page(self, loc: int) -> Page:
        return page_of(FullLoc(loc), self.page_size)

    def _reads(self, fact: Launched, reader: _Reader) -> Iterator[Break]:
        lane = reader.lane
        for position in range(lane.first, lane.start):
            loc = lane.locs[position - lane.first]
            if self._page(loc) in self._free:
                yield (
                    "freed",
                    f"{self._who(fact.mode, fact.launch, lane)} reads location {loc} for position "
                    f"{position}, in page {self._page(loc)}, which is free",
                )
                return
            if not self._holds(loc, reader, position, fact.launch):
                yield (
                    "overwritten",
                    f"{self._who(fact.mode, fact.launch, lane)} reads location {loc} for position "
                    f"{position}, {self._held(loc)}",
                )
                return

    def _write(self, launch: int, reader: _Reader) -> None:
        lane = reader.lane
        if reader.lease is None:
            return
        for position in range(lane.start, lane.end):
            self._keys[lane.locs[position - lane.first]] = _Key(
                lease=reader.lease, prompt=reader.prompt, position=position, launch=launch
            )

    def _holds(self, loc: int, reader: _Reader, position: int, launch: int) -> bool:
        """Whether a location holds the key of a reader's position, as a launch sees it."""
        key = self._keys.get(loc)
        return (
            key is not None
            and key.position == position
            and sees(launch, key.launch)
            and (key.prompt is reader.prompt or agreed_len(key.prompt, reader.prompt) > position)
        )

    @staticmethod
    def _who(mode: str, launch: int, lane: TableLane) -> str:
        return f"the {mode} of request {lane.request} (launch {launch})"

    def _held(self, loc: int) -> str:
        key = self._keys.get(loc)
        if key is None:
            return "where nobody wrote a key"
        return (
            f"which holds position {key.position} of request {key.lease.request} "
            f"(occupancy {key.lease.occupancy}, launch {key.launch})"
        )

    def _rewrite(self, step: _Step, reader: _Reader, position: int, was: int, loc: int) -> str:
        lane = reader.lane
        verb = "writes" if lane.writes_by_table and position >= lane.start else "reads"
        return (
            f"{self._who(step.mode, step.launch, lane)} {verb} position {position} by row "
            f"{lane.slot} of the page table, where the host wrote location {loc} for {was} while "
            f"it was in flight, since step {step.step + 1}: {loc} is a location {self._held(loc)}"
        )
