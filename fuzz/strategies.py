"""Hypothesis strategies for scenarios, in a pair: arbitrary, and mostly valid.

`arbitrary_scenarios` draws operations without looking at each other: most do nothing, and that is
its purpose. `likely_scenarios` draws *moves* and spells them out against a sketch of which requests
are alive, with a bias to where such caches break: shared prefixes, tails shorter than the window,
recycled slots, lengths on and beside page, chunk and window boundaries, answers that are reused.
A move is a few small integers that mean something whatever the moves before it were, so a move can
be dropped and every number made smaller without making the scenario invalid. That is what shrinks.

Swarm testing (Groce et al., ISSTA 2012): each scenario draws which `Kind` of moves and lengths it
has at all. Where all are always on, those that undo a state (flush, evict, abort) keep every
scenario from going far into it, and a defect that needs many of one kind in a row is hardly met.

`histories` are the same moves, thousands of them on one engine.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import groupby
from math import prod
from typing import Literal, TypeAlias, get_args

import msgspec
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

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
from kvproof.spec.pages import page_ceil, page_floor

NAMES = string.ascii_uppercase
"""A longer history takes them again, for requests and texts: what it keeps does not grow."""

MIN_MOVES = 10
MAX_MOVES = 16
MAX_TOKENS = 24

LOADED_TOKENS = 10
"""Releases load no fewer tokens of the full pool back: what is shorter they compute again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What geometries are drawn from; the defaults keep a scenario quick to run and to read.

    Attributes:
        overlaps: without and with overlap scheduling.
        no_overlap: why none overlaps; empty where some do, or nobody asked.
        page_holds_window: leave out pages that are smaller than the window.
        windows_in_pages: leave out windows longer than a page that are neither 0 nor -1 modulo the
            page size.
        swa_shares: the full pool is so many times as large as the SWA pool; none where the SWA pool
            is not drawn.
        host_pool: draw what goes to a host pool and comes back.
        reuses: whether prefixes are kept, which requests can share.
    """

    windows: tuple[int, ...] = (4, 3, 5, 6, 8, 2)
    page_sizes: tuple[int, ...] = (2, 1, 4, 8)
    slots: tuple[int, ...] = (1, 2, 3)
    pool_tokens: tuple[int, ...] = (64, 128, 40, 32)
    draft_tokens: tuple[int, ...] = (1,)
    overlaps: tuple[int, ...] = (0,)
    no_overlap: str = ""
    page_holds_window: bool = False
    windows_in_pages: bool = False
    swa_shares: tuple[int, ...] = ()
    host_pool: bool = False
    reuses: bool = True

    def windows_and_pages(self) -> list[list[tuple[int, int]]]:
        """Pairs that can be drawn, those alike together: each such group is drawn as often.

        Alike are pages below, at or above the window, with a window that is 0, -1 or neither modulo
        the page. The simplest pair comes first.
        """
        pairs = [
            (window, page_size)
            for window in self.windows
            for page_size in self.page_sizes
            if page_size >= window or not self._left_out(window % page_size, page_size)
        ]
        ordered = sorted(pairs, key=_likeness)
        groups = [list(group) for _, group in groupby(ordered, _likeness)]
        return sorted(groups, key=lambda group: min(map(pairs.index, group)))

    def drafts_and_overlaps(self) -> list[tuple[int, int]]:
        """Pairs that can be drawn, each as often as it stands here."""
        return [
            (draft_tokens, overlap)
            for overlap in self.overlaps
            for draft_tokens in self.draft_tokens
        ]

    def _left_out(self, over: int, page_size: int) -> bool:
        """Whether windows longer than a page, by ``over`` modulo it, are not drawn."""
        odd = 0 < over < page_size - 1
        return self.page_holds_window or (self.windows_in_pages and odd)


def _likeness(pair: tuple[int, int]) -> tuple[int, int]:
    window, page_size = pair
    left = window % page_size
    return (page_size > window) - (page_size < window), (
        0 if left == 0 else 1 if left == page_size - 1 else 2
    )


@cache
def geometries(sizes: Sizes) -> SearchStrategy[Geometry]:
    """Geometries; the pool holds a few requests, so that eviction happens."""
    return st.builds(
        _geometry,
        st.one_of([st.sampled_from(alike) for alike in sizes.windows_and_pages()]),
        st.sampled_from(sizes.drafts_and_overlaps()),
        st.sampled_from(sizes.slots),
        st.sampled_from(sizes.pool_tokens),
        st.sampled_from(sizes.swa_shares or (0,)),
    )


def _geometry(
    window_and_page: tuple[int, int],
    drafts_and_overlap: tuple[int, int],
    slots: int,
    pool_tokens: int,
    share: int,
) -> Geometry:
    window, page_size = window_and_page
    draft_tokens, overlap = drafts_and_overlap
    geometry = Geometry(
        window=window,
        page_size=page_size,
        slots=slots,
        pool_tokens=pool_tokens,
        # With a draft longer than the window an older release drops keys of accepted tokens,
        # whatever the stride (R7); no server has one.
        draft_tokens=min(window, draft_tokens),
        overlap=overlap or msgspec.UNSET,
    )
    return _with_swa_pool(geometry, share) if share else geometry


def _with_swa_pool(geometry: Geometry, share: int) -> Geometry:
    tokens = page_ceil(geometry.pool_tokens // share, geometry.page_size)
    return replace(geometry, swa_tokens=tokens)


def _begins(operations: Sequence[Operation]) -> bool:
    """Whether there is a prefill: without one there is nothing to see, whatever else is done."""
    return any(isinstance(operation, Prefill) for operation in operations)


# Arbitrary


@cache
def _arbitrary_operations() -> SearchStrategy[Sequence[Operation]]:
    names = st.sampled_from(NAMES[:4])
    lengths = st.integers(0, MAX_TOKENS)
    prompts = st.lists(st.builds(Piece, names, lengths), max_size=3).map(tuple)
    operation = st.one_of(
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
    return st.lists(operation, max_size=MAX_MOVES).map(tuple)


def arbitrary_scenarios(sizes: Sizes | None = None) -> SearchStrategy[Scenario]:
    """Scenarios of unrelated operations."""
    return st.builds(
        Scenario,
        geometry=geometries(sizes or Sizes()),
        operations=_arbitrary_operations().filter(_begins),
    )


# Mostly valid

Kind: TypeAlias = Literal[
    "arrive", "decode", "finish", "come back", "evict", "abort", "retract", "flush", "verify",
    "evict SWA", "decode past", "recompute", "complete",
    "chunks", "cuts", "whole pages", "padding",
]  # fmt: skip
"""What a scenario may have or not. The last four are axes of the other moves: a prefill in several
chunks, a shared prefix shorter than its origin, prompts that end with a page, padded rows."""

KINDS: tuple[Kind, ...] = get_args(Kind)

_ENDS: frozenset[Kind] = frozenset({"finish", "come back", "abort"})
"""Without any of these a slot is lent once, and soon nothing can happen."""

Swarm: TypeAlias = frozenset[Kind]

EVERYTHING: Swarm = frozenset(KINDS) - {"whole pages"}
"""All kinds; prompts that end with a page occur among others."""


@st.composite
def swarms(draw: DrawFn) -> Swarm:
    """Which kinds a scenario has."""
    on: set[Kind] = {"arrive", *(kind for kind in KINDS if draw(st.booleans()))}
    return frozenset(on if on & _ENDS else {*on, "finish"})


@dataclass(slots=True)
class _Sketch:
    """What a move can refer to: which requests there were, and which of them live how.

    A guess, not a model: an engine may refuse what the sketch thinks done. Later moves are then
    skipped by the player, which is harmless.
    """

    geometry: Geometry
    on: Swarm = EVERYTHING
    operations: list[Operation] = field(default_factory=list)
    prompts: list[Prompt] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    prefilling: int | None = None


Move = tuple[Callable[..., None], tuple[int, ...]]


def _name(number: int) -> str:
    return NAMES[number % len(NAMES)]


def _rest(_sketch: _Sketch) -> None:
    """Nothing: what a list of at least `MIN_MOVES` moves shrinks to."""


def _arrive(
    sketch: _Sketch, parent: int, cut: int, tail: int, budget: int, *, in_pages: bool = False
) -> None:
    """A request comes in that shares a prefix with an earlier one, and is prefilled.

    ``parent`` counts back from the newest request, 0 for none; ``cut`` is how much shorter the
    shared prefix is than the parent, ``in_pages`` rounds it down to what a tree can give back;
    ``budget`` 0 for one chunk. A prompt of its own is longer than a window and a page, so that
    there is something to share.
    """
    _continue(sketch, 0)  # an engine starts no other request while one is being prefilled
    number = len(sketch.prompts)
    if number - len(NAMES) in sketch.running:
        _end(sketch, number - len(NAMES))  # its name is needed
    if "cuts" not in sketch.on:
        cut = 0
    if "chunks" not in sketch.on:
        budget = 0
    shared = 0
    prompt: Prompt = ()
    if parent and number:
        source = number - 1 - (parent - 1) % number
        shared = max(0, min(sketch.lengths[source], MAX_TOKENS) - cut)
        if in_pages:
            pair = int(sketch.geometry.draft_tokens > 1)  # keys are pairs then, one fewer
            entries = page_floor(max(0, shared - pair), sketch.geometry.page_size)
            shared = entries + pair if entries else 0
        kept = [piece for piece in sketch.prompts[source] if piece.until < shared]
        rest = sketch.prompts[source][len(kept) :]
        last = rest[0].text if rest else sketch.prompts[source][-1].text
        prompt = (*kept, Piece(last, shared)) if shared else ()
    if not prompt:
        tail += max(sketch.geometry.window, sketch.geometry.page_size)
    length = shared + tail
    if "whole pages" in sketch.on:
        length = page_ceil(length, sketch.geometry.page_size)
    name = _name(number)
    prompt = (*prompt, Piece(name, length))
    sketch.prompts.append(prompt)
    sketch.lengths.append(length)
    sketch.operations.append(Submit(request=name, prompt=prompt))
    sketch.operations.append(Prefill(request=name, tokens=budget or None))
    if budget and budget < length:
        sketch.prefilling = number
    else:
        sketch.running.append(number)


def _come_back(sketch: _Sketch, parent: int, cut: int, tail: int, which: int) -> None:
    """A request leaves, another takes its slot, with a shared prefix, and decodes.

    It comes first where none runs: this is where most such caches break.
    """
    if not sketch.running:
        _arrive(sketch, parent, 0, tail, 0)
    _finish(sketch, which)
    if sketch.geometry.overlap:
        _step(sketch)  # the slot is free once the host knows of the end
    _arrive(sketch, parent, cut, tail, 0, in_pages=True)
    _step(sketch)


def _step(sketch: _Sketch) -> None:
    """What the running requests do next: a verify that keeps one token, where they draft."""
    if sketch.geometry.draft_tokens > 1:
        _verify(sketch, 1, 0, 0, 0)
    else:
        _decode(sketch, 0)


def _continue(sketch: _Sketch, budget: int) -> None:
    """The next chunk of the request that is being prefilled; all of it for budget 0."""
    if sketch.prefilling is None:
        return
    number = sketch.prefilling
    sketch.operations.append(Prefill(request=_name(number), tokens=budget or None))
    if not budget:
        sketch.running.append(number)
        sketch.prefilling = None


def _can_step(sketch: _Sketch) -> bool:
    """Whether a decode finds somebody; with overlap also one whose end is not known yet."""
    return bool(sketch.running or (sketch.geometry.overlap and sketch.prompts))


def _decode(sketch: _Sketch, pad: int) -> None:
    if not _can_step(sketch):
        return
    sketch.operations.append(Decode(pad=pad if "padding" in sketch.on else 0))
    for number in sketch.running:
        sketch.lengths[number] += 1


def _verify(sketch: _Sketch, accepted: int, pad: int, which: int, other: int) -> None:
    """A speculative step; one request keeps ``other`` tokens, if that is not 0."""
    if not _can_step(sketch):
        return
    unlike = _pick(sketch, which)
    others = (Accepted(_name(unlike), other),) if other and unlike is not None else ()
    step = Verify(accepted=accepted, others=others, pad=pad if "padding" in sketch.on else 0)
    sketch.operations.append(step)
    for number in sketch.running:
        draft_tokens = sketch.geometry.draft_tokens
        sketch.lengths[number] += step.accepted_of(_name(number), draft_tokens)


def _pick(sketch: _Sketch, which: int) -> int | None:
    return sketch.running[which % len(sketch.running)] if sketch.running else None


def _finish(sketch: _Sketch, which: int) -> None:
    if (number := _pick(sketch, which)) is not None:
        _end(sketch, number)


def _end(sketch: _Sketch, number: int) -> None:
    sketch.running.remove(number)
    sketch.operations.append(Finish(request=_name(number)))


def _abort(sketch: _Sketch, which: int) -> None:
    if sketch.prefilling is not None:
        number, sketch.prefilling = sketch.prefilling, None
    elif (picked := _pick(sketch, which)) is not None:
        number = picked
        sketch.running.remove(number)
    else:
        return
    sketch.operations.append(Abort(request=_name(number)))


def _retract(sketch: _Sketch, which: int) -> None:
    """Take a request's memory away and start it again."""
    if (number := _pick(sketch, which)) is not None:
        sketch.operations += [Retract(request=_name(number)), Prefill(request=_name(number))]


