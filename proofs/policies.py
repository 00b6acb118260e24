"""Verdicts about the cache policies: small sizes judged run by run, and the theorems for all sizes.

Nothing here says in advance what a policy keeps. Each is played by the reference engine on every
short hit of a small model, its logs are judged by the monitor and through the layers, and the first
run that breaks an invariant is the counterexample. The theorems named beside a verdict are what
carries it to other sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvproof.model.facts import Admitted, Fact
from kvproof.model.layers import Stack, judge
from kvproof.model.monitor import check
from kvproof.model.policies import (
    FLOORED_READS,
    LAYERED_CAP,
    NO_CAP,
    REBUILD,
    RELEASE_CAP,
    CachePolicy,
    Sizes,
)
from kvproof.model.reference import reference_player
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
from kvproof.proofs.scenarios import hit
from kvproof.spec.exact import exact_logits_tail
from kvproof.spec.pages import page_ceil

Asked: TypeAlias = Literal["FRESH-DECODE", "FRESH-PREFILL", "NON-INTERFERENCE", "EXACT", "PURE"]

ASKED: dict[Asked, str] = {
    "FRESH-DECODE": "every ring row that a decode reads was written by this request, in this lease",
    "FRESH-PREFILL": "the same for every ring row that a prefill reads",
    "NON-INTERFERENCE": "no output depends on what an earlier occupant left in the slot",
    "EXACT": "a hit gives what a run with an empty cache gives, through all layers",
    "PURE": "what the tree holds depends on its tokens alone",
}

THEOREMS: dict[str, dict[Asked, tuple[str, ...]]] = {
    NO_CAP.name: {
        "FRESH-DECODE": ("C3", "C5"), "FRESH-PREFILL": ("X1",), "NON-INTERFERENCE": ("X2",),
        "EXACT": ("X3", "X4"), "PURE": ("X6",),
    },
    RELEASE_CAP.name: {
        "FRESH-DECODE": ("C2", "C3"), "FRESH-PREFILL": ("X1",), "NON-INTERFERENCE": ("X2",),
        "EXACT": ("X3", "X4"), "PURE": ("X6",),
    },
    FLOORED_READS.name: {
        "FRESH-DECODE": ("C2", "C3"), "FRESH-PREFILL": ("X2",), "NON-INTERFERENCE": ("X2",),
        "EXACT": ("X2", "X3"), "PURE": ("X3",),
    },
    LAYERED_CAP.name: {
        "FRESH-DECODE": ("C3",), "FRESH-PREFILL": ("X1",), "NON-INTERFERENCE": ("X3", "X4"),
        "EXACT": ("X3", "X4"), "PURE": ("X4", "X6"),
    },
    REBUILD.name: {
        "FRESH-DECODE": ("C3",), "FRESH-PREFILL": ("X1",), "NON-INTERFERENCE": ("X5",),
        "EXACT": ("X5",), "PURE": ("X5",),
    },
}  # fmt: skip
"""Theorems that say for all sizes what is judged here on small ones."""


def theorems_of(policy: CachePolicy, asked: Asked, *, compressed: bool) -> tuple[str, ...]:
    """What to cite: without compressed rows the tree holds nothing that a ring can reach."""
    theorems = THEOREMS[policy.name][asked]
    if compressed:
        return theorems
    if asked == "PURE":
        return ()
    return tuple(name for name in theorems if name != "X4")


Status: TypeAlias = Literal["holds", "violated", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One invariant under one policy.

    Attributes:
        runs: runs in which it was put to the test: those with a hit.
        broken: of which so many broke it.
        theorems: identifiers, see docs/theorems.md.
        says: how the first of them broke it.
        scenario: its scenario, to play with the policy.
    """

    status: Status
    runs: int
    broken: int
    theorems: tuple[str, ...]
    says: str | None = None
    scenario: Scenario | None = None


