"""Verdicts: what a log says about each invariant, and the evidence."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

CacheInvariant: TypeAlias = Literal[
    "FRESH-DECODE", "FRESH-PREFILL", "WINDOW", "IN-FLIGHT", "PARTITION", "MAP", "LOCK", "CURSOR",
    "PADDING", "PROGRESS", "USEFUL", "REFINES",
]  # fmt: skip

ExactnessInvariant: TypeAlias = Literal["EXACT", "PURE", "NON-INTERFERENCE"]

Invariant: TypeAlias = CacheInvariant | ExactnessInvariant | Literal["CURRENT"]

Family: TypeAlias = Literal["cache", "translation"]
"""What a target plays: requests in a cache (`model.scenario`), or forwards (`model.forwards`)."""

INVARIANTS: dict[Invariant, str] = {
    "FRESH-DECODE": "every row that a decode or verify query reads was written by this request, "
    "in this occupancy, at exactly the position that it stands for",
    "FRESH-PREFILL": "the same for every ring row that a prefill query reads",
    "WINDOW": "every key of a query's window has a location of the SWA pool when a forward runs, "
    "and that location holds the key of that position of the query's own prefix",
    "IN-FLIGHT": "a step that was launched finds the keys of its own tokens in every page that it "
    "reads, and writes none that is another's, whatever the host does until it has run",
    "PARTITION": "every page of either pool is in exactly one of free, tree, request; every slot "
    "is free or lent once; the sizes add up",
    "MAP": "the full-to-SWA map is injective and page congruent; it maps whole pages, just those "
    "whose SWA half a node or a request holds; no mapped page is free",
    "LOCK": "a node's lock counts are the requests that lock it or lock below it; no tombstone's "
    "window is locked; what a reader's window reaches of the tree is locked",
    "CURSOR": "the SWA eviction cursor stands at a page's start, never goes back, never passes a "
    "position that the next query sees, and what lies behind it was given back",
    "PADDING": "padded rows touch rows of slot 0 only, and no request touches those",
    "PROGRESS": "nothing is refused for memory that is free or can be reclaimed, and no forward "
    "computes nothing",
    "USEFUL": "reuse still happens: a request with a cached prefix prefills no more than what is "
    "not cached, or a window rounded up to a page",
    "REFINES": "every observed step is one that the specification allows: the rows that the rules "
    "give, the window that they give, a match that the tree holds",
}
"""The ladder of a cache, in the order in which a broken one is reported first, each in words."""

NEEDS_SWA: frozenset[Invariant] = frozenset({"WINDOW", "MAP", "LOCK", "CURSOR", "PROGRESS"})
"""Put to the test only where snapshots tell of an SWA pool (LOCK: of who holds locks)."""

TRANSLATION_INVARIANTS: dict[Invariant, str] = {
    "CURRENT": "the translation that a forward consumes equals the map at that forward applied to "
    "that forward's own locations: no stale reuse, no dtype reinterpretation, padded rows reserved",
}
"""What is asked of a target that plays forwards (`model.forwards`)."""

EXACTNESS_INVARIANTS: dict[Invariant, str] = {
    "EXACT": "what a request computes, through all layers, is what it would compute with an empty "
    "cache",
    "PURE": "the compressed rows of a page in the tree depend on its tokens alone",
    "NON-INTERFERENCE": "what a request computes does not depend on what an earlier occupant left "
    "in its slot",
}
"""What is asked of a cache when a stack of layers is named (`model.layers`). The releases promise
none of it; see docs/exactness.md."""

FAMILIES: dict[Family, dict[Invariant, str]] = {
    "cache": INVARIANTS, "translation": TRANSLATION_INVARIANTS,
}  # fmt: skip
"""Invariants by family of operations, each in words."""

IN_WORDS: dict[Invariant, str] = INVARIANTS | TRANSLATION_INVARIANTS | EXACTNESS_INVARIANTS

CacheCause: TypeAlias = Literal[
    # FRESH-*: what the row held instead, worst first
    "other-request", "own-other-position", "rejected-draft", "never-written", "same-content",
    # IN-FLIGHT
    "overwritten", "freed", "rewritten", "not-launched",
    # PARTITION
    "lent-twice", "double-free", "translated-free", "translated-foreign", "shared", "leak",
    "misaligned", "sizes",
    # PADDING
    "padding-escapes", "request-in-padding",
    # USEFUL
    "no-reuse",
    # REFINES
    "row", "window", "match", "uncomputed", "payload", "assumption", "own-check",
]  # fmt: skip

SwaCause: TypeAlias = Literal[
    # WINDOW, MAP
    "unmapped", "not-injective", "mapped-free", "stale-entry", "reserved", "torn", "disagrees",
    # LOCK
    "unlocked", "window-unlocked", "tombstone-locked", "swa-lock-count", "lock-count", "lock-order",
    # CURSOR
    "too-far", "went-back", "not-given-back",
    # PROGRESS
    "empty-step", "refused", "hoarded", "pinned",
]  # fmt: skip
"""Of `NEEDS_SWA`, beside those of `CacheCause` that occur there too."""

TranslationCause: TypeAlias = Literal[
    "missing", "untranslated", "foreign", "stale", "padding", "wrong-length", "wrong-dtype",
    "changed-after-plan",
]  # fmt: skip

ExactnessCause: TypeAlias = Literal[
    "stale-window", "compressed-row", "inherited-page", "oracles-differ"
]

Cause: TypeAlias = CacheCause | SwaCause | TranslationCause | ExactnessCause

CAUSES: dict[Cause, str] = {
    "other-request": "the row holds what another request wrote, for another position or prefix",
    "own-other-position": "the request itself wrote over the row for another position",
    "rejected-draft": "the row holds a draft token that was rejected",
    "never-written": "nobody has written the row since the pool was made",
    "same-content": "an earlier occupant wrote the row for the same position of the same prefix",
    "unmapped": "what is live, or about to be read or written, has no location of the SWA pool",
    "overwritten": "a step reads a page that holds another's keys: it was lent again too early",
    "freed": "a step reads a page that is free: it was given back by a length that was not reached",
    "rewritten": "the host rewrote the page table under a step that reads it",
    "not-launched": "a result was taken of a step that was not the oldest in flight",
    "lent-twice": "a slot or location was lent that is reserved or not free",
    "double-free": "a page or slot stands in the free list twice, or was given back while free",
    "translated-free": "a location that is not lent was translated, or was what came out",
    "translated-foreign": "a translation led to what belongs to another location",
    "shared": "a page has two owners",
    "leak": "a page or slot has no owner",
    "misaligned": "a location is not at its position's place in its page",
    "sizes": "the engine's own count differs from what its objects hold",
    "not-injective": "two pages of the full pool map to one SWA page",
    "mapped-free": "a mapped page's SWA page is free",
    "stale-entry": "a page that is free, a tombstone's or nobody's is still mapped",
    "reserved": "the reserved page is mapped, or mapped to",
    "torn": "a page is mapped in part, or to two SWA pages",
    "disagrees": "the tree keeps other SWA locations than the map names",
    "unlocked": "a request reads of the tree what it does not lock",
    "window-unlocked": "a request's window reaches cached tokens whose SWA half it does not lock",
    "tombstone-locked": "a tombstone has a sliding-window lock",
    "swa-lock-count": "a node has more or fewer sliding-window locks than requests hold",
    "lock-count": "a node has more or fewer locks than requests hold",
    "lock-order": "a node has a negative count, or more sliding-window locks than locks",
    "too-far": "the cursor has passed a position that the next query sees",
    "went-back": "the cursor went back within one occupancy",
    "not-given-back": "the cursor has passed pages that are still mapped",
    "padding-escapes": "a padded row touched a row outside slot 0",
    "request-in-padding": "a request touched a row of the padding slot",
    "empty-step": "a forward computed no new token",
    "refused": "an operation was refused for memory that is free or that the tree may evict",
    "hoarded": "an operation was refused for memory of requests that no window reaches any more",
    "pinned": "an operation was refused for cached memory, locked though no window reaches it",
    "no-reuse": "more was prefilled again than the bound allows",
    "row": "a launch named another row than the rule gives",
    "window": "a query's window is not the one that the rule gives",
    "match": "the reused prefix is longer than what the tree holds, or not page aligned",
    "uncomputed": "the tree answers for more of a request's tokens than it has computed",
    "payload": "what came out of the tensor is not what was seen going in",
    "assumption": "a launch breaks a guarantee of the host that the kernel proofs assume",
    "own-check": "the engine's own check of its tree fails",
}

TRANSLATION_CAUSES: dict[Cause, str] = {
    "missing": "a sliding-window layer was given no locations of its pool",
    "untranslated": "a location of the full pool was used in the SWA pool",
    "foreign": "the location is not that of the forward's own token",
    "stale": "the location was translated for an earlier forward or by an earlier map",
    "padding": "a padded row names another location than the reserved one",
    "wrong-length": "there are not as many locations as the forward has rows",
    "wrong-dtype": "the locations are of an integer type that their consumer does not take",
    "changed-after-plan": "the caller changed the locations or the map between plan and use, which "
    "the cached translation cannot see: a condition of its contract (theorem T3)",
}
"""Why CURRENT is broken, worst first."""

EXACTNESS_CAUSES: dict[Cause, str] = {
    "stale-window": "keys in the window are not the request's own, or come from states that saw "
    "such keys: a longer tail would heal it",
    "compressed-row": "compressed rows of the request's own were made of such states, and every "
    "later query reads them: no tail heals it",
    "inherited-page": "the tree gave compressed rows that another request made of such states",
    "oracles-differ": "the floats of a run on the real kernels and the taint of its log do not "
    "agree: a defect of kvproof",
}
"""Why an output departs from a cold run: the shortest way that leads there."""

Status: TypeAlias = Literal["holds", "violated", "unknown", "skipped", "engine error"]


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote a ring row: the occupancy's request, the key's position, the step."""

    occupancy: int
    request: str
    position: int
    step: int


