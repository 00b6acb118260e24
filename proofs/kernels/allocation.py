"""K11 and K12: which locations the allocator's kernels give to requests."""

from __future__ import annotations

from collections.abc import Callable

import z3

from kvproof.kernels.launch_sizes import PAGE
from kvproof.kernels.symbolic import Access, Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import (
    LANE,
    MORE,
    PLACE,
    Code,
    P,
    Q,
    Total,
    in_lanes,
    nothing_masked,
    proved,
    reach,
    there,
)
from kvproof.proofs.theorem import Claim, Fact, Term, Theorem
from kvproof.spec.pages import is_page_congruent, page_ceil

EXTEND = "alloc_extend_kernel [allocate extend]"
DECODE = "alloc_decode_kernel [allocate decode]"

_STORES = ("rest of the last page", "whole pages", "new last page")
_SCOPE = f"all lengths, free lists and batches; a page of {PAGE}; H9, H11-H13"


def _extend_totals(run: Run) -> tuple[Total, Total]:
    """New tokens, and new pages, of the first requests."""
    before, after = run.memory["pre_lens_ptr"], run.memory["seq_lens_ptr"]
    return (
        Total(name="tokens_before", length=lambda i: after(i) - before(i)),
        Total(
            name="pages_before",
            length=lambda i: (page_ceil(after(i), PAGE) - page_ceil(before(i), PAGE)) / PAGE,
        ),
    )


def _extend_given(run: Run) -> tuple[Fact, ...]:
    tokens, pages = _extend_totals(run)
    new_tokens, new_pages = run.reductions
    before, after = run.memory["pre_lens_ptr"](P), run.memory["seq_lens_ptr"](P)
    last = run.memory["last_loc_ptr"](P)
    return (
        P >= 0, before >= 0, after >= before,  # H11
        z3.If(before == 0, last == -1, last >= 0), is_page_congruent(before, last + 1, PAGE),  # H12
        tokens.grows(P), pages.grows(P), tokens(P) >= 0, pages(P) >= 0,
        new_tokens.result == tokens(P + 1), new_pages.result == pages(P + 1),
    )  # fmt: skip


def allocate_extend(code: Code) -> Theorem:
    """K11: the locations of an extend."""

    def parts() -> tuple[Run, tuple[Access, ...], Total, Total, tuple[Fact, ...]]:
        run = code.run(EXTEND)
        stores = run.stores_to("out_indices")
        if len(stores) != len(_STORES) or len(run.reductions) != 2:
            raise UnknownCodeError(f"{EXTEND} stores in {len(stores)} places")
        return run, stores, *_extend_totals(run), _extend_given(run)

    def summed(which: int) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, *totals, _ = parts()
            before, after = run.memory["pre_lens_ptr"](LANE), run.memory["seq_lens_ptr"](LANE)
            return totals[which].lane_of(
                run.reductions[which],
                end=P + 1,
                given=(P >= 0, before >= 0, after >= before, *nothing_masked(run)),
            )

        return claim

    def exact(which: int) -> Callable[[], Claim]:
        """The location of position ``before + PLACE`` is the rule's, and in the segment."""

        def claim() -> Claim:
            run, stores, tokens, pages, given = parts()
            store, before = stores[which], run.memory["pre_lens_ptr"](P)
            position, first = before + PLACE, page_ceil(before, PAGE)
            page = run.memory["free_page_ptr"](pages(P) + (position - first) / PAGE)
            due = z3.If(
                position < first,
                run.memory["last_loc_ptr"](P) + 1 + PLACE,
                page * PAGE + position % PAGE,
            )
            return Claim(
                given=(
                    *given, in_lanes(store, LANE), store.when, store.offset - tokens(P) == PLACE,
                ),
                then=z3.And(
                    PLACE >= 0, tokens(P) + PLACE < tokens(P + 1), store.value == due,
                    is_page_congruent(position, store.value, PAGE),
                ),
            )  # fmt: skip

        return claim

    def filled() -> Claim:
        run, stores, tokens, _, given = parts()
        before, after = run.memory["pre_lens_ptr"](P), run.memory["seq_lens_ptr"](P)
        first, last = page_ceil(before, PAGE), after - after % PAGE
        # A place is behind the whole pages, in them, or before them.
        starts = (0, first - before, last - before)
        done = [
            z3.substitute(
                z3.And(in_lanes(store, LANE), store.when, store.offset == tokens(P) + PLACE),
                *reach(store, PLACE - start),
            )
            for store, start in zip(stores, starts, strict=True)
        ]
        return Claim(given=(*given, PLACE >= 0, after - before > PLACE), then=z3.Or(*done))

    def pages_in_range() -> Claim:
        run, _, _, pages, given = parts()
        loads = [load for load in run.loads if load.base == "free_page_ptr"]
        return Claim(
            given=(*given, LANE >= 0),
            then=z3.And(
                *(
                    z3.Implies(
                        z3.And(load.when, load.lanes > LANE),
                        z3.And(load.offset >= pages(P), load.offset < pages(P + 1)),
                    )
                    for load in loads
                )
            ),
        )

    def ordered() -> Claim:
        """Segments do not overlap, by induction over requests: P's ends before Q's begins."""
        run, _, tokens, pages, _ = parts()
        before, after = run.memory["pre_lens_ptr"](Q), run.memory["seq_lens_ptr"](Q)
        return Claim(
            given=(
                P >= 0, P < Q, before >= 0, after >= before, tokens.grows(Q), pages.grows(Q),
                tokens(P + 1) <= tokens(Q), pages(P + 1) <= pages(Q),
            ),
            then=z3.And(tokens(P + 1) <= tokens(Q + 1), pages(P + 1) <= pages(Q + 1)),
        )  # fmt: skip

    def apart() -> Claim:
        run, stores, tokens, _, given = parts()
        pairs = []
        for one in stores:
            for other in stores:
                when, offset, _ = there(run, other, Q, MORE)
                both = z3.And(
                    one.when, in_lanes(one, LANE), z3.substitute(when, *_twins(run, tokens)),
                    in_lanes(other, MORE),
                )  # fmt: skip
                pairs.append(
                    z3.Implies(both, one.offset != z3.substitute(offset, *_twins(run, tokens)))
                )
        before, after = run.memory["pre_lens_ptr"](Q), run.memory["seq_lens_ptr"](Q)
        return Claim(
            given=(
                *given, P < Q, before >= 0, after >= before, tokens.grows(Q),
                tokens(P + 1) <= tokens(Q),
            ),
            then=z3.And(*pairs),
        )  # fmt: skip

    return Theorem(
        identifier="K11",
        title="allocation of an extend",
        statement="A request's new tokens get, in order, the rest of its last page and then its "
        "own pages of the free list; a location is congruent to its position; its segment is "
        "filled without a gap, nothing is stored outside it, and no two requests share a cell or a "
        "page.",
        scope=f"{_SCOPE}, and H10, on which the kernel relies; sums by induction over lanes",
        obligations=(
            proved("sum of tokens: a lane", summed(0)),
            proved("sum of pages: a lane", summed(1)),
            *(proved(f"exact and inside, {name}", exact(n)) for n, name in enumerate(_STORES)),
            proved("segment filled", filled),
            proved("pages of its own part of the free list", pages_in_range),
            proved("segments in order: step", ordered),
            proved("no two requests share a cell", apart),
        ),
        mutants=(),
        source=f"alloc_extend_kernel ({code.release})",
    )  # fmt: skip