def _evict(sketch: _Sketch, tokens: int) -> None:
    sketch.operations.append(Evict(tokens=tokens))


def _leave_and_evict(sketch: _Sketch, which: int, tokens: int) -> None:
    """A request ends, and some of what is cached is evicted while nobody locks that request's."""
    _finish(sketch, which)
    sketch.operations += [Complete(), Complete()]  # now the host knows of the end
    _evict(sketch, tokens)


def _evict_swa(sketch: _Sketch, tokens: int) -> None:
    sketch.operations.append(Evict(tokens=0, swa_tokens=tokens))


def _decode_past(sketch: _Sketch, further: int) -> None:
    """Decodes until the window has left what was prefilled, and ``further`` ones."""
    for _ in range(sketch.geometry.window + further):
        _step(sketch)


def _recompute(sketch: _Sketch, parent: int, tail: int, pages: int) -> None:
    """A prefix whose SWA half was given back is computed again, and published.

    All that can be given back is, or so many ``pages``: older releases keep a tombstone only where
    something lives behind it.
    """
    geometry = sketch.geometry
    _evict_swa(sketch, pages * geometry.page_size or geometry.pool_tokens)
    _arrive(sketch, parent, 0, tail, 0)


def _rewind(sketch: _Sketch, steps: int, cut: int, tail: int, readers: int) -> None:
    """A request leaves two nodes: its prompt, which loses its SWA half, and what it decoded.

    Another branches off within the prompt and computes that half again. So any tree has a tombstone
    to recover, also one that deletes a node of which nothing live is left behind it. ``readers`` go
    on behind both nodes before that, and run meanwhile: they need no more of the prompt than its
    full half.
    """
    readers = min(readers, sketch.geometry.slots - 1)  # the last slot is for who computes it again
    _leave(sketch, sketch.geometry.slots - 1 - readers)
    _evict(sketch, sketch.geometry.pool_tokens)  # the prompt is what is evicted next
    _arrive(sketch, 0, 0, tail, 0)
    for _ in range(steps):
        _step(sketch)
    _finish(sketch, len(sketch.running) - 1)
    if sketch.geometry.overlap:
        sketch.operations += [Complete(), Complete()]  # now the host knows of the end
    for _ in range(readers):
        _arrive(sketch, 1, 0, tail, 0)
    _evict_swa(sketch, 1)
    _arrive(sketch, 1 + readers, steps + cut, tail, 0, in_pages=True)


