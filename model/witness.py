"""Witnesses: interesting states that a run must have reached to mean anything."""

from __future__ import annotations

from typing import Literal, TypeAlias

CacheWitness: TypeAlias = Literal[
    "prefix hit", "cap would bind", "cap bound", "ring read by decode", "ring read by prefill",
    "ring wrapped", "foreign row in window", "chunk boundary in window", "page evicted",
    "padded row", "verify", "draft rejected", "rejected row rewritten", "wrap inside a verify",
    "over-allocation released", "tombstone made", "tombstone recovered", "SWA page given back",
    "window lock given up", "node split under a lock", "step in flight", "freed in flight",
    "lent again in flight", "table rewritten in flight", "decoded after its end", "loaded back",
    "verify in flight", "verified after its end",
]  # fmt: skip

TranslationWitness: TypeAlias = Literal[
    "plan taken", "translated at use: idle", "translated at use: no plan",
    "translated at use: other length", "rebound to as many", "remapped after the plan",
    "replay after a larger batch", "small SWA pool", "multi-step draft", "padded row translated",
    "page freed behind a window",
]  # fmt: skip

Witness: TypeAlias = CacheWitness | TranslationWitness

WITNESSES: dict[Witness, str] = {
    "prefix hit": "a request reused a cached prefix",
    "cap would bind": "a cached prefix reached into the request's last window",
    "ring read by decode": "a decode query read ring rows",
    "ring read by prefill": "a prefill query read ring rows",
    "ring wrapped": "a position at or past the stride was written",
    "foreign row in window": "a recycled slot held another occupant's row in the reader's window",
    "chunk boundary in window": "a chunk's query looked back over a chunk boundary",
    "page evicted": "the tree gave back a page",
    "padded row": "a padded row of a batch wrote and read",
}
"""Required of every run, on every target that has a ring."""

DRAFT_WITNESSES: dict[Witness, str] = {
    "verify": "a verify step ran",
    "draft rejected": "a verify threw tokens away that it had written",
    "rejected row rewritten": "a request wrote the row of its rejected draft again",
    "wrap inside a verify": "a draft's rows went over the end of the ring to its start",
    "over-allocation released": "a request gave back more locations than it had computed",
}
"""Required of every run on a target that drafts."""

WITHOUT_RING: tuple[Witness, ...] = (
    "prefix hit", "cap would bind", "page evicted", "verify", "draft rejected",
    "over-allocation released",
)  # fmt: skip
"""Those of them that a release without any ring can reach."""

SWA_WITNESSES: dict[Witness, str] = {
    "tombstone made": "a node's SWA half was given back while its full pages stayed",
    "tombstone recovered": "an insert, or a host pool, brought the SWA half of a tombstone back",
    "SWA page given back": "a running request gave SWA pages of its own back",
    "window lock given up": "a request kept its lock on a prefix and gave up the window's",
    "node split under a lock": "a node was split while a request locked it",
}
"""Required where an index-addressed SWA pool is told, of the right constructions."""

OVERLAP_WITNESSES: dict[Witness, str] = {
    "step in flight": "a step was launched while another had not been taken",
    "freed in flight": "a page that an unfinished step reads or writes was given back",
    "lent again in flight": "a slot that an unfinished step carries was lent again",
    "decoded after its end": "a request was decoded once more before its end was known",
    "table rewritten in flight": "the host rewrote table entries of an unfinished step",
}
"""Required where scenarios overlap."""

OVERLAPPED_DRAFT_WITNESSES: dict[Witness, str] = {
    "verify in flight": "a verify was launched while the result of an earlier one was not taken",
    "verified after its end": "a request was verified once more before its end was known",
}
"""Required where steps that draft overlap."""

HOST_WITNESSES: dict[Witness, str] = {
    "loaded back": "a match went on in a host pool, and was loaded back from there",
}
"""Required of a hierarchical cache."""

CAP_WITNESS: Witness = "cap bound"
"""Required where the target says that its cap is on: a match was shortened by it."""

