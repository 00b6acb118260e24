"""K27: a verify's rejected tokens are cleared from the ring of a compressor's states.

DeepSeek-V4's coarser compressor pools a group of tokens from a ring of the request, into which a
verify wrote all of its tokens. What was rejected must not be pooled, what waits there must stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import z3

from kvproof.kernels.symbolic import Access, Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import LANE, WIN, Code, P, check, in_lanes, play, proved
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term, Theorem, Values
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row

REJECTED = "_clear_unaccepted_c128_draft_states_kernel [clear rejected states]"

_TOKEN, _BLOCK, _OTHER = z3.Ints("program_y program_z position")
"""Which of the verify's tokens a program works for, and which columns; a position that is kept."""

_LARGEST = 40
"""Bound of the numbers of a counterexample that is played."""


class _Parts(NamedTuple):
    run: Run
    states: Access
    scores: Access
    slot: Term
    length: Term
    accepted: Term
    row: Term
    given: tuple[Fact, ...]


def rejected_states(code: Code) -> Theorem | None:
    """K27: rejected states; None where the release has no such kernel."""
    if REJECTED not in code.runs and REJECTED not in code.unknown:
        return None

    def parts() -> _Parts:
        run = code.run(REJECTED)
        stores = run.stores_to("state")
        if len(stores) != 2:
            raise UnknownCodeError(f"{REJECTED} stores in {len(stores)} places")
        slot, length, accepted = (
            run.memory[name](P) for name in ("req_pool_indices", "seq_lens", "accept_lens")
        )
        ring = run.arguments["ring_size"]
        row = ring_row(Slot(slot), Position(length + _TOKEN), ring)
        given = (
            P >= 0, _TOKEN >= 0, run.arguments["num_draft_tokens"] > _TOKEN, _BLOCK >= 0,
            in_lanes(stores[0], LANE), slot >= 0, length >= 0, accepted >= 0, ring >= 1,
            run.arguments["half"] >= 1,
        )  # fmt: skip
        return _Parts(run, *stores, slot, length, accepted, row, given)

    def exact() -> Claim:
        run, states, scores, _, _, accepted, row, given = parts()
        half, column = run.arguments["half"], _BLOCK * states.lanes + LANE
        return Claim(
            given=given,
            then=z3.And(
                *(
                    store.when == z3.And(accepted <= _TOKEN, half > column)
                    for store in (states, scores)
                ),
                states.offset == row * (2 * half) + column,
                scores.offset == row * (2 * half) + half + column,
                states.value == 0,
            ),
        )  # fmt: skip

    def kept(spare: int) -> Callable[[], Claim]:
        """Whether what was accepted, and a group's length before it, is cleared by no program."""

        def claim() -> Claim:
            run, states, _, slot, length, accepted, row, given = parts()
            ring, drafts = run.arguments["ring_size"], run.arguments["num_draft_tokens"]
            need = WIN + drafts - 1
            bounds = (ring <= _LARGEST, length <= _LARGEST, slot <= 2, run.arguments["half"] == 1)
            return Claim(
                given=(
                    *given, WIN >= 1, ring >= need if spare >= 0 else ring == need + spare,
                    _OTHER >= 0, length - WIN < _OTHER, length + accepted > _OTHER, states.when,
                    *(() if spare >= 0 else bounds),
                ),
                then=ring_row(Slot(slot), Position(_OTHER), ring) != row,
                show={"slot": slot, "length": length, "accepted": accepted, "drafts": drafts,
                      "ring": ring, "position": _OTHER},
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        names = ("slot", "length", "accepted", "drafts", "ring")
        cleared = play(code, "rejected", **{name: [values[name]] for name in names})
        row = ring_row(Slot(values["slot"]), Position(values["position"]), values["ring"])
        return check(
            code, "what waits is kept", isinstance(cleared, list) and row in cleared,
            f"position {values['position']} lies in row {row}; cleared: {cleared}",
        )  # fmt: skip

    return Theorem(
        identifier="K27",
        title="rejected states of a compressor",
        statement="Exactly the rows of a verify's rejected tokens are cleared, whole. None of them "
        "holds a token that was accepted, or one of the W - 1 before the verify, "
        "exactly if S >= W + D - 1.",
        scope="all slots, lengths, accepted, drafts, rings, widths; H1, H2",
        obligations=(
            proved("exactly the rejected ones", exact),
            proved("what waits is kept", kept(0)),
            Obligation(
                name="nor with a ring one row less", claim=kept(-1), expected="refuted",
                replay=replay,
            ),
        ),
        mutants=(),
        source=f"_clear_unaccepted_c128_draft_states_kernel ({code.release})",
    )  # fmt: skip
