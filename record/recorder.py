"""Turns what a scheduler does into a log of facts. It knows no engine: `hooks` reads the objects.

The order of the facts is the order in which the scheduler prepares its launches, which is the order
in which the device runs them. Facts of a request that a launch is prepared for are given once the
launch is prepared, and its tokens count as computed from then on.

How many tokens a verify keeps is known when its result comes back, and an overlapped scheduler has
prepared the next launch by then. So what is said after a verify waits for its result.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Answered,
    Ended,
    EngineError,
    Fact,
    Freed,
    Gap,
    Mode,
    Pool,
    Ran,
    Released,
    Span,
    Started,
    Step,
    Translated,
)
from kvproof.model.scenario import (
    Abort,
    Accepted,
    Decode,
    Evict,
    Finish,
    Flush,
    Operation,
    Prefill,
    Retract,
    Submit,
    Verify,
)
from kvproof.record.names import PrefixNames, unanswered

Ending: TypeAlias = Literal["finish", "abort", "retract"]

_ENDINGS: dict[Ending, Callable[[str], Operation]] = {
    "finish": lambda request: Finish(request=request),
    "abort": lambda request: Abort(request=request),
    "retract": lambda request: Retract(request=request),
}


MOST_VERIFIES = 4
"""Verifies whose results may be out at a time; an overlapped scheduler has two."""


class CannotFollowError(Exception):
    """The server does what the recorder has no facts for; a log of it would be wrong."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One request of the log.

    Attributes:
        name: what the log calls it; not the server's own id, which a client may have chosen.
        holds_slot: between its admission and its release.
        leaving: its release has begun.
    """

    name: str
    names: PrefixNames
    holds_slot: bool = False
    leaving: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Extend:
    """One request's share of a prefill launch: queries at ``[start, end)`` of ``total`` tokens."""

    request: Tracked
    start: int
    end: int
    total: int


@dataclass(frozen=True, slots=True)
class Draft:
    """One request's share of a verify.

    Attributes:
        ahead: tokens that the engine counts as committed before the result is in. Up to 0.5.14 that
            is one, which every verify is sure to keep.
    """

    request: Tracked
    slot: int
    ahead: int = 0


@dataclass(slots=True, eq=False)
class _Verifying:
    """A verify whose result is out.

    Attributes:
        index: of its step.
        launch: its requests; None while it is prepared.
        during: what is said while it is prepared.
        after: what is said from then on.
    """

    index: int
    launch: Sequence[Draft] | None = None
    during: list[Fact] = field(default_factory=list)
    after: list[Fact] = field(default_factory=list)