def _there_and_back(
    sketch: _Sketch, staying: int, length: int, swa_only: int, cut: int, tail: int
) -> None:
    """A prompt, or its SWA half alone, goes to a host pool, and a request needs it again.

    Another one branches off from that. No more than ``staying`` requests hold memory before and
    after. Where ``cut`` is more than a window, what is needed has lost its SWA half alone.
    """
    _leave(sketch, staying)
    _arrive(sketch, 0, 0, length, 0)
    _finish(sketch, len(sketch.running) - 1)
    everything = sketch.geometry.pool_tokens
    sketch.operations.append(Evict(tokens=0 if swa_only else everything, swa_tokens=everything))
    _arrive(sketch, 1, cut, tail, 0)
    _decode(sketch, 0)
    _arrive(sketch, 1, sketch.geometry.page_size, tail, 0)
    _leave(sketch, staying)


def _hand_over(sketch: _Sketch, length: int) -> None:
    """Two requests end in one round; the next one has the slot of one, and pages of the other.

    Most rows that change under a step do so because its pages give way to the tree's. Where there
    is no tree, this is how they do.
    """
    for _ in range(2 - len(sketch.running)):
        _arrive(sketch, 0, 0, 2, 0)
    _step(sketch)
    for _ in range(2):
        _finish(sketch, 0)
    _step(sketch)  # in flight with both, when the host learns of their ends
    _arrive(sketch, 0, 0, length, 0)
    _complete(sketch)