@dataclass(slots=True)
class _Count:
    runs: int = 0
    broken: int = 0
    says: str | None = None
    scenario: Scenario | None = None

    def verdict(self, theorems: tuple[str, ...]) -> Verdict:
        status: Status = "violated" if self.broken else "holds" if self.runs else "unknown"
        return Verdict(
            status=status, runs=self.runs, broken=self.broken, theorems=theorems,
            says=self.says, scenario=self.scenario,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Small:
    """The small model that stands for a large one.

    It keeps what decides: one layer or more, a page below the window or not, compressed rows or
    none, and whether the shortest of them is complete within the tail that is exact without them
    (the condition of theorem X4).

    Attributes:
        ratio: tokens per compressed row; None for a stack without any.
    """

    sizes: Sizes
    ratio: int | None
    draft_tokens: int = 1

    def stack(self, policy: CachePolicy) -> Stack:
        """The layers through which logs are judged: all with compressed rows, or none."""
        return Stack(ratios=(self.ratio or 0,) * self.sizes.layers, reading=policy.reading)


def small_of(sizes: Sizes, *, ratios: tuple[int, ...], draft_tokens: int = 1) -> Small:
    """The small model that stands for ``sizes`` with compressed rows of ``ratios`` tokens."""
    layers, window = min(sizes.layers, 3), min(sizes.window, 3)
    exact = exact_logits_tail(layers, window)
    ratio = None
    if ratios:
        complete = min(ratios) <= exact_logits_tail(sizes.layers, sizes.window)
        ratio = min(*ratios, 2) if complete else exact + 1
    page_size = 1 if sizes.page_size < sizes.window else window + 1
    if ratio is not None:
        page_size = page_ceil(page_size, ratio)
    return Small(
        sizes=Sizes(window=window, page_size=page_size, layers=layers),
        ratio=ratio,
        draft_tokens=min(draft_tokens, window),
    )


def judged(policy: CachePolicy, small: Small) -> Mapping[Asked, Verdict]:
    """Play the policy on every short hit of the small model, and judge."""
    counts: dict[Asked, _Count] = {name: _Count() for name in ASKED}
    for scenario in _hits(small):
        facts = list(
            reference_player(scenario.geometry, policy.reference(small.sizes)).play(scenario)
        )
        if not any(isinstance(fact, Admitted) and fact.matched_len for fact in facts):
            continue
        found = _broken(facts, small.stack(policy))
        for name, count in counts.items():
            count.runs += 1
            if name in found:
                count.broken += 1
                if count.scenario is None:
                    count.says, count.scenario = found[name], scenario
    compressed = small.ratio is not None
    return {
        name: count.verdict(theorems_of(policy, name, compressed=compressed))
        for name, count in counts.items()
    }


def _broken(facts: list[Fact], stack: Stack) -> dict[Asked, str]:
    found: dict[Asked, str] = {}
    for (invariant, _), violation in check(facts).violations.items():
        if invariant in ("FRESH-DECODE", "FRESH-PREFILL"):
            found.setdefault(invariant, violation.sentence)
    for broken in judge(facts, stack).broken:
        found.setdefault(broken.invariant, broken.sentence)
    return found


def _hits(small: Small) -> Iterator[Scenario]:
    """Hits of every length up to where each policy keeps a page, with every tail up to exact."""
    sizes = small.sizes
    exact = exact_logits_tail(sizes.layers, sizes.window)
    page_size = sizes.page_size
    then: tuple[Operation, ...] = (Decode(), Decode())
    if small.draft_tokens > 1:
        then = (Verify(accepted=1), Verify(accepted=small.draft_tokens))
    pages = page_ceil(exact, page_size) // page_size
    for matched in (page_size, (pages + 2) * page_size):
        for tail in range(1, exact + page_size + 1):
            scenario = hit(
                window=sizes.window, page_size=page_size, matched_len=matched, tail=tail,
                then=then, slots=2,
            )  # fmt: skip
            yield _inherited(scenario, small, matched, tail)


def _inherited(scenario: Scenario, small: Small, matched: int, tail: int) -> Scenario:
    """The hit, drafting as asked, and after it a request in another slot that reuses its pages.

    Another request comes first, so that both slots were last held by strangers: what the prefix's
    own first request left in its slot would be right by luck.
    """
    longer = matched + tail + small.sizes.page_size
    geometry = scenario.geometry
    at = next(
        index for index, operation in enumerate(scenario.operations)
        if isinstance(operation, Submit) and operation.request == "C"
    )  # fmt: skip
    stranger = (
        Submit(request="E", prompt=(Piece("E", matched + tail),)),
        Prefill(request="E"),
        Finish(request="E"),
    )
    return Scenario(
        geometry=Geometry(
            window=geometry.window, page_size=geometry.page_size, slots=geometry.slots,
            pool_tokens=geometry.pool_tokens + 3 * page_ceil(longer + 8, geometry.page_size),
            draft_tokens=small.draft_tokens,
        ),
        operations=(
            *scenario.operations[:at],
            *stranger,
            *scenario.operations[at:],
            Submit(request="D", prompt=(Piece("A", matched), Piece("C", longer))),
            Prefill(request="D"),
            Decode() if small.draft_tokens == 1 else Verify(accepted=1),
            Finish(request="C"),
        ),
    )  # fmt: skip
