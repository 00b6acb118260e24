"""P1 to P8: the tree, its locks, the pools and the map, for one arbitrary page at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import z3

from kvproof.model.tree import (
    Locks,
    Owners,
    allocated,
    allocated_pair,
    buried,
    discarded,
    evicted,
    locked,
    mapped_page,
    may_evict,
    published,
    recovered,
    swa_page_free,
    unlocked,
    window_released,
)
from kvproof.proofs.asked import Eviction
from kvproof.proofs.theorem import (
    UNCAPPED,
    Check,
    Claim,
    Enumeration,
    Fact,
    Obligation,
    Term,
    Theorem,
    Values,
)
from kvproof.spec.cursor import cursor, cursor_margin, window_left
from kvproof.spec.indices import FullLoc, Occupancy, Page, Position
from kvproof.spec.pages import page_floor
from kvproof.spec.radix import (
    ROOT,
    MatchRun,
    cached_pages,
    extend_match,
    inserted,
    kept_page,
    locked_from,
    page_prefixes,
    recovered_page,
    window_match,
)
from kvproof.spec.schedule import next_occupancy
from kvproof.spec.terms import maximum, minimum
from kvproof.spec.translate import RESERVED_LOC, swa_loc
from kvproof.spec.window import window_start

W, P = z3.Ints("W P")
_sizes = (W >= 1, P >= 1)

# P1: a match, page by page. Ghosts: the last tombstone so far and the last one within the match,
# counted in pages; one arbitrary tombstone at page K.

K, LAST, LAST_IN_MATCH = z3.Ints("k last last_in_match")


def _match_run() -> MatchRun:
    pages, best, since = z3.Ints("pages best since")
    return MatchRun(pages=pages, best=best, since_tombstone=since, tombstone_seen=z3.Bool("seen"))


def _match_invariant(run: MatchRun, last: Term, in_match: Term) -> Fact:
    return z3.And(
        run.best >= 0,
        run.best <= run.pages,
        last >= 0,
        last <= run.pages,
        in_match >= 0,
        in_match <= run.best,
        run.since_tombstone == (run.pages - last) * P,
        run.tombstone_seen == (last > 0),
        z3.Or(in_match == 0, (run.best - in_match) * P >= W),
        z3.Implies(run.pages >= K, last >= K),
        z3.Implies(run.best >= K, in_match >= K),
    )


def _match_start() -> Claim:
    run = MatchRun(
        pages=z3.IntVal(ROOT.pages),
        best=z3.IntVal(ROOT.best),
        since_tombstone=z3.IntVal(ROOT.since_tombstone),
        tombstone_seen=z3.BoolVal(ROOT.tombstone_seen),
    )
    return Claim(given=(*_sizes, K >= 1), then=_match_invariant(run, z3.IntVal(0), z3.IntVal(0)))


def _match_step() -> Claim:
    run, live = _match_run(), z3.Bool("live")
    after = extend_match(run, live, P, W)
    last = z3.If(live, LAST, run.pages + 1)
    in_match = z3.If(after.best == run.pages + 1, last, LAST_IN_MATCH)
    return Claim(
        given=(
            *_sizes,
            K >= 1,
            run.pages >= 0,
            _match_invariant(run, LAST, LAST_IN_MATCH),
            z3.Implies(run.pages + 1 == K, z3.Not(live)),
        ),
        then=_match_invariant(after, last, in_match),
    )


def _no_tombstone_in_window() -> Claim:
    run = _match_run()
    return Claim(
        given=(
            *_sizes,
            K >= 1,
            run.best >= K,
            _match_invariant(run, LAST, LAST_IN_MATCH),
        ),
        then=(run.best - K) * P >= W,
    )


def _longest() -> Claim:
    """A page behind which a match may end is not passed over."""
    run, live = _match_run(), z3.Bool("live")
    after = extend_match(run, live, P, W)
    whole = z3.Or(z3.Not(run.tombstone_seen), run.since_tombstone + P >= W)
    return Claim(
        given=(*_sizes, run.pages >= 0, run.best >= 0, run.best <= run.pages),
        then=z3.And(
            after.best >= run.best,
            z3.Implies(z3.And(live, whole), after.best == run.pages + 1),
        ),
    )


def _multiple_of_page() -> Claim:
    t = z3.Int("t")
    return Claim(given=(P >= 1,), then=(t * P) % P == 0)


def _lock_meets_no_tombstone() -> Claim:
    """A tombstone ends at least a window before the match does, so its page is not locked."""
    best = z3.Int("best")
    gap = (best - K) * P
    matched = best * P
    return Claim(
        given=(
            *_sizes,
            K >= 1,
            best >= K,
            gap >= W,
            gap % P == 0,
            matched == K * P + gap,
        ),
        then=locked_from(matched, W, P) >= K * P,
    )


def _lock_spans_window() -> Claim:
    matched = z3.Int("matched")
    start = locked_from(matched, W, P)
    return Claim(
        given=(*_sizes, matched >= 0, matched % P == 0),
        then=z3.And(start % P == 0, matched - start >= minimum(matched, W)),
    )


def _one_page_less() -> Claim:
    """A match that needs one live page less than a window since the last tombstone."""
    run = _match_run()
    return Claim(
        given=(
            *_sizes,
            W > P,
            run.tombstone_seen,
            run.since_tombstone >= 0,
            run.pages >= 1,
            run.since_tombstone % P == 0,
            run.since_tombstone + P >= W - P,
        ),
        then=extend_match(run, z3.BoolVal(True), P, W).since_tombstone >= W,
        show={"W": W, "P": P, "since": run.since_tombstone},
    )


def _short_run(found: Values) -> Check:
    window, page = found["W"], found["P"]
    live = [False] + [True] * (found["since"] // page + 1)
    pages = window_match(live, page, window)
    return Check(
        model="RADIX-3 on a path",
        invariant="a match has a live window behind it",
        broken=pages < len(live),
        says=f"W={window}, P={page}: behind a tombstone and {len(live) - 1} live pages a match "
        f"ends at {pages} pages, not {len(live)}",
    )


# P2: locks of one page. Ghosts: outstanding locks that cover it with both halves, or the path only.

BOTH, PATH = z3.Ints("both path")


def _locks() -> Locks:
    full, swa = z3.Ints("full swa")
    return Locks(full=full, swa=swa, tombstone=z3.Bool("tombstone"))


def _lock_invariant(page: Locks, both: Term, path: Term) -> Fact:
    return z3.And(
        both >= 0,
        path >= 0,
        page.full == both + path,
        page.swa == both,
        z3.Implies(page.tombstone, page.swa == 0),
    )


def _lock_claim(
    after: Callable[[Locks], Locks], *given: Fact, both: int = 0, path: int = 0
) -> Callable[[], Claim]:
    def claim() -> Claim:
        page = _locks()
        return Claim(
            given=(_lock_invariant(page, BOTH, PATH), *given),
            then=_lock_invariant(after(page), BOTH + both, PATH + path),
        )

    return claim


def _tombstone_free() -> Fact:
    return z3.Not(_locks().tombstone)


def _ordered() -> Claim:
    page = _locks()
    return Claim(
        given=(_lock_invariant(page, BOTH, PATH),),
        then=z3.And(
            page.full >= page.swa, page.swa >= 0, z3.Implies(page.tombstone, page.swa == 0)
        ),
    )


def _held_window_stays() -> Claim:
    """While a lock covers the page with its window, the page is no tombstone and stays cached."""
    page = _locks()
    after = buried(page)
    return Claim(
        given=(_lock_invariant(page, BOTH, PATH), BOTH >= 1),
        then=z3.And(z3.Not(after.tombstone), z3.Not(may_evict(page))),
    )


def _no_later_window() -> Claim:
    """CURSOR-3: whoever gives a window up early sees the tree's part of its prefix no more."""
    protected, query = z3.Ints("protected query")
    return Claim(
        given=(W >= 1, LEN >= 0, protected >= 0, window_left(LEN, protected, W), query >= LEN),
        then=window_start(Position(query), W) >= protected,
    )


