"""MAP, LOCK, CURSOR, WINDOW, PROGRESS on snapshots made by hand: one break each, or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from kvproof.model.facts import (
    Admitted,
    Advanced,
    Fact,
    Holding,
    Node,
    Pools,
    Skipped,
    Started,
    Step,
    SwaPool,
    Windowed,
)
from kvproof.model.findings import Break
from kvproof.model.judges.cursors import Cursors
from kvproof.model.judges.locks import lock_breaks
from kvproof.model.judges.partition import swa_partition_breaks
from kvproof.model.judges.swa_map import SwaView, map_breaks, view_of
from kvproof.model.monitor import check, statuses
from kvproof.model.scenario import Decode, Finish, Geometry, Piece, Prefill, Submit, Verify
from kvproof.model.verdict import NEEDS_SWA, Cause, SwaCause
from kvproof.spec.indices import Occupancy

SIZES = Geometry(
    window=4, page_size=4, slots=2, pool_tokens=48, draft_tokens=2, swa_tokens=32
)  # fmt: skip

# Node 0 is a tombstone (page 1), node 1 behind it is live (page 2 at SWA page 5). A reads both and
# holds pages 3, 4 and 5: it has given page 3's half back, 4 is at SWA page 6, 5 at 7 in part. It
# has computed 18 tokens. Node 2 is live (page 6 at SWA page 1) and nobody reads it.
SOUND = Pools(
    free=(7, 8, 9, 10, 11, 12),
    free_slots=(1,),
    nodes=(
        Node(parent=-1, tokens=(10, 11, 12, 13), locs=(4, 5, 6, 7), full_lock=1, tombstone=True),
        Node(parent=0, tokens=(14, 15, 16, 17), locs=(8, 9, 10, 11), full_lock=1, swa_lock=1),
        Node(parent=-1, tokens=(90, 91, 92, 93), locs=(24, 25, 26, 27)),
    ),
    holdings=(
        Holding(
            request="A", slot=2, protected_len=8, locs=tuple(range(4, 22)),
            locked=1, swa_locked_from=1, swa_evicted_len=12,
        ),
    ),
    counters={"available": 24, "evictable": 4, "protected": 8},
    swa=SwaPool(
        free=(2, 3, 4, 8),
        full_to_swa=((8, 20, 4), (16, 24, 6), (24, 4, 4)),
        counters={"available": 16, "evictable": 4, "protected": 4},
    ),
)  # fmt: skip
COMPUTED = {"A": 18}


def view(pools: Pools = SOUND) -> SwaView:
    found = view_of(pools, SIZES.page_size)
    assert found is not None
    return found


def with_swa(**changes: Any) -> Pools:
    assert SOUND.swa is not None
    return replace(SOUND, swa=replace(SOUND.swa, **changes))


def with_node(number: int, **changes: Any) -> Pools:
    nodes = list(SOUND.nodes)
    nodes[number] = replace(nodes[number], **changes)
    return replace(SOUND, nodes=tuple(nodes))


def with_holding(**changes: Any) -> Pools:
    return replace(SOUND, holdings=(replace(SOUND.holdings[0], **changes),))


def judged(pools: Pools, *, computed: int = 18, locks: Any = "counted") -> dict[str, list[Break]]:
    """Breaks of a snapshot by invariant; those that have any."""
    found: dict[str, Iterable[Break]] = {
        "MAP": map_breaks(view(pools)),
        "PARTITION": swa_partition_breaks(view(pools), SIZES.swa_pool_tokens),
        "LOCK": lock_breaks(pools, locks=locks, window=SIZES.window, computed={"A": computed}),
        "CURSOR": Cursors().breaks(
            view(pools), window=SIZES.window, computed={"A": computed},
            occupancies={"A": Occupancy(1)},
        ),
    }  # fmt: skip
    return {name: breaks for name, each in found.items() if (breaks := [*each])}


def test_sound_snapshot_breaks_nothing() -> None:
    assert judged(SOUND) == {}
    assert judged(SOUND, locks="seen") == {}


RUNS = ((8, 20, 4), (16, 24, 6), (24, 4, 4))

MAPS: dict[str, tuple[Pools, Cause, str]] = {
    "another place in the page": (
        with_swa(full_to_swa=((8, 20, 4), (16, 25, 6), (24, 4, 4))), "misaligned",
        "location 16 maps to 25: another place in its page",
    ),
    "two pages on one": (
        with_swa(full_to_swa=((8, 20, 4), (16, 24, 6), (24, 20, 4))), "not-injective",
        "pages 2, 6 map to SWA page 5",
    ),
    "an SWA page is free and mapped": (
        with_swa(free=(1, 2, 3, 4, 8)), "mapped-free", "page 6 maps to SWA page 1, which is free",
    ),
    "a free page is mapped": (
        with_swa(full_to_swa=(*RUNS, (28, 8, 4))), "stale-entry",
        "page 7 is free and still maps to SWA page 2",
    ),
    "a tombstone is mapped": (
        with_swa(full_to_swa=((4, 8, 4), *RUNS)), "stale-entry",
        "page 1 is in node 0, a tombstone and still maps to SWA page 2",
    ),
    "a live node is not mapped": (
        with_swa(full_to_swa=RUNS[:2]), "unmapped",
        "node 2 is no tombstone, and its pages 6 map to none",
    ),
    "a request's page is not mapped": (
        with_swa(full_to_swa=((8, 20, 4), (16, 24, 4), (24, 4, 4))), "unmapped",
        "request A has not given the SWA half of its pages 5 back, and they map to none",
    ),
    "a node's page is mapped in part": (
        with_swa(full_to_swa=((8, 20, 3), *RUNS[1:])), "torn",
        "page 2 of node 1 is mapped at places 0 to 2 of 4 alone",
    ),
    "a request's page is mapped in part": (
        with_swa(full_to_swa=((8, 20, 4), (16, 24, 5), (24, 4, 4))), "torn",
        "page 5 of request A is mapped at places 0 to 0 of 2 alone",
    ),
    "a page has a gap": (
        with_swa(full_to_swa=((8, 20, 1), (10, 22, 2), *RUNS[1:])), "torn",
        "page 2 is mapped with a gap before place 2",
    ),
    "a page lies in two": (
        with_swa(full_to_swa=((8, 20, 2), (10, 10, 2), *RUNS[1:])), "torn",
        "page 2 maps to SWA pages 5 and 2",
    ),
    "the reserved page is mapped to": (
        with_swa(full_to_swa=((8, 20, 4), (16, 24, 6), (24, 0, 4))), "reserved",
        "page 6 maps to SWA page 0; page 0 is reserved",
    ),
    "the tree says otherwise": (
        with_node(1, swa_locs=(8, 9, 10, 11)), "disagrees",
        "node 1 keeps SWA locations [8, 9, 10, 11] for its locations [8, 9, 10, 11], the map says "
        "[20, 21, 22, 23] (pages of 4)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPS)
def test_map(name: str) -> None:
    pools, cause, sentence = MAPS[name]
    assert (cause, sentence) in judged(pools)["MAP"]


def test_what_an_earlier_tenant_left_of_a_page_owns_no_page_of_the_swa_pool() -> None:
    # A has two tokens of page 5; of its other two the map still says where they were, in page 4's.
    left = with_swa(full_to_swa=((8, 20, 4), (16, 24, 6), (22, 26, 2), (24, 4, 4)))
    assert judged(left) == {"MAP": [("torn", "page 5 maps to SWA pages 7 and 6")]}


PARTITIONS: dict[str, tuple[Pools, Cause, str]] = {
    "a page has no owner": (
        with_swa(free=(2, 3, 4), counters={}), "leak",
        "SWA page 8 is in no free list, no tree node and no request",
    ),
    "a page is free twice": (
        with_swa(free=(2, 3, 4, 8, 8), counters={}), "double-free",
        "SWA page 8 stands 2 times in the free list",
    ),
    "a held page is free": (
        with_swa(free=(2, 3, 4, 6, 8), counters={}), "shared",
        "SWA page 6 has 2 owners: the free list, request A (for page 4)",
    ),
    "the reserved page is free": (
        with_swa(free=(0, 2, 3, 4, 8), counters={}), "shared",
        "SWA page 0 is reserved or outside the pool, owned by the free list",
    ),
    "a page past the pool is free": (
        with_swa(free=(2, 3, 4, 8, 9), counters={}), "shared",
        "SWA page 9 is reserved or outside the pool, owned by the free list",
    ),
    "a stale entry keeps a page": (
        with_swa(free=(3, 4, 8), full_to_swa=(*RUNS, (28, 8, 4)), counters={}), "leak",
        "SWA page 2 is in no free list, no tree node and no request; page 7 still maps there",
    ),
    "evictable": (
        with_swa(counters={"evictable": 8}), "sizes",
        "the engine counts 8 evictable SWA tokens, its objects hold 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTITIONS)
def test_partition_of_the_swa_pool(name: str) -> None:
    pools, cause, sentence = PARTITIONS[name]
    assert judged(pools)["PARTITION"] == [(cause, sentence)]


LOCKS: dict[str, tuple[Pools, int, Cause, str]] = {
    "a lock too many": (
        with_node(2, full_lock=1), 18, "lock-count",
        "node 2 has 1 locks, 0 requests hold one on it or below it",
    ),
    "a lock too few": (
        with_node(0, full_lock=0), 18, "lock-count",
        "node 0 has 0 locks, 1 requests hold one on it or below it (A)",
    ),
    "a window's lock is left": (
        with_holding(swa_locked_from=None), 18, "swa-lock-count",
        "node 1 has 1 sliding-window locks, 0 requests hold one that covers it",
    ),
    "a window's lock is gone": (
        with_node(1, swa_lock=0), 18, "swa-lock-count",
        "node 1 has 0 sliding-window locks, 1 requests hold one that covers it (A)",
    ),
    "a negative count": (
        with_node(2, swa_lock=-1), 18, "lock-order",
        "node 2 has 0 locks and -1 of the sliding window",
    ),
    "a tombstone is locked": (
        with_node(0, swa_lock=1), 18, "tombstone-locked",
        "node 0 is a tombstone and has 1 sliding-window locks",
    ),
    "a reader without a lock": (
        with_holding(locked=None, swa_locked_from=None), 18, "unlocked",
        "request A reads 8 tokens of the tree and locks none",
    ),
    "a reader with too short a lock": (
        with_holding(locked=0, swa_locked_from=None), 18, "unlocked",
        "request A reads 8 tokens of the tree and locks 4, up to node 0",
    ),
    "a lock that ends elsewhere": (
        with_holding(swa_locked_from=2), 18, "unlocked",
        "the sliding-window lock of request A is to end at node 2, which is not above node 1",
    ),
    "a lock on no node": (
        with_holding(locked=3), 18, "unlocked", "request A locks node 3, which the tree has not",
    ),
    "a window given up that is still read": (
        with_holding(swa_locked_from=None), 9, "window-unlocked",
        "the window of request A, which has computed 9 tokens, begins at 6; node 1 holds positions "
        "from 4 to 7 of it and the request gave its lock on it up",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOCKS)
def test_locks(name: str) -> None:
    pools, computed, cause, sentence = LOCKS[name]
    assert (cause, sentence) in judged(pools, computed=computed)["LOCK"]


def test_locks_that_are_only_seen_are_compared_as_such() -> None:
    """Where the window's lock ends is not told then; that its nodes are locked is."""
    seen = with_holding(swa_locked_from=None)
    assert judged(seen, locks="seen") == {}
    assert judged(seen, computed=9, locks="seen").keys() == {"CURSOR"}
    two = replace(seen, holdings=(*seen.holdings, Holding(request="B", slot=1, protected_len=0,
                                                          locs=(), locked=0)))  # fmt: skip
    assert judged(two, locks="seen") == {}
    assert {cause for cause, _ in judged(two)["LOCK"]} == {"lock-count", "swa-lock-count"}
    gone = with_node(1, swa_lock=0)
    assert [c for c, _ in judged(gone, computed=9, locks="seen")["LOCK"]] == ["window-unlocked"]


