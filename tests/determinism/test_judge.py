"""Verdicts: on the numbers that PR #30339 published, and on what must not be called clean."""

from __future__ import annotations

import msgspec

from kvproof.determinism.judge import Judgement, judge
from kvproof.determinism.plan import COLD, PUBLISHED_TAILS, Cell, Settings, cell_of

BEFORE = {16: (0, 0, 0), 32: (4, 6, 17), 64: (0, 0, 0), 96: (0, 0, 0), 127: (2, 1, 0)}
AFTER = {16: (0, 0, 0), 32: (0, 0, 0), 64: (1, 0, 0), 96: (0, 0, 0), 127: (0, 0, 0)}
"""Answers outside the majority of 64, by tail, of three rounds; 160 and 220 were 0 or 1."""

PLAN = Settings(cold=False)


def cell(tail: int, number: int, off: int, *, total: int = 64, cached: int | None = 512) -> Cell:
    outputs = ["same"] * (total - off) + [f"other {k}" for k in range(off)]
    return cell_of(
        round_number=number, tail=tail, prompt_len=PLAN.prompt_len(tail), outputs=outputs,
        cached=[cached] * total,
    )  # fmt: skip


def published(short: dict[int, tuple[int, ...]], long: tuple[int, ...]) -> Judgement:
    counts = short | {160: long, 220: long}
    assert tuple(sorted(counts)) == PUBLISHED_TAILS
    cells = [cell(t, n, off) for t, row in counts.items() for n, off in enumerate(row, 1)]
    return judge(PLAN, cells)


def test_the_published_table_before_the_fix() -> None:
    """The tail of 32 stands out; 3 of 192 with 127 are too few to tell, as the PR says itself."""
    found = published(BEFORE, (0, 0, 0))
    assert found.status == "violated"
    verdicts = {row.tail: row.verdict for row in found.rows}
    assert [t for t, verdict in verdicts.items() if verdict == "exceeds the floor"] == [32]
    assert verdicts[127] == "within the floor"
    assert found.floor_answered == 384
    assert found.least_excess is not None
    assert found.least_excess > 3


def test_the_published_table_after_the_fix() -> None:
    assert published(AFTER, (0, 1, 0)).status == "holds"


def test_a_row_says_how_far_off_it_is_in_each_round() -> None:
    [row] = [row for row in published(BEFORE, (0, 0, 0)).rows if row.tail == 32]
    assert row.off_by_round == (4, 6, 17)
    assert row.off == 27
    assert row.cached == (512, 512)
    assert row.p is not None
    assert row.p_adjusted is not None
    assert row.p <= row.p_adjusted < 1e-10


SMALL = Settings(window=4, tails=(1, 8), rounds=1, requests=16)


def small(short: Cell, long: Cell, *more: Cell, cold: bool = False) -> Judgement:
    return judge(msgspec.structs.replace(SMALL, cold=cold), [short, long, *more])


def test_what_is_not_done_is_unknown() -> None:
    found = judge(msgspec.structs.replace(SMALL, cold=False), [cell(8, 1, 0, total=16)])
    assert found.status == "unknown"
    assert (found.cells, found.planned) == (1, 2)


def test_failures_take_the_verdict_away() -> None:
    short = msgspec.structs.replace(cell(1, 1, 0, total=8), failed=8)
    found = small(short, cell(8, 1, 0, total=16))
    assert found.status == "unknown"
    assert "8 of 16 requests failed" in found.says


def test_a_cold_control_that_reused_something_is_none() -> None:
    warm = cell(COLD, 1, 0, total=16)
    found = small(cell(1, 1, 0, total=16), cell(8, 1, 0, total=16), warm, cold=True)
    assert found.status == "holds"
    assert next(row.why for row in found.rows if row.kind == "cold")


def test_a_floor_above_the_cold_control_is_none() -> None:
    cold = cell(COLD, 1, 0, total=16, cached=0)
    found = small(cell(1, 1, 12, total=16), cell(8, 1, 12, total=16), cold, cold=True)
    assert found.status == "unknown"
    assert "no floor" in found.says
    strict = judge(SMALL, [cell(1, 1, 12, total=16), cell(8, 1, 12, total=16), cold], floor="cold")
    assert strict.status == "violated"
    assert "as long as the window" in strict.says


def test_the_cold_floor_needs_its_row() -> None:
    found = judge(
        msgspec.structs.replace(SMALL, cold=False),
        [cell(1, 1, 0, total=16), cell(8, 1, 0, total=16)],
        floor="cold",
    )
    assert found.status == "unknown"
