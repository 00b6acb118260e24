"""K3 and K9: what holds between kernels, and of padded rows in all of them."""

from __future__ import annotations

import z3

from kvproof.kernels.launch_sizes import HEAD_DIM, WINDOW
from kvproof.proofs.kernels.base import (
    LANE,
    MORE,
    PLACE,
    Code,
    P,
    Q,
    Token,
    fixed,
    h1_h2,
    in_lanes,
    only,
    proved,
    there,
)
from kvproof.proofs.kernels.decode import DECODE, decode_token
from kvproof.proofs.kernels.prefill import PREFILL, prefill_token
from kvproof.proofs.kernels.scatter import SCATTER, scatter_token
from kvproof.proofs.theorem import Claim, Fact, Term, Theorem
from kvproof.spec.indices import PADDING_SLOT, Position, RingRow
from kvproof.spec.ring import is_padding_row
from kvproof.spec.window import (
    decode_reads,
    prefill_ring_reads,
)


def agreement(code: Code) -> Theorem:
    """K3: the readers name the row that the writer writes."""

    def writer(stride: Term) -> tuple[Token, Term, tuple[Fact, ...]]:
        """A stored cell's row, as ``(cell - lane) = row * 512``."""
        run = fixed(code.run(SCATTER), D=HEAD_DIM)
        store = only(run, "unified_ptr")
        when, offset, _ = there(run, store, Q, MORE)
        offset, when = (
            z3.substitute(term, (run.arguments["ring_stride"], stride)) for term in (offset, when)
        )
        token = scatter_token(run, Q)
        # The builders' buffers have the same names and are others: the writer's are loaded once.
        slot, position, final = z3.Ints("slot_w position_w final_w")
        names = ((token.slot, slot), (token.position, position), (token.final, final))
        offset, when = (z3.substitute(term, *names) for term in (offset, when))
        own = Token(slot=slot, position=position, final=final)
        return own, offset - MORE, (when, *h1_h2(own), stride >= 1, in_lanes(store, MORE), Q >= 0)

    def decode() -> Claim:
        run = code.run(DECODE)
        store, token = only(run, "swa_indices_ptr"), decode_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        own, cell, written = writer(stride)
        start, _ = decode_reads(Position(token.position), win)
        return Claim(
            given=(
                *written, *h1_h2(token), win >= 1, win <= store.lanes, in_lanes(store, LANE),
                P >= 0, run.memory["batch_id_per_token_ptr"](P) == P, store.when,
                own.slot == token.slot, own.position == start + LANE,
            ),
            then=cell == store.value * HEAD_DIM,
        )  # fmt: skip

    def prefill() -> Claim:
        run = code.run(PREFILL)
        store, token = only(run, "pre_out_ptr"), prefill_token(run, P)
        win, stride = run.arguments["win"], run.arguments["ring_stride"]
        own, cell, written = writer(stride)
        place = store.offset - run.memory["pre_indptr_ptr"](P)
        start, _ = prefill_ring_reads(Position(token.position), Position(token.chunk_start), win)
        return Claim(
            given=(
                *written, *h1_h2(token), win >= 1, in_lanes(store, LANE), P >= 0, store.when,
                own.slot == token.slot, place == PLACE, own.position == start + PLACE,
            ),
            then=cell == store.value * HEAD_DIM,
        )  # fmt: skip

    return Theorem(
        identifier="K3",
        title="writer and readers agree",
        statement="The row that the decode and the prefill builder name for a slot and position is "
        "the row that the scatter kernel writes for them.",
        scope=f"all slots, positions, strides; windows up to {WINDOW} for decode; H1-H4, H8",
        obligations=(
            proved("scatter and decode builder", decode),
            proved("scatter and prefill builder", prefill),
        ),
        mutants=(),
        source="_swa_scatter_kernel, _v4_paged_decode_indices_kernel, "
        f"_build_prefill_indices_kernel ({code.release})",
    )


def padding(code: Code) -> Theorem:
    """K9: padded rows touch padding alone."""

    def scatter() -> Claim:
        run = fixed(code.run(SCATTER), D=HEAD_DIM)
        store, token = only(run, "unified_ptr"), scatter_token(run, P)
        stride, row = run.arguments["ring_stride"], z3.Int("row")
        return Claim(
            given=(
                *h1_h2(token), token.slot == PADDING_SLOT, stride >= 1, P >= 0, store.when,
                in_lanes(store, LANE), store.offset == row * HEAD_DIM + LANE,
            ),
            then=is_padding_row(RingRow(row), stride),
        )  # fmt: skip

    def decode() -> Claim:
        run = code.run(DECODE)
        store, token = only(run, "swa_indices_ptr"), decode_token(run, P)
        stride, win = run.arguments["ring_stride"], run.arguments["win"]
        return Claim(
            given=(
                *h1_h2(token), token.slot == PADDING_SLOT, stride >= 1, win >= 1, P >= 0,
                store.when, in_lanes(store, LANE),
            ),
            then=is_padding_row(RingRow(store.value), stride),
        )  # fmt: skip

    def skipped() -> Claim:
        run = code.run(DECODE)
        row = run.memory["batch_id_per_token_ptr"](P)
        stored = z3.Or(*(store.when for store in run.stores))
        return Claim(given=(P >= 0,), then=z3.Implies(row < 0, z3.Not(stored)))

    return Theorem(
        identifier="K9",
        title="padded rows",
        statement="A row of slot 0 writes and reads rows of slot 0 alone; a decode row that is "
        "marked -1 stores nothing.",
        scope="all positions and strides; H2",
        obligations=(
            proved("scatter", scatter),
            proved("decode builder", decode),
            proved("marked rows", skipped),
        ),
        mutants=(),
        source=f"_swa_scatter_kernel, _v4_paged_decode_indices_kernel ({code.release})",
    )