def _twins(run: Run, tokens: Total) -> list[tuple[Term, Term]]:
    """The other program's sum of tokens is what its lanes add up to, too."""
    total = run.reductions[0].result
    return [(z3.Const(f"{total}'", total.sort()), tokens(Q + 1))]


def allocate_decode(code: Code) -> Theorem:
    """K12: the location of a decode."""

    def parts() -> tuple[Run, Total, tuple[Fact, ...]]:
        run = code.run(DECODE)
        if len(run.reductions) != 1:
            raise UnknownCodeError(f"{DECODE} has {len(run.reductions)} sums")
        after, last = run.memory["seq_lens_ptr"], run.memory["last_loc_ptr"](P)
        pages = Total(
            name="pages_before",
            length=lambda i: (page_ceil(after(i), PAGE) - page_ceil(after(i) - 1, PAGE)) / PAGE,
        )
        given = (
            P >= 0, after(P) >= 1, last >= -1, is_page_congruent(after(P) - 1, last + 1, PAGE),
            pages.grows(P), pages(P) >= 0, run.reductions[0].result == pages(P + 1),
        )  # fmt: skip
        return run, pages, given

    def summed() -> Claim:
        run, pages, _ = parts()
        after = run.memory["seq_lens_ptr"](LANE)
        return pages.lane_of(run.reductions[0], end=P + 1, given=(P >= 0, after >= 1))

    def exact() -> Claim:
        run, pages, given = parts()
        position = run.memory["seq_lens_ptr"](P) - 1
        first = run.memory["free_page_ptr"](pages(P)) * PAGE
        due = z3.If(position % PAGE == 0, first, run.memory["last_loc_ptr"](P) + 1)
        stores = run.stores_to("out_indices")
        return Claim(
            given=given,
            then=z3.And(
                z3.PbEq([(store.when, 1) for store in stores], 1),
                *(
                    z3.Implies(
                        store.when,
                        z3.And(
                            store.offset == P, store.value == due,
                            is_page_congruent(position, store.value, PAGE),
                        ),
                    )
                    for store in stores
                ),
            ),
        )  # fmt: skip

    def pages_in_range() -> Claim:
        run, pages, given = parts()
        [load] = [load for load in run.loads if load.base == "free_page_ptr"]
        return Claim(
            given=(*given, load.when),
            then=z3.And(load.offset >= pages(P), load.offset < pages(P + 1)),
        )

    return Theorem(
        identifier="K12",
        title="allocation of a decode",
        statement="A request's new token gets the next location of its last page, or the first of "
        "its own page of the free list if that page is full; one cell a request, congruent to its "
        "position.",
        scope=f"{_SCOPE}; the sum by induction over lanes",
        obligations=(
            proved("sum of pages: a lane", summed),
            proved("exact, one cell a request", exact),
            proved("page of its own part of the free list", pages_in_range),
        ),
        mutants=(),
        source=f"alloc_decode_kernel ({code.release})",
    )
