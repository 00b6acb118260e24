"""The reference engine with overlap scheduling: it launches first and learns of results later.

It is simpler than an engine in one point: it allocates a step's pages by the length that the device
has, where engines allocate by the most that it can have. That frees them from waiting, and changes
nothing of which locations a step uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvproof.model.facts import Mode
from kvproof.model.player import Chunk
from kvproof.model.policy import Policy
from kvproof.model.reference import ReferenceEngine, RequestState
from kvproof.model.scenario import Geometry
from kvproof.spec.indices import Position
from kvproof.spec.streams import released_len, scheduled_len
from kvproof.spec.window import window_start


@dataclass(frozen=True, kw_only=True, slots=True)
class _Share:
    """One request's part of a launch, with the request as it was: a name can come back."""

    name: str
    state: RequestState
    start: int
    end: int


class OverlapReferenceEngine(ReferenceEngine):
    """`kvproof.model.overlap.OverlapEngine` by the rules of `kvproof.spec`."""

    def __init__(self, *, geometry: Geometry, policy: Policy) -> None:
        """Nothing is in flight.

        Raises:
            ValueError: the policy has a paged SWA pool.
        """
        if policy.paged_swa:
            raise ValueError("the reference engine has no overlap scheduling with a paged SWA pool")
        super().__init__(geometry=geometry, policy=policy)
        self._queue: deque[tuple[_Share, ...]] = deque()
        self._ending: dict[str, bool] = {}
        # What the device sees of each slot. Nothing clears it when the slot changes hands.
        self._rows: dict[int, dict[int, int]] = {}

    # Launches

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Match, lend a slot, launch the first chunk."""
        chunk, matched = super().admit(request, budget)
        self._launch_chunk(request, chunk)
        return chunk, matched

    def extend(self, request: str, budget: int | None) -> Chunk:
        """Launch the next chunk."""
        chunk = super().extend(request, budget)
        self._launch_chunk(request, chunk)
        return chunk

    def _launch_chunk(self, name: str, chunk: Chunk) -> None:
        state = self.requests[name]
        state.computed, state.running = chunk.end, chunk.last
        self._fill(state)
        self._queue.append((_Share(name=name, state=state, start=chunk.start, end=chunk.end),))

    def decode(self, draft_tokens: int) -> list[tuple[str, int, int]]:
        """Launch one step for all running requests; one whose end is not known yet is among them.

        Raises:
            RefusedError: no memory.
        """
        step = super().decode(draft_tokens)
        shares = []
        for name, _, start in step:
            state = self.requests[name]
            self._fill(state)
            shares.append(_Share(name=name, state=state, start=start, end=start + draft_tokens))
        self._queue.append(tuple(shares))
        return step

    def relayed(self, tokens: Mapping[str, Sequence[int]]) -> None:
        """The device goes on from what it accepted; a prefill's tokens are all kept."""
        for share in self._queue[-1]:
            if share.state.computed == share.start and share.name in tokens:
                share.state.computed = share.start + len(tokens[share.name])

    def _fill(self, state: RequestState) -> None:
        """The host writes a request's row of the page table."""
        row = self._rows.setdefault(state.slot, {})
        row |= enumerate(self._locs(state.pages, state.allocated))

    def table(self, slot: int, start: int, end: int) -> list[int]:
        """The page table now: full-pool locations of positions ``[start, end)`` of a slot."""
        return [self._rows[slot][position] for position in range(start, end)]

    def first_read(self, position: int) -> int:
        """First position that a query reads."""
        return window_start(Position(position), self._window) if self.policy.window_pages else 0

    def writes_by_table(self, mode: Mode) -> bool:
        """A draft extend that looks its locations up is a fault: the row may be another's by then.

        SGLang #18803.
        """
        return mode == "verify" and "draft extend reads the table" in self.faults

    @property
    def _window(self) -> int:
        return self.geometry.window

    # Results

    def ends(self, request: str, *, aborted: bool) -> None:
        """The next result that is taken of this request ends it."""
        if aborted and "abort frees at once" in self.faults:
            self._give_back(self.requests[request])
        self._ending[request] = aborted

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Take the result of a chunk."""
        for share in self._take():
            share.state.processed = share.end
            if last:
                share.state.tokens.append(token)
            if self._has_ended(share.name):
                continue
            if self.policy.window_pages:
                self._give_back_window(share.state)
            else:
                self._publish(share.state, share.end)
                self._fill(share.state)

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Take the result of a decode or verify."""
        for share in self._take():
            share.state.processed = share.start + len(tokens[share.name])
            share.state.tokens += tokens[share.name]
            if not self._has_ended(share.name) and self.policy.window_pages:
                self._give_back_window(share.state)

    def _take(self) -> list[_Share]:
        """What of the oldest step is not dropped."""
        return [s for s in self._queue.popleft() if self.requests.get(s.name) is s.state]

    def _has_ended(self, name: str) -> bool:
        aborted = self._ending.pop(name, None)
        if aborted is None:
            return False
        if aborted:
            self.abort(name)
        else:
            self.finish(name)
        return True

    def _give_back_window(self, state: RequestState) -> None:
        """Give back the pages that no window reaches any more (STREAM-3)."""
        length = state.processed
        if "window by scheduled length" in self.faults:
            in_flight = sum(share.state is state for shares in self._queue for share in shares)
            length = scheduled_len(length, self.geometry.draft_tokens, in_flight)
        gone = released_len(length, self._window, self.page_size) // self.page_size
        self.pool.take_back(state.pages[state.gone : gone])
        state.gone = max(state.gone, gone)

    def finish(self, request: str) -> None:
        """Insert what was processed, and release."""
        state = self.requests[request]
        if not self.policy.window_pages:
            state.protected = len(self._insert(state, state.processed))
        self._release(request)

    def retract(self, request: str) -> None:
        """Release, and queue again with what the host knows."""
        self._ending.pop(request, None)
        super().retract(request)

    def _give_back(self, state: RequestState) -> None:
        if state.slot not in self.free_slots:  # an abort gave all back already
            super()._give_back(state)
