"""A hierarchical cache on a release's real objects, and marks in its pools that say who wrote them.

Imported only in an engine's own process, after the shims. Host pools, the controller that copies to
and from them, backup, load-back and host eviction are the release's own; the copies themselves are
torch's (`kvproof.kernels.engines.shims`), and are done when they are asked for. The forward is left
out but for what it stores: each token's row of keys and values holds its occupancy and position
(`payload`), in both pools. A row that went to the host and came back says whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from kvproof.fuzz.drivers import payload
from kvproof.fuzz.drivers.base import ReleaseEngine
from kvproof.model.facts import Admitted, Fact, Locks, Mark, Mode, Pools, Read, Windowed, Wrote
from kvproof.model.player import Chunk, Lane, Player
from kvproof.model.scenario import Prefill


@dataclass(frozen=True, slots=True)
class _Underway:
    """The event at the end of a copy that is not done at once."""

    done: Callable[[], bool]

    def query(self) -> bool:
        return self.done()

    def synchronize(self) -> None:
        """Who waits finds it done."""


class HostEngine(ReleaseEngine):
    """An engine with a host pool for each pool, over any release's adapter (see `hierarchical`)."""

    def __init__(self, *, pages_rolled: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.loaded = 0
        self.rounds = 0
        if pages_rolled:
            self._roll_loads(pages_rolled * self.geometry.page_size)

    def _roll_loads(self, tokens: int) -> None:
        """The seeded fault: each page of the full pool comes back as a neighbour's."""
        controller = self.tree.cache_controller
        load = controller.load

        def astray(*, host_indices: torch.Tensor, **rest: Any) -> Any:
            return load(host_indices=host_indices.roll(tokens), **rest)

        controller.load = astray

    def _make_kv_pool(self, rows_short: int) -> Any:
        return self._make_paged_pool(payload.ELEMENTS)

    def _take_events(self) -> None:
        # Scheduler.get_next_batch_to_run begins with it; what was asked for has been copied.
        if self.choice.late_copies:
            self._let_copies_last()
        self.tree.check_hicache_events()

    def _let_copies_last(self) -> None:
        """Copies to the host that this round finds begun will be done when the next one looks."""
        acks = self.tree.cache_controller.ack_write_queue
        self.rounds += 1
        for at, ack in enumerate(acks):
            if not isinstance(ack.finish_event, _Underway):
                done = partial(lambda begun: self.rounds > begun, self.rounds)
                acks[at] = ack._replace(finish_event=_Underway(done))

    def _begin_loading(self, batch: Any) -> None:
        req = batch.reqs[0]
        loads = bool(self.tree.ongoing_load_back)
        # Releases whose trees load back one kind of layers alone know one length.
        swa_len = getattr(req, "swa_host_hit_length", 0)
        self.loaded = max(req.host_hit_length, swa_len) if loads else 0
        batch.hicache_consumer_index = self.tree.ready_to_load_host_cache()

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Match, lock, load back and allocate; see the base class."""
        self._take_events()
        req = self.waiting[request]
        chunk, matched = super().admit(request, budget)
        if self.loaded:
            known = [*req.origin_input_ids, *req.output_ids]
            locs = self.requests.req_to_token[chunk.slot, :matched].tolist()
            self._note(locs, known[: matched + 1])
        return chunk, matched

    def extend(self, request: str, budget: int | None) -> Chunk:
        """Allocate the next chunk of the chunked request."""
        self._take_events()
        return super().extend(request, budget)

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests."""
        self._take_events()
        return super().decode(draft_tokens)

    def pools(self) -> Pools:
        """Snapshot of pools and tree, as the next round of the scheduler will find them."""
        if not self.choice.late_copies:
            self._take_events()
        return super().pools()

    def flush(self) -> None:
        """Clear the cache."""
        for _ in range(2):  # Scheduler.is_fully_idle: no copy is under way
            self._take_events()
        super().flush()

    def _locks(self) -> Locks:
        # A copy under way locks nodes too, and no request tells of it.
        return "untold" if self.choice.late_copies else super()._locks()

    def complaint(self) -> str:
        """What the tree's own check finds wrong."""
        # SchedulerInvariantChecker: an engine with copies under way is not idle.
        return "" if self.tree.ongoing_write_through else super().complaint()

    # --- marks ------------------------------------------------------------------------------

    def mark(self, lanes: Sequence[Lane], launch: int) -> None:
        """Store a forward's rows."""
        for lane in lanes:
            rows = payload.encode(
                occupancies=np.full(lane.end - lane.start, lane.occupancy),
                positions=np.arange(lane.start, lane.end),
                launch=launch,
                head_dim=payload.ELEMENTS,
            )
            stored = torch.from_numpy(rows).to(torch.bfloat16)[:, None]
            for pool, locs in self._places(lane.slot, lane.start, lane.end):
                for buffer in (*pool.k_buffer, *pool.v_buffer):
                    buffer[locs] = stored

    def marks(self, slot: int, first: int, end: int) -> tuple[tuple[Mark | None, ...], ...]:
        """What the full pool, and the SWA pool if any, hold at a slot's positions."""
        found = []
        for pool, locs in self._places(slot, first, end):
            keys, values = (
                payload.decode(buffer[locs][:, 0].float().numpy())
                for buffer in (pool.k_buffer[0], pool.v_buffer[0])
            )
            found.append(tuple(k if k == v else None for k, v in zip(keys, values, strict=True)))
        return tuple(found)

    def _places(self, slot: int, first: int, end: int) -> Iterator[tuple[Any, torch.Tensor]]:
        full = self.requests.req_to_token[slot, first:end].to(torch.int64)
        if not self.has_swa_pool:
            yield self.kv_pool, full
            return
        yield self.kv_pool.full_kv_pool, full
        yield self.kv_pool.swa_kv_pool, self.allocator.full_to_swa_index_mapping[full]


def hierarchical(adapter: type[ReleaseEngine]) -> type[ReleaseEngine]:
    """A release's adapter with host pools."""
    return type("Engine", (HostEngine, adapter), {"__doc__": adapter.__doc__})


class Marking:
    """A forward that stores marks and names no rows: `kvproof.model.player.Forward`."""

    def __init__(self, engine: HostEngine) -> None:
        self._engine = engine
        self._launches = 0

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One prefill launch."""
        self._launches += 1
        self._engine.mark([lane for lane in lanes if lane.request is not None], self._launches)
        return []

    decode = verify = prefill


@dataclass  # without slots: `super()` finds no class that they made anew
class HostPlayer(Player):
    """Plays a scenario on a `HostEngine`, and tells what was loaded and what the pools hold."""

    engine: HostEngine

    def _prefill(self, operation: Prefill) -> Iterator[Fact]:
        for fact in super()._prefill(operation):
            yield (
                replace(fact, loaded_len=self.engine.loaded) if isinstance(fact, Admitted) else fact
            )

    def _windows(self, mode: Mode, lanes: Sequence[Lane]) -> Iterator[Windowed]:
        if not self.engine.has_swa_pool:
            yield from self._prefixes(mode, lanes)
            return
        for fact in super()._windows(mode, lanes):
            full, _ = self.engine.marks(fact.slot, 0, fact.start)
            _, swa = self.engine.marks(fact.slot, fact.first, fact.start)
            yield replace(fact, seen=swa, prefix_seen=full)

    def _prefixes(self, mode: Mode, lanes: Sequence[Lane]) -> Iterator[Windowed]:
        """What the queries find where they see all, and nothing lies in an SWA pool."""
        for lane in lanes:
            assert lane.request is not None
            [full] = self.engine.marks(lane.slot, 0, lane.start)
            yield Windowed(
                request=lane.request, mode=mode, slot=lane.slot, start=lane.start,
                first=lane.start, locs=(), seen=(), prefix_seen=full,
            )  # fmt: skip
