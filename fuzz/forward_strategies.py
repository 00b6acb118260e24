"""Hypothesis strategies for scenarios of forwards.

Mostly valid: a scenario begins with a request, a planned forward is usually run, and requests are
named from a few. Swarm testing: each scenario draws which kinds of operation it has at all, so that
some are long runs of few kinds. The axes are those of the defects known: page size below, at and
above the window, an SWA pool smaller than the full pool, drafts on and off, a replay padded after
a larger batch, padding after the plan.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from kvproof.model.forwards import (
    ForwardOperation,
    GraphMode,
    Idle,
    Layer,
    Pad,
    Plan,
    Rebind,
    Release,
    Remap,
    Replay,
    Slide,
)
from kvproof.model.scenario import Geometry, Scenario

NAMES = ("A", "B", "C")
MAX_MOVES = 10

_names = st.sampled_from(NAMES)
_requests = st.lists(_names, min_size=1, max_size=3, unique=True).map(tuple)
_rows = st.integers(1, 3)

Move = tuple[ForwardOperation, ...]


@st.composite
def _geometries(draw: DrawFn) -> Geometry:
    page = draw(st.sampled_from((2, 1, 4, 8)))
    pool = draw(st.sampled_from((64, 96)))
    fewer = draw(st.sampled_from((32, 48, None)))
    sizes = {} if fewer is None else {"swa_tokens": fewer}
    return Geometry(
        window=draw(st.sampled_from((4, 3, 5, 8))),
        page_size=page,
        slots=draw(st.sampled_from((2, 3))),
        pool_tokens=pool,
        draft_tokens=draw(st.sampled_from((3, 4, 1))),
        **sizes,
    )


def _extend() -> SearchStrategy[Plan]:
    return st.builds(Plan, mode=st.just("extend"), requests=_requests, tokens=st.integers(1, 14))


def _planned() -> SearchStrategy[Plan]:
    modes = st.sampled_from(("draft", "decode", "verify", "draft_extend"))
    later = st.builds(Plan, mode=modes, requests=_requests)
    # The graph's part is left out by runners of a draft model's extend.
    outside = st.builds(
        Plan, mode=st.just("draft_extend"), requests=_requests, in_graph=st.just(False)
    )
    return _extend() | later | later | outside


def _run(changes: SearchStrategy[tuple[ForwardOperation, ...]]) -> SearchStrategy[Move]:
    """Plan, perhaps change, run some layers."""
    return st.tuples(_planned(), changes, st.integers(1, 2)).map(
        lambda move: (move[0], *move[1], *(Layer() for _ in range(move[2])))
    )


def _replays(modes: SearchStrategy[GraphMode]) -> SearchStrategy[Move]:
    """One graph, for several batches one after another."""
    batches = st.lists(_requests, min_size=1, max_size=3)
    return st.builds(
        lambda mode, each: tuple(Replay(mode=mode, requests=names) for names in each),
        modes, batches,
    )  # fmt: skip


def _one(strategy: SearchStrategy[ForwardOperation]) -> SearchStrategy[Move]:
    return strategy.map(lambda operation: (operation,))


_NOTHING: SearchStrategy[tuple[ForwardOperation, ...]] = st.just(())


def _moves(*, any_caller: bool) -> dict[str, SearchStrategy[Move]]:
    pad = st.builds(Pad, rows=_rows)
    graphs: SearchStrategy[GraphMode] = st.sampled_from(
        ("decode", "verify", "draft_extend", "draft")
    )
    moves = {
        "run": _run(_NOTHING),
        "padded": _run(st.tuples(pad)),
        "replay": _replays(graphs),
        "idle": _one(st.builds(Idle, rows=_rows)),
        "slide": _one(st.builds(Slide, request=_names)),
        "release": _one(st.builds(Release, request=_names)),
    }
    if any_caller:
        change: SearchStrategy[ForwardOperation] = st.sampled_from((Rebind(), Remap()))
        first: SearchStrategy[tuple[ForwardOperation, ...]] = st.tuples(pad) | _NOTHING
        moves["changed"] = _run(st.builds(lambda some, one: (*some, one), first, change))
    return moves


@st.composite
def forward_scenarios(draw: DrawFn, *, any_caller: bool) -> Scenario:
    """Scenarios of forwards.

    Args:
        draw: Hypothesis's.
        any_caller: callers may also do what no caller of a release does: change the locations of a
            planned forward, or map them anew.
    """
    moves = _moves(any_caller=any_caller)
    kinds = draw(st.sets(st.sampled_from(sorted(moves)), min_size=2))
    drawn = draw(
        st.lists(st.one_of([moves[kind] for kind in sorted(kinds)]), min_size=2, max_size=MAX_MOVES)
    )
    first = (draw(_extend()), Layer())
    operations = [operation for move in drawn for operation in move]
    return Scenario(geometry=draw(_geometries()), operations=(*first, *operations))
