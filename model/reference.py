"""The reference engine: the specification's own slots, pools, tree and scheduler.

It makes the model a target like any other: unit tests use it as a mock, proofs replay their
counterexamples on it, and the monitor is tested against its faults. It is never what the fuzzer
reports on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from kvproof.model.facts import Holding, Node, Pools, Read, Started, Wrote
from kvproof.model.forward import RuleForward
from kvproof.model.player import Chunk, Forward, Lane, Player, RefusedError
from kvproof.model.scenario import Geometry
from kvproof.spec.cap import capped_match
from kvproof.spec.indices import PADDING_SLOT, Page, Position, Slot
from kvproof.spec.pages import page_ceil
from kvproof.spec.radix import Prefix, cached_pages, evictable, inserted, page_prefixes
from kvproof.spec.schedule import SlotOrder, chunk_end, next_slot, publishable_len
from kvproof.spec.window import DECODE_ORDER, PREFILL_ORDER, Order

MODEL = "model"
"""Name of the reference engine as a target."""

Fault: TypeAlias = Literal[
    "lend padding slot", "leak on abort", "double free on finish", "share duplicate pages",
    "never reuse", "match beyond tree", "miscount", "pad into last slot", "slot lent twice",
    "abort frees at once", "draft extend reads the table", "window by scheduled length",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """What the releases do differently, and the faults that tests seed.

    Attributes:
        reprefill_tail: tokens that the cap holds back; None for the window.
        stride: rows per slot; None for what the specification asks for.
        window_pages: all layers slide, so pages behind the window are given back, and there is no
            tree to share them. Needs overlap.
    """

    reprefill_tail: int | None = None
    stride: int | None = None
    slot_order: SlotOrder = "first in, first out"
    verify_order: Order = "write, then read"
    prefill_order: Order = PREFILL_ORDER
    decode_order: Order = DECODE_ORDER
    window_pages: bool = False
    faults: frozenset[Fault] = frozenset()


@dataclass(slots=True)
class RequestState:
    """A request of the reference engine.

    Attributes:
        tokens: that the host knows.
        allocated: tokens that its pages were lent for.
        computed: tokens whose keys the device has once all steps in flight have run.
        processed: tokens of the steps that the host took the results of.
        gone: leading pages that were given back behind the window.
    """

    tokens: list[int]
    slot: Slot = PADDING_SLOT
    pages: list[Page] = field(default_factory=list)
    allocated: int = 0
    computed: int = 0
    processed: int = 0
    protected: int = 0
    gone: int = 0
    running: bool = False


class ReferenceEngine:
    """`kvproof.model.player.Engine` by the rules of `kvproof.spec`."""

    def __init__(self, *, geometry: Geometry, policy: Policy) -> None:
        self.geometry = geometry
        self.policy = policy
        self.stride = geometry.ring_stride if policy.stride is None else policy.stride
        self.tail = geometry.window if policy.reprefill_tail is None else policy.reprefill_tail
        self.free_slots = [Slot(slot) for slot in range(1, geometry.slots + 1)]
        if "lend padding slot" in policy.faults:
            self.free_slots.insert(0, PADDING_SLOT)
        self.free = self._all_pages()
        self.tree: dict[Prefix, Page] = {}
        self.requests: dict[str, RequestState] = {}

    def _all_pages(self) -> list[Page]:
        return [Page(p) for p in range(1, self.geometry.pool_tokens // self.geometry.page_size + 1)]

    def started(self) -> Started:
        """Describe the target."""
        return Started(
            target=MODEL,
            backend="rules",
            geometry=self.geometry,
            ring_stride=self.stride,
            reprefill_tail=self.tail,
            verify_order=self.policy.verify_order,
        )

    def submit(self, request: str, tokens: Sequence[int]) -> None:
        """Queue a request."""
        self.requests[request] = RequestState(list(tokens))

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Match, lend a slot, allocate the first chunk."""
        state, page_size = self.requests[request], self.geometry.page_size
        if not self.free_slots:
            raise RefusedError("no free request slot")
        reused: list[Page] = []
        if "never reuse" not in self.policy.faults:
            cached = cached_pages(self.tree, state.tokens, page_size)
            matched = capped_match(len(cached) * page_size, len(state.tokens), self.tail, page_size)
            reused = cached[: matched // page_size]
        if "match beyond tree" in self.policy.faults and not reused and self.tree:
            reused = [next(iter(self.tree.values()))]
        # The lock comes before the allocation: what is matched must not be evicted for it.
        state.pages, state.protected = reused, len(reused) * page_size
        state.computed = state.allocated = state.protected
        try:
            start, end = self._allocate(state, budget)
        except RefusedError:
            state.pages, state.protected = [], 0
            state.computed = state.allocated = 0
            raise
        if "lend padding slot" in self.policy.faults:
            state.slot = self.free_slots[0]
        else:
            state.slot = next_slot(self.free_slots, self.policy.slot_order)
        if "slot lent twice" not in self.policy.faults:
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
        end = chunk_end(
            Position(start), total, total if budget is None else budget, self.geometry.page_size
        )
        if end <= start:
            raise RefusedError(f"a chunk of {budget} tokens is smaller than a page")
        self._grow(state, end)
        return start, end

    def _grow(self, state: RequestState, end: int) -> None:
        need = self._pages_for(end) - len(state.pages)
        self._make_room(need)
        state.pages += [self.free.pop(0) for _ in range(need)]
        # Less than before where a step in flight had more drafts than it kept.
        state.allocated = max(state.allocated, end)

    def _pages_for(self, tokens: int) -> int:
        return page_ceil(tokens, self.geometry.page_size) // self.geometry.page_size

    def _make_room(self, pages: int) -> None:
        if len(self.free) >= pages:
            return
        # Counted before anything goes: a refused operation changes nothing.
        reclaimable = len(self.tree.keys() - self._held())
        if len(self.free) + reclaimable < pages:
            raise RefusedError(
                f"{pages} pages are needed, {len(self.free)} are free, {reclaimable} evictable"
            )
        while len(self.free) < pages:
            self.free.append(self.tree.pop(evictable(self.tree, self._locked())[0]))

    def _locked(self) -> list[Prefix]:
        return [tuple(r.tokens[: r.protected]) for r in self.requests.values() if r.protected]

    def _held(self) -> set[Prefix]:
        """Cached prefixes that a reader locks."""
        page_size = self.geometry.page_size
        locked = {p for prefix in self._locked() for p in page_prefixes(prefix, page_size)}
        return locked & self.tree.keys()

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Publish the computed pages."""
        state = self.requests[request]
        state.computed = state.allocated
        self._publish(state, state.computed)
        if last:
            state.tokens.append(token)
            state.running = True

    def _publish(self, state: RequestState, computed_len: int) -> None:
        page_size = self.geometry.page_size
        length = publishable_len(computed_len, page_size)
        key = state.tokens[:length]
        before = cached_pages(self.tree, key, page_size)
        self.tree, refused = inserted(self.tree, key, state.pages, page_size)
        if "share duplicate pages" not in self.policy.faults:
            state.pages[: len(before)] = before
            self.free += refused
        state.protected = length

    def decode(self, draft_tokens: int) -> list[tuple[str, int, int]]:
        """Allocate one step for all running requests."""
        running = {name: state for name, state in self.requests.items() if state.running}
        self._make_room(
            sum(
                max(0, self._pages_for(state.computed + draft_tokens) - len(state.pages))
                for state in running.values()
            )
        )
        for state in running.values():
            self._grow(state, state.computed + draft_tokens)
        return [(name, state.slot, state.computed) for name, state in running.items()]

    def decoded(self, accepted: int, tokens: dict[str, Sequence[int]]) -> None:
        """Keep the accepted tokens; give back the pages of rejected ones."""
        page_size = self.geometry.page_size
        for name, sampled in tokens.items():
            state = self.requests[name]
            state.computed += accepted
            state.allocated = state.computed
            state.tokens += sampled
            keep = page_ceil(state.computed, page_size) // page_size
            self.free += state.pages[keep:]
            del state.pages[keep:]

    def finish(self, request: str) -> None:
        """Publish and release."""
        state = self.requests[request]
        self._publish(state, state.computed)
        if "double free on finish" in self.policy.faults and state.pages:
            self.free.append(state.pages[0])
        self._release(request)

    def abort(self, request: str) -> None:
        """Release without publishing anything more."""
        if "leak on abort" in self.policy.faults:
            self.requests[request].pages = self.requests[request].pages[:-1]
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
        state = self.requests.pop(request)
        self.free += state.pages[max(state.protected // self.geometry.page_size, state.gone) :]
        if state.slot not in self.free_slots:
            self.free_slots.append(state.slot)

    def evict(self, tokens: int) -> None:
        """Give back leaf pages that nobody reads, oldest first."""
        wanted = page_ceil(tokens, self.geometry.page_size) // self.geometry.page_size
        for _ in range(wanted):
            candidates = evictable(self.tree, self._locked())
            if not candidates:
                return
            self.free.append(self.tree.pop(candidates[0]))

    def flush(self) -> None:
        """Clear tree, pool and slots."""
        self.tree.clear()
        self.free = self._all_pages()
        self.free_slots.sort()

    def pools(self) -> Pools:
        """Snapshot: one node a cached page."""
        page_size = self.geometry.page_size
        locked = self._held()
        ordered = sorted(self.tree, key=lambda prefix: (len(prefix), prefix))
        index = {prefix: number for number, prefix in enumerate(ordered)}
        held = len(locked) * page_size
        miscount = 1 if "miscount" in self.policy.faults and self.tree else 0
        return Pools(
            free=tuple(sorted(self.free)),
            free_slots=tuple(self.free_slots),
            nodes=tuple(
                Node(
                    parent=index.get(prefix[:-page_size], -1),
                    tokens=prefix[-page_size:],
                    locs=self._locs([self.tree[prefix]], page_size),
                    full_lock=int(prefix in locked),
                )
                for prefix in ordered
            ),
            holdings=tuple(
                Holding(
                    request=name,
                    slot=state.slot,
                    protected_len=state.protected,
                    locs=self._locs(
                        state.pages[state.gone :], state.allocated - state.gone * page_size
                    ),
                )
                for name, state in self.requests.items()
                if state.pages
            ),
            counters={
                "available": len(self.free) * page_size,
                "evictable": len(self.tree) * page_size - held + miscount,
                "protected": held,
            },
        )

    def _locs(self, pages: Sequence[Page], length: int) -> tuple[int, ...]:
        page_size = self.geometry.page_size
        return tuple(
            pages[position // page_size] * page_size + position % page_size
            for position in range(length)
        )


@dataclass(frozen=True, slots=True)
class _PadsIntoLastSlot:
    """Fault: padded rows of a decode batch carry a slot that can be lent."""

    rules: Forward
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
    forward: Forward = RuleForward(
        window=geometry.window,
        stride=geometry.ring_stride if policy.stride is None else policy.stride,
        verify_order=policy.verify_order,
        prefill_order=policy.prefill_order,
        decode_order=policy.decode_order,
    )
    if "pad into last slot" in policy.faults:
        forward = _PadsIntoLastSlot(forward, geometry.slots)
    if geometry.overlap:
        return OverlapPlayer(OverlapReferenceEngine(geometry=geometry, policy=policy), forward)
    return Player(ReferenceEngine(geometry=geometry, policy=policy), forward)