def _lock_undone() -> Claim:
    page = _locks()
    on_path, in_window = z3.Bools("on_path in_window")
    back = unlocked(
        locked(page, on_path=on_path, in_window=in_window), on_path=on_path, in_window=in_window
    )
    return Claim(given=(), then=z3.And(back.full == page.full, back.swa == page.swa))


# P3: owners of one page, and of all pages counted together


def _owners(prefix: str = "") -> Owners:
    free, tree, private = z3.Ints(f"{prefix}free {prefix}tree {prefix}private")
    return Owners(free=free, tree=tree, private=private)


def _one_owner(page: Owners, total: Term) -> Fact:
    return z3.And(
        page.free >= 0,
        page.tree >= 0,
        page.private >= 0,
        page.free + page.tree + page.private == total,
    )


def _owner_claim(after: Callable[[Owners], Owners], taken_from: str) -> Callable[[], Claim]:
    """The operation takes from a place where something is; ``total`` is 1 for a page."""

    def claim() -> Claim:
        page, total = _owners(), z3.Int("total")
        return Claim(
            given=(_one_owner(page, total), getattr(page, taken_from) >= 1),
            then=_one_owner(after(page), total),
        )

    return claim


def _recovery_keeps_one() -> Claim:
    """RADIX-11: one of both pages stays, the other has an owner to go to, no reader's goes."""
    held, cached, offered = z3.Bool("held"), z3.Int("cached"), z3.Int("offered")
    kept = recovered_page(held, Page(cached), Page(offered))
    return Claim(
        given=(cached != offered,),
        then=z3.And(z3.Or(kept == cached, kept == offered), z3.Implies(held, kept == cached)),
    )


