"""Speculative decoding on the real releases: verifies, rollback, over-allocation, the stride."""

from __future__ import annotations

import pytest

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Ended,
    Holding,
    Pools,
    Read,
    Skipped,
    Wrote,
)
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Abort,
    Accepted,
    Decode,
    Finish,
    Flush,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.spec.ring import ring_stride

RELEASES = ("0.5.15", "0.5.16", "0.5.23")
WINDOW = 4


def geometry(draft_tokens, *, page_size=4, slots=3, window=WINDOW):
    return Geometry(
        window=window,
        page_size=page_size,
        slots=slots,
        pool_tokens=128,
        draft_tokens=draft_tokens,
    )


def alone(draft_tokens, *steps, window=WINDOW, prompt=16, page_size=4):
    """One request, prefilled in chunks, and these steps."""
    return Scenario(
        geometry=geometry(draft_tokens, window=window, page_size=page_size),
        operations=(
            Submit(request="A", prompt=(Piece("A", prompt),)),
            Prefill(request="A", tokens=8),
            Prefill(request="A"),
            *steps,
        ),
    )


def lengths(log, request="A"):
    return [fact.computed_len for fact in log if isinstance(fact, Advanced) and
            fact.request == request and not fact.prefilling]  # fmt: skip


@pytest.mark.parametrize(
    ("release", "page_size"), [("0.5.15", 4), ("0.5.16", 1), ("0.5.23", 4), ("0.5.23", 1)]
)
def test_every_accepted_count(start, release, page_size):
    """Every count from 1 to D and back, twice round the ring, by the real kernels."""
    draft_tokens = 4
    counts = [1, 2, 3, 4, 3, 2, 1, 4, 1]
    scenario = alone(
        draft_tokens, *(Verify(accepted=count) for count in counts), page_size=page_size
    )
    log = start(release).play(scenario, timeout=120)
    assert isinstance(log[-1], Ended)
    assert log[0].ring_stride == scenario.geometry.ring_stride == ring_stride(WINDOW, draft_tokens)
    assert log[0].bigram_keys
    assert lengths(log) == [16 + sum(counts[:at]) for at in range(len(counts) + 1)]
    drafts = [fact for fact in log if isinstance(fact, Wrote) and fact.mode == "verify"]
    starts = [16 + sum(counts[:at]) for at in range(len(counts))]
    expected = [tuple(range(at, at + draft_tokens)) for at in starts]
    assert [fact.positions for fact in drafts] == expected
    # A query of the older order has its draft beside the ring, so it reads the old window alone.
    reads = [fact for fact in log if isinstance(fact, Read) and fact.mode == "verify"]
    newest = max(fact.first + len(fact.rows) - 1 - fact.position for fact in reads)
    assert newest == (0 if release == "0.5.23" else -1)
    monitor = check(log)
    assert not monitor.violations
    assert monitor.checked["FRESH-DECODE"] == len(reads)
    for witness in ("draft rejected", "rejected row rewritten", "wrap inside a verify"):
        assert monitor.witnesses[witness]


def held(log):
    return [fact.holdings for fact in log if isinstance(fact, Pools)]


@pytest.mark.parametrize("end", [Finish, Abort, Retract])
@pytest.mark.parametrize("release", RELEASES)
def test_what_was_allocated_ahead_comes_back(start, release, end):
    """The scheduler reserves twice a draft; nothing of it is left, however the request goes."""
    steps = (Verify(accepted=2), Verify(accepted=1), end(request="A"))
    waits = (Abort(request="A"),) if end is Retract else ()
    log = start(release).play(alone(3, *steps, *waits, Flush()), timeout=60)
    [*_, last] = [fact for fact in held(log) if fact]
    assert isinstance(last[0], Holding)
    computed = lengths(log)[-1]
    assert computed == 19
    assert len(last[0].locs) >= computed + 3
    monitor = check(log)
    assert "PARTITION" not in {invariant for invariant, _ in monitor.violations}
    assert monitor.witnesses["over-allocation released"]
    [*_, cleared] = [fact for fact in log if isinstance(fact, Pools)]
    assert len(cleared.free) == 128 // 4
    assert not cleared.holdings


