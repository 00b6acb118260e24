"""K17 and K25: kernels that go from full locations to those of the sliding window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import z3

from kvproof.kernels.launch_sizes import PAGE, WORKERS
from kvproof.kernels.symbolic import Access, Run, at
from kvproof.proofs.kernels.base import LANE, MORE, PLACE, Code, P, Q, in_lanes, only, proved, there
from kvproof.proofs.theorem import Claim, Fact, Term, Theorem

IDS = "_build_swa_token_ids_kernel [window ids]"
CLEAR = "get_and_clear_swa_pages_kernel [clear window pages]"
CLEAR_CHECKED = "get_and_clear_swa_pages_kernel [clear window pages, checked]"

COLUMN, COLUMN_Q = z3.Ints("column column_q")


def clear_window_pages(code: Code) -> Theorem | None:
    """K17: window pages read and cleared; None where the release has no such kernel."""
    if CLEAR not in code.runs and CLEAR not in code.unknown:
        return None

    def parts(name: str) -> tuple[Run, Access, Term, Term, tuple[Fact, ...]]:
        run = code.run(name)
        store = only(run, "mapping")
        row = P * store.lanes + LANE
        full = run.memory["full_page_representatives"](row * run.arguments["index_stride"])
        given = (
            P >= 0, in_lanes(store, LANE), run.arguments["num_pages"] > row, full >= 0,
            run.arguments["index_stride"] >= 1,
        )  # fmt: skip
        return run, store, row, full, given

    def cleared(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            _, store, _, full, given = parts(name)
            first = full - full % PAGE
            return Claim(
                given=(*given, COLUMN >= 0, store.columns > COLUMN),
                then=z3.And(
                    store.when == (COLUMN < PAGE),
                    z3.Implies(store.when, store.offset == first + COLUMN),
                    store.value == 0,
                ),
            )

        return claim

    def read(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, row, full, given = parts(name)
            pages, mapped = only(run, "swa_pages"), only(run, "peers_mapped")
            swa = run.memory["mapping"](full)
            return Claim(
                given=(*given, swa >= 0),
                then=z3.And(
                    pages.when, pages.offset == row, pages.value == swa / PAGE, mapped.when,
                    mapped.offset == row, mapped.value == z3.If(swa > 0, 1, 0),
                ),
            )  # fmt: skip

        return claim

    def beyond(name: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, _, row, _, given = parts(name)
            stored = z3.Or(*(store.when for store in run.stores))
            count = run.arguments["num_pages"]
            kept = tuple(fact for fact in given if not fact.eq(count > row))
            return Claim(given=(*kept, count <= row), then=z3.Not(stored))

        return claim

    def apart(name: str) -> Callable[[], Claim]:
        """No cell is cleared twice, and none is read that another program or lane clears."""

        def claim() -> Claim:
            run, store, row, full, given = parts(name)
            when, offset, _ = there(run, store, Q, MORE, column=COLUMN_Q)
            other = at(row, of=run, program=Q, lane=MORE)
            page = run.memory["full_page_representatives"](other * run.arguments["index_stride"])
            touched = [load for load in run.loads if load.base == "mapping"] + [store]
            return Claim(
                given=(
                    *given, Q >= 0, in_lanes(store, MORE), when, page >= 0, row != other,
                    full / PAGE != page / PAGE, COLUMN >= 0, COLUMN_Q >= 0,
                ),
                then=z3.And(
                    *(z3.Implies(access.when, access.offset != offset) for access in touched)
                ),
            )  # fmt: skip

        return claim

    def valid(sound: bool) -> Callable[[], Claim]:
        """The answer is yes exactly if each token of the page has none or the same window page.

        The sum of a row counts columns that differ. It is at least each of them, and 0 if all are.
        """

        def claim() -> Claim:
            run, store, row, full, given = parts(CLEAR_CHECKED)
            answer, [total] = only(run, "page_mappings_valid"), run.reductions
            mapping = run.memory["mapping"]
            swa, each = mapping(full), mapping(full - full % PAGE + COLUMN)
            same = z3.Or(each <= 0, each / PAGE == swa / PAGE)
            place = z3.And(COLUMN >= 0, COLUMN < PAGE)
            return Claim(
                given=(
                    *given, swa >= 0, each >= 0, place,
                    *((total.result >= total.element, answer.value == 1) if sound
                      else (same, swa > 0)),
                ),
                then=z3.And(same, swa > 0) if sound else z3.And(
                    total.element == 0,
                    z3.Implies(total.result == 0, answer.value == 1), answer.offset == row,
                    store.columns == total.lanes,
                ),
            )  # fmt: skip

        return claim

    both = ((CLEAR, "plain"), (CLEAR_CHECKED, "checked"))
    return Theorem(
        identifier="K17",
        title="giving back window pages",
        statement="For each full page the window page of its token is returned, and the mapping of "
        "exactly that page's tokens becomes 0. No cell is cleared twice or read after another "
        "program cleared it. The check says yes exactly if the page's tokens have no other window "
        "page.",
        scope=f"all pages and mappings; pages of {PAGE}; H15",
        obligations=(
            *(proved(f"exactly its page is cleared, {which}", cleared(name))
              for name, which in both),
            *(proved(f"its window page is returned, {which}", read(name)) for name, which in both),
            *(proved(f"nothing beyond the last page, {which}", beyond(name))
              for name, which in both),
            *(proved(f"no race, {which}", apart(name)) for name, which in both),
            proved("the check is sound", valid(True)),
            proved("the check is complete", valid(False)),
        ),
        mutants=(),
        source=f"get_and_clear_swa_pages_kernel ({code.release})",
    )  # fmt: skip


def window_ids(code: Code) -> Theorem:
    """K25: window locations of what a prefill chunk and its window cover."""
    worker = z3.Int("program_y")

    def parts() -> tuple[Run, Access, Term, Term, tuple[Fact, ...]]:
        run = code.run(IDS)
        shared = [(run.grid[1], z3.IntVal(WORKERS))]
        stored = only(run, "out_ptr")
        store = replace(
            stored, when=z3.substitute(stored.when, *shared),
            offset=z3.substitute(stored.offset, *shared),
            value=z3.substitute(stored.value, *shared),
        )  # fmt: skip
        first, length = run.memory["swa_first_pos_ptr"](P), run.memory["swa_gather_lens_ptr"](P)
        starts, stride = run.memory["swa_offsets_ptr"], run.arguments["req_to_token_stride"]
        given = (
            P >= 0, worker >= 0, worker < WORKERS, first >= 0, length >= 0,
            first + length <= stride, stride >= 1, run.memory["req_pool_indices_ptr"](P) >= 0,
            starts(P) >= 0, starts(P + 1) == starts(P) + length,
        )  # fmt: skip
        return run, store, first, length, given

    def exact() -> Claim:
        run, store, first, length, given = parts()
        starts = run.memory["swa_offsets_ptr"]
        row = run.memory["req_pool_indices_ptr"](P) * run.arguments["req_to_token_stride"]
        full = run.memory["req_to_token_ptr"](row + first + PLACE)
        return Claim(
            given=(*given, store.when, store.offset - starts(P) == PLACE),
            then=z3.And(
                PLACE >= 0, length > PLACE, store.offset < starts(P + 1),
                first + PLACE < run.arguments["req_to_token_stride"],
                store.value == run.memory["full_to_swa_ptr"](full),
            ),
        )  # fmt: skip

    def filled() -> Claim:
        run, store, _, length, given = parts()
        starts = run.memory["swa_offsets_ptr"]
        [rounds] = [each for each in run.unknowns if str(each).startswith("round")]
        reached = [(worker, PLACE % WORKERS), (rounds, PLACE / WORKERS)]
        return Claim(
            given=(
                *(z3.substitute(fact, *reached) for fact in given), PLACE >= 0, length > PLACE,
            ),
            then=z3.substitute(z3.And(store.when, store.offset == starts(P) + PLACE), *reached),
        )  # fmt: skip

    return Theorem(
        identifier="K25",
        title="window ids of a prefill",
        statement="A request's segment holds exactly full_to_swa of its locations from its first "
        "position on, in order and without a gap, read from its own row.",
        scope=f"all first positions, lengths, rows, mappings; {WORKERS} programs a request; H5, "
        "H14",
        obligations=(proved("exact and inside", exact), proved("segment filled", filled)),
        mutants=(),
        source=f"_build_swa_token_ids_kernel ({code.release})",
    )