class RingCell(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a slot's ring as the stale read found it.

    Attributes:
        stands_for: position that the reading query takes the row for; None if it does not read it.
        writer: None if nobody wrote the row.
        cause: why the row is not the reader's own; None if it is, or if it is not read.
    """

    row: int
    stands_for: int | None
    writer: Writer | None
    cause: Cause | None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """One occupancy: which request holds the slot, and what it reused."""

    occupancy: int
    request: str
    slot: int
    prompt_len: int
    matched_len: int
    step: int

    @property
    def tail(self) -> int:
        """Tokens that the request prefills itself."""
        return self.prompt_len - self.matched_len


class StaleRead(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence for a broken FRESH-*: one query, the row, its writer, and how it came to that.

    Attributes:
        reader: the reading request's occupancy.
        previous: the slot's occupancy before the reader's, if there was one.
        publisher: the occupancy that computed the reused prefix's last token, if known.
        ring: all rows of the slot at the moment of the read.
    """

    position: int
    row: int
    stands_for: int
    writer: Writer | None
    reader: Lease
    previous: Lease | None
    publisher: Lease | None
    ring: tuple[RingCell, ...]

    @property
    def leases(self) -> tuple[Lease, ...]:
        """The occupancies that the story is about, as far as they are known."""
        return tuple(each for each in (self.reader, self.previous, self.publisher) if each)


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """How one occupancy departs from a run with an empty cache, as far as is known.

    Attributes:
        layer: the first one, from 1, whose states depart.
        position: the first one there.
        last: last position with a state that departs, in any layer.
        states: how many do, by layer.
        pages: pages that it published and whose compressed rows depart.
        heirs: later requests that reuse one of them.
    """

    request: str
    occupancy: int
    slot: int
    matched_len: int
    layer: int
    position: int
    last: int
    states: tuple[int, ...]
    pages: int
    heirs: tuple[str, ...]


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One broken invariant: the sentence, and the facts behind it."""

    invariant: Invariant
    cause: Cause
    step: int
    sentence: str
    evidence: StaleRead | None = None
    departure: Departure | msgspec.UnsetType = msgspec.UNSET

    @property
    def name(self) -> str:
        """Name for files and messages."""
        return f"{self.invariant}-{self.cause}"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one invariant on one target, with its scope and backend."""

    invariant: Invariant
    status: Status
    scope: str
    backend: str
    violation: Violation | None = None
    reason: str = ""


SEVERITY: dict[tuple[Invariant, Cause], int] = {
    broken: rank
    for rank, broken in enumerate(
        (invariant, cause)
        for invariants, causes in (
            (INVARIANTS, CAUSES),
            (TRANSLATION_INVARIANTS, TRANSLATION_CAUSES),
            (EXACTNESS_INVARIANTS, EXACTNESS_CAUSES),
        )
        for invariant in invariants
        for cause in causes
    )
}  # fmt: skip
"""Order in which violations of one log are reported: a smaller number comes first."""
