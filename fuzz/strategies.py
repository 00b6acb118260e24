"""Hypothesis strategies for scenarios, in a pair: arbitrary, and mostly valid.

`arbitrary_scenarios` draws operations without looking at each other: most do nothing, and that is
its purpose. `likely_scenarios` draws *moves* and spells them out against a sketch of which requests
are alive, with a bias to where such caches break: shared prefixes, tails shorter than the window,
recycled slots, lengths on and beside page, chunk and window boundaries, answers that are reused.
A move is a few small integers that mean something whatever the moves before it were, so a move can
be dropped and every number made smaller without making the scenario invalid. That is what shrinks.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from kvproof.model.scenario import (
    Abort,
    Accepted,
    Complete,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.spec.pages import page_ceil

NAMES = string.ascii_uppercase
MIN_MOVES = 10
MAX_MOVES = 18
MAX_TOKENS = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What geometries are drawn from; the defaults keep a scenario quick to run and to read.

    Small page sizes and windows lie below, at and above one another, and windows that are neither
    0 nor -1 modulo the page size occur. No draft is longer than the window: with one that is, an
    older release drops keys of accepted tokens whatever the stride (R7); no server's is.

    Attributes:
        overlaps: without and with overlap scheduling; once for each share of the scenarios.
        overlapped_drafts: whether a geometry that drafts may overlap.
        no_overlap: why none overlaps; empty where some do, or nobody asked.
        page_holds_window: leave out pages that are smaller than the window.
        swa_shares: the full pool is so many times as large as the SWA pool; none where the SWA pool
            is not drawn.
    """

    windows: tuple[int, ...] = (4, 3, 5, 6, 8, 2)
    page_sizes: tuple[int, ...] = (2, 1, 4, 8)
    slots: tuple[int, ...] = (1, 2, 3)
    pool_tokens: tuple[int, ...] = (64, 128, 40, 32)
    draft_tokens: tuple[int, ...] = (1,)
    overlaps: tuple[int, ...] = (0,)
    overlapped_drafts: bool = True
    no_overlap: str = ""
    page_holds_window: bool = False
    swa_shares: tuple[int, ...] = ()


def geometries(sizes: Sizes) -> SearchStrategy[Geometry]:
    """Geometries; the pool holds a few requests, so that eviction happens."""
    drawn = st.builds(
        Geometry,
        window=st.sampled_from(sizes.windows),
        page_size=st.sampled_from(sizes.page_sizes),
        slots=st.sampled_from(sizes.slots),
        pool_tokens=st.sampled_from(sizes.pool_tokens),
        draft_tokens=st.sampled_from(sizes.draft_tokens),
        overlap=st.sampled_from([overlap or msgspec.UNSET for overlap in sizes.overlaps]),
    ).filter(lambda geometry: geometry.draft_tokens <= geometry.window)
    if not sizes.overlapped_drafts:
        drawn = drawn.map(_without_overlapped_draft)
    if sizes.page_holds_window:
        drawn = drawn.filter(lambda geometry: geometry.page_size >= geometry.window)
    if sizes.swa_shares:
        drawn = st.builds(_with_swa_pool, drawn, st.sampled_from(sizes.swa_shares))
    return drawn


def _without_overlapped_draft(geometry: Geometry) -> Geometry:
    if geometry.draft_tokens > 1:
        return msgspec.structs.replace(geometry, overlap=msgspec.UNSET)
    return geometry


