"""K28: the ring of DeepSeek-V4.1's request window, on CUDA.

A forward copies the window before it out of the request's ring into a history, W rows for each run
of tokens of one request, and puts its own keys behind all of them. One kernel says which of those
rows a query reads, and which tokens go back into the ring; another one says which row of the ring a
row of the history is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import z3

from kvproof.kernels.symbolic import Run
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.kernels.base import (
    LANE,
    MORE,
    Code,
    P,
    Q,
    fixed,
    in_lanes,
    only,
    proved,
    there,
)
from kvproof.proofs.theorem import Claim, Fact, Term, Theorem
from kvproof.spec.indices import Position, Slot
from kvproof.spec.ring import ring_row
from kvproof.spec.window import decode_reads

_QUERIES = "_window_layout_queries [request window{}]"
_HISTORY = "_window_layout_history [request window{}]"
_FORMS = {"": False, ", floored": True}
"""Whether a replay begins somewhere: then nothing before that is seen."""

COLUMN = z3.Int("column")


class _Query(NamedTuple):
    """One row of a forward, live, and its run."""

    run: Run
    row: Term
    position: Term
    first: Term
    first_position: Term
    group: Term
    floor: Term
    given: tuple[Fact, ...]


def request_window(code: Code) -> Theorem | None:
    """K28: the request window; None where the release has none."""
    if _QUERIES.format("") not in code.runs and _QUERIES.format("") not in code.unknown:
        return None

    def packed(name: str, form: str) -> Run:
        """The run on tensors without gaps."""
        return fixed(code.run(name.format(form)), RS=1, PS=1, FS=1)

    def query(form: str) -> _Query:
        run = packed(_QUERIES, form)
        row = P * only(run, "Commit").lanes + LANE
        position, first, group = (run.memory[name](row) for name in ("Pos", "First", "Group"))
        last, start = run.memory["Last"](row), position - (row - first)
        floor = run.memory["Floor"](row) if _FORMS[form] else z3.IntVal(0)
        count, window = run.arguments["N"], run.arguments["WINDOW"]
        given = (
            P >= 0, in_lanes(only(run, "Commit"), LANE), count > row, run.arguments["PAD"] >= count,
            window >= 1, only(run, "Indices").columns >= window, run.arguments["CAPACITY"] >= 1,
            run.arguments["HISTORY"] >= 0, group >= 0, floor >= 0,
            first >= 0, first <= row, row <= last, last < count, start >= 0,
        )  # fmt: skip
        return _Query(run, row, position, first, start, group, floor, given)

    def reads(form: str) -> Callable[[], Claim]:
        """A query reads its window, newest key first: from the history, or from the forward."""

        def claim() -> Claim:
            run, row, position, first, start, group, floor, given = query(form)
            store, window = only(run, "Indices"), run.arguments["WINDOW"]
            seen = position - COLUMN
            begin, end = decode_reads(Position(position), Position(window))
            history = group * window + seen - (start - window)
            own = run.arguments["HISTORY"] + first + (seen - start)
            is_seen = z3.And(seen >= begin, seen < end, seen >= floor)
            return Claim(
                given=(*given, COLUMN >= 0),
                then=z3.And(
                    store.when == (window > COLUMN),
                    z3.Implies(store.when, store.offset == row * window + COLUMN),
                    z3.Implies(
                        store.when,
                        store.value == z3.If(is_seen, z3.If(seen < start, history, own), -1),
                    ),
                    # A row of the query's own group, and none of the forward's padding.
                    z3.Implies(
                        z3.And(store.when, is_seen),
                        z3.If(
                            seen < start,
                            z3.And(history >= group * window, history < (group + 1) * window),
                            own <= run.arguments["HISTORY"] + row,
                        ),
                    ),
                ),
            )

        return claim

    def counted(form: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run, row, position, _, _, _, floor, given = query(form)
            store, window = only(run, "Lengths"), run.arguments["WINDOW"]
            if len(run.reductions) != 1:
                raise UnknownCodeError(f"{run.kernel} sums in {len(run.reductions)} places")
            [total] = run.reductions
            begin, end = decode_reads(Position(position), Position(window))
            seen = position - COLUMN
            is_seen = z3.And(seen >= begin, seen < end, seen >= floor)
            return Claim(
                given=(*given, COLUMN >= 0, total.lanes > COLUMN),
                then=z3.And(store.when, store.offset == row, total.element == z3.If(is_seen, 1, 0)),
            )

        return claim

    def kept(form: str) -> Callable[[], Claim]:
        """Which tokens go back: the last of a run, no two of them to one row of the ring."""

        def claim() -> Claim:
            run, row, position, first, _, _, _, given = query(form)
            store, size = only(run, "Commit"), run.arguments["CAPACITY"]
            last = run.memory["Last"](row)
            when, offset, value = there(run, store, Q, MORE)
            other = run.memory["Pos"](offset)
            slot = z3.Int("slot")
            return Claim(
                given=(
                    *given, Q >= 0, in_lanes(store, MORE), offset != row, offset >= first,
                    offset <= last, run.memory["Last"](offset) == last, slot >= 0, when,
                    other == position + offset - row, other >= 0,
                ),
                then=z3.And(
                    store.when, store.offset == row, (store.value == 1) == (last - row < size),
                    z3.Implies(
                        z3.And(store.value == 1, value == 1),
                        ring_row(Slot(slot), Position(position), size)
                        != ring_row(Slot(slot), Position(other), size),
                    ),
                ),
            )  # fmt: skip

        return claim

    def padded(form: str) -> Callable[[], Claim]:
        def claim() -> Claim:
            run = packed(_QUERIES, form)
            commit, indices = only(run, "Commit"), only(run, "Indices")
            row = P * commit.lanes + LANE
            count, padding = run.arguments["N"], run.arguments["PAD"]
            return Claim(
                given=(P >= 0, in_lanes(commit, LANE), row >= count, padding > row, COLUMN >= 0),
                then=z3.And(
                    commit.when, commit.value == 0, z3.Implies(indices.when, indices.value == -1),
                    only(run, "Write").value == run.arguments["HISTORY"] + row,
                    z3.Not(only(run, "Starts").when),
                ),
            )  # fmt: skip

        return claim

    def history(form: str) -> Callable[[], Claim]:
        """A row of the history is the ring's, for the position that the queries take it for."""

        def claim() -> Claim:
            run = packed(_HISTORY, form)
            store, window = only(run, "HistSrc"), run.arguments["WINDOW"]
            row = P * store.lanes + LANE
            begin = run.memory["Starts"](row / window)
            end = run.memory["Last"](begin)
            slot, start = run.memory["Req"](end), run.memory["Pos"](end) - (end - begin)
            position = start - window + row % window
            floor = run.memory["Floor"](end) if _FORMS[form] else z3.IntVal(0)
            size = run.arguments["CAPACITY"]
            is_there = z3.And(begin >= 0, position >= 0, position >= floor)
            source = ring_row(Slot(slot), Position(position), size)
            return Claim(
                given=(
                    P >= 0, in_lanes(store, LANE), run.arguments["ROWS"] > row, window >= 1,
                    size >= 1, begin >= -1, end >= begin, slot >= 0, floor >= 0, start >= 0,
                ),
                then=z3.And(
                    store.when, store.offset == row,
                    store.value == z3.If(is_there, source, run.arguments["ZERO"]),
                    only(run, "HistLoc").value == row,
                    (only(run, "HistValid").value == 1) == is_there,
                    z3.Implies(begin >= 0, only(run, "HistPos").value == position),
                ),
            )  # fmt: skip

        return claim

    return Theorem(
        identifier="K28",
        title="request window",
        statement="A query's indices are exactly its window, newest first: what comes before the "
        "forward from its request's history, the rest from the forward. A row of the history is "
        "`ring_row` of the position that queries take it for. The last S tokens of a run go back "
        "into the ring, no two of them to one row; padding reads and keeps nothing.",
        scope="all slots, positions, runs, floors, windows up to their block, rings; H1, H2, H4, "
        "H18",
        obligations=tuple(
            proved(f"{name}{form}", claim(form))
            for form in _FORMS
            for name, claim in (
                ("what a query reads", reads),
                ("how many it reads", counted),
                ("what goes back", kept),
                ("padding", padded),
                ("rows of the history", history),
            )
        ),
        mutants=(),
        source=f"_window_layout_queries, _window_layout_history ({code.release})",
    )