@pytest.mark.parametrize("release", RELEASES)
def test_requests_of_a_batch_keep_different_counts(start, release):
    scenario = Scenario(
        geometry=geometry(3),
        operations=(
            Submit(request="A", prompt=(Piece("A", 9),)), Prefill(request="A"),
            Submit(request="B", prompt=(Piece("B", 17),)), Prefill(request="B"),
            Verify(accepted=1, others=(Accepted("B", 3),), pad=2),
            # A chunk in between; C is prefilled further while A and B go on.
            Submit(request="C", prompt=(Piece("C", 14),)), Prefill(request="C", tokens=8),
            Verify(accepted=2), Prefill(request="C"), Verify(accepted=3),
        ),
    )  # fmt: skip
    log = start(release).play(scenario, timeout=120)
    assert lengths(log, "A") == [9, 10, 12, 15]
    assert lengths(log, "B") == [17, 20, 22, 25]
    assert lengths(log, "C") == [14, 17]
    monitor = check(log)
    assert not monitor.violations
    # Padded rows verify too, in the slot that is never lent.
    assert any(isinstance(f, Wrote) and f.request is None and f.mode == "verify" for f in log)
    assert monitor.checked["PADDING"]


@pytest.mark.parametrize("release", RELEASES)
def test_an_engine_that_drafts_does_not_decode(start, release):
    log = start(release).play(alone(2, Decode()), timeout=60)
    [skipped] = [fact for fact in log if isinstance(fact, Skipped)]
    assert "verifies 2 tokens each step" in skipped.reason
    assert lengths(log) == [16]


def stale_verifies(log):
    violations = check(log).violations
    return sorted(cause for invariant, cause in violations if invariant == "FRESH-DECODE")


@pytest.mark.parametrize(
    ("release", "rows_short", "causes"),
    [
        # Theorem R6: a verify that writes first needs every row that the release gives it.
        ("0.5.23", 0, []),
        ("0.5.23", 1, ["own-other-position"]),
        # Theorem R7: one that reads first has a row to spare.
        ("0.5.15", 1, []),
        ("0.5.15", 2, ["own-other-position"]),
        ("0.5.16", 1, []),
        ("0.5.16", 2, ["own-other-position"]),
    ],
)
def test_a_ring_that_is_too_short_is_found(start, release, rows_short, causes):
    """On the release's own ring and kernels."""
    draft_tokens = 3
    steps = [Verify(accepted=count) for count in (1, 2, 3, 1, 1)]
    log = start(release, rows_short=rows_short).play(alone(draft_tokens, *steps), timeout=60)
    assert isinstance(log[-1], Ended)
    assert log[0].ring_stride == ring_stride(WINDOW, draft_tokens) - rows_short
    assert stale_verifies(log) == causes


@pytest.mark.parametrize(
    ("release", "breaks"), [("0.5.15", True), ("0.5.16", True), ("0.5.23", False)]
)
def test_a_draft_longer_than_the_window(start, release, breaks):
    """Theorem R7 on the real kernels: the older path's scatter keeps the last window of a draft."""
    log = start(release).play(alone(4, *[Verify(accepted=1)] * 3, window=3), timeout=60)
    assert bool(stale_verifies(log)) == breaks


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_bigram_key_costs_one_token_more(start, page_size):
    """Theorem C4, second half: the tail after a hit is at most W + P, and that long at times."""
    release = "0.5.23"
    tails = []
    for length in range(16, 16 + 2 * page_size):
        scenario = Scenario(
            geometry=geometry(3, page_size=page_size, slots=8),
            operations=(
                Submit(request="A", prompt=(Piece("A", 40),)), Prefill(request="A"),
                Submit(request="B", prompt=(Piece("A", length),)), Prefill(request="B"),
                Verify(accepted=1),
            ),
        )  # fmt: skip
        log = start(release).play(scenario, timeout=60)
        [_, hit] = [fact for fact in log if isinstance(fact, Admitted)]
        tails.append(hit.prompt_len - hit.matched_len)
        monitor = check(log)
        assert monitor.worst_of("USEFUL") is None
        assert monitor.checked["USEFUL"]
        assert not stale_verifies(log)
    assert max(tails) == WINDOW + page_size