CURSORS: dict[str, tuple[Pools, int, Cause, str]] = {
    "within a page": (
        with_holding(swa_evicted_len=13), 18, "misaligned",
        "the cursor of request A stands at 13, within a page of 4",
    ),
    "past the window": (
        with_holding(swa_evicted_len=16), 18, "too-far",
        "request A has given its first 16 tokens back; its next query, at 18, sees positions from "
        "15 on, and the tree keeps 8 for it",
    ),
    "not given back": (
        with_swa(full_to_swa=((8, 20, 4), (12, 8, 4), *RUNS[1:])), 18, "not-given-back",
        "the cursor of request A stands at 12, and its page 3 before that still maps to SWA page 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURSORS)
def test_cursor(name: str) -> None:
    pools, computed, cause, sentence = CURSORS[name]
    assert (cause, sentence) in judged(pools, computed=computed)["CURSOR"]


def test_cursor_goes_back_within_an_occupancy_alone() -> None:
    cursors = Cursors()

    def look(pools: Pools, occupancy: int) -> list[Break]:
        return [
            *cursors.breaks(
                view(pools), window=4, computed=COMPUTED, occupancies={"A": Occupancy(occupancy)}
            )
        ]

    back = with_holding(swa_evicted_len=8)
    assert look(SOUND, 1) == []
    assert look(back, 1) == [("went-back", "the cursor of request A went from 12 to 8")]
    assert look(SOUND, 1) == []
    assert look(back, 2) == []


# WINDOW and PROGRESS come from a log


def log_of(*facts: Fact, pools: Pools = SOUND) -> list[Fact]:
    """A has computed 18 tokens of 18 and decodes; behind it what the test says."""
    started = Started(
        target="model", backend="rules", geometry=SIZES, ring_stride=None, reprefill_tail=0,
        swa_tokens=32, locks="counted",
    )  # fmt: skip
    empty = Pools(
        free=tuple(range(1, 13)), free_slots=(1, 2), nodes=(), holdings=(), counters={},
        swa=SwaPool(free=tuple(range(1, 9)), full_to_swa=(), counters={}),
    )  # fmt: skip
    return [
        started, empty,
        Step(index=0, operation=Submit(request="A", prompt=(Piece("A", 18),))),
        Step(index=1, operation=Submit(request="B", prompt=(Piece("A", 14), Piece("B", 40)))),
        Step(index=2, operation=Prefill(request="A")),
        Admitted(request="A", slot=2, prompt_len=18, matched_len=0),
        Windowed(request="A", mode="prefill", slot=2, start=0, first=0, locs=tuple(range(8, 26))),
        Advanced(request="A", computed_len=18),
        pools,
        *facts,
    ]  # fmt: skip


def decoded(*locs: int) -> list[Fact]:
    return log_of(
        Step(index=3, operation=Decode()),
        Windowed(request="A", mode="decode", slot=2, start=18, first=15, locs=locs),
        Advanced(request="A", computed_len=19),
    )


def sentences(log: list[Fact]) -> dict[str, str]:
    return {
        f"{invariant}/{cause}": violation.sentence
        for (invariant, cause), violation in check(log).violations.items()
    }


def test_a_window_of_the_request_s_own_keys() -> None:
    log = decoded(23, 24, 25, 26)
    assert sentences(log) == {}
    assert check(log).checked["WINDOW"] == 2


@pytest.mark.parametrize(
    ("locs", "cause", "words"),
    [
        ((23, 0, 25, 26), "unmapped", "sees position 16 at no location of the SWA pool"),
        ((23, 24, 25, 0), "unmapped", "writes its key 18 to no location of the SWA pool"),
        ((23, 22, 25, 26), "own-other-position", "sees position 16 at SWA location 22, which holds "
         "position 14 of request A, written in step 3"),
        ((31, 24, 25, 26), "never-written", "position 15 at SWA location 31, which nobody has"),
    ],
)  # fmt: skip
def test_a_window_with_a_key_that_is_not_there(
    locs: tuple[int, ...], cause: Cause, words: str
) -> None:
    [(name, sentence)] = sentences(decoded(*locs)).items()
    assert name == f"WINDOW/{cause}"
    assert sentence.startswith("the decode of request A at position 18")
    assert words in sentence


def test_another_s_key_will_do_for_the_same_prefix_alone() -> None:
    def reused(until: int) -> list[Fact]:
        window = tuple(range(8 + until - 3, 8 + until + 4))
        return log_of(
            Step(index=3, operation=Prefill(request="B")),
            Admitted(request="B", slot=1, prompt_len=40, matched_len=until),
            Windowed(
                request="B", mode="prefill", slot=1, start=until, first=until - 3, locs=window
            ),
        )

    assert not [name for name in sentences(reused(12)) if "WINDOW" in name]
    assert "position 14 of request A" in sentences(reused(16))["WINDOW/other-request"]


def test_a_forward_that_computes_nothing() -> None:
    log = log_of(Step(index=3, operation=Decode()), Advanced(request="A", computed_len=18))
    assert sentences(log) == {
        "PROGRESS/empty-step": "a forward of request A in slot 2 left its computed length at 18, "
        "from 18"
    }


FULL = {"free": (), "counters": {}}
"""Nothing is free in a pool."""


@pytest.mark.parametrize(
    "operation",
    [
        # 18 tokens lie in 5 pages, so a decode takes none: that is never refused rightly.
        Decode(),
        Finish(request="A"),
        Prefill(request="B"),  # 10 pages, a window and two in reserve: too much
    ],
)
def test_a_refusal_that_is_not_judged(operation: Any) -> None:
    log = log_of(Step(index=3, operation=operation), Skipped(reason="", no_memory=True))
    assert sentences(log) == {}


def refused(pools: Pools, tokens: int = 20) -> list[str]:
    """A decode into a new page is refused: A has computed ``tokens``, a multiple of a page."""
    [holding] = pools.holdings
    assert pools.swa is not None
    pools = replace(
        pools,
        holdings=(replace(holding, locs=tuple(range(4, 4 + tokens))),),
        swa=replace(pools.swa, full_to_swa=((8, 20, 4), (16, 24, 8), (24, 4, 4)), counters={}),
        counters={},
    )
    log = log_of(
        Step(index=3, operation=Decode()), Advanced(request="A", computed_len=tokens), pools,
        Step(index=4, operation=Decode()), Skipped(reason="no memory", no_memory=True),
    )  # fmt: skip
    return [s for name, s in sentences(log).items() if name.startswith("PROGRESS")]


def test_a_decode_refused_for_memory_that_is_free() -> None:
    assert refused(SOUND) == [
        "a decode of 1 pages was refused for memory: the full pool has 6 free pages and 1 to "
        "evict, the SWA pool 4 and 1"
    ]


def test_a_verify_is_judged_by_room_for_two_drafts() -> None:
    """A's 18 tokens lie in 5 pages of 4, and two drafts of 3 tokens go into a sixth."""
    log = log_of(Step(index=3, operation=Verify(accepted=1)), Skipped(reason="", no_memory=True))
    [sentence] = sentences(log).values()
    assert sentence.startswith("a verify of 1 pages was refused for memory")


def test_a_decode_refused_for_memory_that_the_tree_may_evict() -> None:
    taken = replace(SOUND, **FULL, swa=replace(with_swa().swa, free=()))
    assert (
        "the full pool has 0 free pages and 1 to evict, the SWA pool 0 and 1" in refused(taken)[0]
    )
    locked = replace(taken, nodes=(*taken.nodes[:2], replace(taken.nodes[2], full_lock=1)))
    assert refused(locked) == []


def test_a_decode_refused_for_memory_that_no_window_reaches() -> None:
    """Node 2 is locked with its window, and no request reads it."""
    node = replace(SOUND.nodes[2], full_lock=1, swa_lock=1)
    hoarding = replace(
        SOUND, nodes=(*SOUND.nodes[:2], node), swa=replace(with_swa().swa, free=()),
    )  # fmt: skip
    [sentence] = refused(hoarding)
    assert sentence.endswith("the SWA pool 0 and 0, and 1 cached that no window reaches")


def test_a_split_under_a_lock_is_a_witness() -> None:
    long = Node(
        parent=-1, tokens=tuple(range(10, 18)), locs=tuple(range(4, 12)), full_lock=1, swa_lock=1
    )  # fmt: skip
    before = replace(
        with_holding(locked=0, swa_locked_from=0), nodes=(long, replace(SOUND.nodes[2], parent=-1))
    )  # fmt: skip
    log = log_of(Step(index=3, operation=Decode()), SOUND, pools=before)
    assert check(log).witnesses["node split under a lock"] == 1
    assert check(log_of(pools=SOUND)).witnesses["node split under a lock"] == 0


def test_what_is_not_told_is_skipped() -> None:
    told = log_of()
    untold = [replace(fact, swa=None) if isinstance(fact, Pools) else fact for fact in told
              if not isinstance(fact, Windowed)]  # fmt: skip
    words = statuses(check([replace(untold[0], locks="untold"), *untold[1:]]))
    assert {words[invariant] for invariant in NEEDS_SWA} == {"skipped"}


def test_every_cause_has_a_case() -> None:
    tables = (MAPS, PARTITIONS, LOCKS, CURSORS)
    causes = {row[-2] for table in tables for row in table.values()}  # type: ignore[attr-defined]
    elsewhere = {"went-back", "empty-step", "refused", "hoarded", "pinned"}
    assert set(get_args(SwaCause)) == (causes | elsewhere) & set(get_args(SwaCause))
