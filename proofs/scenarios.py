"""Counterexamples as scenarios: the few shapes into which the refutations of the catalogue turn."""

from __future__ import annotations

from kvproof.model.scenario import (
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Scenario,
    Submit,
    Verify,
)
from kvproof.spec.pages import page_ceil


def lone_request(
    *,
    window: int,
    prompt_len: int,
    chunks: tuple[int, ...] = (),
    then: tuple[Decode | Verify, ...] = (),
    draft_tokens: int = 1,
) -> Scenario:
    """One request without reuse, prefilled in ``chunks`` and the rest, then decoded or verified."""
    steps: list[Operation] = [Submit(request="A", prompt=(Piece("A", prompt_len),))]
    steps += [Prefill(request="A", tokens=chunk) for chunk in chunks]
    if sum(chunks) < prompt_len:
        steps.append(Prefill(request="A"))
    room = prompt_len + sum(draft_tokens if isinstance(op, Verify) else 1 for op in then)
    return Scenario(
        geometry=Geometry(
            window=window, page_size=1, slots=1, pool_tokens=room + draft_tokens,
            draft_tokens=draft_tokens,
        ),
        operations=(*steps, *then),
    )  # fmt: skip


def hit(
    *,
    window: int,
    page_size: int,
    matched_len: int,
    tail: int,
    then: tuple[Operation, ...] = (),
    slots: int = 1,
) -> Scenario:
    """A request is cached, another takes its slot, and a third reuses what the first computed.

    The third request, ``C``, reuses ``matched_len`` tokens and prefills ``tail`` of its own. With
    one slot, all three are served by it. 0.5.23 counts free slots as free sliding-window memory, so
    with one slot it evicts what ``A`` left to make room for ``B``: it needs two.
    """
    matched_len = page_ceil(matched_len, page_size)
    other = matched_len + tail
    room = sum(page_ceil(length + 8, page_size) for length in (matched_len, other, other))
    return Scenario(
        geometry=Geometry(
            window=window, page_size=page_size, slots=slots, pool_tokens=room
        ),
        operations=(
            Submit(request="A", prompt=(Piece("A", matched_len),)),
            Prefill(request="A"),
            Finish(request="A"),
            Submit(request="B", prompt=(Piece("B", other),)),
            Prefill(request="B"),
            Finish(request="B"),
            Submit(request="C", prompt=(Piece("A", matched_len), Piece("C", matched_len + tail))),
            Prefill(request="C"),
            *then,
        ),
    )  # fmt: skip
