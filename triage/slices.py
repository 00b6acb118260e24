"""Parts of a long scenario that may break as the whole does, the smallest first.

A violation names its parties: the reader, who held its slot before, who published what it reuses.
In most runs these three are enough, served one after the other in a single slot. If not, more
requests join: first those that share the reader's prefix, then the latest before the break.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from kvproof.fuzz.simplify import fit_pool
from kvproof.model.scenario import (
    Abort,
    Decode,
    Finish,
    Operation,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
    request_of,
    requests_of,
    same_prefix,
)
from kvproof.model.verdict import Violation

FEW = 16
"""Requests up to which it is tried to serve them in fewer slots than they had."""


def slices(scenario: Scenario, violation: Violation | None) -> Iterator[Scenario]:
    """Scenarios made of some of a scenario's requests; the last one is the scenario itself.

    Args:
        scenario: cut behind the step that breaks.
        violation: what broke there; None for an engine that failed.
    """
    tried: set[Scenario] = set()
    for names in _growing(_parties(scenario, violation), requests_of(scenario.operations)):
        part = _Part(scenario, names)
        candidates = [part.in_order(None)]
        if len(names) <= FEW:
            candidates = [part.one_by_one(), part.in_order(part.peak), *candidates]
        for candidate in candidates:
            fitted = fit_pool(candidate)
            if fitted not in tried:
                tried.add(fitted)
                yield fitted
    if scenario not in tried:
        yield scenario


def _growing(parties: Sequence[str], everybody: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The parties alone, then with the latest requests; twice as many each time."""
    first = len(dict.fromkeys(parties[:3]))
    ranked = tuple(dict.fromkeys([*parties, *reversed(everybody)]))
    count = max(1, first)
    while count < len(ranked):
        yield ranked[:count]
        count *= 2
    yield ranked


def _parties(scenario: Scenario, violation: Violation | None) -> list[str]:
    """Names of the requests that a violation speaks of, then of those that share its prefix."""
    evidence = violation.evidence if violation is not None else None
    if evidence is None:
        named = (request_of(op) for op in reversed(scenario.operations))
        return [name for name in named if name is not None][:1]
    reader = evidence.reader
    sharers = _sharers(scenario, reader.request, reader.matched_len)
    publisher = [evidence.publisher.request] if evidence.publisher else sharers[:1]
    previous = [evidence.previous.request] if evidence.previous else []
    return [reader.request, *previous, *publisher, *sharers[:8]]


def _sharers(scenario: Scenario, reader: str, matched_len: int) -> list[str]:
    """Requests prefilled before the reader that have the prefix which it reuses, latest first."""
    if not matched_len:
        return []
    prompts = {op.request: op.prompt for op in scenario.operations if isinstance(op, Submit)}
    found: dict[str, None] = {}
    for operation in scenario.operations:
        if isinstance(operation, Prefill):
            name = operation.request
            if name == reader:
                break
            if name in prompts and same_prefix(prompts[name], prompts[reader], matched_len):
                found.pop(name, None)
                found[name] = None
    return list(reversed(found))


@dataclass(frozen=True, slots=True)
class _Part:
    """Some requests of a scenario; ``names`` has the one that matters most first."""

    whole: Scenario
    names: tuple[str, ...]

    def one_by_one(self) -> Scenario:
        """Each request served alone in one slot, the one that matters most last."""
        lives: dict[str, list[Operation]] = {name: [] for name in reversed(self.names)}
        alive: set[str] = set()
        for operation in self.whole.operations:
            if isinstance(operation, Decode | Verify):
                for name in alive:
                    lives[name].append(operation)
            elif (one := request_of(operation)) is not None and one in lives:
                lives[one].append(operation)
                _follow(alive, operation)
        last = self.names[0] if self.names else None
        operations: list[Operation] = []
        for name, life in lives.items():
            operations += life
            if name in alive and name != last:
                operations.append(Finish(request=name))
        geometry = replace(self.whole.geometry, slots=1)
        return replace(self.whole, geometry=geometry, operations=tuple(operations))

    def in_order(self, slots: int | None) -> Scenario:
        """The requests as they were served, in so many slots, or in as many as there were."""
        alive: set[str] = set()
        kept: list[Operation] = []
        chosen = {*self.names}
        for operation in self.whole.operations:
            name = request_of(operation)
            if isinstance(operation, Decode | Verify):
                if alive:
                    kept.append(operation)
            elif name is None or name in chosen:
                kept.append(operation)
                _follow(alive, operation)
        geometry = self.whole.geometry
        if slots is not None:
            geometry = replace(geometry, slots=slots)
        return replace(self.whole, geometry=geometry, operations=tuple(kept))

    @property
    def peak(self) -> int:
        """How many of the requests were served at once."""
        alive: set[str] = set()
        peak = 1
        chosen = {*self.names}
        for operation in self.whole.operations:
            if request_of(operation) in chosen:
                _follow(alive, operation)
                peak = max(peak, len(alive))
        return peak


def _follow(alive: set[str], operation: Operation) -> None:
    """Who holds a slot after an operation, as far as the operation says."""
    match operation:
        case Prefill(request=name):
            alive.add(name)
        case Finish(request=name) | Abort(request=name) | Retract(request=name):
            alive.discard(name)
