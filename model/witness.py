"""Witnesses: interesting states that a run must have reached to mean anything."""

from __future__ import annotations

from typing import Literal, TypeAlias

CacheWitness: TypeAlias = Literal[
    "prefix hit", "cap would bind", "cap bound", "ring read by decode", "ring read by prefill",
    "ring wrapped", "foreign row in window", "chunk boundary in window", "page evicted",
    "padded row", "step in flight", "freed in flight", "lent again in flight",
    "table rewritten in flight", "decoded after its end",
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

WITHOUT_RING: tuple[Witness, ...] = ("prefix hit", "cap would bind", "page evicted")
"""Those of them that a release without any ring can reach."""

OVERLAP_WITNESSES: dict[Witness, str] = {
    "step in flight": "a step was launched while another had not been taken",
    "freed in flight": "a page that an unfinished step reads or writes was given back",
    "lent again in flight": "a slot that an unfinished step carries was lent again",
    "decoded after its end": "a request was decoded once more before its end was known",
    "table rewritten in flight": "the host rewrote table entries of an unfinished step",
}
"""Required where scenarios overlap."""

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


def required_of(
    construction: str, *, has_ring: bool = True, overlaps: bool = False
) -> tuple[Witness, ...]:
    """Witnesses that a run on a target of this construction must have reached.

    Args:
        construction: of the target.
        has_ring: whether its release has a ring.
        overlaps: whether scenarios with overlap scheduling are among those that it plays.
    """
    resolver = TRANSLATION_WITNESSES | RESOLVER_WITNESSES
    cache = WITNESSES if has_ring else {name: WITNESSES[name] for name in WITHOUT_RING}
    if overlaps:
        cache = cache | OVERLAP_WITNESSES
    return tuple(
        {
            "triton": TRANSLATION_WITNESSES,
            "dsv4": resolver,
            "dsv4-any": resolver | ANY_CALLER_WITNESSES,
            "dsv4-ring": RING_RESOLVER_WITNESSES,
        }.get(construction, cache)
    )