def _all_idle() -> Claim:
    """No request: nothing is private and no lock is out, so all is free or may be evicted."""
    page, locks = _owners(), _locks()
    return Claim(
        given=(
            _one_owner(page, 1),
            page.private == 0,
            _lock_invariant(locks, BOTH, PATH),
            BOTH == 0,
            PATH == 0,
        ),
        then=z3.Or(page.free == 1, z3.And(page.tree == 1, may_evict(locks))),
    )


# P4: the map. Two arbitrary locations, by page and place in the page.

FX, FY, IX, IY, GX, GY, F, G = z3.Ints("fx fy ix iy gx gy f g")
_swa_free = z3.Function("swa_free", z3.IntSort(), z3.BoolSort())


def _mapped(page: Term, swa_page: Term) -> Fact:
    """INV. A mapped page's sliding-window page is not free."""
    return z3.Implies(swa_page != 0, z3.And(swa_page >= 1, z3.Not(_swa_free(swa_page)), page >= 1))


_map_given = (
    P >= 1, FX >= 1, FY >= 1, IX >= 0, IX < P, IY >= 0, IY < P,
    z3.Or(FX != FY, IX != IY), z3.Implies(FX == FY, GX == GY), GX >= 0, GY >= 0,
    _mapped(FX, GX), _mapped(FY, GY), z3.Implies(z3.And(FX != FY, GX != 0), GX != GY),
)  # fmt: skip


def _loc(page: Term, place: Term) -> FullLoc:
    return FullLoc(page * P + place)


def _map_claim(*given: Fact, to: Term, lent: Term, returned: Term) -> Callable[[], Claim]:
    """After page F was mapped to ``to``: still injective, and no mapped page is free."""

    def claim() -> Claim:
        gx, gy = mapped_page(FX, GX, page=F, to=to), mapped_page(FY, GY, page=F, to=to)

        def free(page: Term) -> Fact:
            return swa_page_free(page, _swa_free(page), lent=lent, returned=returned)

        return Claim(
            given=(*_map_given, F >= 1, *given),
            then=z3.And(
                z3.Implies(z3.And(FX != FY, gx != 0), gx != gy),
                z3.Implies(gx != 0, z3.Not(free(gx))),
                z3.Implies(FX == FY, gx == gy),
            ),
        )

    return claim


def _old(page: Term) -> Fact:
    """``page`` is what F was mapped to before the operation."""
    return z3.And(
        z3.Implies(FX == F, page == GX),
        z3.Implies(FY == F, page == GY),
        page >= 0,
        z3.Implies(z3.And(page != 0, FX != F), page != GX),
        z3.Implies(z3.And(page != 0, FY != F), page != GY),
    )


