"""Facts: what a driver observed while it played a scenario, one JSON object a line.

A log is a sequence of facts. It starts with `Started`, and each operation of the scenario starts
with a `Step`. Facts say what happened, never whether it was right: that is the monitor's work.
Nothing in a log depends on the clock, on process numbers or on addresses, so the same scenario on
the same target gives the same bytes.

Units: positions and lengths in tokens, rows in ring rows, locs in token locations of a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec

from kvproof.model.forwards import ForwardMode
from kvproof.model.scenario import (
    MAX_WIDTH,
    SCHEMA,
    BadFileError,
    Count,
    Geometry,
    Operation,
    Prompt,
    Schema,
    decode_json,
    refuse_newer_schema,
    refuse_repeated_names,
)
from kvproof.model.verdict import Family
from kvproof.spec.window import Order

Mode: TypeAlias = Literal["prefill", "decode", "verify"]

Pool: TypeAlias = Literal["full", "swa"]

Locks: TypeAlias = Literal["untold", "seen", "counted"]
"""What snapshots tell of locks: nothing of who holds them, whether a node is locked, how often."""

Stride: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2 * MAX_WIDTH)]

MAX_LINE = 2**26
"""Bytes of the longest line of a log. A snapshot of a large tree has megabytes."""


class _Fact(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="fact", tag=str.lower,
    forbid_unknown_fields=True, omit_defaults=True,
):  # fmt: skip
    pass


RECORDED = "recorded"
"""Construction in the target of a recorder's log: the server's own way to build its tree."""


class Started(_Fact, frozen=True, kw_only=True, omit_defaults=False):
    """First record of a log: what was run.

    Attributes:
        target: e.g. ``sglang-0.5.16:registry``, or ``model``.
        backend: who named the rows: ``rules`` (the specification's arithmetic), ``interpreter``
            (the real Triton kernels), ``cuda:<arch>``, ``hip:<arch>``.
        ring_stride: rows per slot as the engine sized them; None where it has no ring.
        reprefill_tail: tokens that the target's cap holds back, as its own method returns them.
        tombstones_gate: whether a match ends before a tombstone that lies in its last window, as
            where the tree owns the SWA pages. With a ring that no page backs, it need not.
        bigram_keys: whether the tree's keys are pairs of neighbouring tokens, as EAGLE's are.
        verify_order: whether a verify step writes its draft's rows before or after it reads.
        swa_tokens: capacity of the SWA pool, where its locations are told.
        locks: what `Holding.locked` and the lock counts of a `Node` tell. ``seen`` is for a tree
            that only says whether a node is locked: its counts are 0 or 1, and where a request's
            sliding-window lock ends is not told.
        classes: the engine classes in play, by role.
        family: what operations the target plays.
        versions: of the engine and of what it runs on.
    """

    target: str
    backend: str
    geometry: Geometry
    ring_stride: Stride | None
    reprefill_tail: int
    tombstones_gate: bool = True
    bigram_keys: bool = False
    verify_order: Order = "write, then read"
    swa_tokens: Count = 0
    locks: Locks = "untold"
    classes: dict[str, str] = {}
    versions: dict[str, str] = {}
    family: Family = "cache"
    schema: Schema = SCHEMA


class Step(_Fact, frozen=True, kw_only=True):
    """Operation ``index`` of the scenario begins."""

    index: int
    operation: Operation


class Skipped(_Fact, frozen=True, kw_only=True):
    """The operation had nothing to do, or the engine has no room for it.

    Attributes:
        no_memory: the engine says that its pools have too little memory, and that alone.
    """

    reason: str
    no_memory: bool = False


class Admitted(_Fact, frozen=True, kw_only=True):
    """A request got a slot. Each admission is a new occupancy, counted from 1 over the log.

    Attributes:
        loaded_len: tokens of the match that a host pool held, of either kind of layers, and that
            were loaded back for it.
    """

    request: str
    slot: int
    prompt_len: Count
    matched_len: Count
    loaded_len: Count = 0


Mark: TypeAlias = tuple[int, int]
"""Who wrote a row, as the row itself says: occupancy and position."""


class Read(_Fact, frozen=True, kw_only=True):
    """Ring rows that one query reads, in the order of the positions that they stand for.

    Attributes:
        request: None for a padded row of the batch.
        slot: the slot that the query's row of the batch carries.
        position: the query's own position.
        first: position that ``rows[0]`` stands for; the rest follow one by one.
        seen: what the rows held when they were gathered, as ``(occupancy, position)``, or None
            for a row that nobody wrote. None as a whole where the backend moves no payload.
    """

    request: str | None
    mode: Mode
    slot: int
    position: int
    first: int
    rows: tuple[int, ...]
    seen: tuple[tuple[int, int] | None, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a payload that is not one entry a row."""
        if self.seen is not None and len(self.seen) != len(self.rows):
            raise ValueError(f"{len(self.seen)} entries are seen in {len(self.rows)} rows")


class Wrote(_Fact, frozen=True, kw_only=True):
    """Ring rows that one launch wrote for one request.

    Attributes:
        positions: position whose key went to the row beside it.
        rows: ring rows, parallel to ``positions``.
    """

    request: str | None
    mode: Mode
    slot: int
    positions: tuple[int, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse positions and rows that are not parallel."""
        if len(self.positions) != len(self.rows):
            raise ValueError(f"{len(self.positions)} positions went to {len(self.rows)} rows")


class Ran(_Fact, frozen=True, kw_only=True):
    """One request's share of a launch whose rows nobody looked at, as a recorder sees it.

    It stands for the `Read` and `Wrote` facts that `RuleForward` gives for the same lane, so a log
    with it has the backend ``rules``. Queries and writes are at positions ``[start, end)``.
    """

    request: str | None
    mode: Mode
    slot: int
    start: Count
    end: Count

    def __post_init__(self) -> None:
        """Refuse a lane that ends before it starts."""
        if self.end < self.start:
            raise ValueError(f"a lane ends at {self.end}, before its start {self.start}")


class Windowed(_Fact, frozen=True, kw_only=True):
    """Where one request's keys lie in the SWA pool when a forward runs, as the map says then.

    The queries of the forward are at positions ``start`` and after; they put their own keys at
    their positions' locations and find those before, a window back, at theirs.

    Attributes:
        first: position that ``locs[0]`` stands for; the rest follow one by one.
        locs: SWA locations, the reserved one (0) for a position that has none; none where there is
            no SWA pool, and ``first`` is ``start``.
        seen: what the SWA pool holds there for positions ``[first, start)``, None for a row that
            nobody wrote whole. None as a whole where rows are not marked.
        prefix_seen: the same of the full pool, for positions ``[0, start)``.
    """

    request: str
    mode: Mode
    slot: Count
    start: Count
    first: Count
    locs: tuple[int, ...]
    seen: tuple[Mark | None, ...] | None = None
    prefix_seen: tuple[Mark | None, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse marks that are not one a position."""
        for marks, first in ((self.seen, self.first), (self.prefix_seen, 0)):
            if marks is not None and len(marks) != self.start - first:
                raise ValueError(f"{len(marks)} marks for positions {first} to {self.start - 1}")


class Answered(_Fact, frozen=True, kw_only=True):
    """What a request's tokens turned out to be, prompt and answer; said before it is released.

    A recorder cannot foresee an answer, so its `Submit` ends in a text that only this request has.
    Whoever makes a scenario of the log learns here which later prompt continues this one.
    """

    request: str
    tokens: Prompt


Span: TypeAlias = tuple[Count, Count]
"""Locations ``[start, end)``."""


class Allocated(_Fact, frozen=True, kw_only=True):
    """An allocator lent locations of a pool."""

    pool: Pool
    locs: tuple[Span, ...]


class Freed(_Fact, frozen=True, kw_only=True):
    """An allocator took locations of a pool back."""

    pool: Pool
    locs: tuple[Span, ...]


class Translated(_Fact, frozen=True, kw_only=True):
    """Locations of the full pool were translated to the SWA pool; the two are parallel."""

    full: tuple[Span, ...]
    swa: tuple[Span, ...]


class Mapped(_Fact, frozen=True, kw_only=True):
    """The full-to-SWA map from now on: the entry of each location; said when it has changed."""

    entries: tuple[Count, ...]


class Share(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request's tokens of a forward: positions from ``start`` on, a location each."""

    request: str
    slot: Count = 0
    start: Count
    locs: tuple[Count, ...]


class Planned(_Fact, frozen=True, kw_only=True):
    """A forward got its locations, and the backend planned it.

    Attributes:
        in_graph: whether the backend also ran what a graph records of the planning.
        graph: the forward is a replay of a captured graph.
    """

    mode: ForwardMode
    shares: tuple[Share, ...]
    in_graph: bool = True
    graph: bool = False


class Changed(_Fact, frozen=True, kw_only=True):
    """A planned forward was changed before it ran.

    Attributes:
        how: ``padded`` appended rows of the reserved location, ``rebound`` gave it other locations,
            ``remapped`` mapped its locations anew.
        rows: how many rows were appended.
        shares: the locations that it has now, if they are others.
    """

    how: Literal["padded", "rebound", "remapped"]
    rows: Count = 0
    shares: tuple[Share, ...] = ()


class Consumed(_Fact, frozen=True, kw_only=True):
    """SWA locations that one sliding-window layer of a forward used.

    Attributes:
        use: where the keys went (``store``), or where the windows were read (``read``).
        mode: of the forward; ``idle`` for one without requests.
        ring: the indices are ring rows, which the rule gives for slot and position (RING-2).
        locs: ``store``: the forward's own locations in the full pool, padded rows included.
        counts: ``read``: locations that each row of the batch reads, padded rows included.
        indices: the SWA locations, in the order of ``locs`` or of the windows; None where the layer
            was given none.
        dtype: of the tensor that held them.
        takes: types that the consumer is made for.
        cached: ``store``: the translation made when the forward was planned was taken; None where
            the backend has no other.
        step: of a multi-step draft.
        where: line of the engine that used them.
    """

    use: Literal["store", "read"]
    mode: Literal[ForwardMode, "idle"]
    ring: bool = False
    locs: tuple[Count, ...] = ()
    counts: tuple[Count, ...] = ()
    indices: tuple[int, ...] | None
    dtype: str
    takes: tuple[str, ...]
    cached: bool | None = None
    step: Count = 0
    where: str = ""


class Gap(_Fact, frozen=True, kw_only=True):
    """Facts are missing here: nothing that follows can be judged.

    Attributes:
        reason: what went wrong in the recorder.
        dropped: facts that were lost, where they were counted.
    """

    reason: str
    dropped: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def words(self) -> str:
        """What is missing and why."""
        lost = f"{self.dropped:,} facts" if self.dropped else "facts"
        return f"{lost} are missing there ({self.reason})"


class Advanced(_Fact, frozen=True, kw_only=True):
    """A request's computed length after a forward: tokens whose keys are committed."""

    request: str
    computed_len: int
    prefilling: bool = False


class TableLane(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One request's share of a launch, as its row of the page table shows it.

    Attributes:
        start: first position that the launch writes; it reads those before.
        end: one past the last position that it writes.
        first: first position that it reads; 0 unless all layers slide.
        locs: full-pool locations of positions ``[first, end)``.
        writes_by_table: the launch looks up in the table where it writes, while it runs; else that
            was fixed when it was launched.
    """

    request: str
    slot: Count
    start: Count
    end: Count
    locs: tuple[Count, ...]
    first: Count = 0
    writes_by_table: bool = False

    def __post_init__(self) -> None:
        """Refuse locations that are not one a position."""
        if not self.first <= self.start <= self.end:
            raise ValueError(f"a lane reads from {self.first} and writes {self.start}:{self.end}")
        if len(self.locs) != self.end - self.first:
            raise ValueError(
                f"{len(self.locs)} locations for positions {self.first} to {self.end - 1}"
            )


class Launched(_Fact, frozen=True, kw_only=True):
    """With overlap: a step was queued on the device, behind all that was queued before.

    `Read`, `Wrote` and `Advanced` are told in the order of the device and so at the launch.

    Attributes:
        launch: its number, counted from 1 over the log.
    """

    launch: Count
    mode: Mode
    lanes: tuple[TableLane, ...]


class Rewritten(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entries of the page table that were written while a launch that reads them was unfinished.

    Attributes:
        lane: index of the launch's lane.
        position: of the first entry.
        locs: what stands there now, from ``position`` on.
    """

    lane: Count
    position: Count
    locs: tuple[Count, ...]


class Completed(_Fact, frozen=True, kw_only=True):
    """A step has run, and the host takes its result: what is freed now was not in use by it.

    Attributes:
        rewritten: what stands in the table otherwise than at the launch. The step may have read
            either, unless the host's writes wait for the device; a target whose do says nothing.
    """

    launch: Count
    rewritten: tuple[Rewritten, ...] = ()


class Released(_Fact, frozen=True, kw_only=True):
    """A request gave its slot back."""

    request: str
    slot: int


class Node(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One node of the radix tree as the real object shows it.

    Attributes:
        parent: index of the parent in the snapshot, -1 for a child of the root.
        tokens: the edge's tokens; with bigram keys one more than locations, which the next edge
            begins with.
        locs: full-pool location of each token.
        full_lock: lock count of the full component.
        swa_lock: lock count of the sliding-window component.
        tombstone: the node's SWA was released while its full pages stay.
        swa_locs: SWA-pool location of each token, where there is such a pool and the tree keeps
            them itself instead of asking the map; empty else.
    """

    parent: int
    tokens: tuple[int, ...]
    locs: tuple[int, ...]
    full_lock: int = 0
    swa_lock: int = 0
    tombstone: bool = False
    swa_locs: tuple[int, ...] = ()


class Holding(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a request holds.

    Attributes:
        protected_len: leading tokens whose locations belong to the tree.
        locs: full-pool location of every allocated token, protected ones first.
        locked: index of the snapshot's node up to which the request locks the tree; None where it
            locks nothing or the driver does not tell.
        swa_locked_from: index of the topmost node that its sliding-window lock covers; None where
            it has none (any more).
        swa_evicted_len: the cursor: leading tokens whose SWA locations were given back.
    """

    request: str
    slot: int
    protected_len: int
    locs: tuple[int, ...]
    locked: int | None = None
    swa_locked_from: int | None = None
    swa_evicted_len: Count = 0


MapRun: TypeAlias = tuple[Count, Count, Count]
"""A run of the full-to-SWA map: full location, SWA location, tokens; both count up by one."""


class SwaPool(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The index-addressed SWA pool and the map that leads there.

    Attributes:
        free: free locations: page numbers (``loc // page_size``).
        full_to_swa: every entry of the map that is not the reserved one, as runs.
        counters: the engine's own sizes in tokens: ``available``, ``evictable``, ``protected``.
    """

    free: tuple[int, ...]
    full_to_swa: tuple[MapRun, ...]
    counters: dict[str, int]


class Pools(_Fact, frozen=True, kw_only=True):
    """Snapshot of the pools and the tree after an operation; absent if nothing changed.

    Attributes:
        free: free locations of the full pool: page numbers (``loc // page_size``).
        free_slots: request slots that can be lent, in the engine's own order.
        nodes: the tree, parents before children.
        holdings: the requests that hold memory.
        counters: the engine's own sizes in tokens: ``available``, ``evictable``, ``protected``.
        swa: the SWA pool; None where the window lives in rings, or the driver does not look.
    """

    free: tuple[int, ...]
    free_slots: tuple[int, ...]
    nodes: tuple[Node, ...]
    holdings: tuple[Holding, ...]
    counters: dict[str, int]
    swa: SwaPool | None = None

    def __post_init__(self) -> None:
        """Refuse a child before its parent."""
        for number, node in enumerate(self.nodes):
            if not -1 <= node.parent < number:
                raise ValueError(f"the parent of node {number} is {node.parent}, not before it")


class Breached(_Fact, frozen=True, kw_only=True):
    """A launch broke a guarantee of the host that the kernel proofs assume.

    Attributes:
        assumption: its name in the proofs, e.g. ``H6``.
        kernel: that was launched.
        message: what is not so.
    """

    assumption: str
    kernel: str
    message: str


class Complained(_Fact, frozen=True, kw_only=True):
    """The engine's own check of its tree failed, where the scheduler would run it: when idle."""

    message: str


class Stored(_Fact, frozen=True, kw_only=True):
    """Locations of the full pool to which a launch stores a request's tokens, from ``start`` on.

    A snapshot does not tell a page that was evicted, lent and published again within its step from
    one that stayed: this does.
    """

    request: str
    start: Count
    locs: tuple[int, ...]


class Compared(_Fact, frozen=True, kw_only=True):
    """What an occupancy computed through real layers, beside its prompt's run on an empty cache.

    Errors are relative, ``|found - cold| / |cold|`` over a state's or row's numbers. The fact comes
    before the request is released, or at the end of the log.

    Attributes:
        ratios: of the layers; see `model.layers.Stack`.
        start: first position that the occupancy computed.
        states: error of each state from there on, by layer.
        rows: error of each compressed row that its last query saw, from position 0 on, by layer.
        noise: largest error between two runs of the prompt on an empty cache, in one chunk and in
            chunks of a page: what rounding alone makes of it. 0 for one that reused nothing, which
            is such a second run itself.
    """

    request: str
    ratios: tuple[Count, ...]
    start: Count
    states: tuple[tuple[float, ...], ...]
    rows: tuple[tuple[float, ...], ...]
    noise: float

    def __post_init__(self) -> None:
        """Refuse errors that are not one list a layer."""
        if not len(self.ratios) == len(self.states) == len(self.rows):
            raise ValueError(
                f"{len(self.ratios)} layers have {len(self.states)} lists of states and "
                f"{len(self.rows)} of rows"
            )


class EngineError(_Fact, frozen=True, kw_only=True):
    """The engine raised, hung or died in this step; the log ends here."""

    cause: Literal["raised", "timed out", "died"]
    message: str


class Ended(_Fact, frozen=True, kw_only=True):
    """The scenario was played to its end."""

    steps: int


Fact: TypeAlias = (
    Started | Step | Skipped | Admitted | Read | Wrote | Ran | Windowed | Answered | Allocated
    | Freed | Translated | Gap | Mapped | Planned | Changed | Consumed | Advanced | Launched
    | Completed | Released | Pools | Breached | Complained | Stored | Compared | EngineError
    | Ended
)  # fmt: skip

_decoder = msgspec.json.Decoder(Fact)
_encoder = msgspec.json.Encoder()


def encode_fact(fact: Fact) -> bytes:
    """One line of a log, newline included."""
    return _encoder.encode(fact) + b"\n"


def decode_fact(line: bytes) -> Fact:
    """One fact from one line; raises BadFileError."""
    fact = decode_json(_decoder, line, part="fact", file="log")
    if isinstance(fact, Started):
        refuse_newer_schema(fact.schema, what="log")
    return fact


class LogReader:
    """Facts of a log, one at a time, from bytes in blocks of any size.

    Blocks are decoded as they come, so a log can be followed while it is written. Where the bytes
    are not the very ones that kvproof writes for the facts that they hold (a file that was edited,
    or that another tool wrote), each line is looked at by itself: nothing in it may be ignored.

    Attributes:
        line: number of the line that holds the last fact given, from 1.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.line = 0
        self._blocks = blocks

    def __iter__(self) -> Iterator[Fact]:
        """Give the facts.

        Raises:
            BadFileError: what is no log of this version, with the number of its line.
        """
        for lines in self._whole_lines():
            for line, fact in enumerate(self._decode(lines), self.line + 1):
                self.line = line
                if isinstance(fact, Started) != (line == 1):
                    raise BadFileError(
                        f"line {line}: a second 'started' fact; one file is one log"
                        if line > 1
                        else "line 1: a log starts with a 'started' fact"
                    )
                yield fact
        if not self.line:
            raise BadFileError("the log is empty")

    def _whole_lines(self) -> Iterator[bytes]:
        rest: list[bytes] = []
        length = 0
        for block in self._blocks:
            end = block.rfind(b"\n") + 1
            if end:
                yield b"".join([*rest, block[:end]])
                rest, length = [], 0
            rest.append(block[end:])
            length += len(block) - end
            if length > MAX_LINE:
                raise BadFileError(f"line {self.line + 1}: it has more than {MAX_LINE} bytes")
        if length:
            yield b"".join([*rest, b"\n"])

    def _decode(self, lines: bytes) -> Iterable[Fact]:
        try:
            facts: list[Fact] = _decoder.decode_lines(lines)
        except (msgspec.DecodeError, RecursionError):
            return self._line_by_line(lines)
        if _encoder.encode_lines(facts) == lines and self.line:
            return facts
        return self._line_by_line(lines)

    def _line_by_line(self, lines: bytes) -> Iterator[Fact]:
        for line in lines.split(b"\n")[:-1]:
            try:
                fact = decode_fact(line)
                if _encoder.encode(fact) != line:
                    refuse_repeated_names(line, part="fact")
            except BadFileError as error:
                raise BadFileError(f"line {self.line + 1}: {error}") from error
            yield fact


def read_log(lines: Iterable[bytes]) -> Iterator[Fact]:
    """Facts of a log, one at a time; raises BadFileError with the line number."""
    return iter(LogReader(line if line.endswith(b"\n") else line + b"\n" for line in lines))
