"""Linear arithmetic in place of products and remainders, by lemmas that are proved once.

``position % stride`` with a symbolic stride is non-linear, and solvers answer such questions or do
not, depending on the seed. Here every remainder and every product becomes a fresh integer, and the
lemmas below, instantiated at the terms that occur, say of it what proofs about rings need. The
result is weaker than the exact formula: if it is unsatisfiable, so is the exact one. A model of it
may be spurious and is checked against the exact formula by evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from operator import mul

import z3

from kvproof.proofs.theorem import Claim, Fact, Obligation, Term
from kvproof.spec.terms import register_conditional

register_conditional(z3.BoolRef, z3.If)

PERIODS = (-2, -1, 0, 1, 2)
"""How many strides apart two dividends may be for `remainder_shift` to relate them."""


def remainder_range(a: Term, ra: Term, d: Term) -> Fact:
    """MOD-1. A remainder lies in ``[0, d)``, and is the dividend itself if that does."""
    return z3.And(ra >= 0, ra < d, z3.Implies(z3.And(a >= 0, a < d), ra == a))


def remainder_shift(a: Term, ra: Term, b: Term, rb: Term, *, d: Term, periods: int) -> Fact:
    """MOD-2. Dividends that differ by less than a few strides: how their remainders differ."""
    moved = rb + (a - b) - periods * d
    return z3.Implies(z3.And(moved >= 0, moved < d), ra == moved)


def remainder_sum(rb: Term, rc: Term, ra: Term, d: Term) -> Fact:
    """MOD-3. The remainder of a sum is the sum of the remainders, or that less the divisor.

    Also if the sum is off by the divisor.
    """
    return z3.Or(ra == rb + rc, ra == rb + rc - d)


def remainder_floor(a: Term, ra: Term) -> Term:
    """MOD-4. What is left without its remainder has none: the term whose remainder is 0."""
    return a - ra


def product_units(x: Term, y: Term, xy: Term) -> Fact:
    """MUL-1. Products with nought and one, and their sign."""
    return z3.And(
        z3.Implies(x == 0, xy == 0),
        z3.Implies(x == 1, xy == y),
        z3.Implies(z3.And(x >= 0, y >= 0), xy >= 0),
    )


def product_step(x: Term, xy: Term, z: Term, zy: Term, y: Term) -> Fact:
    """MUL-2. A larger factor gives a product that is larger by at least the other factor."""
    return z3.And(
        z3.Implies(x == z, xy == zy),
        z3.Implies(x == z + 1, xy == zy + y),
        z3.Implies(z3.And(x > z, y >= 0), xy >= zy + y),
        z3.Implies(z3.And(z > x, y >= 0), zy >= xy + y),
    )


@dataclass(slots=True)
class Linear:
    """A rewriter with the remainders and products that it has met."""

    remainders: list[tuple[Term, Term, Term]] = field(default_factory=list)
    products: list[tuple[Term, Term, Term]] = field(default_factory=list)
    _seen: dict[int, Term] = field(default_factory=dict)
    _kept: list[Term] = field(default_factory=list)

    def rewrite(self, term: Term) -> Term:
        """``term`` with its remainders and products named."""
        known = self._seen.get(term.get_id())
        if known is not None:
            return known
        new = self._rebuilt(term, [self.rewrite(child) for child in term.children()])
        # Ids are reused once a term is gone, so what has been seen is kept.
        self._kept.append(term)
        self._seen[term.get_id()] = new
        return new

    def _rebuilt(self, term: Term, parts: list[Term]) -> Term:
        kind = term.decl().kind() if z3.is_app(term) else None
        if kind == z3.Z3_OP_MOD and not z3.is_int_value(parts[1]):
            return self._named(self.remainders, parts[0], parts[1])
        if kind == z3.Z3_OP_MUL:
            factors = [part for part in parts if not z3.is_int_value(part)]
            if len(factors) == 2:
                constants = [part for part in parts if z3.is_int_value(part)]
                return reduce(mul, constants, self._named(self.products, *factors))
        return term.decl()(*parts) if parts else term

    def _named(self, known: list[tuple[Term, Term, Term]], one: Term, other: Term) -> Term:
        for a, b, name in known:
            if a.eq(one) and b.eq(other):
                return name
        name = z3.FreshInt("k")
        known.append((one, other, name))
        return name

    def sums(self) -> Iterator[Fact]:
        """Instances of MOD-3 for all that may be a sum of two others, floors included."""
        terms = [*self.remainders]
        terms += [(remainder_floor(a, ra), d, z3.IntVal(0)) for a, d, ra in self.remainders]
        for (b, d, rb), (c, e, rc) in combinations(terms, 2):
            for a, f, ra in terms:
                if d.eq(e) and d.eq(f):
                    off = a - (b + c)
                    is_sum = z3.Or(off == 0, off == d, off == -d)
                    yield z3.Implies(z3.And(d >= 1, is_sum), remainder_sum(rb, rc, ra, d))

    def lemmas(self) -> Iterator[Fact]:
        """Instances of all other lemmas for everything named so far."""
        nought = z3.IntVal(0)
        for a, d, ra in self.remainders:
            yield z3.Implies(d >= 1, remainder_range(a, ra, d))
        for (a, d, ra), (b, e, rb) in combinations(self.remainders, 2):
            if d.eq(e):
                for k in PERIODS:
                    yield z3.Implies(d >= 1, remainder_shift(a, ra, b, rb, d=d, periods=k))
        for a, d, ra in self.remainders:
            for k in PERIODS:
                yield z3.Implies(d >= 1, remainder_shift(a, ra, nought, nought, d=d, periods=k))
        for x, y, xy in self.products:
            yield product_units(x, y, xy)
            yield product_units(y, x, xy)
        for one, other in combinations(self.products, 2):
            for x, y in ((one[0], one[1]), (one[1], one[0])):
                for z, w in ((other[0], other[1]), (other[1], other[0])):
                    if y.eq(w):
                        yield product_step(x, one[2], z, other[2], y)


def linearised(formulas: Sequence[Fact]) -> tuple[list[Fact], list[Fact]]:
    """Formulas in linear arithmetic with their lemmas; and further lemmas, many and seldom needed.

    Both are to be asserted together. The second list is empty where nothing was abstracted that
    they speak about.
    """
    linear = Linear()
    rewritten = [linear.rewrite(z3.simplify(formula)) for formula in formulas]
    return [*rewritten, *linear.lemmas()], list(linear.sums())


def _remainder_range() -> Claim:
    a, d = z3.Ints("a d")
    return Claim(given=(d >= 1,), then=remainder_range(a, a % d, d))


def _difference_of_remainders(t: Term, d: Term) -> tuple[Fact, ...]:
    """Multiples of ``d``: which one lies strictly between two neighbours."""
    return (z3.Implies(t >= 1, t * d >= d), z3.Implies(t <= -1, t * d <= -d))


def _multiples() -> Claim:
    t, d = z3.Ints("t d")
    return Claim(given=(d >= 1,), then=z3.And(*_difference_of_remainders(t, d)))


def _remainder_shift(periods: int) -> Callable[[], Claim]:
    def claim() -> Claim:
        # a = qa*d + ra and b = qb*d + rb define quotient and remainder.
        qa, ra, qb, rb, d, t = z3.Ints("qa ra qb rb d t")
        a, b = qa * d + ra, qb * d + rb
        return Claim(
            given=(
                d >= 1, ra >= 0, ra < d, rb >= 0, rb < d, t == qa - qb - periods,
                t * d == qa * d - qb * d - periods * d, *_difference_of_remainders(t, d),
            ),
            then=remainder_shift(a, ra, b, rb, d=d, periods=periods),
        )  # fmt: skip

    return claim


def _distribution(periods: int) -> Callable[[], Claim]:
    def claim() -> Claim:
        qa, qb, d = z3.Ints("qa qb d")
        return Claim(given=(d >= 1,), then=(qa - qb - periods) * d == qa * d - qb * d - periods * d)

    return claim


def _remainder_sum() -> Claim:
    qb, rb, qc, rc, d, off = z3.Ints("qb rb qc rc d off")
    b, c = qb * d + rb, qc * d + rc
    quotient = qb + qc + off + z3.If(rb + rc < d, 0, 1)
    rest = z3.If(rb + rc < d, rb + rc, rb + rc - d)
    return Claim(
        given=(d >= 1, rb >= 0, rb < d, rc >= 0, rc < d, off >= -1, off <= 1),
        then=z3.And(
            b + c + off * d == quotient * d + rest,
            rest >= 0,
            rest < d,
            remainder_sum(rb, rc, rest, d),
        ),
    )


def _remainder_floor() -> Claim:
    a, d, q = z3.Ints("a d q")
    return Claim(
        given=(d >= 1, a == q * d + a % d),
        then=remainder_floor(a, a % d) == q * d + 0,
    )


def _definition() -> Claim:
    a, d = z3.Ints("a d")
    return Claim(given=(d >= 1,), then=a == (a / d) * d + a % d)


def _product_units() -> Claim:
    x, y = z3.Ints("x y")
    return Claim(given=(), then=product_units(x, y, x * y))


def _product_step() -> Claim:
    t, y, z = z3.Ints("t y z")
    return Claim(given=_signs(t, y), then=product_step(t + z, t * y + z * y, z, z * y, y))


def _signs(t: Term, y: Term) -> tuple[Fact, ...]:
    return (
        z3.Implies(z3.And(t >= 1, y >= 0), t * y >= y),
        z3.Implies(z3.And(t <= -1, y >= 0), t * y <= -y),
    )


def _sign_lemma() -> Claim:
    t, y = z3.Ints("t y")
    return Claim(given=(), then=z3.And(*_signs(t, y)))


LEMMAS: tuple[Obligation, ...] = (
    Obligation(name="multiples of d keep a distance of d", claim=_multiples),
    Obligation(name="quotient and remainder", claim=_definition),
    Obligation(name="MOD-1", claim=_remainder_range),
    *(
        Obligation(name=f"distribution, {periods} periods", claim=_distribution(periods))
        for periods in PERIODS
    ),
    *(
        Obligation(name=f"MOD-2, {periods} periods", claim=_remainder_shift(periods))
        for periods in PERIODS
    ),
    Obligation(name="MOD-3", claim=_remainder_sum),
    Obligation(name="MOD-4", claim=_remainder_floor),
    Obligation(name="sign of a product", claim=_sign_lemma),
    Obligation(name="MUL-1", claim=_product_units),
    Obligation(name="MUL-2", claim=_product_step),
)
"""Each proved in exact arithmetic, once a run."""
