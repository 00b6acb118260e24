"""Make a failing scenario smaller, whoever made it.

Hypothesis shrinks what it drew, one choice at a time. Some scenarios are small only in a way that
no single choice can be made smaller: two requests, where one with a longer prompt would do. The
steps here know what a scenario means and take such a step in one go.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from kvproof.model.forwards import Idle, Pad, Plan, Replay
from kvproof.model.scenario import (
    Abort,
    Accepted,
    Decode,
    Evict,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
    Verify,
    names_of,
    prompt_len,
    request_of,
    requests_of,
)
from kvproof.spec.pages import page_ceil, page_floor

Breaks: TypeAlias = Callable[[Scenario], bool]

LEAST_POOL = 64
"""Tokens of the smallest pool that is worth asking for; a fresh one costs no more than this."""

SMALL_SIZE = 8
"""Windows and pages of so many tokens are made smaller one at a time."""

MOST_SWA_PAGES = 32
"""A larger SWA pool is not made smaller a page at a time."""

Search: TypeAlias = Callable[[Breaks, Iterable[Scenario]], Scenario | None]
"""Finds the first candidate, in the order given, that breaks; a parallel one finds the same."""


def one_by_one(breaks: Breaks, candidates: Iterable[Scenario]) -> Scenario | None:
    """The first candidate that breaks."""
    return next(filter(breaks, candidates), None)


def scenario_size(scenario: Scenario) -> tuple[int, int, int]:
    """What makes a scenario small: few operations, then few slots, then few tokens."""
    return len(scenario.operations), scenario.geometry.slots, scenario_tokens(scenario)


def scenario_tokens(scenario: Scenario) -> int:
    """Tokens of all prompts."""
    return sum(prompt_len(op.prompt) for op in scenario.operations if isinstance(op, Submit))


def simplify(scenario: Scenario, breaks: Breaks, *, search: Search = one_by_one) -> Scenario:
    """Smallest scenario that steps of this module reach while ``breaks`` holds.

    No operation of the result can be dropped alone. It depends on ``search`` only in the time that
    it takes.
    """
    while (found := search(breaks, _halved(scenario))) is not None:
        scenario = found
    scenario = _thinned(scenario, breaks, search)
    found = scenario
    while found is not None:
        scenario = _stripped(found, breaks, search)
        found = search(breaks, _tightened(scenario))
    renamed = _renamed(scenario)
    return renamed if renamed == scenario or breaks(renamed) else scenario


def _stripped(scenario: Scenario, breaks: Breaks, search: Search) -> Scenario:
    """Until no step makes it smaller that leaves the SWA pool as it is."""
    before = None
    while scenario != before:
        before = scenario
        for smaller in (_fewer_operations, _simpler_rest):
            while (found := search(breaks, smaller(scenario))) is not None:
                scenario = found
    return scenario


def _halved(scenario: Scenario) -> Iterator[Scenario]:
    """A scenario of large sizes with all of them halved, so that what follows is played sooner."""
    geometry = scenario.geometry
    window, page_size = -(-geometry.window // 2), -(-geometry.page_size // 2)
    if max(window, page_size) > SMALL_SIZE:
        pool_tokens = page_ceil(geometry.pool_tokens // 2, page_size)
        yield replace(
            scenario,
            geometry=replace(_with_pages(geometry, page_size, pool_tokens), window=window),
            operations=tuple(map(_halved_operation, scenario.operations)),
        )


def _with_pages(geometry: Geometry, page_size: int, pool_tokens: int) -> Geometry:
    """Other pages and another full pool, with an SWA pool as small beside it as it was."""
    swa_tokens = geometry.swa_tokens
    if swa_tokens is not msgspec.UNSET:
        share = swa_tokens * pool_tokens // geometry.pool_tokens
        swa_tokens = max(page_size, page_floor(share, page_size))
    return replace(geometry, page_size=page_size, pool_tokens=pool_tokens, swa_tokens=swa_tokens)


def _halved_operation(operation: Operation) -> Operation:
    match operation:
        case Submit(prompt=prompt):
            return replace(operation, prompt=tuple(Piece(p.text, -(-p.until // 2)) for p in prompt))
        case Evict(tokens=tokens, swa_tokens=swa_tokens):
            return replace(operation, tokens=-(-tokens // 2), swa_tokens=-(-swa_tokens // 2))
        case Prefill(tokens=int(tokens)) | Plan(tokens=tokens):
            return replace(operation, tokens=-(-tokens // 2))
    return operation


def _thinned(scenario: Scenario, breaks: Breaks, search: Search) -> Scenario:
    """Without whole requests, then without runs of operations: half of them, a quarter, ... two.

    That is delta debugging; single operations are `_fewer_operations`'s.
    """
    for fewer in (_without_requests, _without_run):
        size = len(scenario.operations) // 2
        while size > 1:
            found = search(breaks, fewer(scenario, size))
            if found is None:
                size //= 2
            else:
                scenario = found
                size = min(size, len(scenario.operations) // 2)
    return scenario


def _without_requests(scenario: Scenario, size: int) -> Iterator[Scenario]:
    """Each run of ``size`` requests left out with all that names them, the latest first."""
    names = requests_of(scenario.operations)
    for start in reversed(range(0, len(names), size)):
        gone = {*names[start : start + size]}
        yield replace(scenario, operations=tuple(_without(scenario.operations, gone)))


def _without(operations: Iterable[Operation], gone: set[str]) -> Iterator[Operation]:
    """Operations without those that name nobody else, and without these names in the others."""
    for operation in operations:
        named = names_of(operation)
        kept = tuple(name for name in named if name not in gone)
        if kept == named:
            yield operation
        elif kept:
            yield replace(operation, requests=kept)


def _without_run(scenario: Scenario, size: int) -> Iterator[Scenario]:
    """Each run of ``size`` operations left out, the latest first."""
    operations = scenario.operations
    for start in reversed(range(0, len(operations), size)):
        yield replace(scenario, operations=operations[:start] + operations[start + size :])


def _fewer_operations(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with fewer operations, the boldest first."""
    yield from _merged(scenario)
    yield from _prompted(scenario)
    yield from _unretracted(scenario)
    yield from _without_run(scenario, 1)
    yield from _unfinished(scenario)