def _leave(sketch: _Sketch, staying: int) -> None:
    while len(sketch.running) > max(0, staying):
        _finish(sketch, 0)


def _branch(sketch: _Sketch, tail: int) -> None:
    """A request branches off from one that still runs, a page before its end; both leave."""
    page_size = sketch.geometry.page_size
    _leave(sketch, sketch.geometry.slots - 2)
    _arrive(sketch, 0, 0, 2 * page_size, 0)
    _arrive(sketch, 1, page_size, tail, 0)
    for _ in range(2):
        _finish(sketch, len(sketch.running) - 1)


def _flush(sketch: _Sketch) -> None:
    sketch.operations.append(Flush())


def _complete(sketch: _Sketch) -> None:
    sketch.operations.append(Complete())


def _move(act: Callable[..., None], *arguments: Sequence[int]) -> SearchStrategy[Move]:
    """A move with one of the options of each argument, the simplest of which come first.

    One number chooses them all: what Hypothesis does for each choice is most of what a scenario
    costs to draw.
    """

    def chosen(number: int) -> Move:
        options: list[int] = []
        for each in arguments:
            number, at = divmod(number, len(each))
            options.append(each[at])
        return act, tuple(options)

    choices = prod(map(len, arguments))
    return st.integers(0, choices - 1).map(chosen) if choices > 1 else st.just(chosen(0))


