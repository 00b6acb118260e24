"""K26: the ring in which Qwen's sparse attention (QSA) keeps keys until their group has ended.

The kernel plans the replay of a verify: program t works for its t-th token, ``extend_len`` tokens a
request. Each token's key goes to a row of the ring, and a token that ends a group reads the rows of
its members. The forward stores all keys before it reads any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import z3

from kvproof.kernels.launch_sizes import RATIO
from kvproof.kernels.symbolic import Access, Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import (
    LANE,
    Code,
    P,
    Q,
    check,
    in_lanes,
    only,
    play,
    proved,
    there,
)
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term, Theorem, Values
from kvproof.spec.indices import PADDING_SLOT, Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.terms import maximum

PENDING = "_qsa_graph_row_metadata_kernel [pending keys]"

_BLOCK = z3.Int("program_y")
"""Block of a token's page table; the first one stores the rest, too."""

_LONGEST, _SLOTS = 200, 8
"""Bounds of a counterexample that is played: the table of the launch is small."""


class _Row(NamedTuple):
    """What program ``t`` of a verify works for."""

    run: Run
    slot: Term
    position: Term
    is_real: Term
    given: tuple[Fact, ...]


def pending_keys(code: Code) -> Theorem | None:
    """K26: rows of pending keys; None where the release has no such kernel."""
    if PENDING not in code.runs and PENDING not in code.unknown:
        return None

    def row(program: Term) -> _Row:
        run = code.run(PENDING)
        drafts = run.arguments["extend_len"]
        request = program / drafts
        length, slot = run.memory["seq_lens_ptr"](request), run.memory["req_pool_ptr"](request)
        return _Row(
            run, slot, length + program % drafts,
            run.arguments["bs"] - run.arguments["num_padding"] > request,
            (program >= 0, drafts >= 1, length >= 0, slot >= 0),
        )  # fmt: skip

    def ring(slot: Term, position: Term) -> Term:
        return ring_row(Slot(slot), Position(position), RATIO)

    def members(run: Run) -> tuple[Access, ...]:
        stores = run.stores_to("ring_locs_ptr")
        if len(stores) != RATIO:
            raise UnknownCodeError(f"{PENDING} stores {len(stores)} rows of a group")
        return stores

    def own() -> Claim:
        run, slot, position, is_real, given = row(P)
        store = only(run, "state_slots_ptr")
        return Claim(
            given=(*given, is_real, _BLOCK == 0),
            then=z3.And(store.when, store.offset == P, store.value == ring(slot, position)),
        )

    def group() -> Claim:
        run, slot, position, is_real, given = row(P)
        return Claim(
            given=(*given, is_real, _BLOCK == 0),
            then=z3.And(
                *(
                    z3.And(
                        store.when, store.offset == P * RATIO + k,
                        store.value == ring(slot, maximum(position - (RATIO - 1 - k), 0)),
                    )
                    for k, store in enumerate(members(run))
                )
            ),
        )  # fmt: skip

    def compressed() -> Claim:
        run, slot, position, is_real, given = row(P)
        store, length = only(run, "write_locs_ptr"), only(run, "compressed_lens_ptr")
        width = run.arguments["req_to_token_row_stride"]
        loc = run.memory["req_to_token_ptr"](slot * width + position)
        ends = (position + 1) % RATIO == 0
        return Claim(
            given=(*given, is_real, _BLOCK == 0, loc >= 0),
            then=z3.And(
                store.when, store.offset == P, store.value == z3.If(ends, loc / RATIO, 0),
                length.when, length.offset == P, length.value == (position + 1) / RATIO,
            ),
        )  # fmt: skip

    def table() -> Claim:
        run, slot, _, is_real, given = row(P)
        store, page = only(run, "page_table_ptr"), run.arguments["FULL_PAGE"]
        width, pages = run.arguments["req_to_token_row_stride"], run.arguments["max_pages"]
        column = _BLOCK * store.lanes + LANE
        loc = run.memory["req_to_token_ptr"](slot * width + column * page)
        return Claim(
            given=(
                *given, is_real, _BLOCK >= 0, in_lanes(store, LANE), page >= 1, width >= 0,
                pages >= 0, loc >= 0,
            ),
            then=z3.And(
                store.when == z3.And(pages > column, width / page > column),
                store.offset == P * pages + column,
                z3.Implies(store.when, store.value == loc / page),
            ),
        )  # fmt: skip

    def padded() -> Claim:
        run, _, _, is_real, given = row(P)
        taken = [only(run, "state_slots_ptr"), *members(run)]
        own = ring(z3.IntVal(PADDING_SLOT), z3.IntVal(0))
        return Claim(
            given=(*given, z3.Not(is_real), _BLOCK == 0),
            then=z3.And(
                only(run, "write_locs_ptr").value == 0,
                *(z3.And(store.value >= own, store.value < own + RATIO) for store in taken),
            ),
        )

    def kept(later: bool) -> Callable[[], Claim]:
        """Whether a group's rows hold its own keys once all tokens of the verify are stored."""

        def claim() -> Claim:
            run, slot, position, is_real, given = row(P)
            other = row(Q)
            drafts = run.arguments["extend_len"]
            when, _, taken = there(run, only(run, "state_slots_ptr"), Q, LANE)
            shared = z3.Or(
                *(
                    z3.And(store.value == taken, other.position != position - (RATIO - 1 - k))
                    for k, store in enumerate(members(run))
                )
            )
            return Claim(
                given=(
                    *given, *other.given, is_real, _BLOCK == 0, when, Q / drafts == P / drafts,
                    (position + 1) % RATIO == 0, drafts <= RATIO,
                    *(
                        (Q > P, P % drafts == 0, position <= _LONGEST, slot <= _SLOTS,
                         slot > PADDING_SLOT)
                        if later else (Q <= P,)
                    ),
                ),
                then=z3.Not(shared),
                show={"slot": slot, "length": position, "drafts": drafts},
            )  # fmt: skip

        return claim

    def replay(values: Values) -> Check:
        drafts = values["drafts"]
        found = play(
            code, "pending", slot=[values["slot"]], length=[values["length"]], drafts=[drafts]
        )
        broken = isinstance(found, list) and not {*found[1:drafts]}.isdisjoint(found[drafts:])
        return check(
            code, "a group keeps its keys", broken,
            f"rows that the tokens take, then those that the first one reads: {found}",
        )  # fmt: skip

    return Theorem(
        identifier="K26",
        title="pending keys of a sparse attention",
        statement="A token's key goes to `ring_row` of a ring of one group, a token that ends a "
        "group reads the rows of its members, in order, and its compressed key goes where its "
        "location says. Tokens up to the group's end take no row of another position; a token "
        "behind it does, so a verify has to stop at the end of a group.",
        scope=f"all slots, lengths, drafts up to the ratio, tables, pages; ratio {RATIO}; H1, H2, "
        "H14, H16",
        obligations=(
            proved("a token's own row", own),
            proved("rows of its group", group),
            proved("where the compressed key goes", compressed),
            proved("compressed pages", table),
            proved("padding stays in slot 0", padded),
            proved("tokens up to a group's end leave it its keys", kept(later=False)),
            Obligation(
                name="nor does a token behind it take one", claim=kept(later=True),
                expected="refuted", replay=replay,
            ),
        ),
        mutants=(),
        source=f"_qsa_graph_row_metadata_kernel ({code.release})",
    )  # fmt: skip
