"""FRESH-DECODE and FRESH-PREFILL on the reference engine: strides, orders, caps, and the X1 count.

Each bound is tight: it holds at the stride or tail that the rule asks for, and one less is caught.
Where the number of schedules is small they are all played.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import pytest

from kvproof.model.facts import Read
from kvproof.model.monitor import Monitor, check
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
from kvproof.spec.cap import decodes_fresh, first_token_fresh
from kvproof.spec.window import Order

WRITE_FIRST: Order = "write, then read"
READ_FIRST: Order = "read, then write"


def geometry(window: int, *, page_size: int = 1, draft_tokens: int = 1) -> Geometry:
    return Geometry(
        window=window, page_size=page_size, slots=1, pool_tokens=2048, draft_tokens=draft_tokens
    )


def arrive(name: str, *pieces: tuple[str, int], chunk: int | None = None) -> list[Operation]:
    prompt = tuple(Piece(text, until) for text, until in pieces)
    return [Submit(request=name, prompt=prompt), Prefill(request=name, tokens=chunk)]


def come_and_go(name: str, length: int) -> list[Operation]:
    return [*arrive(name, (name, length)), Finish(request=name)]


def run(sizes: Geometry, operations: Sequence[Operation], **policy: Any) -> Monitor:
    player = reference_player(sizes, Policy(**policy))
    return check(player.play(Scenario(geometry=sizes, operations=tuple(operations))))


def stale(monitor: Monitor, invariant: str) -> int:
    """(query, row) pairs that broke an invariant."""
    return sum(count for (broken, _), count in monitor.counts.items() if broken == invariant)


def recycled(tail: int, *, shared: int = 16) -> list[Operation]:
    """A third request reuses the first one's prefix in the slot that the second one filled."""
    return [
        *come_and_go("A", shared),
        *come_and_go("B", shared),
        *arrive("C", ("A", shared), ("C", shared + tail)),
    ]


# Strides


def any_fails(sizes: Geometry, schedules: Iterable[Sequence[Operation]], **policy: Any) -> set[str]:
    """Invariants, each broken by some schedule."""
    return {
        invariant
        for operations in schedules
        for invariant, _ in run(sizes, operations, **policy).violations
    }


def decoding(window: int) -> Iterator[list[Operation]]:
    for prompt_len in range(1, 2 * window + 1):
        yield [*arrive("A", ("A", prompt_len)), *[Decode()] * (window + 2)]


@pytest.mark.parametrize("window", range(2, 7))
def test_decode_needs_a_row_for_each_position_of_the_window(window: int) -> None:
    """R5."""
    assert any_fails(geometry(window), decoding(window), stride=window) == set()
    assert "FRESH-DECODE" in any_fails(geometry(window), decoding(window), stride=window - 1)


def verifying(window: int, draft_tokens: int, *, decodes: bool) -> Iterator[list[Operation]]:
    """Every sequence of accepted counts, with and without plain decode steps in between."""
    steps: list[Operation] = [Verify(accepted=n) for n in range(1, draft_tokens + 1)]
    if decodes:
        steps.append(Decode())
    for prompt_len in (1, window + 1):
        for chosen in product(steps, repeat=2):
            yield [*arrive("A", ("A", prompt_len)), *chosen, *chosen]


DRAFTS = [(w, d) for w in range(2, 5) for d in range(2, w + 1)]


@pytest.mark.parametrize(("window", "draft_tokens"), DRAFTS)
def test_verify_that_writes_first_needs_a_row_for_each_further_draft(
    window: int, draft_tokens: int
) -> None:
    """R6, and R9: whatever is accepted, no rejected draft is read."""
    sizes = geometry(window, draft_tokens=draft_tokens)
    assert sizes.ring_stride == window + draft_tokens - 1
    schedules = list(verifying(window, draft_tokens, decodes=True))
    assert any_fails(sizes, schedules, verify_order=WRITE_FIRST) == set()
    one_short = {"verify_order": WRITE_FIRST, "stride": sizes.ring_stride - 1}
    assert any_fails(sizes, schedules, **one_short) == {"FRESH-DECODE"}