TRANSLATION_WITNESSES: dict[Witness, str] = {
    "small SWA pool": "a forward was planned on an SWA pool smaller than the full pool",
    "padded row translated": "a padded row used the reserved location",
    "multi-step draft": "the steps of a draft were planned together",
    "page freed behind a window": "SWA pages of a request that goes on were given back",
    "replay after a larger batch": "a graph ran for fewer requests than the time before",
}
"""Required of every run on a target that translates."""

ANY_CALLER_WITNESSES: dict[Witness, str] = {
    "rebound to as many": "a planned forward got other locations, as many",
    "remapped after the plan": "a planned forward's locations were mapped anew",
}
"""Required where callers change a forward after its plan."""

RESOLVER_WITNESSES: dict[Witness, str] = {
    "plan taken": "a store took the translation made when its forward was planned",
    "translated at use: idle": "a forward without requests was translated at its store",
    "translated at use: no plan": "a forward that nobody had translated was, at its store",
    "translated at use: other length": "a forward padded after its plan was translated again",
}
"""Required where a store may take a cached translation: each branch of the resolver."""


RING_RESOLVER_WITNESSES: dict[Witness, str] = {
    name: (TRANSLATION_WITNESSES | RESOLVER_WITNESSES)[name]
    for name in (
        "plan taken", "translated at use: idle", "translated at use: other length",
        "multi-step draft", "padded row translated",
    )
}  # fmt: skip
"""Required where the resolver names ring rows, which no map has a part in."""


NEEDS_TREE = frozenset[Witness](
    {"prefix hit", "cap would bind", "foreign row in window", "page evicted", "tombstone made",
     "tombstone recovered", "node split under a lock", "window lock given up", "loaded back"}
)  # fmt: skip
"""Those that nothing reaches where no prefix is kept."""


def required_of(
    construction: str,
    *,
    has_ring: bool = True,
    drafts: bool = False,
    has_swa: bool = False,
    reuses: bool = True,
    releases_early: bool = False,
    overlaps: bool = False,
    overlaps_drafts: bool = False,
    has_host_pool: bool = False,
    slides: bool = True,
    gives_back: bool = True,
) -> tuple[Witness, ...]:
    """Witnesses that a run on a target of this construction must have reached.

    Args:
        construction: of the target.
        has_ring: whether its release has a ring.
        drafts: whether some of what it is asked to play speculates.
        has_swa: whether it has an index-addressed SWA pool instead.
        reuses: whether it has a tree that keeps prefixes.
        releases_early: whether it gives a window's lock back before that of its prefix.
        overlaps: whether scenarios with overlap scheduling are among those that it plays.
        overlaps_drafts: whether some of those draft.
        has_host_pool: whether its cache is hierarchical.
        slides: whether some layers see a window alone, in which a cap can bind.
        gives_back: whether a running request gives back the SWA pages that its window has left.
    """
    resolver = TRANSLATION_WITNESSES | RESOLVER_WITNESSES
    cache = WITNESSES | (DRAFT_WITNESSES if drafts else {})
    if not has_ring:
        cache = {name: words for name, words in cache.items() if name in WITHOUT_RING}
    if not slides:
        cache = {name: words for name, words in cache.items() if name != "cap would bind"}
    if has_swa:
        cache = cache | SWA_WITNESSES
    if overlaps:
        cache = cache | OVERLAP_WITNESSES
    if overlaps_drafts:
        cache = cache | OVERLAPPED_DRAFT_WITNESSES
    if has_host_pool:
        cache = cache | HOST_WITNESSES
    if not gives_back:
        cache = {name: words for name, words in cache.items() if name != "SWA page given back"}
    if not releases_early:
        cache = {name: words for name, words in cache.items() if name != "window lock given up"}
    if not reuses:
        cache = {name: words for name, words in cache.items() if name not in NEEDS_TREE}
    return tuple(
        {
            "triton": TRANSLATION_WITNESSES,
            "dsv4": resolver,
            "dsv4-any": resolver | ANY_CALLER_WITNESSES,
            "dsv4-ring": RING_RESOLVER_WITNESSES,
        }.get(construction, cache)
    )