def _moves(geometry: Geometry, on: Swarm, sizes: Sizes) -> SearchStrategy[Move]:
    """The moves of a scenario: those whose kind it has, each as often as it stands there."""
    # Alike are geometries that differ in nothing that a move is drawn from.
    page = geometry.page_size
    swa_tokens = msgspec.UNSET if geometry.swa_tokens is msgspec.UNSET else page
    alike = replace(geometry, slots=1, pool_tokens=page, swa_tokens=swa_tokens)
    return _moves_of_kinds(alike, on, host_pool=sizes.host_pool, reuses=sizes.reuses)


@lru_cache(maxsize=256)  # to build a strategy anew takes longer than to draw from it
def _moves_of_kinds(
    geometry: Geometry, on: Swarm, *, host_pool: bool, reuses: bool
) -> SearchStrategy[Move]:
    by_kind = _moves_by_kind(geometry, host_pool=host_pool, reuses=reuses)
    moves = [move for kind, move in by_kind if kind in on]
    # Mapped, so that each is one of its own: Hypothesis takes one that stands there twice for one.
    return st.one_of([move.map(_itself) for move in moves])


def _itself(move: Move) -> Move:
    return move


@cache
def _moves_by_kind(
    geometry: Geometry, *, host_pool: bool, reuses: bool
) -> tuple[tuple[Kind, SearchStrategy[Move]], ...]:
    """What a scenario's moves are drawn from, each with the kind that it needs.

    The first one is the simplest: shrinking turns a move into a rest where it cannot drop it.
    """
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
    short = range(1, window + 1)
    tails = (*short, *short, *edges)
    chunks = (page_size, 2 * page_size, page_ceil(window, page_size))
    which = range(3)

    cuts = (0, 0, 1, page_size - 1, page_size, 2 * page_size)
    arrive = _move(
        _arrive,
        (0, 1, 1, 2),
        cuts,
        tails,
        (0, *chunks),
    )
    come_back = _move(_come_back, (1, 2), cuts, short, which)
    decode = _move(_decode, (0, 0, 1, 2))
    kept = range(1, geometry.draft_tokens + 1)
    few = (0, 0, 1)
    verify = _move(_verify, kept, few, which, (*few, *kept))
    # What arrives, leaves or comes back stands twice: what breaks needs several of them.
    # A real engine that drafts decodes no other way; the model does both, in arbitrary scenarios.
    step: tuple[tuple[Kind, SearchStrategy[Move]], ...] = (("decode", decode),)
    if geometry.draft_tokens > 1:
        # Without any a scenario would end with its prefills.
        step = (("arrive", verify), ("verify", verify))
    return (
        ("arrive", _move(_rest)),
        ("arrive", arrive),
        *step,
        ("finish", _move(_finish, which)),
        ("arrive", arrive),
        ("finish", _move(_finish, which)),
        ("come back", come_back),
        ("come back", come_back),
        ("chunks", _move(_continue, (0, *chunks))),
        ("chunks", _move(_continue, chunks)),
        ("evict", _move(_evict, range(1, MAX_TOKENS + 1))),
        ("abort", _move(_abort, which)),
        ("retract", _move(_retract, which)),
        *_swa_moves(geometry),
        *(_host_moves(geometry) if host_pool else ()),
        *_overlap_moves(geometry, come_back, reuses=reuses),
        ("flush", _move(_flush)),
    )