@pytest.mark.parametrize(("window", "draft_tokens"), DRAFTS)
def test_verify_that_reads_first_needs_one_row_less(window: int, draft_tokens: int) -> None:
    """R7: the stride of RING-1 has a spare row in this order."""
    sizes = geometry(window, draft_tokens=draft_tokens)
    bound = max(window, window + draft_tokens - 2)
    schedules = list(verifying(window, draft_tokens, decodes=True))
    for stride in (bound, sizes.ring_stride):
        assert any_fails(sizes, schedules, verify_order=READ_FIRST, stride=stride) == set()
    one_short = {"verify_order": READ_FIRST, "stride": bound - 1}
    only_verify = list(verifying(window, draft_tokens, decodes=False))
    assert any_fails(sizes, only_verify, **one_short) == {"FRESH-DECODE"}


@pytest.mark.parametrize("window", [1, 2, 3])
def test_verify_on_the_prefill_path_needs_a_window_as_long_as_the_draft(window: int) -> None:
    """The scatter keeps a window's worth of keys, counted from the last draft: for ``D > W`` the
    key of an accepted token is left out. No stride helps."""
    draft_tokens = window + 1
    sizes = geometry(window, draft_tokens=draft_tokens)
    schedules = list(verifying(window, draft_tokens, decodes=False))
    wide = {"verify_order": READ_FIRST, "stride": 4 * draft_tokens}
    # A window of one position is the query's own key, which never comes from an earlier step.
    assert any_fails(sizes, schedules, **wide) == (set() if window == 1 else {"FRESH-DECODE"})
    assert any_fails(sizes, schedules, verify_order=WRITE_FIRST) == set()


def chunked(length: int) -> Iterator[list[Operation]]:
    """A prompt in chunks, in every way to cut it."""
    for cuts in product((False, True), repeat=length - 1):
        ends = [at for at, cut in enumerate(cuts, start=1) if cut]
        budgets = [end - start for start, end in zip([0, *ends], [*ends, length], strict=True)]
        yield [
            Submit(request="A", prompt=(Piece("A", length),)),
            *[Prefill(request="A", tokens=budget) for budget in budgets],
            Decode(),
        ]


@pytest.mark.parametrize("window", range(1, 5))
def test_without_reuse_any_chunking_is_fresh(window: int) -> None:
    """R4."""
    assert any_fails(geometry(window), chunked(7)) == set()


@pytest.mark.parametrize("window", range(2, 6))
@pytest.mark.parametrize("spare", [0, 1, 2])
def test_scatter_before_the_reads_breaks_chunks_longer_than_the_spare_rows(
    window: int, spare: int
) -> None:
    """R8: from ``S - W + 2`` tokens on. With spare rows a far longer chunk may miss the window,
    since it keeps its last keys only; without, every longer chunk breaks."""
    stride, start = window + spare, 2 * window
    breaks = []
    for length in range(1, 3 * window):
        operations = [
            *arrive("A", ("A", start + length), chunk=start),
            Prefill(request="A", tokens=length),
        ]
        monitor = run(geometry(window), operations, stride=stride, prefill_order=WRITE_FIRST)
        end = start + length
        overwritten = {at % stride for at in range(max(start, end - window), end)}
        needed = {at % stride for at in range(start - window + 1, start)}
        assert bool(stale(monitor, "FRESH-PREFILL")) == bool(overwritten & needed)
        breaks.append(bool(overwritten & needed))
    assert breaks.index(True) + 1 == stride - window + 2
    assert spare or all(breaks[1:])


# The cap