def _injective() -> Claim:
    """Different locations of mapped pages have different entries."""
    one, other = swa_loc(_loc(FX, IX), Page(GX), P), swa_loc(_loc(FY, IY), Page(GY), P)
    return Claim(
        given=(*_map_given, GX != 0, GY != 0, _loc(FX, IX) % P == IX, _loc(FY, IY) % P == IY),
        then=one != other,
    )


def _place_of_loc() -> Claim:
    return Claim(given=(P >= 1, IX >= 0, IX < P), then=_loc(FX, IX) % P == IX)


def _congruent() -> Claim:
    """An entry has its location's place in the page, and lies in the sliding-window page."""
    entry = swa_loc(_loc(FX, IX), Page(GX), P)
    return Claim(
        given=(P >= 1, IX >= 0, IX < P, FX >= 1, GX >= 1, _loc(FX, IX) % P == IX),
        then=z3.And(entry == GX * P + IX, entry >= P),
    )


def _unmapped_reserved() -> Claim:
    return Claim(
        given=(P >= 1, FX >= 1), then=swa_loc(_loc(FX, IX), Page(z3.IntVal(0)), P) == RESERVED_LOC
    )


# P5: the cursor

EVICTED, PROTECTED, LEN, MARGIN = z3.Ints("evicted protected len margin")
_cursor_given = (
    *_sizes, EVICTED >= 0, PROTECTED >= 0, LEN >= 0, EVICTED % P == 0, PROTECTED % P == 0,
    PROTECTED <= LEN,
)  # fmt: skip


def _cursor_ordered() -> Claim:
    after = cursor(EVICTED, PROTECTED, LEN, cursor_margin(W, P), P)
    return Claim(
        given=_cursor_given,
        then=z3.And(after % P == 0, after >= EVICTED, after >= PROTECTED),
    )


def _cursor_behind_readers() -> Claim:
    """The next query, at ``len``, looks back to ``len - W + 1``: that is not given back."""
    after = cursor(EVICTED, PROTECTED, LEN, cursor_margin(W, P), P)
    return Claim(
        given=(*_cursor_given, maximum(0, LEN - W) >= EVICTED),
        then=after <= maximum(PROTECTED, maximum(0, LEN - W)),
    )


def _keeps_page(margin: Term, *given: Fact) -> Claim:
    """What the cursor frees of a request's own leaves a page of what it will insert."""
    after = cursor(EVICTED, PROTECTED, LEN, margin, P)
    return Claim(
        given=(*_cursor_given, *given, after > EVICTED, after > PROTECTED),
        then=page_floor(LEN, P) - after >= P,
        show={"W": W, "P": P, "len": LEN},
    )


def _keeps_window(margin: Callable[[], Term], *given: Fact) -> Callable[[], Claim]:
    """What the cursor leaves below the insert boundary is a window, so that the match finds it."""

    def claim() -> Claim:
        after = cursor(EVICTED, PROTECTED, LEN, margin(), P)
        return Claim(
            given=(*_cursor_given, *given, after > EVICTED, after > PROTECTED),
            then=page_floor(LEN, P) - after >= W,
            show={"W": W, "P": P, "len": LEN, "cursor": after},
        )

    return claim


def _match_lost(found: Values) -> Check:
    """The margin of 0.5.15 and 0.5.16."""
    check = _match_with(found, max(found["W"], found["P"]))
    question = Eviction(
        evicted=0,
        protected=0,
        computed_len=found["len"],
        window=found["W"],
        page_size=found["P"],
    )
    return replace(check, question=question, releases=UNCAPPED)


def _match_lost_with_less(found: Values) -> Check:
    """The rule's margin, less a page."""
    return _match_with(found, cursor_margin(found["W"], found["P"]) - found["P"])


def _match_with(found: Values, margin: int) -> Check:
    window, page, length = found["W"], found["P"], found["len"]
    gone = cursor(0, 0, length, margin, page) // page
    pages = page_floor(length, page) // page
    live = [False] * gone + [True] * (pages - gone)
    matched = window_match(live, page, window)
    return Check(
        model="RADIX-3 over what CURSOR-2 leaves",
        invariant="CURSOR: the last window is whole",
        broken=matched < pages,
        says=f"W={window}, P={page}: a request of {length} tokens keeps the sliding-window halves "
        f"of {pages - gone} of {pages} pages, and the tree then matches {matched} pages",
    )


