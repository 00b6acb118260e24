"""Runs of rows beside one entry a row: the same, whatever is written and rejected."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kvproof.model.slot_rows import SlotRows, Written

STRIDES = st.integers(1, 9)
OCCUPANCIES = st.integers(1, 3)
POSITIONS = st.integers(0, 30)
PUT = st.tuples(st.just("put"), OCCUPANCIES, POSITIONS, st.integers(0, 12))
GO_ON = st.tuples(st.just("go on"), st.just(0), st.just(0), st.integers(1, 12))
ODD = st.tuples(st.just("odd"), st.integers(0, 3), POSITIONS, st.integers(0, 8))
REJECT = st.tuples(st.just("reject"), OCCUPANCIES, POSITIONS, st.just(0))
ACTS = st.lists(st.one_of(PUT, GO_ON, GO_ON, REJECT, ODD), max_size=30)


@dataclass
class RowByRow:
    """What `SlotRows` stands for, with nothing put together."""

    stride: int
    rows: dict[int, Written] = field(default_factory=dict)

    def put(self, occupancy: int, start: int, end: int, step: int) -> None:
        for position in range(start, end):
            self.rows[position % self.stride] = Written(occupancy, position, step)

    def reject_from(self, occupancy: int, computed_len: int) -> None:
        for offset, held in self.rows.items():
            if held.occupancy == occupancy and held.position >= computed_len:
                self.rows[offset] = Written(occupancy, held.position, held.step, True)


@given(STRIDES, ACTS, POSITIONS, st.integers(0, 20))
def test_runs_hold_what_the_rows_hold(
    stride: int, acts: list[tuple[str, int, int, int]], start: int, length: int
) -> None:
    runs, rows = SlotRows(stride), RowByRow(stride)
    newest, end = 1, 0
    for step, (act, occupancy, position, tokens) in enumerate(acts):
        if act in {"put", "go on"}:
            if act == "put":
                newest, end = occupancy, position
            runs.put(newest, end, end + tokens, step)
            rows.put(newest, end, end + tokens, step)
            end += tokens
        elif act == "reject":
            runs.reject_from(occupancy, position)
            rows.reject_from(occupancy, position)
            if occupancy == newest:
                end = min(end, position)  # what a verify rejected is written again
        else:
            written = Written(occupancy, position, step)
            runs.put_odd(tokens % stride, written)
            rows.rows[tokens % stride] = written
    assert {at: held for at in range(stride) if (held := runs.get(at))} == rows.rows
    assert sum(run.end - run.start for run in runs.runs) + len(runs.odd) == len(rows.rows)
    found = {
        position: Written(each.run.occupancy, position - each.laps * stride, 0, each.run.rejected)
        for each in runs.find(start, start + length)
        for position in range(each.start, each.end)
    }
    assert [*found] == sorted(found)
    assert found == {
        position: Written(held.occupancy, held.position, 0, held.rejected)
        for position in range(start, start + length)
        if (held := rows.rows.get(position % stride)) and position % stride not in runs.odd
    }


def test_a_long_answer_with_rejected_drafts_stays_one_run() -> None:
    rows = SlotRows(130)
    end = 1000
    rows.put(1, 0, end, 0)
    for step in range(1, 200):
        rows.put(1, end, end + 3, step)
        end += 1 + step % 3
        rows.reject_from(1, end)
        assert len(rows.runs) <= 3