def _swa_moves(geometry: Geometry) -> tuple[tuple[Kind, SearchStrategy[Move]], ...]:
    """Moves that matter where a tree can lose what a window needs, and keep the rest."""
    tails = range(1, geometry.window + 1)
    # What is decoded fills a page; or the window leaves the prompt, and pages are given back;
    # or it does so where that is done once a window, as 0.5.13 does. Mostly somebody reads it.
    both = geometry.window + geometry.page_size
    steps = (geometry.page_size, both, 2 * both)
    rewind: tuple[Kind, SearchStrategy[Move]] = (
        "recompute",
        _move(_rewind, steps, (0, 1, geometry.page_size), tails, (0, 1, 1)),
    )
    if geometry.swa_tokens is msgspec.UNSET:
        return (rewind,)  # a tree over rings has tombstones too
    # Often, since it takes luck besides: room in the pool, and a page where the branch is.
    recompute: tuple[Kind, SearchStrategy[Move]] = (
        "recompute",
        _move(_recompute, (1, 2), tails, (0, 1)),
    )
    branch: tuple[Kind, SearchStrategy[Move]] = ("cuts", _move(_branch, tails))
    further = range(geometry.page_size + 1)
    decode_past: tuple[Kind, SearchStrategy[Move]] = ("decode past", _move(_decode_past, further))
    return (
        ("evict SWA", _move(_evict_swa, range(1, MAX_TOKENS + 1))),
        *[rewind] * 3,
        *[decode_past] * 2,
        *[recompute] * 4,
        *[branch] * 3,
    )


def _host_moves(geometry: Geometry) -> tuple[tuple[Kind, SearchStrategy[Move]], ...]:
    """Moves that matter where what leaves the device is kept on the host."""
    window, page_size = geometry.window, geometry.page_size
    has_swa = geometry.swa_tokens is not msgspec.UNSET
    # A window is loaded back however short it is; it is a node, and a page or more is before it.
    shortest = 2 * page_size if has_swa else LOADED_TOKENS
    there_and_back = _move(
        _there_and_back,
        (0, 0, 1),
        range(shortest, MAX_TOKENS - window + 1),
        (0, 1) if has_swa else (0,),
        (0, 1, page_size, window + page_size),
        range(1, window + 1),
    )
    return (("evict", there_and_back),)


