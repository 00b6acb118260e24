"""Every cause of every invariant: a log that has exactly it, and a twin that has not.

A log comes from the reference engine with a fault or a weak policy, or, where no engine of ours
can go wrong that way, from a clean log with one fact edited by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import pytest

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Allocated,
    Breached,
    Complained,
    Completed,
    Ended,
    Fact,
    Freed,
    Launched,
    Pool,
    Pools,
    Read,
    Started,
    Step,
    Translated,
    Wrote,
)
from kvproof.model.monitor import check
from kvproof.model.policy import Fault, RingFault, StreamFault
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
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
from kvproof.model.verdict import (
    CAUSES,
    INVARIANTS,
    NEEDS_SWA,
    CacheCause,
    CacheInvariant,
    Cause,
    Invariant,
    SwaCause,
)

PAGED = Geometry(window=4, page_size=4, slots=2, pool_tokens=64)
ONE_SLOT = Geometry(window=4, page_size=1, slots=1, pool_tokens=64)
TWO_SLOTS = Geometry(window=4, page_size=1, slots=2, pool_tokens=64)
DRAFTING = Geometry(window=4, page_size=1, slots=1, pool_tokens=64, draft_tokens=2)

OVERLAPPED = Geometry(
    window=4, page_size=1, slots=1, pool_tokens=64, draft_tokens=2, overlap=1
)  # fmt: skip

POOLS: tuple[Pool, ...] = get_args(Pool)

X1 = {("FRESH-PREFILL", cause) for cause in CAUSES}
"""Not asked about where a prefix is reused: the first tail queries read rows below it (X1)."""


def arrive(name: str, *pieces: tuple[str, int], chunk: int | None = None) -> list[Operation]:
    prompt = tuple(Piece(text, until) for text, until in pieces)
    return [Submit(request=name, prompt=prompt), Prefill(request=name, tokens=chunk)]


def come_and_go(name: str, *pieces: tuple[str, int]) -> list[Operation]:
    return [*arrive(name, *pieces), Finish(request=name)]


def play(
    geometry: Geometry, operations: Sequence[Operation], *, rows: bool = True, **policy: Any
) -> list[Fact]:
    """Log of the reference engine; without ``rows`` of its caches alone."""
    policy["faults"] = frozenset(policy.get("faults", ()))
    player = reference_player(geometry, Policy(**policy))
    if not rows:
        player.forward = None
    return list(player.play(Scenario(geometry=geometry, operations=tuple(operations))))


def edit_last(
    log: list[Fact], kind: type[Fact], change: Callable[[Any], dict[str, Any]]
) -> list[Fact]:
    """The log with its last fact of a kind changed."""
    index = max(at for at, fact in enumerate(log) if isinstance(fact, kind))
    changed = msgspec.structs.replace(log[index], **change(log[index]))
    return [*log[:index], changed, *log[index + 1 :]]


def breached(log: list[Fact]) -> list[Fact]:
    """The log with a launch that the kernel proofs do not speak about, before its end."""
    breach = Breached(assumption="H6", kernel="scatter", message="slot 1 has a position twice")
    return [*log[:-1], breach, log[-1]]


RECYCLED = [
    *come_and_go("A", ("A", 16)), *come_and_go("B", ("B", 16)), *arrive("C", ("A", 16), ("C", 18)),
]  # fmt: skip
"""The three requests of PR #30339: C reuses A's prefix in the slot that B wrote last."""