@pytest.mark.parametrize("window", range(1, 8))
def test_decode_is_fresh_exactly_for_a_tail_of_a_window_less_one(window: int) -> None:
    """C3, and rule CAP-4 beside it."""
    for tail in range(1, window + 2):
        operations = [*recycled(tail), Decode(), Decode()]
        monitor = run(geometry(window), operations, reprefill_tail=0)
        assert ("FRESH-DECODE", "other-request") in monitor.violations or tail >= window - 1
        assert (stale(monitor, "FRESH-DECODE") == 0) == decodes_fresh(16, tail, window)


@pytest.mark.parametrize("window", range(1, 8))
def test_first_token_is_fresh_exactly_for_a_tail_of_a_window(window: int) -> None:
    """C3's other half, and rule CAP-5: of the prefill reads only the last query's are judged."""
    for tail in range(1, window + 2):
        sizes = geometry(window)
        player = reference_player(sizes, Policy(reprefill_tail=0))
        log = player.play(Scenario(geometry=sizes, operations=tuple(recycled(tail))))
        last = 16 + tail - 1
        monitor = check(fact for fact in log if not isinstance(fact, Read) or fact.position == last)
        fresh = stale(monitor, "FRESH-PREFILL") == 0
        assert fresh == first_token_fresh(16, tail, window)


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("tail", range(1, 10))
def test_capped_reuse_never_breaks_a_decode(page_size: int, tail: int) -> None:
    sizes = Geometry(window=5, page_size=page_size, slots=1, pool_tokens=240)
    monitor = run(sizes, [*recycled(tail, shared=24), *[Decode()] * 6])
    assert {invariant for invariant, _ in monitor.violations} <= {"FRESH-PREFILL"}
    assert monitor.witnesses["prefix hit"] == 1


# X1


@pytest.mark.parametrize(("window", "page_size"), [(2, 1), (4, 1), (5, 4), (8, 2), (128, 1)])
@pytest.mark.parametrize("chunk", [None, 3])
def test_a_hit_makes_the_first_tail_queries_read_stale_rows(
    window: int, page_size: int, chunk: int | None
) -> None:
    """X1: exactly W(W-1)/2 pairs a layer, capped or not, in one chunk or in several."""
    shared, tail = 2 * window // page_size * page_size, window
    sizes = Geometry(window=window, page_size=page_size, slots=1, pool_tokens=1024)
    budget = None if chunk is None else -(-chunk // page_size) * page_size
    operations = [
        *come_and_go("A", shared),
        *come_and_go("B", 3 * window),
        Submit(request="C", prompt=(Piece("A", shared), Piece("C", shared + tail))),
        *[Prefill(request="C", tokens=budget)] * tail,
        *[Decode()] * 3,
    ]
    monitor = run(sizes, operations)
    assert stale(monitor, "FRESH-PREFILL") == window * (window - 1) // 2
    assert stale(monitor, "FRESH-DECODE") == 0
    evidence = monitor.worst_of("FRESH-PREFILL")
    assert evidence is not None
    assert evidence.evidence is not None
    assert evidence.evidence.reader.matched_len >= window - 1


def test_the_count_for_the_window_of_the_release() -> None:
    shared, sizes = 512, Geometry(window=128, page_size=256, slots=1, pool_tokens=2048)
    operations = [*come_and_go("A", shared), *arrive("C", ("A", shared), ("C", shared + 128))]
    assert stale(run(sizes, operations), "FRESH-PREFILL") == 8128


@pytest.mark.parametrize(("matched", "tail"), [(1, 8), (2, 8), (8, 1), (8, 2), (8, 3)])
def test_the_count_is_less_for_a_short_match_or_tail(matched: int, tail: int) -> None:
    window = 4
    expected = sum(
        len(range(max(0, matched + at - window + 1), matched)) for at in range(min(tail, window))
    )
    operations = [
        *come_and_go("A", matched),
        *come_and_go("B", 8),
        *arrive("C", ("A", matched), ("C", matched + tail)),
    ]
    monitor = run(geometry(window), operations, reprefill_tail=0)
    assert stale(monitor, "FRESH-PREFILL") == expected
