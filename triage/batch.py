"""From a batch on the kernels back to a scenario: what one stale read's slot had been through."""

from __future__ import annotations

from kvproof.kernels.batch import Batched, Example
from kvproof.model.monitor import check, statuses
from kvproof.model.reference import Policy, reference_player
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
from kvproof.model.verdict import Invariant
from kvproof.spec.pages import page_ceil


def scenario_of(batched: Batched, example: Example) -> Scenario:
    """The example alone: its prefix is published, its slot used by another, then it comes.

    A batch has no tree, so the request that published the reused prefix is added.
    """
    order = batched.order
    operations: list[Operation] = []
    lengths = {
        "A": example.matched_len, "B": example.previous_end, "C": example.prompt_len,
    }  # fmt: skip
    for name in ("A", "B"):
        if lengths[name]:
            operations += [
                Submit(request=name, prompt=(Piece(name, lengths[name]),)),
                Prefill(request=name),
                Finish(request=name),
            ]
    operations.append(
        Submit(
            request="C",
            prompt=(Piece("A", example.matched_len), Piece("C", example.prompt_len)),
        )
    )
    if example.chunk_end < example.prompt_len:
        operations.append(Prefill(request="C", tokens=example.chunk_end - example.matched_len))
    operations.append(Prefill(request="C"))
    if example.position >= example.prompt_len:
        # The query itself is of one more step; what that accepts does not matter.
        kept = (*example.accepted, 1)
        operations += [
            Decode() if order.draft_tokens == 1 else Verify(accepted=accepted) for accepted in kept
        ]
        lengths["C"] += sum(kept) + order.draft_tokens
    pages = sum(page_ceil(length + 1, order.page_size) for length in lengths.values())
    return Scenario(
        geometry=Geometry(
            window=order.window,
            page_size=order.page_size,
            slots=1,
            pool_tokens=pages,
            draft_tokens=order.draft_tokens,
        ),
        operations=tuple(operations),
    )


def shown_by_model(batched: Batched, scenario: Scenario, invariant: Invariant) -> bool:
    """Whether the specification, with the batch's cap and stride, breaks the invariant too."""
    policy = Policy(
        reprefill_tail=batched.order.reprefill_tail,
        stride=batched.stride,
        verify_order=batched.verify_order,
    )
    monitor = check(reference_player(scenario.geometry, policy).play(scenario))
    return statuses(monitor)[invariant] == "violated"