def _overlap_moves(
    geometry: Geometry, come_back: SearchStrategy[Move], *, reuses: bool
) -> tuple[tuple[Kind, SearchStrategy[Move]], ...]:
    """Moves that matter with overlap scheduling."""
    if not geometry.overlap:
        return ()
    # Whatever else is on: a slot changes hands while a step of its last tenant is in flight.
    moves: tuple[tuple[Kind, SearchStrategy[Move]], ...] = (
        ("arrive", come_back), ("arrive", come_back), ("complete", _move(_complete)),
    )  # fmt: skip
    if not reuses:
        moves += (("arrive", _move(_hand_over, range(1, MAX_TOKENS // 2))),)
    if geometry.draft_tokens > 1:
        moves += (("evict", _move(_leave_and_evict, range(3), range(1, MAX_TOKENS + 1))),)
    return moves


def _spell_out(geometry: Geometry, on: Swarm, moves: Iterable[Move]) -> Scenario:
    sketch = _Sketch(geometry, on)
    for act, arguments in moves:
        act(sketch, *arguments)
    return Scenario(geometry=geometry, operations=tuple(sketch.operations))


@st.composite
def likely_scenarios(draw: DrawFn, sizes: Sizes | None = None, *, swarm: bool = True) -> Scenario:
    """Scenarios whose operations mostly find something to do.

    Args:
        draw: Hypothesis's.
        sizes: of the geometries.
        swarm: whether each scenario draws which kinds of moves it has; else it has all.
    """
    sizes = sizes or Sizes()
    geometry = draw(geometries(sizes))
    on = draw(swarms()) if swarm else EVERYTHING
    moves = _moves(geometry, on, sizes)
    drawn = draw(st.lists(moves, min_size=MIN_MOVES, max_size=MAX_MOVES))
    scenario = _spell_out(geometry, on, drawn)
    assume(_begins(scenario.operations))
    return scenario


PALETTE = 48
"""Moves that a history is made of."""

_FIRST: Move = (_arrive, (0, 0, 1, 0))


@st.composite
def histories(
    draw: DrawFn, sizes: Sizes | None = None, *, operations: int, swarm: bool = True
) -> Scenario:
    """Scenarios of so many operations, for one engine that is not restarted.

    Hypothesis draws some moves and a number, which says in what order they are made, again and
    again: it could not draw thousands. Such a scenario is made smaller by what it means
    (`triage.slices`), not by its choices.
    """
    sizes = sizes or Sizes()
    geometry = draw(geometries(sizes))
    on = draw(swarms()) if swarm and draw(st.booleans()) else EVERYTHING
    moves = _moves(geometry, on, sizes)
    # With one arrival at least, so that something can happen.
    palette = [_FIRST, *draw(st.lists(moves, min_size=PALETTE, max_size=PALETTE))]
    order = random.Random(draw(st.integers(0, 2**32 - 1)))
    sketch = _Sketch(geometry, on)
    while len(sketch.operations) < operations:
        act, arguments = order.choice(palette)
        if len(sketch.running) >= geometry.slots and act in (_arrive, _come_back):
            _finish(sketch, order.randrange(geometry.slots))
        act(sketch, *arguments)
    return Scenario(geometry=geometry, operations=tuple(sketch.operations[:operations]))


@cache
def scenarios(sizes: Sizes | None = None, *, swarm: bool = True) -> SearchStrategy[Scenario]:
    """What campaigns draw: likely scenarios, and an arbitrary one now and then.

    With ``swarm`` two of seven likely ones draw their kinds. The others have all, since what any
    mixture meets comes late where kinds are missing. ``benchmarks/swarm.py`` compares the two.
    """
    swarming = 2 if swarm else 0
    # One each: Hypothesis takes a strategy that stands there twice for one.
    everything = [likely_scenarios(sizes, swarm=False) for _ in range(7 - swarming)]
    some = [likely_scenarios(sizes) for _ in range(swarming)]
    return st.one_of(*everything, *some, arbitrary_scenarios(sizes))
