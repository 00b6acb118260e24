"""One form for the logs of a driver and of a recorder, so that they can be compared.

`as_recorded` says in a recorder's words what a driver's log says: requests by order of admission,
prompts by the names of their pages, no snapshots, no padding, and no operation that did nothing.
`steps` then groups a log by operation, and spells out what it ran.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Answered,
    Ended,
    EngineError,
    Fact,
    Freed,
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
from kvproof.model.judges.allocation import Allocation
from kvproof.model.scenario import (
    Evict,
    Flush,
    Operation,
    Prefill,
    Prompt,
    Submit,
    number_texts,
    prompt_len,
    token_ids,
)
from kvproof.record.names import PrefixNames, unanswered


@dataclass
class _Request:
    """A request of a driver's log, from its submission to its end."""

    prompt: Prompt
    name: str = ""
    length: int = 0
    answered: bool = False


@dataclass
class _Translation:
    """A driver's log on its way into a recorder's words."""

    key: bytes
    texts: dict[str, int] = field(default_factory=dict)
    requests: dict[str, _Request] = field(default_factory=dict)
    started: Started | None = None
    admitted: int = 0
    steps: int = 0

    def step(self, operation: Operation) -> Step:
        self.steps += 1
        return Step(index=self.steps - 1, operation=operation)

    def pieces(self, request: _Request, end: int) -> Prompt:
        assert self.started is not None
        ahead = int(self.started.bigram_keys)
        names = PrefixNames(self.started.geometry.page_size, self.key, b"[]", ahead)
        return names.pieces(array("q", token_ids(self.texts, request.prompt, 0, end)))

    def group(self, operation: Operation, facts: Sequence[Fact]) -> Iterator[Fact]:
        if isinstance(operation, Submit):
            number_texts(self.texts, operation.prompt)
        if any(isinstance(fact, Skipped) for fact in facts):
            return
        if isinstance(operation, Submit):
            self.requests[operation.request] = _Request(operation.prompt)
            return
        name = getattr(operation, "request", None)
        request = self.requests[name] if name is not None else None
        if request is not None and isinstance(operation, Prefill) and not request.name:
            if not any(isinstance(fact, Admitted) for fact in facts):
                return  # the engine failed before it admitted
            self.admitted += 1
            request.name = f"r{self.admitted}"
            prompt = self.pieces(request, prompt_len(request.prompt))
            yield self.step(Submit(request=request.name, prompt=unanswered(prompt, request.name)))
        told = [*self.renamed(facts)]
        if not told and not (isinstance(operation, Flush) and self.admitted):
            return
        if request is not None:
            operation = msgspec.structs.replace(operation, request=request.name)
        yield self.step(operation)
        yield from told

    def renamed(self, facts: Sequence[Fact]) -> Iterator[Fact]:
        for fact in facts:
            name = getattr(fact, "request", None)
            if name is None:
                continue
            request = self.requests[name]
            match fact:
                case Admitted():
                    request.length, request.answered = fact.prompt_len, False
                case Advanced():
                    request.answered = not fact.prefilling
                    if request.answered:
                        request.length = fact.computed_len + 1
            yield msgspec.structs.replace(fact, request=request.name)


def as_recorded(log: Sequence[Fact], key: bytes) -> list[Fact]:
    """A driver's log in a recorder's words; snapshots are left where they are.

    The recorder's names of answers are put in where a request ends.
    """
    said = _Translation(key)
    facts: list[Fact] = []
    group: list[Fact] = []
    operation: Operation | None = None

    def flush() -> None:
        if operation is not None:
            facts.extend(_with_answers(said, said.group(operation, group)))
        group.clear()

    for fact in log:
        match fact:
            case Started():
                said.started = fact
                facts.append(fact)
            case Step():
                flush()
                operation = fact.operation
            case Pools():
                flush()
                operation = None
                facts.append(fact)
            case Ended() | EngineError():
                flush()
                facts.append(fact)
            case _:
                group.append(fact)
    return facts


def _with_answers(said: _Translation, facts: Iterator[Fact]) -> Iterator[Fact]:
    ending = ""
    for fact in facts:
        if isinstance(fact, Step):
            ending = type(fact.operation).__name__
        if isinstance(fact, Released) and ending in ("Finish", "Abort"):
            [request] = [one for one in said.requests.values() if one.name == fact.request]
            yield Answered(request=fact.request, tokens=said.pieces(request, request.length))
        yield fact


@dataclass
class Told:
    """One operation, what was said of it, and the pages of the full pool that were lent before.

    ``evicted`` are pages that the scheduler had the tree evict since the operation before.
    """

    operation: str
    request: str | None
    lent: frozenset[int]
    facts: list[Any]
    evicted: frozenset[int] = field(default=frozenset(), compare=False)


def same_steps(one: Sequence[Fact], other: Sequence[Fact]) -> None:
    """Assert that two logs tell the same operations.

    A scheduler evicts ahead of a launch, or while it retracts: the recorder says it by itself, the
    driver with the operation. So pages that it evicted count in neither log.
    """
    ours, theirs = steps(one), steps(other)
    for mine, yours in zip(ours, theirs, strict=False):
        gone = mine.evicted | yours.evicted
        mine.lent -= gone
        yours.lent -= gone
    assert ours == theirs


def steps(log: Sequence[Fact]) -> list[Told]:
    """Operations of a log; those that ask the tree to evict are left out.

    Whoever recorded it: the driver asks in an operation of its own, the scheduler while it looks
    for memory.
    """
    told: list[Told] = []
    started = log[0]
    assert isinstance(started, Started)
    geometry = started.geometry
    pages = frozenset(range(1, geometry.pool_tokens // geometry.page_size + 1))
    lent: frozenset[int] = frozenset()
    before_evicting: frozenset[int] = frozenset()
    evicting = False
    allocation = Allocation(
        page_size=geometry.page_size, sizes={"full": geometry.pool_tokens, "swa": 0}
    )
    rules = None
    if started.ring_stride is not None:
        rules = RuleForward(
            window=geometry.window, stride=started.ring_stride, verify_order=started.verify_order
        )
    for fact in log:
        match fact:
            case Pools():
                lent = pages - set(fact.free)
            case Allocated() if fact.pool == "full":
                assert not [*allocation.allocated(fact)]
                lent = frozenset(allocation.lent["full"])
            case Freed() if fact.pool == "full":
                assert not [*allocation.freed(fact)]
                lent = frozenset(allocation.lent["full"])
            case Step(operation=Flush()):
                told.append(Told("Flush", None, lent, []))
                allocation.clear()
                evicting = False
                lent = frozenset()
            case Step(operation=Evict()):
                before_evicting, evicting = before_evicting if evicting else lent, True
            case Step(operation=operation):
                name = getattr(operation, "request", None)
                evicted = before_evicting - lent if evicting else frozenset()
                told.append(Told(type(operation).__name__, name, lent, [], evicted))
                evicting = False
                if isinstance(operation, Submit):
                    told[-1].facts.append(operation.prompt)
            case Ran():
                assert rules is not None
                told[-1].facts += rules.lane(lane_of(fact), fact.mode)
            case Admitted() | Advanced() | Released() | Answered() | Read() | Wrote():
                told[-1].facts.append(fact)
    for step in told:
        # Within a launch the rows of all requests are told together, or request by request.
        step.facts.sort(key=lambda fact: (type(fact).__name__, repr(fact)))
    return told
