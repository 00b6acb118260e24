"""Operations on forwards: planned, changed, run and replayed, over two pools.

The other family of operations (`model.scenario`) is about requests in a cache. This one is about
what happens between the moment a forward's locations are translated and the moment they are used:
an engine translates once and uses the result in every sliding-window layer, and again in every
replay of a captured graph. The same rules hold: a scenario stays valid whatever operation is
dropped, and an operation that finds nothing to do is skipped.

A *forward* writes the next tokens of some requests: each request is named, gets a slot when it is
first extended, and has a length. There is one forward at a time, as on one stream: `Plan` makes a
new one, `Layer` runs one sliding-window layer of it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

ForwardMode: TypeAlias = Literal["extend", "decode", "verify", "draft", "draft_extend"]
"""What a forward computes: a prompt's tokens, one token, a draft to verify, a multi-step draft
(one forward a token, planned together), the draft model's share of what was accepted."""

GraphMode: TypeAlias = Literal["decode", "verify", "draft", "draft_extend"]
"""What is captured as a graph: forwards whose tokens a request are fixed."""

MAX_ROWS = 2**12

Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
Requests: TypeAlias = tuple[str, ...]


class _Operation(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="op", tag=str.lower,
    forbid_unknown_fields=True, omit_defaults=True,
):  # fmt: skip
    pass


class Plan(_Operation, frozen=True, kw_only=True):
    """Lend locations for the next tokens of some requests and let the backend plan the forward.

    Attributes:
        requests: whose; a new name is a new request, which only an extend can have.
        tokens: tokens a request of an extend; the other modes have their own.
        in_graph: also run the part of the planning that a graph records, as an eager forward does.
            Without it the forward has no translation of its own, like those of runners that only
            do the part outside the graph.
    """

    mode: ForwardMode
    requests: Requests
    tokens: Rows = 1
    in_graph: bool = True


class Pad(_Operation, frozen=True, kw_only=True):
    """The planned forward's batch is padded with this many rows of the reserved location."""

    rows: Rows


class Rebind(_Operation, frozen=True, kw_only=True):
    """The planned forward gets the locations of its requests' next tokens instead, as many.

    No caller of the releases does that to a forward that was planned and has not run: it breaks
    the side condition of theorem T3. The scenario that refutes T2.
    """


class Remap(_Operation, frozen=True, kw_only=True):
    """The SWA pages of the planned forward's locations are freed and others are mapped.

    Breaks the side condition of theorem T3, as `Rebind` does.
    """


class Layer(_Operation, frozen=True, kw_only=True):
    """Run one sliding-window layer of the planned forward: store its keys, read its windows."""


class Replay(_Operation, frozen=True, kw_only=True):
    """A captured graph runs for these requests, padded to the geometry's slots."""

    mode: GraphMode
    requests: Requests


class Idle(_Operation, frozen=True, kw_only=True):
    """A forward without requests runs a layer on padded rows, as a rank without work does."""

    rows: Rows


class Slide(_Operation, frozen=True, kw_only=True):
    """SWA pages of a request that no window reaches any more are given back."""

    request: str


class Release(_Operation, frozen=True, kw_only=True):
    """A request ends and gives its locations and its slot back."""

    request: str


ForwardOperation: TypeAlias = (
    Plan | Pad | Rebind | Remap | Layer | Replay | Idle | Slide | Release
)  # fmt: skip