@dataclass(slots=True)
class Recorder:
    """Gives the facts of one log.

    Attributes:
        put: takes each fact.
        started: the log's first fact; without a ring no launches are told.
        key: secret of the log's names.
    """

    put: Callable[[Fact], None]
    started: Started
    key: bytes
    _steps: int = field(default=0, init=False)
    _requests: int = field(default=0, init=False)
    _verifying: deque[_Verifying] = field(default_factory=deque, init=False)
    # Computed length of each request as far as the log says, where the engine drafts.
    _computed: dict[str, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Begin the log."""
        self.put(self.started)

    def submit(self, tokens: array[int], *, realm: bytes = b"") -> Tracked:
        """A request is seen for the first time, with its prompt."""
        self._requests += 1
        name = f"r{self._requests}"
        ahead = int(self.started.bigram_keys)
        names = PrefixNames(self.started.geometry.page_size, self.key, realm, ahead)
        self._step(Submit(request=name, prompt=unanswered(names.pieces(tokens), name)))
        return Tracked(name, names)

    def begin_prefill(self, launch: Sequence[Extend]) -> None:
        """A prefill launch is going to be prepared."""
        self._begin_extend(launch[0])

    def _begin_extend(self, extend: Extend) -> None:
        tokens = extend.end - extend.start
        self._step(Prefill(request=extend.request.name, tokens=tokens))

    def end_prefill(self, launch: Sequence[Extend], slots: Sequence[int]) -> None:
        """A prefill launch is prepared: each request has its slot."""
        for number, (extend, slot) in enumerate(zip(launch, slots, strict=True)):
            if number:
                self._begin_extend(extend)
            request = extend.request
            if not request.holds_slot:
                request.holds_slot = True
                self._say(
                    Admitted(
                        request=request.name,
                        slot=slot,
                        prompt_len=extend.total,
                        matched_len=extend.start,
                    )
                )
            self._ran(request, "prefill", slot, extend.start, extend.end)
            self._advanced(request, extend.end, prefilling=extend.end < extend.total)

    def begin_decode(self) -> None:
        """A decode launch is going to be prepared."""
        self._step(Decode())

    def end_decode(self, launch: Sequence[tuple[Tracked, int, int]]) -> None:
        """A decode launch is prepared: each request with its slot and its query's position."""
        for request, slot, position in launch:
            self._ran(request, "decode", slot, position, position + 1)
        for request, _, position in launch:
            self._advanced(request, position + 1)

    def begin_verify(self) -> None:
        """A verify is going to be prepared.

        Raises:
            CannotFollowError: too many are under way.
        """
        if len(self._verifying) == MOST_VERIFIES:
            raise CannotFollowError("verifies are launched, and no result of theirs is seen")
        self._verifying.append(_Verifying(self._steps))
        self._steps += 1

    def end_verify(self, launch: Sequence[Draft]) -> None:
        """A verify is prepared: each request has room for its draft."""
        self._verifying[-1].launch = launch

    def verified(
        self,
        requests: Sequence[Tracked | None],
        committed: Sequence[int | None],
        accepted: Sequence[int],
        draft_tokens: int,
    ) -> None:
        """The oldest verify's result, before the engine has settled it.

        Args:
            requests: of its batch.
            committed: length of each, as the engine counts it now, with what it counts ahead; None
                for one that has ended.
            accepted: tokens that each keeps.
            draft_tokens: tokens that it wrote for each.

        Raises:
            CannotFollowError: it is of no verify that was seen, or something else went between.
        """
        ahead = self._counted_ahead()
        verify = self._verifying.popleft() if self._verifying else None
        if verify is None or [draft.request for draft in verify.launch or ()] != requests:
            raise CannotFollowError("a verify has a result whose launch was not seen")
        if draft_tokens > self.started.geometry.draft_tokens:
            raise CannotFollowError("a draft is longer than the server said")
        assert verify.launch is not None
        names = [draft.request.name for draft in verify.launch]
        starts = {name: self._computed[name] for name in names}
        for name, count in zip(names, committed, strict=True):
            if count not in (None, starts[name] + ahead[name]):
                raise CannotFollowError("a request has grown between its verifies (mixed chunks?)")
        kept = dict(zip(names, accepted, strict=True))
        usual = Counter(accepted).most_common(1)[0][0]
        others = tuple(Accepted(name, count) for name, count in kept.items() if count != usual)
        operation = Verify(accepted=usual, others=others)
        self._give(Step(index=verify.index, operation=operation))
        for fact in verify.during:
            self._give(fact)
        if self.started.ring_stride is not None:
            for draft in verify.launch:
                name, start = draft.request.name, starts[draft.request.name]
                end = start + draft_tokens
                self._give(Ran(request=name, mode="verify", slot=draft.slot, start=start, end=end))
        for name, count in kept.items():
            self._give(Advanced(request=name, computed_len=starts[name] + count))
        for fact in verify.after:
            self._give(fact)

    def _counted_ahead(self) -> Counter[str]:
        """Tokens that the engine counts as committed, of verifies whose results are out."""
        ahead: Counter[str] = Counter()
        for verify in self._verifying:
            for draft in verify.launch or ():
                ahead[draft.request.name] += draft.ahead
        return ahead

    def begin_release(self, request: Tracked, ending: Ending, tokens: array[int]) -> None:
        """A request is going to give its slot back; ``tokens`` are prompt and answer."""
        request.leaving = True
        self._step(_ENDINGS[ending](request.name))
        if ending != "retract":
            self._say(Answered(request=request.name, tokens=request.names.pieces(tokens)))

    def released(self, request: Tracked, slot: int) -> None:
        """A request gave its slot back."""
        request.holds_slot = request.leaving = False
        self._say(Released(request=request.name, slot=slot))

    def evict(self, tokens: int, swa_tokens: int) -> None:
        """The tree is asked to give so many tokens of either pool back."""
        self._step(Evict(tokens=tokens, swa_tokens=swa_tokens))

    def flush(self) -> None:
        """The cache is cleared."""
        self._step(Flush())

    def allocated(self, pool: Pool, locs: tuple[Span, ...]) -> None:
        """An allocator lent locations."""
        self._say(Allocated(pool=pool, locs=locs))

    def freed(self, pool: Pool, locs: tuple[Span, ...]) -> None:
        """An allocator took locations back."""
        self._say(Freed(pool=pool, locs=locs))

    def translated(self, full: tuple[Span, ...], swa: tuple[Span, ...]) -> None:
        """Locations were translated."""
        self._say(Translated(full=full, swa=swa))

    def gap(self, reason: str) -> None:
        """Facts are missing here."""
        self.put(Gap(reason=reason))

    def engine_failed(self, error: BaseException) -> EngineError:
        """The log's last fact where the engine raised.

        Its message stays out: it may hold what a client sent.
        """
        return EngineError(cause="raised", message=type(error).__name__)

    def ended(self) -> Ended:
        """The log's last fact. A verify whose result never came, and what came after, stay out."""
        if self._verifying:
            self._steps = self._verifying[0].index
            self._verifying.clear()
        return Ended(steps=self._steps)

    def _step(self, operation: Operation) -> None:
        self._say(Step(index=self._steps, operation=operation))
        self._steps += 1

    def _ran(self, request: Tracked, mode: Mode, slot: int, start: int, end: int) -> None:
        if self.started.ring_stride is not None:
            self._say(Ran(request=request.name, mode=mode, slot=slot, start=start, end=end))

    def _advanced(self, request: Tracked, computed_len: int, *, prefilling: bool = False) -> None:
        self._say(Advanced(request=request.name, computed_len=computed_len, prefilling=prefilling))

    def _say(self, fact: Fact) -> None:
        """Give a fact, or keep it until the verifies before it are told."""
        if not self._verifying:
            self._give(fact)
            return
        verify = self._verifying[-1]
        (verify.during if verify.launch is None else verify.after).append(fact)

    def _give(self, fact: Fact) -> None:
        if self.started.geometry.draft_tokens > 1:
            if isinstance(fact, Advanced):
                self._computed[fact.request] = fact.computed_len
            elif isinstance(fact, Released):
                self._computed.pop(fact.request, None)
        self.put(fact)
