"""What the monitor makes of a recorder's facts: no snapshots, allocations one by one, gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Answered,
    Ended,
    Fact,
    Freed,
    Gap,
    Ran,
    Released,
    Started,
    Step,
    Translated,
)
from kvproof.model.judges.allocation import Allocation
from kvproof.model.monitor import check, statuses
from kvproof.model.scenario import Decode, Finish, Flush, Geometry, Piece, Prefill, Prompt, Submit

SIZES = Geometry(window=4, page_size=4, slots=1, pool_tokens=64)
STARTED = Started(
    target="model", backend="rules", geometry=SIZES, ring_stride=4, reprefill_tail=0, swa_tokens=64
)


def come_and_go(
    name: str, prompt: Prompt, *, matched: int = 0, decodes: int = 0, answer: Prompt | None = None
) -> list[Fact]:
    length = prompt[-1].until
    facts: list[Fact] = [
        Step(index=0, operation=Submit(request=name, prompt=prompt)),
        Step(index=1, operation=Prefill(request=name)),
        Admitted(request=name, slot=1, prompt_len=length, matched_len=matched),
        Ran(request=name, mode="prefill", slot=1, start=matched, end=length),
        Advanced(request=name, computed_len=length),
    ]
    for position in range(length, length + decodes):
        facts += [
            Step(index=2, operation=Decode()),
            Ran(request=name, mode="decode", slot=1, start=position, end=position + 1),
            Advanced(request=name, computed_len=position + 1),
        ]
    facts.append(Step(index=3, operation=Finish(request=name)))
    if answer is not None:
        facts.append(Answered(request=name, tokens=answer))
    return [*facts, Released(request=name, slot=1)]


OWN = Piece("A", 16)
STALE = [
    *come_and_go("A", (OWN,)),
    *come_and_go("B", (Piece("B", 16),)),
    *come_and_go("C", (OWN, Piece("C", 17)), matched=16, decodes=1),
]


def test_a_stale_decode_is_found_without_snapshots() -> None:
    monitor = check([STARTED, *STALE, Ended(steps=1)])
    words = statuses(monitor)
    assert words["FRESH-DECODE"] == "violated"
    # Nothing is known of the tree, so nobody may say that it was used well.
    assert words["USEFUL"] == "unknown"


def test_a_match_is_page_aligned_and_leaves_a_token() -> None:
    for matched in (15, 17):
        log = come_and_go("C", (Piece("C", 17),), matched=matched)
        assert statuses(check([STARTED, *log, Ended(steps=1)]))["REFINES"] == "violated"


def test_an_answer_tells_that_a_row_holds_the_same_content() -> None:
    """C's prompt is A's prompt and answer; only the answer's name says so."""
    whole = (Piece("A", 16), Piece("A and its answer", 20))
    first = come_and_go("A", (OWN, Piece("answer of A", 16)), decodes=4, answer=whole)
    then = come_and_go("C", (*whole, Piece("C", 21)), matched=20, decodes=1)
    told = check([STARTED, *first, *then, Ended(steps=1)])
    unanswered = [fact for fact in first if not isinstance(fact, Answered)]
    untold = check([STARTED, *unanswered, *then, Ended(steps=1)])
    assert {cause for _, cause in told.violations} == {"same-content"}
    assert {cause for _, cause in untold.violations} == {"other-request"}


@pytest.mark.parametrize("at", range(len(STALE) + 1))
def test_nothing_holds_in_a_log_with_a_gap(at: int) -> None:
    """What broke before it stays; of the rest nothing is said, and nothing after it counts."""
    log = [STARTED, *STALE[:at], Gap(reason="lost", dropped=3), *STALE[at:], Ended(steps=1)]
    monitor = check(log)
    before = check([STARTED, *STALE[:at]])
    assert monitor.ended
    assert monitor.violations == before.violations
    assert set(statuses(monitor).values()) <= {"violated", "unknown"}


@given(st.lists(st.integers(1, 12), max_size=30), st.sampled_from([1, 2, 4]))
def test_an_honest_allocator_is_never_accused(moves: list[int], page_size: int) -> None:
    """Lend token by token, take back pages, map each SWA page to one full page."""
    pages = 8
    allocation = Allocation(page_size=page_size, sizes={"full": pages * page_size,
                                                       "swa": pages * page_size})  # fmt: skip
    free = list(range(1, pages + 1))
    held: dict[int, int] = {}  # page -> tokens of it that are lent
    breaks = []
    for move in moves:
        if held and move % 3 == 0:
            page = sorted(held)[move % len(held)]
            for pool in ("full", "swa"):
                span = ((page * page_size, page * page_size + 1),)
                breaks += allocation.freed(Freed(pool=pool, locs=span))
            del held[page]
            free.append(page)
            continue
        growing = [page for page, count in held.items() if count < page_size]
        if not (growing or free):
            continue
        page = growing[0] if growing else free.pop(0)
        at = page * page_size + held.get(page, 0)
        held[page] = held.get(page, 0) + 1
        for pool in ("full", "swa"):
            breaks += allocation.allocated(Allocated(pool=pool, locs=((at, at + 1),)))
        breaks += allocation.translated(Translated(full=((at, at + 1),), swa=((at, at + 1),)))
    assert breaks == []
    assert set(allocation.lent["full"]) == set(held)
    assert set(allocation.mapped) <= set(held)


def test_a_flush_takes_everything_back() -> None:
    lend = Allocated(pool="full", locs=((4, 12),))
    flush = Step(index=0, operation=Flush())
    assert not check([STARTED, lend, flush, lend, Ended(steps=1)]).violations
    assert check([STARTED, lend, lend, Ended(steps=1)]).violations


def test_memory_is_bounded_by_the_pools() -> None:
    """Whatever locations a damaged log names."""
    allocation = Allocation(page_size=1, sizes={"full": 8, "swa": 0})
    for pool in ("full", "swa"):
        assert [*allocation.allocated(Allocated(pool=pool, locs=((0, 2**24),)))]
    assert len(allocation.lent["full"]) <= 9
    assert len(allocation.lent["swa"]) <= 1