SAME_PREFIX = [*come_and_go("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 18))]
FRESH_SLOT = [*arrive("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 18))]
REUSED_AFTER_B = [*come_and_go("A", ("A", 16)), *arrive("B", ("B", 16))]
CACHED = come_and_go("A", ("A", 18))
HELD = arrive("A", ("A", 18))
VERIFIED = [*arrive("A", ("A", 6)), Verify(accepted=1), Decode()]


@dataclass(frozen=True, kw_only=True)
class Case:
    """``log`` must break exactly ``breaks``, and ``twin`` none of it.

    ``reuses`` where a prefix is reused: then FRESH-PREFILL breaks as well, in both.
    """

    name: str
    breaks: set[tuple[Invariant, Cause]]
    log: Callable[[], list[Fact]]
    twin: Callable[[], list[Fact]]
    faults: set[Fault] = field(default_factory=set)
    reuses: bool = False


def stale_decode(cause: Cause, geometry: Geometry, before: Sequence[Operation]) -> Case:
    """A decode after a hit with a tail of two: W - 2, the longest that is too short."""
    operations = [*before, Decode()]
    return Case(
        name=f"decode reads {cause}",
        breaks={("FRESH-DECODE", cause)},
        log=lambda: play(geometry, operations, reprefill_tail=2),
        twin=lambda: play(geometry, operations, reprefill_tail=3),
        reuses=True,
    )


def stale_prefill(cause: Cause, geometry: Geometry, before: Sequence[Operation]) -> Case:
    """A hit; the twin's last request shares nothing. No cap helps, see X1."""
    alone = [*before[:-2], *arrive("C", ("C", 18))]
    return Case(
        name=f"prefill reads {cause}",
        breaks={("FRESH-PREFILL", cause)},
        log=lambda: play(geometry, before, reprefill_tail=2),
        twin=lambda: play(geometry, alone, reprefill_tail=2),
    )


def with_fault(
    fault: Fault,
    breaks: set[tuple[Invariant, Cause]],
    geometry: Geometry,
    operations: Sequence[Operation],
    *,
    rows: bool = True,
    **policy: Any,
) -> Case:
    return Case(
        name=f"fault: {fault}",
        breaks=breaks,
        faults={fault},
        log=lambda: play(geometry, operations, rows=rows, faults={fault}, **policy),
        twin=lambda: play(geometry, operations, rows=rows, **policy),
    )


def edited(
    name: str,
    breaks: set[tuple[Invariant, Cause]],
    kind: type[Fact],
    change: Callable[[Any], dict[str, Any]],
    log: Callable[[], list[Fact]],
) -> Case:
    return Case(name=name, breaks=breaks, log=lambda: edit_last(log(), kind, change), twin=log)


def edited_pools(
    name: str,
    cause: Cause,
    change: Callable[[Pools], dict[str, Any]],
    log: Callable[[], list[Fact]],
) -> Case:
    return edited(name, {("PARTITION", cause)}, Pools, change, log)


def clean() -> list[Fact]:
    return play(ONE_SLOT, [*arrive("A", ("A", 6)), Decode()])


def cached() -> list[Fact]:
    return play(PAGED, CACHED)


def held() -> list[Fact]:
    return play(PAGED, HELD)


def shifted(locs: Sequence[int], *, by: int) -> tuple[int, ...]:
    return tuple(loc + by for loc in locs)


def with_payload() -> list[Fact]:
    """The last read with what its rows really held: decode writes first, so all is there."""
    log = clean()
    return edit_last(log, Read, lambda read: {"seen": tuple((1, read.first + i) for i in range(4))})


def told(*facts: Fact) -> list[Fact]:
    """A recorder's log: what allocators did, and no snapshots."""
    started = Started(
        target="model", backend="rules", geometry=PAGED, ring_stride=4, reprefill_tail=0,
        swa_tokens=PAGED.pool_tokens,
    )  # fmt: skip
    return [started, Step(index=0, operation=Decode()), *facts, Ended(steps=1)]


def lent() -> list[Fact]:
    """Two pages of each pool; the first half of them is translated, and both pages come back."""
    return told(
        *(Allocated(pool=pool, locs=((4, 8), (8, 12))) for pool in POOLS),
        Translated(full=((4, 8),), swa=((8, 12),)),
        Translated(full=((8, 12),), swa=((4, 8),)),
        Freed(pool="full", locs=((4, 8),)),
        Freed(pool="full", locs=((8, 12),)),
    )


CASES = [
    edited(
        "a location is lent twice", {("PARTITION", "lent-twice")},
        Allocated, lambda _: {"locs": ((4, 8), (7, 12))}, lent,
    ),
    edited(
        "a location outside the pool", {("PARTITION", "lent-twice")},
        Allocated, lambda _: {"locs": ((4, 8), (8, 12), (10**6, 10**6 + 4))}, lent,
    ),
    edited(
        "a page is given back while free", {("PARTITION", "double-free")},
        Freed, lambda _: {"locs": ((4, 8),)}, lent,
    ),
    edited(
        "a translation to what is free", {("PARTITION", "translated-free")},
        Translated, lambda _: {"swa": ((12, 16),)}, lent,
    ),
    edited(
        "a translation of what is free", {("PARTITION", "translated-free")},
        Translated, lambda _: {"full": ((12, 16),)}, lent,
    ),
    edited(
        "two locations are translated to one", {("PARTITION", "translated-foreign")},
        Translated, lambda _: {"swa": ((8, 12),)}, lent,
    ),
    edited(
        "a translation to another place in the page", {("PARTITION", "misaligned")},
        Translated, lambda _: {"swa": ((5, 9),)}, lent,
    ),
    # FRESH-DECODE
    stale_decode("other-request", ONE_SLOT, RECYCLED),
    stale_decode("same-content", ONE_SLOT, SAME_PREFIX),
    stale_decode("never-written", TWO_SLOTS, FRESH_SLOT),
    Case(
        name="decode reads own-other-position: the stride is one short",
        breaks={("FRESH-DECODE", "own-other-position")},
        log=lambda: play(ONE_SLOT, [*arrive("A", ("A", 4)), Decode()], stride=3),
        twin=lambda: play(ONE_SLOT, [*arrive("A", ("A", 4)), Decode()], stride=4),
    ),
    Case(
        name="decode reads rejected-draft: it reads before it writes",
        breaks={("FRESH-DECODE", "rejected-draft")},
        log=lambda: play(DRAFTING, VERIFIED, decode_order="read, then write"),
        twin=lambda: play(DRAFTING, VERIFIED),
    ),
    # FRESH-PREFILL
    stale_prefill("other-request", ONE_SLOT, RECYCLED),
    stale_prefill("same-content", ONE_SLOT, SAME_PREFIX),
    stale_prefill("never-written", TWO_SLOTS, FRESH_SLOT),
    Case(
        name="prefill reads own-other-position: its chunk is scattered first",
        breaks={("FRESH-PREFILL", "own-other-position")},
        log=lambda: play(
            ONE_SLOT,
            [*arrive("A", ("A", 6), chunk=4), Prefill(request="A")],
            prefill_order="write, then read",
        ),
        twin=lambda: play(ONE_SLOT, [*arrive("A", ("A", 6), chunk=4), Prefill(request="A")]),
    ),
    # IN-FLIGHT
    with_fault(
        "abort frees at once",
        {("IN-FLIGHT", "rewritten")}
        | {("PARTITION", cause) for cause in ("shared", "lent-twice", "double-free")},
        OVERLAPPED, [*HELD, Abort(request="A"), *arrive("B", ("B", 6)), Decode()], rows=False,
    ),
    with_fault(
        "draft extend reads the table", {("IN-FLIGHT", "rewritten")}, OVERLAPPED,
        [
            *come_and_go("A", ("A", 4)), Verify(accepted=1), *arrive("B", ("B", 6)), Decode(),
        ],
    ),
    with_fault(
        "window by scheduled length", {("IN-FLIGHT", "freed")},
        Geometry(
            window=8, page_size=4, slots=1, pool_tokens=64, draft_tokens=4, overlap=1
        ),
        [*arrive("A", ("A", 8)), *[Verify(accepted=1)] * 3], rows=False, window_pages=True,
    ),
    edited(
        "a step that reads another's page", {("IN-FLIGHT", "overwritten")},
        Launched, lambda fact: {"lanes": tuple(
            msgspec.structs.replace(lane, locs=(fact.lanes[1].locs[0], *lane.locs[1:]))
            for lane in fact.lanes
        )},
        lambda: play(
            msgspec.structs.replace(OVERLAPPED, slots=2),
            [*arrive("A", ("A", 4)), *arrive("B", ("B", 4)), Decode()],
        ),
    ),
    edited(
        "a result of a step that was not launched", {("IN-FLIGHT", "not-launched")},
        Completed, lambda _: {"launch": 3},
        lambda: play(OVERLAPPED, [*arrive("A", ("A", 4)), Decode()]),
    ),
    # PARTITION
    with_fault(
        "lend padding slot", {("PARTITION", "lent-twice")}, ONE_SLOT, HELD, rows=False
    ),
    with_fault(
        "slot lent twice", {("PARTITION", "lent-twice"), ("PARTITION", "shared")},
        TWO_SLOTS, [*HELD, *arrive("B", ("B", 6))], rows=False,
    ),
    edited(
        "a slot is lent that another request holds", {("PARTITION", "lent-twice")},
        Admitted, lambda _: {"slot": 1},
        lambda: play(TWO_SLOTS, [*HELD, *arrive("B", ("B", 6))], rows=False),
    ),
    with_fault(
        "double free on finish", {("PARTITION", "double-free")}, PAGED, come_and_go("A", ("A", 3))
    ),
    edited_pools(
        "a slot is freed twice", "double-free",
        lambda pools: {"free_slots": (*pools.free_slots, pools.free_slots[0])}, cached,
    ),
    Case(
        name="a page of the tree is freed",
        breaks={("PARTITION", "shared")},
        log=lambda: play(PAGED, CACHED, faults={"double free on finish"}),
        twin=cached,
    ),
    edited_pools(
        "a held slot is free", "shared", lambda pools: {"free_slots": (1, *pools.free_slots)}, held
    ),
    edited_pools(
        "the reserved page is free", "shared",
        lambda pools: {"free": (0, *pools.free), "counters": {}}, cached,
    ),
    edited_pools(
        "a page past the pool is free", "shared",
        lambda pools: {"free": (*pools.free, 17), "counters": {}}, cached,
    ),
    with_fault(
        "leak on abort", {("PARTITION", "leak")}, PAGED, [*HELD, Abort(request="A")]
    ),
    with_fault(
        "share duplicate pages", {("PARTITION", "leak")}, PAGED,
        [
            *arrive("A", ("A", 8), chunk=4), Prefill(request="A"),
            Submit(request="B", prompt=(Piece("A", 8),)), Prefill(request="B"),
            Finish(request="A"), Finish(request="B"),
        ],
        rows=False,
    ),
    edited_pools("a slot is lost", "leak", lambda _: {"free_slots": (1,)}, cached),
    edited(
        "a request reads a page as the tree's that is not in it",
        {("PARTITION", "leak"), ("LOCK", "unlocked")},
        Pools, lambda _: {"nodes": (), "counters": {}}, held,
    ),
    edited_pools(
        "a request's token is not at its place in the page", "misaligned",
        lambda pools: {
            "holdings": tuple(
                msgspec.structs.replace(h, locs=(*h.locs[:-1], h.locs[-1] + 1))
                for h in pools.holdings
            )
        },
        held,
    ),
    edited_pools(
        "a token of the tree lies in its neighbour's place", "misaligned",
        lambda pools: {
            "nodes": (
                msgspec.structs.replace(pools.nodes[0], locs=pools.nodes[0].locs[::-1]),
                *pools.nodes[1:],
            )
        },
        cached,
    ),
    with_fault("miscount", {("PARTITION", "sizes")}, PAGED, CACHED),
    edited_pools(
        "available is miscounted", "sizes",
        lambda pools: {"counters": {**pools.counters, "available": 1}}, cached,
    ),
    edited_pools(
        "protected is miscounted", "sizes",
        lambda pools: {"counters": {**pools.counters, "protected": 0}}, held,
    ),
    # PADDING
    with_fault(
        "pad into last slot", {("PADDING", "padding-escapes")}, TWO_SLOTS, [*HELD, Decode(pad=1)]
    ),
    Case(
        name="a request writes and reads the padding slot",
        breaks={("PADDING", "request-in-padding"), ("PARTITION", "lent-twice")},
        log=lambda: play(ONE_SLOT, HELD, faults={"lend padding slot"}),
        twin=lambda: play(ONE_SLOT, HELD),
    ),
    edited(
        "a padded row reads another slot", {("PADDING", "padding-escapes")},
        Read, lambda _: {"rows": (4,)}, lambda: play(ONE_SLOT, [*HELD, Decode(pad=1)]),
    ),
    # USEFUL
    with_fault("never reuse", {("USEFUL", "no-reuse")}, ONE_SLOT, RECYCLED),
    Case(
        name="the cap holds a page more back than it has to",
        breaks={("USEFUL", "no-reuse")},
        log=lambda: play(PAGED, [*CACHED, *arrive("C", ("A", 23))], reprefill_tail=8),
        twin=lambda: play(PAGED, [*CACHED, *arrive("C", ("A", 23))], reprefill_tail=7),
        reuses=True,
    ),
    # REFINES
    edited(
        "a read of the rows in another order",
        {("REFINES", "row"), ("FRESH-DECODE", "own-other-position")},
        Read,
        lambda read: {"rows": read.rows[::-1]},
        clean,
    ),
    edited(
        "a write to another row", {("REFINES", "row")},
        Wrote, lambda wrote: {"rows": (wrote.rows[0] + 1, *wrote.rows[1:])},
        lambda: play(ONE_SLOT, arrive("A", ("A", 6))),
    ),
    edited(
        "a write to the row that another slot's request would have", {("REFINES", "row")},
        Wrote, lambda wrote: {"slot": 2, "rows": shifted(wrote.rows, by=4)},
        lambda: play(TWO_SLOTS, arrive("A", ("A", 6))),
    ),
    edited(
        "a write of a request that holds no slot", {("REFINES", "row")},
        Wrote, lambda _: {"request": "Z"}, lambda: play(ONE_SLOT, arrive("A", ("A", 6))),
    ),
    edited(
        "a window without its oldest key", {("REFINES", "window")},
        Read, lambda read: {"first": read.first + 1, "rows": read.rows[1:]}, clean,
    ),
    edited(
        "a window without its newest key", {("REFINES", "window")},
        Read, lambda read: {"rows": read.rows[:-1]}, clean,
    ),
    edited(
        "a read of a request that holds no slot", {("REFINES", "window")},
        Read, lambda _: {"request": "Z"}, clean,
    ),
    with_fault(
        "match beyond tree", {("REFINES", "match"), ("PARTITION", "shared")},
        ONE_SLOT, REUSED_AFTER_B, rows=False,
    ),
    edited(
        "a match of more than is cached", {("REFINES", "match")},
        Admitted, lambda _: {"matched_len": 17}, lambda: play(ONE_SLOT, SAME_PREFIX, rows=False),
    ),
    edited(
        "a match that is not page aligned", {("REFINES", "match")},
        Admitted, lambda fact: {"matched_len": fact.matched_len - 1},
        lambda: play(PAGED, [*CACHED, *arrive("C", ("A", 22))], rows=False),
    ),
    edited(
        "a row that holds another position", {("REFINES", "payload")},
        Read, lambda read: {"seen": ((1, 0), *read.seen[1:])}, with_payload,
    ),
    edited(
        "a row that was wiped", {("REFINES", "payload")},
        Read, lambda read: {"seen": (None, *read.seen[1:])}, with_payload,
    ),
    edited(
        "the tree answers for tokens that nobody has computed", {("REFINES", "uncomputed")},
        Advanced, lambda _: {"computed_len": 12}, held,
    ),
    Case(
        name="the engine's own check of its tree fails",
        breaks={("REFINES", "own-check")},
        log=lambda: [*clean()[:-1], Complained(message="1 lock is left"), clean()[-1]],
        twin=clean,
    ),
    Case(
        name="a launch that breaks what the proofs assume",
        breaks={("REFINES", "assumption")},
        log=lambda: breached(clean()), twin=clean,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_log_breaks_exactly_what_is_wrong_with_it(case: Case) -> None:
    broken = set(check(case.log()).violations)
    assert broken - (X1 if case.reuses else set()) == case.breaks


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_clean_twin_breaks_nothing(case: Case) -> None:
    broken = set(check(case.twin()).violations)
    # What a twin shares with its log beside the seeded defect is the known one of X1.
    known = X1 if case.reuses or "never reuse" in case.faults else set()
    assert broken - known == set()
    assert not broken & case.breaks


def test_every_cause_invariant_and_fault_has_a_case() -> None:
    breaks = {pair for case in CASES for pair in case.breaks}
    causes = {cause for invariant, cause in breaks if invariant not in NEEDS_SWA}
    assert causes == set(get_args(CacheCause))
    assert set(CAUSES) == set(get_args(CacheCause)) | set(get_args(SwaCause))
    assert (
        {invariant for invariant, _ in breaks} | NEEDS_SWA
        == set(INVARIANTS)
        == set(get_args(CacheInvariant))
    )
    assert {fault for case in CASES for fault in case.faults} == (
        {*get_args(RingFault), *get_args(StreamFault)}
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sentence_names_who_or_what(case: Case) -> None:
    for violation in check(case.log()).violations.values():
        assert any(word in violation.sentence for word in ("request", "page", "slot", "row", "node",
                                                           "location", "engine"))  # fmt: skip
        assert any(character.isdigit() for character in violation.sentence) or (
            "holds no slot" in violation.sentence or "without a slot" in violation.sentence
        )
        assert violation.step >= 0
        assert violation.invariant in INVARIANTS
        assert (violation.evidence is not None) == violation.invariant.startswith("FRESH")
