"""What the kernel theorems share: a release's kernels, the host's guarantees, small tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import z3

from kvproof.kernels.evaluate import constants
from kvproof.kernels.symbolic import Access, Loop, Reduction, Run, Step, at
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term
from kvproof.spec.indices import PADDING_SLOT
from kvproof.spec.terms import minimum

P, Q = z3.Ints("program q")
"""Two programs of a launch."""

LANE, MORE = z3.Ints("lane lane_q")
"""Two lanes."""

PLACE, COUNT, DONE, TOKENS = z3.Ints("place count done tokens")
"""A place in a segment, a number of pages, where a loop leaves off, a number of tokens."""

WIN, GROUP = z3.Ints("window group")
"""Window and size of a group of drafts, where the kernel is not told."""

Play = Callable[[str, dict[str, list[int]]], list[int] | str]
"""Launches a wrapper of the release on given numbers; what came out, or why nothing did."""

ASSUMPTIONS: Mapping[str, str] = {
    "H1": "the slot of a row is not negative",
    "H2": "a position is not negative, and not below the start of its chunk",
    "H3": "the stride is at least the window, and the window at least 1",
    "H4": "the window and a table's width are at least 1; the window fits the block that the "
    "wrapper chose for it, where the kernel has no loop over it",
    "H5": "a segment is as long as the lengths that were given for it say: the host's cumulative "
    "sum is exact",
    "H6": "tokens of one slot in a launch, padding aside, belong to one request: their positions "
    "differ and do not pass their final ones, which are the same, or the positions lie less than a "
    "window apart",
    "H7": "a page table's row has its pages first, and -1 after them; a request has no more pages "
    "than the row is wide",
    "H8": "program t of the decode builder works for batch row t",
    "H9": "a batch is at most as large as the block that the wrapper chose for it",
    "H10": "a masked load that does not say what the masked lanes get gives them 0; Triton leaves "
    "that open",
    "H11": "a request's new length is not below its old one, and neither is negative",
    "H12": "the last location of a request is congruent to its last position, modulo the page; "
    "that of no prefix is -1",
    "H13": "the free list has as many pages as the batch needs, and no page twice",
    "H14": "a request is in a batch once, and its row of the request table is as wide as it is "
    "long",
    "H15": "the pages that are cleared differ, and lie in the mapping",
    "H16": "a location is a token's of the pool, and no two tokens of a launch have the same",
    "H17": "row numbers are of the pool, or negative where the kernel skips those",
    "H18": "tokens of one request lie together in a launch, at positions that follow each other; "
    "where such a run begins and ends, and its number, are what the host says",
}
"""Facts of the host that the proofs use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """A release's kernels as symbolic runs.

    Attributes:
        release: its name.
        family: of the catalogue.
        runs: by ``kernel [recipe]``, with sizes as numbers.
        shipped: the same with the constants that the release launches with.
        bits: these in bit-vectors.
        unknown: kernels that were not understood, and what of them.
        play: runs a counterexample on the release; None to only state it.
    """

    release: str
    family: str
    runs: Mapping[str, Run]
    shipped: Mapping[str, Run]
    bits: Mapping[str, Run]
    unknown: Mapping[str, str]
    play: Play | None = None

    def run(self, name: str) -> Run:
        """A kernel's run.

        Raises:
            UnknownCodeError: it was not understood, or the release has no such kernel.
        """
        if name in self.unknown:
            raise UnknownCodeError(f"{name}: {self.unknown[name]}")
        if name not in self.runs:
            raise UnknownCodeError(f"{self.release} launches no {name}")
        return self.runs[name]

    def with_kernel(self, name: str, run: Run, shipped: Run) -> Code:
        """The same release with one kernel replaced, e.g. by a mutant."""
        return replace(
            self, runs={**self.runs, name: run}, shipped={**self.shipped, name: shipped}, play=None
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """What a program loaded of its token, as numbers."""

    slot: Term
    position: Term
    final: Term = None
    chunk_start: Term = None


def there(
    run: Run, access: Access, program: Term, lane: Term, **others: Term
) -> tuple[Term, Term, Term]:
    """Condition, cell and value of an access of another program and place."""
    when, offset, value = (
        at(term, of=run, program=program, lane=lane, **others)
        for term in (access.when, access.offset, access.value)
    )
    return when, offset, value


@dataclass(frozen=True, kw_only=True, slots=True)
class Total:
    """Sums of the lengths of the first requests of a batch, as a function of how many they are.

    The kernel's sum is shown to be it by induction: over the lanes of a reduction, or the rounds of
    a loop.
    """

    name: str
    length: Callable[[Term], Term]

    def __call__(self, count: Term) -> Term:
        """Of the first ``count`` requests."""
        return z3.Function(self.name, z3.IntSort(), z3.IntSort())(count)

    def grows(self, count: Term) -> Fact:
        """What one more adds."""
        return self(count + 1) == self(count) + self.length(count)

    def lane_of(self, total: Reduction, *, end: Term, given: Sequence[Fact] = ()) -> Claim:
        """A lane of a reduction adds what its request adds; beyond ``end`` it adds nothing.

        So a reduction over ``end`` lanes or more gives ``self(end)``.
        """

        def so_far(count: Term) -> Term:
            return self(minimum(count, end))

        return Claim(
            given=(
                *given, total.path, end >= 0, end <= total.lanes, LANE >= 0, total.lanes > LANE,
                self.grows(LANE),
            ),
            then=total.element == so_far(LANE + 1) - so_far(LANE),
        )  # fmt: skip


def reach(access: Access, place: Term) -> list[tuple[Term, Term]]:
    """The lane, and the round if it is in a loop, in which an access is at a place."""
    rounds = [name for name in constants(access.path) if name.startswith("round")]
    return [
        (z3.Int("lane"), place % access.lanes),
        *((z3.Int(each), place / access.lanes) for each in rounds),
    ]


def nothing_masked(run: Run) -> tuple[Fact, ...]:
    """H10: what masked lanes get is 0."""
    return tuple(
        unknown(LANE, 0) == 0 if isinstance(unknown, z3.FuncDeclRef) else unknown == 0
        for unknown in run.undefined
    )


def in_lanes(access: Access, lane: Term) -> Fact:
    """The lane is one of the access's tensor."""
    return z3.And(lane >= 0, lane < access.lanes)


def fixed(run: Run, **sizes: int) -> Run:
    """The run with some of its sizes fixed."""
    known = {name: z3.IntVal(value) for name, value in sizes.items()}

    def fix(part: Any) -> Any:
        """Terms, and whatever is made of them."""
        if isinstance(part, tuple):
            return tuple(fix(each) for each in part)
        if isinstance(part, Access | Loop | Reduction | Step):
            names = (each.name for each in fields(part))
            return replace(part, **{name: fix(getattr(part, name)) for name in names})
        return at(part, of=run, **known) if z3.is_expr(part) else part

    parts = ("facts", "loads", "stores", "steps", "loops", "reductions")
    return replace(run, **{name: fix(getattr(run, name)) for name in parts})


def only(run: Run, base: str) -> Access:
    """The one store to a pointer argument; more or none is an abstention."""
    found = run.stores_to(base)
    if len(found) != 1:
        raise UnknownCodeError(f"{run.kernel} stores to {base} in {len(found)} places")
    return found[0]


def proved(name: str, claim: Callable[[], Claim]) -> Obligation:
    """An obligation that is expected to hold."""
    return Obligation(name=name, claim=claim)


def h1_h2(token: Token) -> tuple[Fact, ...]:
    """H1 and H2 of one token."""
    facts = [token.slot >= 0, token.position >= 0]
    if token.final is not None:
        facts.append(token.final >= token.position)
    if token.chunk_start is not None:
        facts += [token.chunk_start >= 0, token.chunk_start <= token.position]
    return tuple(facts)


def h6(one: Token, other: Token, win: Term) -> Fact:
    """H6 of two tokens of a launch."""
    apart = one.position - other.position
    return z3.Implies(
        z3.And(one.slot == other.slot, one.slot != PADDING_SLOT),
        z3.And(
            apart != 0, z3.Or(one.final == other.final, z3.And(apart < win, -apart < win)),
        ),
    )  # fmt: skip


def play(code: Code, wrapper: str, **numbers: Sequence[int]) -> list[int] | str:
    """Launch a wrapper of the release on a counterexample's numbers."""
    if code.play is None:
        return "not played: no engine is at hand"
    return code.play(wrapper, {name: list(values) for name, values in numbers.items()})


def check(code: Code, invariant: str, broken: bool, says: str) -> Check:
    """What a counterexample did in the interpreter."""
    return Check(
        model=f"{code.release} in the interpreter", invariant=invariant, broken=broken, says=says
    )