# P6


def _insert_then_match() -> Claim:
    cached, page, offered = z3.Bool("cached"), z3.Int("page"), z3.Int("offered")
    after = kept_page(cached, Page(page), Page(offered))
    again = kept_page(z3.BoolVal(True), after, Page(z3.Int("later")))
    taken = z3.Not(cached)
    return Claim(
        given=(page != offered,),
        then=z3.And(again == after, taken == (after == offered), cached == (after == page)),
    )


def _all_small_trees() -> tuple[int, str | None]:
    """The rules themselves on every pair of keys over two tokens, one inserted after the other."""
    keys = [key for length in range(5) for key in product((1, 2), repeat=length)]
    cases = 0
    for size in (1, 2):
        for first, second in product(keys, keys):
            cases += 1
            pages, _ = inserted({}, first, [Page(n) for n in range(1, 5)], size)
            offered = [Page(n) for n in range(11, 15)]
            after, refused = inserted(pages, second, offered, size)
            matched = cached_pages(after, second, size)
            whole = len(page_prefixes(second, size))
            taken = [page for page in offered[:whole] if page not in refused]
            if len(matched) != whole or [page for page in matched if page in offered] != taken:
                return cases, f"page size {size}: insert {first}, then {second}"
    return cases, None


# P7, P8

NEED_FULL, FREE_FULL, NEED_SWA, FREE_SWA = z3.Ints("need_full free_full need_swa free_swa")


def _atomic() -> Claim:
    full, swa = allocated_pair(NEED_FULL, FREE_FULL, NEED_SWA, FREE_SWA)
    both = z3.And(full == FREE_FULL - NEED_FULL, swa == FREE_SWA - NEED_SWA)
    neither = z3.And(full == FREE_FULL, swa == FREE_SWA)
    return Claim(
        given=(NEED_FULL >= 0, NEED_SWA >= 0, FREE_FULL >= 0, FREE_SWA >= 0),
        then=z3.And(z3.Or(both, neither), full >= 0, swa >= 0),
    )


def _served_if_possible() -> Claim:
    full, _ = allocated_pair(NEED_FULL, FREE_FULL, NEED_SWA, FREE_SWA)
    return Claim(
        given=(
            NEED_FULL >= 0,
            NEED_SWA >= 0,
            NEED_FULL <= FREE_FULL,
            NEED_SWA <= FREE_SWA,
        ),
        then=full == FREE_FULL - NEED_FULL,
    )


def _generation_grows() -> Claim:
    newest, issued = z3.Ints("newest issued")
    after = next_occupancy(Occupancy(newest))
    return Claim(
        given=(newest >= 0, issued >= 1, issued <= newest),
        then=z3.And(after > newest, after != issued, issued <= after),
    )


