"""Make a failing scenario smaller, whoever made it.

Hypothesis shrinks what it drew, one choice at a time. Some scenarios are small only in a way that
no single choice can be made smaller: two requests, where one with a longer prompt would do. The
steps here know what a scenario means and take such a step in one go.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from kvproof.model.scenario import (
    Decode,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    Verify,
    prompt_len,
    requests_of,
)

Breaks = Callable[[Scenario], bool]


def scenario_size(scenario: Scenario) -> tuple[int, int, int]:
    """What makes a scenario small: few operations, then few slots, then few tokens."""
    tokens = sum(prompt_len(op.prompt) for op in scenario.operations if isinstance(op, Submit))
    return len(scenario.operations), scenario.geometry.slots, tokens


def simplify(scenario: Scenario, breaks: Breaks) -> Scenario:
    """Smallest scenario that steps of this module reach while ``breaks`` holds.

    No operation of the result can be dropped alone.
    """
    while (found := next(filter(breaks, _smaller(scenario)), None)) is not None:
        scenario = found
    renamed = _renamed(scenario)
    return renamed if breaks(renamed) else scenario


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios smaller by `scenario_size`, or with a simpler argument, the boldest first."""
    yield from _merged(scenario)
    yield from _prompted(scenario)
    operations = scenario.operations
    for index in reversed(range(len(operations))):
        yield replace(scenario, operations=operations[:index] + operations[index + 1 :])
    for slots in range(1, scenario.geometry.slots):
        yield replace(scenario, geometry=replace(scenario.geometry, slots=slots))
    for index, operation in enumerate(operations):
        for simpler in _simpler(operation):
            yield replace(
                scenario, operations=(*operations[:index], simpler, *operations[index + 1 :])
            )


def _merged(scenario: Scenario) -> Iterator[Scenario]:
    """One request fewer: another takes its text over, with a prompt longer by up to two windows."""
    window = scenario.geometry.window
    names = requests_of(scenario.operations)
    for gone in names:
        for heir in names:
            if heir == gone:
                continue
            for longer in (0, window, 2 * window):
                fewer = replace(
                    scenario,
                    operations=tuple(
                        _take_over(operation, gone, heir, longer)
                        for operation in scenario.operations
                        if getattr(operation, "request", None) != gone
                    ),
                )
                yield fewer
                if scenario.geometry.slots > 1:
                    # With two requests fewer slots are lent; the next one may be a fresh one.
                    yield replace(fewer, geometry=replace(fewer.geometry, slots=1))


def _prompted(scenario: Scenario) -> Iterator[Scenario]:
    """One step fewer: what a request decoded stands at the end of its prompt instead."""
    operations = scenario.operations
    for index, step in enumerate(operations):
        if not isinstance(step, Decode | Verify):
            continue
        for before, operation in enumerate(operations[:index]):
            if isinstance(operation, Submit) and operation.prompt:
                last = operation.prompt[-1]
                longer = (*operation.prompt[:-1], Piece(last.text, last.until + 1))
                yield replace(
                    scenario,
                    operations=(
                        *operations[:before],
                        replace(operation, prompt=longer),
                        *operations[before + 1 : index],
                        *operations[index + 1 :],
                    ),
                )


def _take_over(operation: Operation, gone: str, heir: str, longer: int) -> Operation:
    if not isinstance(operation, Submit):
        return operation
    prompt = tuple(
        Piece(heir if piece.text == gone else piece.text, piece.until) for piece in operation.prompt
    )
    if operation.request == heir and prompt:
        prompt = (*prompt[:-1], Piece(prompt[-1].text, prompt[-1].until + longer))
    return replace(operation, prompt=prompt)


def _simpler(operation: Operation) -> Iterator[Operation]:
    match operation:
        case Submit(prompt=prompt):
            for shorter in _shorter(prompt):
                yield replace(operation, prompt=shorter)
        case Prefill(tokens=tokens) if tokens is not None:
            yield replace(operation, tokens=None)
        case Decode(pad=pad) if pad:
            yield replace(operation, pad=0)


def _shorter(prompt: Prompt) -> Iterator[Prompt]:
    """Prompts with one piece shortened, by half or by a token, and the later ones moved up.

    A piece without tokens of its own, or that the next one goes on from, is dropped.
    """
    starts = [0, *(piece.until for piece in prompt[:-1])]
    for index, (start, piece) in enumerate(zip(starts, prompt, strict=True)):
        length = piece.until - start
        rest = prompt[index + 1 :]
        if (length <= 0 and len(prompt) > 1) or (rest and rest[0].text == piece.text):
            yield (*prompt[:index], *rest)
        for less in dict.fromkeys((length // 2, 1)):
            if 0 < less < length or (less == length and len(prompt) > 1):
                moved = tuple(Piece(p.text, max(0, p.until - less)) for p in prompt[index:])
                kept = moved if less < length else moved[1:]
                yield (*prompt[:index], *kept)


def _renamed(scenario: Scenario) -> Scenario:
    """The same scenario with its requests, and the texts named after them, called A, B, C, ..."""
    names = requests_of(scenario.operations)
    texts = [
        piece.text
        for operation in scenario.operations
        if isinstance(operation, Submit)
        for piece in operation.prompt
    ]
    known = dict.fromkeys([*names, *texts])
    if len(known) > len(string.ascii_uppercase):
        return scenario
    new = dict(zip(known, string.ascii_uppercase, strict=False))

    def rename(operation: Operation) -> Operation:
        if isinstance(operation, Submit):
            return Submit(
                request=new[operation.request],
                prompt=tuple(Piece(new[p.text], p.until) for p in operation.prompt),
            )
        name = getattr(operation, "request", None)
        return operation if name is None else replace(operation, request=new.get(name, name))

    return replace(scenario, operations=tuple(map(rename, scenario.operations)))