def _with_swa_pool(geometry: Geometry, share: int) -> Geometry:
    tokens = page_ceil(geometry.pool_tokens // share, geometry.page_size)
    return msgspec.structs.replace(geometry, swa_tokens=tokens)


# Arbitrary


def _arbitrary_operations() -> SearchStrategy[Operation]:
    names = st.sampled_from(NAMES[:4])
    lengths = st.integers(0, MAX_TOKENS)
    prompts = st.lists(st.builds(Piece, names, lengths), max_size=3).map(tuple)
    return st.one_of(
        st.builds(Submit, request=names, prompt=prompts),
        st.builds(Prefill, request=names, tokens=st.none() | lengths),
        st.builds(Decode, pad=st.integers(0, 3)),
        st.builds(
            Verify,
            accepted=st.integers(1, 4),
            others=st.lists(st.builds(Accepted, names, st.integers(0, 4)), max_size=1).map(tuple),
            pad=st.integers(0, 2),
        ),
        st.builds(Finish, request=names),
        st.builds(Abort, request=names),
        st.builds(Retract, request=names),
        st.builds(Evict, tokens=lengths),
        st.builds(Flush),
        st.builds(Complete),
    )


def arbitrary_scenarios(sizes: Sizes | None = None) -> SearchStrategy[Scenario]:
    """Scenarios of unrelated operations."""
    return st.builds(
        Scenario,
        geometry=geometries(sizes or Sizes()),
        operations=st.lists(_arbitrary_operations(), max_size=MAX_MOVES).map(tuple),
    )


# Mostly valid


@dataclass(slots=True)
class _Sketch:
    """What a move can refer to: which requests there were, and which of them live how.

    A guess, not a model: an engine may refuse what the sketch thinks done. Later moves are then
    skipped by the player, which is harmless.
    """

    geometry: Geometry
    operations: list[Operation] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    prefilling: int | None = None


Move = tuple[Callable[..., None], tuple[int, ...]]


def _rest(_sketch: _Sketch) -> None:
    """Nothing: what a list of at least `MIN_MOVES` moves shrinks to."""


def _arrive(sketch: _Sketch, parent: int, cut: int, tail: int, budget: int) -> None:
    """A request comes in that shares a prefix with an earlier one, and is prefilled.

    ``parent`` counts back from the newest request, 0 for none; ``cut`` is how much shorter the
    shared prefix is than the parent; ``budget`` 0 for one chunk. A prompt of its own is longer than
    a window, so that there is something to share.
    """
    if len(sketch.prompts) == len(NAMES):
        return
    _continue(sketch, 0)  # an engine starts no other request while one is being prefilled
    number = len(sketch.prompts)
    shared = 0
    prompt: Prompt = ()
    if parent and number:
        source = number - 1 - (parent - 1) % number
        shared = max(0, min(sketch.lengths[source], MAX_TOKENS) - cut)
        kept = [piece for piece in sketch.prompts[source] if piece.until < shared]
        rest = sketch.prompts[source][len(kept) :]
        last = rest[0].text if rest else sketch.prompts[source][-1].text
        prompt = (*kept, Piece(last, shared)) if shared else ()
    if not prompt:
        tail += sketch.geometry.window
    name = NAMES[number]
    prompt = (*prompt, Piece(name, shared + tail))
    sketch.prompts.append(prompt)
    sketch.lengths.append(shared + tail)
    sketch.operations.append(Submit(request=name, prompt=prompt))
    sketch.operations.append(Prefill(request=name, tokens=budget or None))
    if budget and budget < shared + tail:
        sketch.prefilling = number
    else:
        sketch.running.append(number)


def _come_back(sketch: _Sketch, parent: int, cut: int, tail: int, which: int) -> None:
    """A request leaves, another takes its slot, with a shared prefix, and decodes."""
    _finish(sketch, which)
    if sketch.geometry.overlap:
        _decode(sketch, 0)  # the slot is free once the host knows of the end
    _arrive(sketch, parent, cut, tail, 0)
    if sketch.geometry.draft_tokens > 1:
        _verify(sketch, 1, 0, 0, 0)
    else:
        _decode(sketch, 0)


def _continue(sketch: _Sketch, budget: int) -> None:
    """The next chunk of the request that is being prefilled; all of it for budget 0."""
    if sketch.prefilling is None:
        return
    number = sketch.prefilling
    sketch.operations.append(Prefill(request=NAMES[number], tokens=budget or None))
    if not budget:
        sketch.running.append(number)
        sketch.prefilling = None


def _can_step(sketch: _Sketch) -> bool:
    """Whether a decode finds somebody; with overlap also one whose end is not known yet."""
    return bool(sketch.running or (sketch.geometry.overlap and sketch.prompts))


def _decode(sketch: _Sketch, pad: int) -> None:
    if not _can_step(sketch):
        return
    sketch.operations.append(Decode(pad=pad))
    for number in sketch.running:
        sketch.lengths[number] += 1


def _verify(sketch: _Sketch, accepted: int, pad: int, which: int, other: int) -> None:
    """A speculative step; one request keeps ``other`` tokens, if that is not 0."""
    if not _can_step(sketch):
        return
    unlike = _pick(sketch, which)
    others = (Accepted(NAMES[unlike], other),) if other and unlike is not None else ()
    step = Verify(accepted=accepted, others=others, pad=pad)
    sketch.operations.append(step)
    for number in sketch.running:
        draft_tokens = sketch.geometry.draft_tokens
        sketch.lengths[number] += step.accepted_of(NAMES[number], draft_tokens)


def _pick(sketch: _Sketch, which: int) -> int | None:
    return sketch.running[which % len(sketch.running)] if sketch.running else None


def _finish(sketch: _Sketch, which: int) -> None:
    if (number := _pick(sketch, which)) is not None:
        sketch.running.remove(number)
        sketch.operations.append(Finish(request=NAMES[number]))


def _abort(sketch: _Sketch, which: int) -> None:
    if sketch.prefilling is not None:
        number, sketch.prefilling = sketch.prefilling, None
    elif (picked := _pick(sketch, which)) is not None:
        number = picked
        sketch.running.remove(number)
    else:
        return
    sketch.operations.append(Abort(request=NAMES[number]))


def _retract(sketch: _Sketch, which: int) -> None:
    """Take a request's memory away and start it again."""
    if (number := _pick(sketch, which)) is not None:
        sketch.operations += [Retract(request=NAMES[number]), Prefill(request=NAMES[number])]


def _evict(sketch: _Sketch, tokens: int) -> None:
    sketch.operations.append(Evict(tokens=tokens))


def _evict_swa(sketch: _Sketch, tokens: int) -> None:
    sketch.operations.append(Evict(tokens=0, swa_tokens=tokens))


def _decode_past(sketch: _Sketch, further: int) -> None:
    """Decodes until the window has left what was prefilled, and ``further`` ones."""
    for _ in range(sketch.geometry.window + further):
        _decode(sketch, 0)


def _recompute(sketch: _Sketch, parent: int, tail: int) -> None:
    """A prefix whose SWA half was given back is computed again, and published."""
    _evict_swa(sketch, sketch.geometry.pool_tokens)
    _arrive(sketch, parent, 0, tail, 0)


def _flush(sketch: _Sketch) -> None:
    sketch.operations.append(Flush())


def _complete(sketch: _Sketch) -> None:
    sketch.operations.append(Complete())


@cache  # to build a strategy anew takes longer than to draw from it
def _moves(geometry: Geometry) -> SearchStrategy[Move]:
    window, page_size = geometry.window, geometry.page_size
    # Lengths on and beside the boundaries; the first is where shrinking ends.
    edges = sorted(
        {
            edge
            for base in (1, page_size, window, 2 * page_size, window + page_size, 2 * window)
            for edge in (base - 1, base, base + 1)
            if 1 <= edge <= MAX_TOKENS - 2
        }
    )
    tails = st.integers(1, window) | st.sampled_from(edges)
    chunks = (page_size, 2 * page_size, page_ceil(window, page_size))
    which = st.integers(0, 2)

    def move(act: Callable[..., None], *arguments: SearchStrategy[int]) -> SearchStrategy[Move]:
        return st.tuples(st.just(act), st.tuples(*arguments))

    cuts = st.sampled_from((0, 0, 1, page_size - 1, page_size, 2 * page_size))
    arrive = move(
        _arrive,
        st.sampled_from((0, 1, 1, 2)),
        cuts,
        tails,
        st.sampled_from((0, 0, 0, 0, *chunks)),
    )
    # An arrival and a departure each stand more than once: what breaks needs several of them.
    # The first choice is the simplest: shrinking turns a move into a rest where it cannot drop it.
    choices = [
        move(_rest),
        arrive,
        move(_decode, st.sampled_from((0, 0, 1, 2))),
        move(_finish, which),
        arrive,
        move(_finish, which),
        arrive,
        move(_come_back, st.sampled_from((1, 2)), cuts, st.integers(1, window), which),
        move(_continue, st.sampled_from((0, *chunks))),
        move(_decode, st.sampled_from((0, 0, 1, 2))),
        move(_evict, st.integers(1, MAX_TOKENS)),
        move(_abort, which),
        move(_retract, which),
        move(_flush),
    ]
    if geometry.swa_tokens is not msgspec.UNSET:
        choices[-1:-1] = [
            move(_evict_swa, st.integers(1, MAX_TOKENS)),
            move(_decode_past, st.integers(0, page_size)),
            move(_recompute, st.sampled_from((1, 2)), st.integers(1, window)),
        ]
    if geometry.draft_tokens > 1:
        counts = st.integers(1, geometry.draft_tokens)
        # A real engine that drafts decodes no other way; the model does both.
        verify = move(
            _verify, counts, st.sampled_from((0, 0, 1)), which, st.sampled_from((0, 0, 1)) | counts
        )
        choices[2:3] = [verify, verify]
    if geometry.overlap:
        choices.append(move(_complete))
    return st.one_of(choices)


def _spell_out(geometry: Geometry, moves: Sequence[Move]) -> Scenario:
    sketch = _Sketch(geometry)
    for act, arguments in moves:
        act(sketch, *arguments)
    return Scenario(geometry=geometry, operations=tuple(sketch.operations))


def likely_scenarios(sizes: Sizes | None = None) -> SearchStrategy[Scenario]:
    """Scenarios whose operations mostly find something to do."""
    return geometries(sizes or Sizes()).flatmap(
        lambda geometry: st.lists(_moves(geometry), min_size=MIN_MOVES, max_size=MAX_MOVES).map(
            lambda moves: _spell_out(geometry, moves)
        )
    )


def scenarios(sizes: Sizes | None = None) -> SearchStrategy[Scenario]:
    """What campaigns draw: likely scenarios, and an arbitrary one now and then."""
    return st.one_of(*[likely_scenarios(sizes)] * 7, arbitrary_scenarios(sizes))