THEOREMS: tuple[Theorem, ...] = (
    Theorem(
        identifier="P1",
        title="a match has a live window",
        statement="No tombstone lies within a window before the end of a match, the match is the "
        "longest such, and so the lock that a reader takes on it never meets a tombstone.",
        scope="all W, P, paths of any length, by induction over pages",
        obligations=(
            Obligation(name="initiation", claim=_match_start),
            Obligation(name="consecution: one page more", claim=_match_step),
            Obligation(name="safety: no tombstone in the window", claim=_no_tombstone_in_window),
            Obligation(name="longest", claim=_longest),
            Obligation(name="pages are multiples", claim=_multiple_of_page),
            Obligation(name="the lock meets no tombstone", claim=_lock_meets_no_tombstone),
            Obligation(name="the lock spans the window", claim=_lock_spans_window),
            Obligation(
                name="tight: one page less", claim=_one_page_less, expected="refuted",
                replay=_short_run,
            ),
        ),
        mutants=("tombstone ignored", "match one page early", "lock of a page too much"),
        witness=lambda: (
            *_sizes, K == 2, P == 2, W == 3, _match_run().best == 5, LAST == 2,
            _match_run().pages == 5, _match_invariant(_match_run(), LAST, LAST_IN_MATCH),
        ),
        source="match_prefix, inc_lock_ref",
    ),
    Theorem(
        identifier="P2",
        title="locks are counted",
        statement="full_lock >= swa_lock >= 0 on every page, a tombstone has swa_lock 0, a release "
        "undoes exactly its own acquire, and a lock keeps its window for as long as it is held.",
        scope="any number of readers; a page at a time, so node splits are not modelled",
        obligations=(
            Obligation(
                name="consecution: lock with window",
                claim=_lock_claim(
                    lambda page: locked(page, on_path=True, in_window=True), _tombstone_free(),
                    both=1,
                ),
            ),
            Obligation(
                name="consecution: lock of the path",
                claim=_lock_claim(
                    lambda page: locked(page, on_path=True, in_window=False), path=1
                ),
            ),
            Obligation(
                name="consecution: release with window",
                claim=_lock_claim(
                    lambda page: unlocked(page, on_path=True, in_window=True), BOTH >= 1, both=-1
                ),
            ),
            Obligation(
                name="consecution: release of the path",
                claim=_lock_claim(
                    lambda page: unlocked(page, on_path=True, in_window=False), PATH >= 1, path=-1
                ),
            ),
            Obligation(
                name="consecution: window released early",
                claim=_lock_claim(
                    lambda page: window_released(page, in_window=True), BOTH >= 1, both=-1, path=1
                ),
            ),
            Obligation(name="consecution: tombstone", claim=_lock_claim(buried)),
            Obligation(name="consecution: recovery", claim=_lock_claim(recovered)),
            Obligation(name="safety: order of the counts", claim=_ordered),
            Obligation(name="safety: a held window stays", claim=_held_window_stays),
            Obligation(name="safety: no query sees a window given up", claim=_no_later_window),
            Obligation(name="a release undoes its acquire", claim=_lock_undone),
        ),
        mutants=(
            "release forgets the window", "tombstone under a lock", "eviction under a lock",
            "window given up early",
        ),
        witness=lambda: (_lock_invariant(_locks(), BOTH, PATH), BOTH >= 2, PATH >= 1),
        source="inc_lock_ref, dec_lock_ref, dec_swa_lock_only",
    ),
    Theorem(
        identifier="P3",
        title="every page has one owner",
        statement="Each page of either pool is in exactly one of free, tree and request after "
        "every operation, the sizes add up, and when no request is left all is free or evictable.",
        scope="any pool size, requests and order of operations; a page, or all pages counted, at a "
        "time",
        obligations=(
            Obligation(name="consecution: allocate", claim=_owner_claim(allocated, "free")),
            Obligation(
                name="consecution: publish",
                claim=_owner_claim(lambda page: published(page, duplicate=False), "private"),
            ),
            Obligation(
                name="consecution: publish a duplicate",
                claim=_owner_claim(lambda page: published(page, duplicate=True), "private"),
            ),
            Obligation(name="consecution: give back", claim=_owner_claim(discarded, "private")),
            Obligation(name="consecution: evict", claim=_owner_claim(evicted, "tree")),
            Obligation(name="safety: a recovery keeps one page", claim=_recovery_keeps_one),
            Obligation(name="safety: all idle", claim=_all_idle),
        ),
        mutants=("duplicate leaks", "eviction frees twice", "recovery takes a reader's page"),
        witness=lambda: (_one_owner(_owners(), z3.IntVal(7)), _owners().private >= 2),
        source="check_memory of the scheduler",
    ),
    Theorem(
        identifier="P4",
        title="the map is injective",
        statement="The full-to-SWA map is injective on mapped locations and page congruent, pages "
        "are mapped and freed whole, a mapped page's SWA page is not free, and a freed or "
        "tombstoned location maps to the reserved entry.",
        scope="all P, pools and orders of operations; two arbitrary locations at a time",
        obligations=(
            Obligation(
                name="consecution: allocate",
                claim=_map_claim(
                    G >= 1, _swa_free(G), _old(z3.IntVal(0)), to=G, lent=G, returned=z3.IntVal(0)
                ),
            ),
            Obligation(
                name="consecution: free or tombstone",
                claim=_map_claim(
                    _old(G), to=z3.IntVal(0), lent=z3.IntVal(0), returned=G
                ),
            ),
            Obligation(name="the place of a location", claim=_place_of_loc),
            Obligation(name="safety: injective", claim=_injective),
            Obligation(name="safety: page congruent", claim=_congruent),
            Obligation(name="safety: unmapped is reserved", claim=_unmapped_reserved),
        ),
        mutants=("map forgets the place", "stale map entry", "freed page maps on"),
        witness=lambda: (*_map_given, GX >= 1, GY >= 1, FX != FY, P >= 2),
        source="SWATokenToKVPoolAllocator.set_full_to_swa_mapping, free_swa",
    ),
    Theorem(
        identifier="P5",
        title="the cursor keeps a whole window",
        statement="With a margin of max(W, P) rounded up to pages the eviction cursor is page "
        "aligned, never goes back or into what the tree protects, never passes what a reader "
        "needs, and leaves a whole window below the insert boundary. The margin max(W, P) of "
        "0.5.15 and 0.5.16 leaves the last only if P >= W or W is a multiple of P; else what is "
        "published can lose its match. It does always leave a page.",
        conjecture="it was stated for the release's rule and for every W and P",
        scope="all W, P, lengths",
        obligations=(
            Obligation(name="aligned, forward, unprotected", claim=_cursor_ordered),
            Obligation(name="behind every reader", claim=_cursor_behind_readers),
            Obligation(
                name="a page is left, margin max(W, P)",
                claim=lambda: _keeps_page(maximum(W, P)),
            ),
            Obligation(
                name="a window is left", claim=_keeps_window(lambda: cursor_margin(W, P))
            ),
            Obligation(
                name="margin max(W, P), P >= W",
                claim=_keeps_window(lambda: maximum(W, P), P >= W),
            ),
            Obligation(
                name="margin max(W, P), P divides W",
                claim=_keeps_window(lambda: maximum(W, P), W % P == 0),
            ),
            Obligation(
                name="margin max(W, P) otherwise",
                claim=_keeps_window(lambda: maximum(W, P), P < W, W % P != 0),
                expected="refuted", replay=_match_lost,
            ),
            Obligation(
                name="tight: one page less",
                claim=_keeps_window(lambda: cursor_margin(W, P) - P, W > P),
                expected="refuted", replay=_match_lost_with_less,
            ),
        ),
        mutants=("margin not in pages", "cursor into the tree"),
        witness=lambda: (
            *_cursor_given, P >= 2, W > P, W % P != 0,
            cursor(EVICTED, PROTECTED, LEN, cursor_margin(W, P), P) > PROTECTED, PROTECTED > 0,
        ),
        source="free_swa_out_of_window_slots; #29860",
    ),
    Theorem(
        identifier="P6",
        title="insert, then match",
        statement="After an insert, the match of the same key returns for every whole page the one "
        "that was cached, else the one offered; what the insert took is what the match returns.",
        scope="one page of any key: for all; whole keys: up to a bound",
        obligations=(
            Obligation(name="one page", claim=_insert_then_match),
            Enumeration(
                name="whole keys", run=_all_small_trees,
                bound="every pair of keys of up to 4 tokens over 2 token values, P = 1 and 2",
            ),
        ),
        mutants=("insert replaces",),
        source="insert, match_prefix, cache_unfinished_req",
    ),
    Theorem(
        identifier="P7",
        title="both pools or neither",
        statement="An allocation takes what it needs from both pools or nothing from either, and "
        "is served whenever both have enough.",
        scope="all sizes",
        obligations=(
            Obligation(name="atomic", claim=_atomic),
            Obligation(name="served if possible", claim=_served_if_possible),
        ),
        mutants=("one pool is enough",),
        witness=lambda: (
            NEED_FULL >= 1,
            FREE_FULL >= NEED_FULL,
            FREE_SWA < NEED_SWA,
            FREE_SWA >= 1,
        ),
        source="SWATokenToKVPoolAllocator.alloc, alloc_extend",
    ),
    Theorem(
        identifier="P8",
        title="generations only grow",
        statement="Every lease of a slot is a new occupancy; no number is given twice.",
        scope="any number of leases, by induction",
        obligations=(Obligation(name="one lease more", claim=_generation_grows),),
        mutants=("occupancy given twice",),
        witness=lambda: (z3.Int("newest") >= 2, z3.Int("issued") == 1),
        source="ReqToTokenPool.req_generation (0.5.23)",
    ),
)  # fmt: skip