def _simpler_rest(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios with as many operations, and one thing about them smaller or simpler.

    Every step makes a number smaller and none larger that comes before it here: so there is an end.
    """
    geometry = scenario.geometry
    if geometry.overlap:
        yield replace(scenario, geometry=replace(geometry, overlap=msgspec.UNSET))
    for slots in _lower(geometry.slots):
        yield replace(scenario, geometry=replace(geometry, slots=slots))
    operations = scenario.operations
    for index, operation in enumerate(operations):
        for simpler in _simpler(operation):
            yield replace(
                scenario, operations=(*operations[:index], simpler, *operations[index + 1 :])
            )
    yield from _fewer_texts(scenario)
    for sizes in _smaller_sizes(geometry):
        yield replace(scenario, geometry=sizes)
    for draft_tokens in _lower(geometry.draft_tokens):
        yield replace(scenario, geometry=replace(geometry, draft_tokens=draft_tokens))
    if (fitted := fit_pool(scenario)) != scenario:
        yield fitted


def _smaller_sizes(geometry: Geometry) -> Iterator[Geometry]:
    """With a smaller window, or smaller pages."""
    for window in _lower(geometry.window):
        yield replace(geometry, window=window)
    for page_size in _lower(geometry.page_size):
        pool_tokens = page_floor(geometry.pool_tokens, page_size)
        yield _with_pages(geometry, page_size, pool_tokens)


def _lower(value: int, least: int = 1) -> Iterator[int]:
    """Numbers below ``value``: the least, then down by half of what is above it, a quarter, ..."""
    if value > least:
        yield least
    step = (value - least) // 2
    while step > 0:
        yield value - step
        step //= 2


def fit_pool(scenario: Scenario) -> Scenario:
    """With a pool no larger than the scenario can ever fill twice.

    No smaller than that: a release that reuses less than another needs more pages, and would find
    no room for what the other shows.
    """
    geometry, size = scenario.geometry, scenario.geometry.page_size
    step = geometry.draft_tokens + 1
    grown = step * sum(isinstance(op, Decode | Verify) for op in scenario.operations)
    needed = sum(
        page_ceil(prompt_len(op.prompt) + grown + step, size)
        for op in scenario.operations
        if isinstance(op, Submit)
    )
    roomy = page_ceil(max(LEAST_POOL, 2 * needed), size)
    if roomy >= geometry.pool_tokens:
        return scenario
    return replace(scenario, geometry=replace(geometry, pool_tokens=roomy))


def _merged(scenario: Scenario) -> Iterator[Scenario]:
    """One request fewer: another takes its text over, with a prompt longer by up to two windows."""
    window = scenario.geometry.window
    has_prompts = any(isinstance(operation, Submit) for operation in scenario.operations)
    names = requests_of(scenario.operations)
    for gone in names:
        for heir in names:
            if heir == gone:
                continue
            # Only a prompt can be longer.
            for longer in (0, window, 2 * window) if has_prompts else (0,):
                fewer = replace(
                    scenario,
                    operations=tuple(
                        _take_over(operation, gone, heir, longer)
                        for operation in _without(scenario.operations, {gone})
                    ),
                )
                yield fewer
                if scenario.geometry.slots > 1:
                    # With two requests fewer slots are lent; the next one may be a fresh one.
                    yield replace(fewer, geometry=replace(fewer.geometry, slots=1))


def _prompted(scenario: Scenario) -> Iterator[Scenario]:
    """Fewer steps: what a request decoded stands at the end of its prompt instead.

    All steps behind the request's submission in one go, then half of them, ..., those up to its end
    among these; then each alone.
    """
    operations = scenario.operations
    for before, operation in enumerate(operations):
        if not isinstance(operation, Submit) or not operation.prompt:
            continue
        steps, own, is_alive = [], 0, True
        for index, step in enumerate(operations[before + 1 :], before + 1):
            if isinstance(step, Decode | Verify):
                steps.append(index)
                own += is_alive
            elif isinstance(step, Finish | Abort) and step.request == operation.request:
                is_alive = False
        halves = takewhile(bool, (len(steps) >> times for times in count()))
        for first in sorted({own, *halves} - {0, 1}, reverse=True):
            yield _with_longer_prompt(scenario, before, steps[:first], first)
        for each in steps:
            yield _with_longer_prompt(scenario, before, [each], 1)


def _unretracted(scenario: Scenario) -> Iterator[Scenario]:
    """Two steps fewer: what a request that was retracted starts anew with is its prompt at once."""
    operations = scenario.operations
    for at, operation in enumerate(operations):
        if not isinstance(operation, Retract):
            continue
        own = [
            index for index, step in enumerate(operations) if operation.request in names_of(step)
        ]
        submits = [
            index
            for index in own
            if isinstance(submit := operations[index], Submit) and submit.prompt and index < at
        ]
        again = [index for index in own if isinstance(operations[index], Prefill) and index > at]
        if submits and again:
            # Behind its prompt stands the token that its first prefill came to.
            yield _with_longer_prompt(scenario, submits[-1], [at, again[0]], 1)


def _with_longer_prompt(
    scenario: Scenario, submit: int, steps: Sequence[int], tokens: int
) -> Scenario:
    operation, gone = scenario.operations[submit], {*steps}
    assert isinstance(operation, Submit)
    last = operation.prompt[-1]
    longer = (*operation.prompt[:-1], Piece(last.text, last.until + tokens))
    return replace(
        scenario,
        operations=tuple(
            replace(operation, prompt=longer) if index == submit else each
            for index, each in enumerate(scenario.operations)
            if index not in gone
        ),
    )


def _unfinished(scenario: Scenario) -> Iterator[Scenario]:
    """One step fewer: a request stays in its slot, and the others have one more."""
    more = replace(scenario.geometry, slots=scenario.geometry.slots + 1)
    for index, operation in enumerate(scenario.operations):
        if isinstance(operation, Finish | Abort):
            kept = (*scenario.operations[:index], *scenario.operations[index + 1 :])
            yield replace(scenario, geometry=more, operations=kept)


def _tightened(scenario: Scenario) -> Iterator[Scenario]:
    """A smaller SWA pool, with a step fewer, or with a smaller window or page.

    What breaks since the pool is full needs less to fill it. Never a smaller pool alone: where it
    is not what breaks, it would only be one more thing to think of.
    """
    geometry = scenario.geometry
    if geometry.swa_tokens is msgspec.UNSET:
        return
    for pages in _lower(geometry.swa_tokens // geometry.page_size):
        for fewer in _without_run(scenario, 1):
            yield _with_swa_pages(fewer, geometry, pages)
    for sizes in _smaller_sizes(geometry):
        assert sizes.swa_tokens is not msgspec.UNSET
        # One at a time: it has to be full just there.
        for pages in range(min(sizes.swa_tokens // sizes.page_size, MOST_SWA_PAGES) - 1, 0, -1):
            yield _with_swa_pages(scenario, sizes, pages)


def _with_swa_pages(scenario: Scenario, geometry: Geometry, pages: int) -> Scenario:
    sizes = replace(geometry, swa_tokens=pages * geometry.page_size)
    return replace(scenario, geometry=sizes)


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
            for fewer in _lower(tokens):
                yield replace(operation, tokens=fewer)
        case Decode(pad=pad) if pad:
            yield replace(operation, pad=0)
            for fewer in _lower(pad):
                yield replace(operation, pad=fewer)
        case Evict(tokens=tokens, swa_tokens=swa_tokens):
            # Of one pool alone, if that will do; of none it would do nothing.
            if tokens and swa_tokens:
                yield replace(operation, swa_tokens=0)
                yield replace(operation, tokens=0)
            for fewer in _lower(tokens):
                yield replace(operation, tokens=fewer)
            for fewer in _lower(swa_tokens):
                yield replace(operation, swa_tokens=fewer)
        case Verify(accepted=accepted, others=others, pad=pad):
            if others or pad:
                yield Verify(accepted=accepted)
            for left_out in range(len(others)):
                yield replace(operation, others=(*others[:left_out], *others[left_out + 1 :]))
            for fewer in _lower(accepted):
                yield replace(operation, accepted=fewer)
            for fewer in _lower(pad, 0):
                yield replace(operation, pad=fewer)
        case Plan(tokens=tokens):
            for fewer in _lower(tokens):
                yield replace(operation, tokens=fewer)
        case Pad(rows=rows) | Idle(rows=rows):
            for fewer in _lower(rows):
                yield replace(operation, rows=fewer)
    if isinstance(operation, Plan | Replay) and len(operation.requests) > 1:
        for gone in operation.requests:
            yield from _without([operation], {gone})


def _shorter(prompt: Prompt) -> Iterator[Prompt]:
    """Prompts with one piece shortened, by half, a quarter, ..., and the later ones moved up.

    A piece without tokens of its own, or that the next one goes on from, is dropped.
    """
    starts = [0, *(piece.until for piece in prompt[:-1])]
    for index, (start, piece) in enumerate(zip(starts, prompt, strict=True)):
        length = piece.until - start
        rest = prompt[index + 1 :]
        if (length <= 0 and len(prompt) > 1) or (rest and rest[0].text == piece.text):
            yield (*prompt[:index], *rest)
        for less in [*(length - shorter for shorter in _lower(length)), 1]:
            if 0 < less < length or (less == length and len(prompt) > 1):
                moved = tuple(Piece(p.text, max(0, p.until - less)) for p in prompt[index:])
                kept = moved if less < length else moved[1:]
                yield (*prompt[:index], *kept)


def _fewer_texts(scenario: Scenario) -> Iterator[Scenario]:
    """One text fewer: another goes on in its place, an earlier one if possible."""
    texts = _texts_of(scenario)
    for gone in reversed(texts):
        for heir in texts:
            if heir != gone:
                yield replace(
                    scenario,
                    operations=tuple(
                        replace(operation, prompt=_retold(operation.prompt, gone, heir))
                        if isinstance(operation, Submit)
                        else operation
                        for operation in scenario.operations
                    ),
                )


def _retold(prompt: Prompt, gone: str, heir: str) -> Prompt:
    retold: list[Piece] = []
    for piece in prompt:
        text = heir if piece.text == gone else piece.text
        if retold and retold[-1].text == text:
            retold.pop()
        retold.append(Piece(text, piece.until))
    return tuple(retold)


def _texts_of(scenario: Scenario) -> list[str]:
    """Texts in order of first appearance."""
    return list(
        dict.fromkeys(
            piece.text
            for operation in scenario.operations
            if isinstance(operation, Submit)
            for piece in operation.prompt
        )
    )


def _renamed(scenario: Scenario) -> Scenario:
    """The same scenario with its requests called A, B, C, ..., and texts after who ends in them."""
    names = requests_of(scenario.operations)
    texts = _texts_of(scenario)
    letters = iter(string.ascii_uppercase)
    if len(names) + len(texts) > len(string.ascii_uppercase):
        return scenario
    new = dict(zip(names, letters, strict=False))
    told: dict[str, str] = {}
    for operation in scenario.operations:
        if isinstance(operation, Submit) and operation.prompt:
            own = new[operation.request]
            if own not in told.values():
                told.setdefault(operation.prompt[-1].text, own)
    for text in texts:
        if text not in told:
            told[text] = next(letters)

    def rename(operation: Operation) -> Operation:
        if isinstance(operation, Submit):
            return Submit(
                request=new[operation.request],
                prompt=tuple(Piece(told[p.text], p.until) for p in operation.prompt),
            )
        if isinstance(operation, Plan | Replay):
            requests = tuple(new.get(name, name) for name in operation.requests)
            return replace(operation, requests=requests)
        if isinstance(operation, Verify):
            others = tuple(
                Accepted(new.get(o.request, o.request), o.tokens) for o in operation.others
            )
            return replace(operation, others=others)
        name = request_of(operation)
        return operation if name is None else replace(operation, request=new.get(name, name))

    return replace(scenario, operations=tuple(map(rename, scenario.operations)))
