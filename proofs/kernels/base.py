"""What the kernel theorems share: a release's kernels, the host's guarantees, small tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import z3

from kvproof.kernels.evaluate import constants
from kvproof.kernels.symbolic import Access, Run, at
from kvproof.kernels.ttir import UnknownCodeError
from kvproof.proofs.theorem import Check, Claim, Fact, Obligation, Term

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
    "H6": "tokens of one slot in a launch belong to one request: their final position is the same, "
    "their positions differ and do not pass it",
    "H7": "a page table's row has its pages first, and -1 after them; a request has no more pages "
    "than the row is wide",
    "H8": "program t of the decode builder works for batch row t",
}
"""Facts of the host that the proofs use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Code:
    """A release's kernels as symbolic runs.

    Attributes:
        release: its version.
        runs: by ``kernel [recipe]``, with sizes as numbers.
        shipped: the same with the constants that the release launches with.
        unknown: kernels that were not understood, and what of them.
        play: runs a counterexample on the release; None to only state it.
    """

    release: str
    runs: Mapping[str, Run]
    shipped: Mapping[str, Run]
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


def there(run: Run, access: Access, program: Term, lane: Term) -> tuple[Term, Term, Term]:
    """Condition, cell and value of an access of another program and lane."""
    if any(name.startswith("round") for name in constants(access.when)):
        raise UnknownCodeError(f"two lanes of a loop at line {access.line} of {run.kernel}")
    when, offset, value = (
        at(term, of=run, program=program, lane=lane)
        for term in (access.when, access.offset, access.value)
    )
    return when, offset, value


def in_lanes(access: Access, lane: Term) -> Fact:
    """The lane is one of the access's tensor."""
    return z3.And(lane >= 0, lane < access.lanes)


def fixed(run: Run, **sizes: int) -> Run:
    """The run with some of its sizes fixed; a kernel with loops has none to fix."""
    if run.loops:
        raise UnknownCodeError(f"{run.kernel} has a loop")
    known = {name: z3.IntVal(value) for name, value in sizes.items()}

    def fix(term: Term) -> Term:
        return at(term, of=run, **known)

    def access(one: Access) -> Access:
        return replace(
            one, offset=fix(one.offset), value=fix(one.value), when=fix(one.when),
            path=fix(one.path),
        )  # fmt: skip

    return replace(
        run,
        facts=tuple(fix(fact) for fact in run.facts),
        loads=tuple(access(one) for one in run.loads),
        stores=tuple(access(one) for one in run.stores),
        steps=tuple(replace(step, term=fix(step.term), path=fix(step.path)) for step in run.steps),
    )


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


def h6(one: Token, other: Token) -> Fact:
    """H6 of two tokens of a launch."""
    return z3.Implies(
        one.slot == other.slot,
        z3.And(one.final == other.final, one.position != other.position),
    )


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
