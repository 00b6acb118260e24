"""Mutants of the model: faults and weak policies of the reference engines, and where they show.

The faults themselves are the model's own (`model.policy`, `model.forward_reference`); the registry
of known defects says which public report each stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from kvproof.fuzz.strategies import Sizes
from kvproof.model.forward_reference import DEPARTURES, Departure
from kvproof.model.policy import SWA_FAULTS, Fault, Policy, RingFault, StreamFault, SwaFault
from kvproof.triage.known_defects import ByMutant, load_defects

ModelArea: TypeAlias = Literal["ring", "cap", "tree", "pools", "translation", "streams"]

_PAGED = Sizes(swa_shares=(2, 1, 4))
_DRAFTING = Sizes(swa_shares=(2, 1), draft_tokens=(3, 2))
_OVERLAPPED = Sizes(draft_tokens=(1, 2), pool_tokens=(64, 40, 32), overlaps=(1,))
_OVERLAPPED_DRAFTS = Sizes(draft_tokens=(2, 3), pool_tokens=(64, 40, 32), overlaps=(1,))

ASKS_FOR: Mapping[Fault, tuple[Sizes, Policy]] = {
    "cursor past the window": (_DRAFTING, Policy(paged_swa=True)),
    "cursor never moves": (
        Sizes(swa_shares=(4,), pool_tokens=(40, 64), windows=(2, 3, 4)), Policy(paged_swa=True),
    ),
    "window released twice": (_PAGED, Policy(paged_swa=True, early_release=True)),
    "cursor counts tokens, not entries": (
        _PAGED, Policy(paged_swa=True, bigram_keys=True, slides_before_insert=True),
    ),
    "draft extend reads the table": (_OVERLAPPED_DRAFTS, Policy()),
    "window by scheduled length": (_OVERLAPPED, Policy(window_pages=True)),
}  # fmt: skip
"""Sizes and policy that a fault needs beyond those of its kind."""

_TREE: frozenset[Fault] = frozenset(
    {"never reuse", "match beyond tree", "share duplicate pages", "recover under a lock",
     "cursor left out of insert", "split drops a lock", "lock kept on abort",
     "window released twice", "window released early", "lock pins the prefix", "bury under a lock",
     "match over tombstones", "plan cached as computed"}
)  # fmt: skip
_RING: frozenset[Fault] = frozenset({"pad into last slot", "lend padding slot"})

_WORDS: Mapping[Fault, str] = {
    "lend padding slot": "slot 0 is lent",
    "leak on abort": "an aborted request's pages have no owner",
    "double free on finish": "a finished request's pages are given back twice",
    "share duplicate pages": "a page that the tree has already stays the request's too",
    "never reuse": "a match is always empty",
    "match beyond tree": "a match is longer than what is cached",
    "miscount": "the engine counts other free tokens than it has",
    "pad into last slot": "padded rows carry the last slot",
    "slot lent twice": "a slot is lent that is not free",
    "abort frees at once": "an abort frees pages that a step in flight uses",
    "draft extend reads the table": "a step writes by table entries that the host rewrites",
    "window by scheduled length": "a window is given back by a length that drafts may not reach",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMutant:
    """A reference engine that departs, and the same without the departure.

    Attributes:
        faulty: policy of the engine of caches; None where it is that of forwards.
        sound: the same without the fault.
        departure: of the engine of forwards.
        sizes: geometries that are drawn.
    """

    name: str
    area: ModelArea
    change: str
    sizes: Sizes = field(default_factory=Sizes)
    faulty: Policy | None = None
    sound: Policy | None = None
    departure: Departure = "none"


def model_mutants() -> Iterator[ModelMutant]:
    """All of them, those of the known defects included; each once."""
    faults: tuple[Fault, ...] = (*get_args(RingFault), *get_args(SwaFault), *get_args(StreamFault))
    for fault in faults:
        sizes, sound = ASKS_FOR.get(fault) or _kind(fault)
        yield ModelMutant(
            name=fault,
            area=_area(fault),
            change=_words(fault),
            sizes=sizes,
            faulty=replace(sound, faults=frozenset({fault})),
            sound=sound,
        )
    for departure, words in DEPARTURES.items():
        if departure != "none":
            yield ModelMutant(name=departure, area="translation", change=words, departure=departure)
    for name, way in _weak_policies().items():
        assert way.policy is not None
        yield ModelMutant(
            name=name,
            area="cap" if "tail" in name else "ring",
            change=f"the reference engine's {name}",
            sizes=Sizes(draft_tokens=(way.draft_tokens,)),
            faulty=way.policy,
            sound=Policy(),
        )


def _weak_policies() -> Mapping[str, ByMutant]:
    """What the known defects ask of the model besides its faults by name, once each."""
    ways = (way for defect in load_defects() for way in defect.found if isinstance(way, ByMutant))
    return {way.name: way for way in ways if way.policy is not None and not way.policy.faults}


def _kind(fault: Fault) -> tuple[Sizes, Policy]:
    if fault in SWA_FAULTS:
        return _PAGED, Policy(paged_swa=True)
    if fault in get_args(StreamFault):
        return _OVERLAPPED, Policy()
    return Sizes(), Policy()


def _area(fault: Fault) -> ModelArea:
    if fault in get_args(StreamFault):
        return "streams"
    return "tree" if fault in _TREE else "ring" if fault in _RING else "pools"


def _words(fault: Fault) -> str:
    if fault in SWA_FAULTS:
        report, words = SWA_FAULTS[fault]
        return f"{words} ({report})" if report else words
    return _WORDS[fault]
