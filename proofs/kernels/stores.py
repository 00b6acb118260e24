"""K18 and K19: the stores into paged pools, fp8 and bf16 and scales in one buffer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3

from kvproof.kernels.launch_sizes import INDEXER_BYTES, PAGE_BYTES, STORE_PAGE
from kvproof.kernels.symbolic import Access, Run
from kvproof.proofs.kernels.base import LANE, MORE, Code, P, Q, in_lanes, only, proved, there
from kvproof.proofs.theorem import Claim, Fact, Obligation, Term, Theorem

PAGED = "_triton_fused_store_flashmla_kernel [paged store]"
INDEXER = "_triton_fused_store_indexer_kernel [indexer store]"

TILE, TILE_Q = z3.Ints("program_y tile_q")


@dataclass(frozen=True, kw_only=True, slots=True)
class _View:
    """A view of the pool's bytes that a kernel stores through, and what a token has there.

    Attributes:
        base: the kernel's argument.
        size: bytes of an element.
        inside: whether a byte of a page is one of a token's, given its place in the page.
    """

    base: str
    size: int
    inside: Callable[[Term, Term], Fact]


_DATA, _ROPE = 576, 448
_SCALES = STORE_PAGE * _DATA

_PAGED_VIEWS = (
    _View(
        base="cache_fp8_ptr",
        size=1,
        inside=lambda byte, place: z3.And(byte >= place * _DATA, byte < place * _DATA + _ROPE),
    ),
    _View(
        base="cache_bf16_ptr",
        size=2,
        inside=lambda byte, place: z3.And(
            byte >= place * _DATA + _ROPE, byte < (place + 1) * _DATA
        ),
    ),
    _View(
        base="cache_u8_ptr",
        size=1,
        inside=lambda byte, place: z3.And(
            byte >= _SCALES + place * 8, byte < _SCALES + place * 8 + 7
        ),
    ),
)
_INDEXER_VIEWS = (
    _View(
        base="cache_fp8_ptr",
        size=1,
        inside=lambda byte, place: z3.And(byte >= place * 128, byte < (place + 1) * 128),
    ),
    _View(
        base="cache_f32_ptr",
        size=4,
        inside=lambda byte, place: z3.And(
            byte >= STORE_PAGE * 128 + place * 4, byte < STORE_PAGE * 128 + (place + 1) * 4
        ),
    ),
)


def _obligations(
    code: Code, name: str, views: tuple[_View, ...], page_bytes: int, tiles: int
) -> tuple[Obligation, ...]:
    def parts() -> tuple[Run, Term, Term, tuple[Fact, ...]]:
        code.run(name)  # says so if it was not understood
        shipped = code.shipped[name]
        loc, other = shipped.memory["indices_ptr"](P), shipped.memory["indices_ptr"](Q)
        given = (
            P >= 0, Q >= 0, shipped.arguments["N"] > P, shipped.arguments["N"] > Q, loc >= 0,
            other >= 0, TILE >= 0, tiles > TILE, TILE_Q >= 0, tiles > TILE_Q,
        )  # fmt: skip
        return shipped, loc, other, given

    def inside(view: _View) -> Callable[[], Claim]:
        """Bytes of the token's own place in its page, and within the page."""

        def claim() -> Claim:
            run, loc, _, given = parts()
            store = only(run, view.base)
            byte = store.offset * view.size - loc / STORE_PAGE * page_bytes
            return Claim(
                given=(*given, in_lanes(store, LANE), store.when),
                then=z3.And(
                    byte >= 0, byte + view.size <= page_bytes, view.inside(byte, loc % STORE_PAGE),
                    view.inside(byte + view.size - 1, loc % STORE_PAGE),
                ),
            )  # fmt: skip

        return claim

    def once(view: _View) -> Callable[[], Claim]:
        """Two programs or lanes store no cell both, if the tokens' locations differ (H16)."""

        def claim() -> Claim:
            run, loc, other, given = parts()
            store = only(run, view.base)
            when, offset, _ = _other(run, store)
            return Claim(
                given=(
                    *given, in_lanes(store, LANE), in_lanes(store, MORE), store.when, when,
                    z3.If(P == Q, z3.Or(TILE != TILE_Q, LANE != MORE), loc != other),
                ),
                then=store.offset != offset,
            )  # fmt: skip

        return claim

    def stored(view: _View) -> Callable[[], Claim]:
        """Each token is stored: by every lane of the tiles that are this view's."""

        def claim() -> Claim:
            run, _, _, given = parts()
            store = only(run, view.base)
            mine = {"cache_bf16_ptr": tiles - 1 == TILE}.get(view.base, tiles - 1 > TILE)
            return Claim(
                given=(*given, in_lanes(store, LANE)),
                then=store.when == (mine if tiles > 1 else z3.BoolVal(True)),
            )

        return claim

    def nobody_else() -> Claim:
        run, _, _, given = parts()
        count = run.arguments["N"]
        kept = tuple(fact for fact in given if not fact.eq(count > P))
        return Claim(
            given=(*kept, count <= P),
            then=z3.Not(z3.Or(*(store.when for store in run.stores))),
        )

    return (
        *(proved(f"the token's own bytes, {view.base}", inside(view)) for view in views),
        *(proved(f"no byte twice, {view.base}", once(view)) for view in views),
        *(proved(f"whole, {view.base}", stored(view)) for view in views),
        proved("nothing beyond the last token", nobody_else),
    )


def _other(run: Run, store: Access) -> tuple[Term, Term, Term]:
    return there(run, store, Q, MORE, program_y=TILE_Q)


def paged_store(code: Code) -> Theorem:
    """K18: the fused store of 512 numbers as fp8, bf16 and scales."""
    return Theorem(
        identifier="K18",
        title="the paged store",
        statement="A token's 448 fp8 bytes, 64 bf16 numbers and 7 scales go to its own place in "
        "its page and stay in the page; the three views of the pool share no byte, and no byte is "
        "stored twice.",
        scope=f"all locations and numbers of tokens, as numbers without a width (see K10); pages "
        f"of {STORE_PAGE} tokens and {PAGE_BYTES:,} bytes; H16; what the bytes say is not covered",
        obligations=_obligations(code, PAGED, _PAGED_VIEWS, PAGE_BYTES, 8),
        mutants=(),
        source=f"_triton_fused_store_flashmla_kernel ({code.release})",
    )


def indexer_store(code: Code) -> Theorem:
    """K19: the fused store of the indexer's keys."""
    return Theorem(
        identifier="K19",
        title="the indexer's store",
        statement="A token's 128 fp8 bytes and its scale go to its own place in its page and stay "
        "in the page; the two views share no byte, and no byte is stored twice.",
        scope=f"all locations and numbers of tokens, as numbers without a width (see K10); pages "
        f"of {STORE_PAGE} tokens; plain layout; H16; what the bytes say is not covered",
        obligations=_obligations(code, INDEXER, _INDEXER_VIEWS, INDEXER_BYTES, 1),
        mutants=(),
        source=f"_triton_fused_store_indexer_kernel ({code.release})",
    )
