"""The reference engine: the specification's own slots, pools, tree and scheduler.

It makes the model a target like any other: unit tests use it as a mock, proofs replay their
counterexamples on it, and the monitor is tested against its faults. It is never what the fuzzer
reports on. What it does differently on demand is a `Policy`; pages and their SWA halves are kept in
`page_pools`, cached prefixes and their locks in `page_tree`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from kvproof.model.facts import Holding, MapRun, Node, Pools, Read, Started, SwaPool, Wrote
from kvproof.model.forward import FlooredForward, RuleForward
from kvproof.model.page_pools import NONE, PagePools
from kvproof.model.page_tree import Lock, PageTree
from kvproof.model.player import Chunk, Forward, Lane, NoMemoryError, Player, RefusedError
from kvproof.model.policy import Fault, Policy, margin_of
from kvproof.model.scenario import Geometry
from kvproof.spec.cap import capped_bigram_match, capped_match, match_limit, rebuild_tail
from kvproof.spec.cursor import cursor, window_left
from kvproof.spec.indices import PADDING_SLOT, Page, Position, Slot
from kvproof.spec.pages import new_pages, page_ceil
from kvproof.spec.radix import key_entries, page_prefixes, tokens_of
from kvproof.spec.schedule import chunk_end, next_slot, publishable_len

__all__ = ["MODEL", "Fault", "Policy", "ReferenceEngine", "reference_player"]

MODEL = "model"
"""Name of the reference engine as a target."""

NO_LOCK = Lock(tokens=(), window_from=None)


@dataclass(slots=True)
class RequestState:
    """A request of the reference engine.

    Attributes:
        tokens: that the host knows.
        allocated: tokens that its pages were lent for.
        computed: tokens whose keys the device has once all steps in flight have run.
        processed: tokens of the steps that the host took the results of.
        protected: leading tokens whose pages are the tree's.
        evicted: its cursor: leading tokens whose SWA halves were given back.
        gone: leading pages that were given back behind the window.
        lock: what it locks of the tree.
    """

    tokens: list[int]
    slot: Slot = PADDING_SLOT
    pages: list[Page] = field(default_factory=list)
    allocated: int = 0
    computed: int = 0
    processed: int = 0
    protected: int = 0
    evicted: int = 0
    gone: int = 0
    lock: Lock = NO_LOCK
    running: bool = False


class ReferenceEngine:
    """`kvproof.model.player.Engine` by the rules of `kvproof.spec`."""

    def __init__(self, *, geometry: Geometry, policy: Policy) -> None:
        self.geometry = geometry
        self.policy = policy
        self.faults = policy.faults
        self.page_size = geometry.page_size
        self.stride = geometry.ring_stride if policy.stride is None else policy.stride
        if policy.reprefill_tail is not None:
            self.tail = policy.reprefill_tail
        else:
            self.tail = 0 if policy.paged_swa else geometry.window
        self.free_slots = [Slot(slot) for slot in range(1, geometry.slots + 1)]
        if "lend padding slot" in self.faults:
            self.free_slots.insert(0, PADDING_SLOT)
        swa_pages = geometry.swa_pool_tokens // self.page_size if policy.paged_swa else None
        self.pool = PagePools(geometry.pool_tokens // self.page_size, swa_pages, self.faults)
        self.tree = PageTree(self.pool, self.page_size, geometry.window, self.faults)
        self.requests: dict[str, RequestState] = {}

    def started(self) -> Started:
        """Describe the target."""
        paged = self.policy.paged_swa
        return Started(
            target=MODEL,
            backend="rules",
            geometry=self.geometry,
            ring_stride=None if paged else self.stride,
            reprefill_tail=self.tail,
            bigram_keys=self.policy.bigram_keys,
            verify_order=self.policy.verify_order,
            swa_tokens=self.geometry.swa_pool_tokens if paged else 0,
            locks="counted",
        )

    def _key(self, tokens: Sequence[int]) -> Sequence[int]:
        """What the tree keeps tokens under: themselves, or each with the one behind it."""
        return key_entries(tokens, bigram=self.policy.bigram_keys)

    # Admission and prefill

    def submit(self, request: str, tokens: Sequence[int]) -> None:
        """Queue a request."""
        self.requests[request] = RequestState(list(tokens))

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Match, lend a slot, allocate the first chunk."""
        state = self.requests[request]
        total = len(state.tokens)
        if not self.free_slots:
            raise RefusedError("no free request slot")
        reused: list[Page] = []
        if "never reuse" not in self.faults:
            # The key is cut before it is matched, so that no tombstone lies in the last window.
            cached = self.tree.match(self._key(state.tokens[: match_limit(total, self.tail)]))
            capped = capped_bigram_match if self.policy.bigram_keys else capped_match
            matched = capped(len(cached) * self.page_size, total, self.tail, self.page_size)
            if self.policy.replayed:
                tail = rebuild_tail(matched, total, self.policy.replayed)
                matched = capped(matched, total, tail, self.page_size)
            reused = cached[: matched // self.page_size]
        # The lock comes before the allocation: what is matched must not be evicted for it.
        state.lock = self.tree.lock(self._key(state.tokens), len(reused) * self.page_size)
        if "match beyond tree" in self.faults and not reused and self.tree.pages:
            reused = [next(iter(self.tree.pages.values()))]
        state.pages, state.protected = reused, len(reused) * self.page_size
        state.computed = state.allocated = state.protected
        try:
            start, end = self._allocate(state, budget)
        except RefusedError:
            self.tree.unlock(state.lock)
            self.requests[request] = RequestState(state.tokens)
            raise
        if "lend padding slot" in self.faults:
            state.slot = self.free_slots[0]
        else:
            state.slot = next_slot(self.free_slots, self.policy.slot_order)
        if "slot lent twice" not in self.faults:
            self.free_slots.remove(state.slot)
        chunk = Chunk(slot=state.slot, start=start, end=end, last=end == len(state.tokens))
        return chunk, start

    def extend(self, request: str, budget: int | None) -> Chunk:
        """Allocate the next chunk."""
        state = self.requests[request]
        start, end = self._allocate(state, budget)
        return Chunk(slot=state.slot, start=start, end=end, last=end == len(state.tokens))

    def _allocate(self, state: RequestState, budget: int | None) -> tuple[int, int]:
        start, total = state.computed, len(state.tokens)
        end = chunk_end(Position(start), total, total if budget is None else budget, self.page_size)
        if end <= start:
            raise RefusedError(f"a chunk of {budget} tokens is smaller than a page")
        self._grow(state, end)
        return start, end

    def _grow(self, state: RequestState, end: int) -> None:
        need = self._new_pages(state, end)
        self._make_room(need)
        state.pages += self.pool.lend(need)
        state.allocated = max(state.allocated, end)

    def _new_pages(self, state: RequestState, end: int) -> int:
        # The end is no further than before where a step in flight kept few of its drafts.
        end = max(state.allocated, end)
        return new_pages(state.allocated, end, self.page_size) // self.page_size

    def _make_room(self, pages: int) -> None:
        if self.pool.has(pages):
            return
        # Counted before anything goes: a refused operation changes nothing.
        full, swa = self.tree.evictable_full(), self.tree.evictable_swa()
        if "refuse before evicting" in self.faults:
            full = swa = 0
        if not self.pool.would_have(pages, full=full, swa=swa):
            raise NoMemoryError(
                f"{pages} pages are needed, {len(self.pool.free)} are free, {full} evictable"
                + (
                    f"; in the SWA pool {len(self.pool.free_swa)} and {swa}"
                    if self.policy.paged_swa
                    else ""
                )
            )
        self.tree.evict(pages - len(self.pool.free))
        if self.policy.paged_swa:
            self.tree.bury(pages - len(self.pool.free_swa))

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Publish the computed pages."""
        state = self.requests[request]
        state.computed = state.allocated
        if "plan cached as computed" in self.faults and not last:
            self._publish_plan(state)
        else:
            self._publish(state, state.computed)
        if last:
            state.tokens.append(token)
            state.running = True

    def _publish_plan(self, state: RequestState) -> None:
        """Fault: the rest of the prompt has no room yet, and is published with what has."""
        with suppress(NoMemoryError):
            self._grow(state, len(state.tokens))
        self._publish(state, state.allocated)

    def _insert(self, state: RequestState, computed_len: int) -> Sequence[int]:
        """Offer the pages of computed tokens to the tree; the key that they went under."""
        key = self._key(state.tokens[:computed_len])
        if self.policy.slides_before_insert:
            # A window is to be left below the insert, so the cursor counts what is inserted.
            counts_tokens = "cursor counts tokens, not entries" in self.faults
            self._slide(state, computed_len if counts_tokens else len(key))
        key = key[: publishable_len(len(key), self.page_size)]
        self.tree.insert(key, state.pages, state.protected)
        return key

    def _publish(self, state: RequestState, computed_len: int) -> None:
        """Insert, and go on with what the tree answers."""
        key = self._insert(state, computed_len)
        # What the tree answers now, rather than what was offered: the lock moves on with it.
        matched = self.tree.match(key)
        if "share duplicate pages" not in self.faults:
            state.pages[: len(matched)] = matched
        state.protected = len(matched) * self.page_size
        self.tree.unlock(state.lock)
        state.lock = self.tree.lock(key, state.protected)

    # Decode

    def decode(self, draft_tokens: int) -> list[tuple[str, int, int]]:
        """Allocate one step for all running requests."""
        running = {name: state for name, state in self.requests.items() if state.running}
        for state in running.values():
            self._slide(state, state.computed)
            self._give_up_window(state)
        self._make_room(
            sum(self._new_pages(state, state.computed + draft_tokens) for state in running.values())
        )
        for state in running.values():
            self._grow(state, state.computed + draft_tokens)
            if "cursor past the window" in self.faults:
                self._slide(state, state.allocated)
        return [(name, state.slot, state.computed) for name, state in running.items()]

    def _slide(self, state: RequestState, length: int) -> None:
        """Move the cursor: give back the SWA halves that no query from ``length`` on sees."""
        if not self.policy.paged_swa or "cursor never moves" in self.faults:
            return
        if "cursor back to zero" in self.faults and state.evicted > state.protected:
            state.evicted = 0
            return
        margin = margin_of(self.policy.margin, self.geometry.window, self.page_size)
        after = cursor(state.evicted, state.protected, length, margin, self.page_size)
        first = max(state.evicted, state.protected)
        if "keep behind the cursor" not in self.faults:
            self.pool.take_swa_back(state.pages[first // self.page_size : after // self.page_size])
        state.evicted = after

    def _give_up_window(self, state: RequestState) -> None:
        if state.lock.window_from is None or not state.protected:
            return
        left = window_left(state.computed, state.protected, self.geometry.window)
        if (self.policy.early_release and left) or "window released early" in self.faults:
            state.lock = self.tree.release_window(state.lock)

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Keep the accepted tokens; give back the pages of rejected ones."""
        for name, sampled in tokens.items():
            state = self.requests[name]
            state.computed += len(sampled)
            state.allocated = state.computed
            state.tokens += sampled
            keep = page_ceil(state.computed, self.page_size) // self.page_size
            self.pool.take_back(state.pages[keep:])
            del state.pages[keep:]

    # The end of a request

    def finish(self, request: str) -> None:
        """Publish and release."""
        state = self.requests[request]
        # Nothing is matched again: what was inserted is the tree's, found or not.
        state.protected = len(self._insert(state, state.computed))
        if "double free on finish" in self.faults and state.pages:
            self.pool.free.append(state.pages[0])
        self._release(request)

    def abort(self, request: str) -> None:
        """Release without publishing anything more."""
        state = self.requests[request]
        if "leak on abort" in self.faults:
            state.pages = state.pages[:-1]
        if "lock kept on abort" in self.faults:
            state.lock = NO_LOCK
        self._release(request)

    def drop(self, request: str) -> None:
        """Forget a waiting request."""
        del self.requests[request]

    def retract(self, request: str) -> None:
        """Release, and queue again with what was sampled."""
        state = self.requests[request]
        self._release(request)
        self.requests[request] = RequestState(state.tokens)

    def _release(self, request: str) -> None:
        self._give_back(self.requests.pop(request))

    def _give_back(self, state: RequestState) -> None:
        private = state.pages[max(state.protected // self.page_size, state.gone) :]
        if "SWA half freed twice" in self.faults:
            self.pool.free_swa += [self.pool.to[page] for page in private if page in self.pool.to]
        self.pool.take_back(private)
        self.tree.unlock(state.lock)
        state.lock = NO_LOCK
        if state.slot not in self.free_slots:
            self.free_slots.append(state.slot)

    def evict(self, tokens: int, swa_tokens: int = 0) -> None:
        """Give back leaf pages that nobody reads, then SWA halves, oldest first."""
        self.tree.evict(page_ceil(tokens, self.page_size) // self.page_size)
        if self.policy.paged_swa:
            self.tree.bury(page_ceil(swa_tokens, self.page_size) // self.page_size)

    def complaint(self) -> str:
        """Nothing: the monitor checks this engine."""
        return ""

    def flush(self) -> None:
        """Clear tree, pools and slots."""
        self.tree.clear()
        self.pool.clear()
        self.free_slots.sort()

    # What is told

    def pools(self) -> Pools:
        """Snapshot: one node a cached page."""
        tree, page_size = self.tree, self.page_size
        ordered = sorted(tree.pages, key=lambda prefix: (len(prefix), prefix))
        index = {prefix: number for number, prefix in enumerate(ordered)}
        evictable = tree.evictable_full() * page_size
        miscount = 1 if "miscount" in self.faults and tree.pages else 0
        return Pools(
            free=tuple(sorted(self.pool.free)),
            free_slots=tuple(self.free_slots),
            nodes=tuple(
                Node(
                    parent=index.get(prefix[:-page_size], -1),
                    tokens=tuple(tokens_of(prefix[-page_size:], bigram=self.policy.bigram_keys)),
                    locs=self._locs([tree.pages[prefix]], page_size),
                    full_lock=tree.locks[prefix].full,
                    swa_lock=tree.locks[prefix].swa,
                    tombstone=tree.locks[prefix].tombstone,
                )
                for prefix in ordered
            ),
            holdings=tuple(self._holdings(index)),
            counters={
                "available": len(self.pool.free) * page_size,
                "evictable": evictable + miscount,
                "protected": len(tree.pages) * page_size - evictable,
            },
            swa=self._swa_pool() if self.policy.paged_swa else None,
        )

    def _holdings(self, index: dict[tuple[int, ...], int]) -> Iterator[Holding]:
        for name, state in self.requests.items():
            if not state.pages:
                continue
            path = page_prefixes(state.lock.tokens, self.page_size)
            window = (
                []
                if state.lock.window_from is None
                else path[state.lock.window_from // self.page_size :]
            )
            yield Holding(
                request=name,
                slot=state.slot,
                protected_len=state.protected,
                locs=self._locs(
                    state.pages[state.gone :], state.allocated - state.gone * self.page_size
                ),
                locked=index.get(path[-1]) if path else None,
                swa_locked_from=index.get(window[0]) if window else None,
                swa_evicted_len=state.evicted,
            )

    def _swa_pool(self) -> SwaPool:
        size, pool, tree = self.page_size, self.pool, self.tree
        runs: list[MapRun] = []
        for page, swa_page in sorted(pool.to.items()):
            full, at, tokens = runs[-1] if runs else (0, 0, 0)
            if runs and (full + tokens, at + tokens) == (page * size, swa_page * size):
                runs[-1] = (full, at, tokens + size)
            else:
                runs.append((page * size, swa_page * size, size))
        if "forget a token's entry" in self.faults and runs:
            full, at, tokens = runs.pop()
            runs += [(full, at, tokens - 1)] if tokens > 1 else []
        live = sum(not locks.tombstone for locks in tree.locks.values())
        evictable = tree.evictable_swa()
        counted_twice = evictable if "SWA miscount" in self.faults else 0
        return SwaPool(
            free=tuple(sorted(pool.free_swa)),
            full_to_swa=tuple(runs),
            counters={
                "available": len(pool.free_swa) * size,
                "evictable": (evictable + counted_twice) * size,
                "protected": (live - evictable) * size,
            },
        )

    def swa_locs(self, slot: int, start: int, end: int) -> Sequence[int] | None:
        """SWA locations of a slot's positions; None where the window lives in rings."""
        if not self.policy.paged_swa:
            return None
        size, to = self.page_size, self.pool.to
        state = next(state for state in self.requests.values() if state.slot == slot)
        pages = [to.get(state.pages[at // size], NONE) for at in range(start, end)]
        return [
            page * size + at % size if page else NONE
            for page, at in zip(pages, range(start, end), strict=True)
        ]

    def _locs(self, pages: Sequence[Page], length: int) -> tuple[int, ...]:
        return tuple(
            pages[position // self.page_size] * self.page_size + position % self.page_size
            for position in range(length)
        )


@dataclass(frozen=True, slots=True)
class _PadsIntoLastSlot:
    """Fault: padded rows of a decode batch carry a slot that can be lent."""

    rules: RuleForward
    last_slot: int

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        return self.rules.prefill(lanes)

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        return self.rules.decode(
            [lane if lane.request else replace(lane, slot=self.last_slot) for lane in lanes]
        )

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        return self.rules.verify(lanes)


def reference_player(geometry: Geometry, policy: Policy | None = None) -> Player:
    """A player on the reference engine with the rules as its kernels."""
    from kvproof.model.overlap import OverlapPlayer  # noqa: PLC0415  # builds on this module
    from kvproof.model.overlap_reference import OverlapReferenceEngine  # noqa: PLC0415  # so too

    policy = policy or Policy()
    engine_type = OverlapReferenceEngine if geometry.overlap else ReferenceEngine
    engine = engine_type(geometry=geometry, policy=policy)
    if policy.paged_swa:
        return Player(engine, None)
    rules = RuleForward(
        window=geometry.window,
        stride=engine.stride,
        verify_order=policy.verify_order,
        prefill_order=policy.prefill_order,
        decode_order=policy.decode_order,
    )
    forward: Forward = FlooredForward(rules, rules.window) if policy.floored_reads else rules
    if "pad into last slot" in policy.faults:
        forward = _PadsIntoLastSlot(rules, geometry.slots)
    if isinstance(engine, OverlapReferenceEngine):
        return OverlapPlayer(engine, forward)
    return Player(engine, forward)
