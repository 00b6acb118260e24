"""The story of a violation: the operations, the ring with its stale rows, the chain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import get_args

import pytest
from msgspec.structs import replace

from kvproof.fuzz.story import (
    LUCKY,
    STALE,
    WIDTH,
    chain,
    draw_ring,
    tell,
)
from kvproof.model.facts import (
    Advanced,
    Allocated,
    Breached,
    Complained,
    Completed,
    Fact,
    Launched,
    Pool,
    Pools,
    Read,
    Rewritten,
    Started,
    TableLane,
    Translated,
)
from kvproof.model.monitor import check
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
)
from kvproof.model.text import spell_operation, spell_prompt
from kvproof.model.verdict import INVARIANTS, CacheCause, Cause, Invariant, Violation

from .conftest import UNCAPPED


def faulty(*faults: str) -> Policy:
    return Policy(faults=frozenset(faults))  # type: ignore[arg-type]


def paged(*faults: str) -> Policy:
    return dataclasses.replace(faulty(*faults), paged_swa=True)


def request(name: str, *prompt: tuple[str, int], tokens: int | None = None) -> list[Operation]:
    pieces = tuple(Piece(text, until) for text, until in prompt)
    return [Submit(request=name, prompt=pieces), Prefill(request=name, tokens=tokens)]


def log_of(case: Case) -> list[Fact]:
    geometry = Geometry(
        window=4, page_size=2, slots=case.slots, pool_tokens=64, draft_tokens=case.draft_tokens
    )
    scenario = Scenario(geometry=geometry, operations=tuple(case.operations))
    return case.edit(list(reference_player(geometry, case.policy).play(scenario)))


def first_read(**changes: Callable[[Read], object]) -> Callable[[list[Fact]], list[Fact]]:
    """The log with its first decode read changed."""

    def edit(log: list[Fact]) -> list[Fact]:
        at = next(n for n, f in enumerate(log) if isinstance(f, Read) and f.mode == "decode")
        read = log[at]
        assert isinstance(read, Read)
        changed = {name: change(read) for name, change in changes.items()}
        return [*log[:at], replace(read, **changed), *log[at + 1 :]]

    return edit


def misplace(log: list[Fact]) -> list[Fact]:
    """The log with a request's second location moved to where its first one is."""

    def move(fact: Fact) -> Fact:
        if not isinstance(fact, Pools) or not fact.holdings:
            return fact
        holding = fact.holdings[0]
        locs = (holding.locs[1], holding.locs[0], *holding.locs[2:])
        moved = replace(holding, locs=locs, protected_len=0)
        return replace(fact, holdings=(moved, *fact.holdings[1:]))

    return [move(fact) for fact in log]


def fall_short(log: list[Fact]) -> list[Fact]:
    """The log with forwards that computed less."""
    return [replace(fact, computed_len=2) if isinstance(fact, Advanced) else fact for fact in log]


def ends_with(*facts: Fact) -> Callable[[list[Fact]], list[Fact]]:
    """The log with more facts in its last step, and with an SWA pool."""

    def edit(log: list[Fact]) -> list[Fact]:
        started = log[0]
        assert isinstance(started, Started)
        sized = replace(started, swa_tokens=started.geometry.pool_tokens)
        return [sized, *log[1:-1], *facts, log[-1]]

    return edit


@dataclass(frozen=True, kw_only=True)
class Case:
    """How an invariant breaks for a cause on the reference engine."""

    breaks: tuple[Invariant, Cause]
    operations: list[Operation]
    policy: Policy = UNCAPPED
    slots: int = 1
    draft_tokens: int = 1
    edit: Callable[[list[Fact]], list[Fact]] = field(default=lambda log: log)


LENT: tuple[Fact, ...] = (
    *(Allocated(pool=pool, locs=((40, 42), (42, 44))) for pool in get_args(Pool)),
    Translated(full=((40, 42),), swa=((40, 42),)),
)
"""Two pages of each pool are lent, and one of them is translated."""


def launched(*, start: int, locs: tuple[int, ...]) -> Launched:
    lane = TableLane(request="A", slot=1, start=start, end=len(locs), locs=locs)
    return Launched(launch=1, mode="decode", lanes=(lane,))


FINISHED = [*request("A", ("A", 5)), Finish(request="A")]
AGAIN = [*FINISHED, *request("B", ("A", 2), ("B", 3)), Decode()]

CASES = [
    Case(breaks=("FRESH-DECODE", "other-request"), operations=AGAIN),
    Case(breaks=("FRESH-PREFILL", "other-request"), operations=AGAIN),
    Case(
        breaks=("FRESH-DECODE", "own-other-position"),
        operations=[*request("A", ("A", 5)), Decode()],
        policy=Policy(stride=3),
    ),
    Case(
        breaks=("FRESH-DECODE", "rejected-draft"),
        operations=[*request("A", ("A", 5)), Verify(accepted=1), Decode()],
        policy=Policy(decode_order="read, then write"),
        draft_tokens=2,
    ),
    Case(
        breaks=("FRESH-DECODE", "never-written"),
        operations=[*request("A", ("A", 5)), *request("B", ("A", 4), ("B", 5)), Decode()],
        slots=2,
    ),
    Case(
        breaks=("FRESH-PREFILL", "same-content"),
        operations=[*request("A", ("A", 4)), Finish(request="A"), *request("B", ("A", 6))],
    ),
    Case(breaks=("PARTITION", "lent-twice"), operations=FINISHED,
         policy=faulty("lend padding slot")),
    Case(breaks=("PARTITION", "double-free"),
         operations=[*request("A", ("A", 1)), Finish(request="A")],
         policy=faulty("double free on finish")),
    Case(breaks=("PARTITION", "shared"), operations=[*FINISHED, *request("B", ("B", 5))],
         policy=faulty("double free on finish")),
    Case(breaks=("PARTITION", "leak"), operations=[*request("A", ("A", 5)), Abort(request="A")],
         policy=faulty("leak on abort")),
    Case(breaks=("PARTITION", "misaligned"), operations=FINISHED, edit=misplace),
    Case(breaks=("PARTITION", "sizes"), operations=FINISHED, policy=faulty("miscount")),
    Case(breaks=("PADDING", "padding-escapes"),
         operations=[*request("A", ("A", 5)), Decode(pad=2)], policy=faulty("pad into last slot")),
    Case(breaks=("PADDING", "request-in-padding"), operations=FINISHED,
         policy=faulty("lend padding slot")),
    Case(breaks=("USEFUL", "no-reuse"), operations=[*FINISHED, *request("B", ("A", 4), ("B", 12))],
         policy=faulty("never reuse")),
    Case(breaks=("REFINES", "match"), operations=[*FINISHED, *request("B", ("B", 12))],
         policy=faulty("match beyond tree")),
    Case(breaks=("REFINES", "row"), operations=[*request("A", ("A", 5)), Decode()],
         edit=first_read(rows=lambda read: (read.rows[1], *read.rows[1:]))),
    Case(breaks=("REFINES", "window"), operations=[*request("A", ("A", 5)), Decode()],
         edit=first_read(first=lambda read: read.first + 1, rows=lambda read: read.rows[1:])),
    Case(breaks=("REFINES", "payload"), operations=[*request("A", ("A", 5)), Decode()],
         edit=first_read(seen=lambda read: ((9, 9),) * len(read.rows))),
    Case(breaks=("REFINES", "assumption"), operations=FINISHED,
         edit=ends_with(Breached(assumption="a", kernel="k", message="m"))),
    Case(breaks=("REFINES", "uncomputed"), operations=request("A", ("A", 5)), edit=fall_short),
    Case(breaks=("REFINES", "own-check"), operations=FINISHED,
         edit=ends_with(Complained(message="m"))),
    Case(breaks=("MAP", "stale-entry"), operations=[*FINISHED, Evict(tokens=0, swa_tokens=4)],
         policy=paged("entry kept at burial")),
    Case(breaks=("LOCK", "lock-count"), operations=[*request("A", ("A", 5)), Abort(request="A")],
         policy=paged("lock kept on abort")),
    Case(breaks=("CURSOR", "not-given-back"),
         operations=[*request("A", ("A", 2)), *[Decode()] * 7],
         policy=paged("keep behind the cursor")),
    Case(breaks=("WINDOW", "unmapped"),
         operations=[*request("A", ("A", 5)), Evict(tokens=0, swa_tokens=4), Decode()],
         policy=paged("bury under a lock")),
    Case(breaks=("PROGRESS", "refused"),
         operations=[*request("A", ("A", 40)), Finish(request="A"), *request("B", ("B", 40))],
         policy=paged("refuse before evicting")),
    Case(breaks=("PARTITION", "translated-free"), operations=FINISHED,
         edit=ends_with(*LENT, Translated(full=((44, 46),), swa=((42, 44),)))),
    Case(breaks=("PARTITION", "translated-foreign"), operations=FINISHED,
         edit=ends_with(*LENT, Translated(full=((42, 44),), swa=((40, 42),)))),
    Case(breaks=("IN-FLIGHT", "overwritten"), operations=request("A", ("A", 5)),
         edit=ends_with(launched(start=1, locs=(2, 3)))),
    Case(breaks=("IN-FLIGHT", "freed"), operations=request("A", ("A", 5)),
         edit=ends_with(launched(start=1, locs=(40, 41)))),
    Case(breaks=("IN-FLIGHT", "rewritten"), operations=request("A", ("A", 5)),
         edit=ends_with(
             launched(start=0, locs=(2, 3)),
             Completed(launch=1, rewritten=(Rewritten(lane=0, position=0, locs=(40,)),)),
         )),
    Case(breaks=("IN-FLIGHT", "not-launched"), operations=request("A", ("A", 5)),
         edit=ends_with(Completed(launch=1))),
]  # fmt: skip


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def name(case: Case) -> str:
    return "-".join(case.breaks)


def test_every_cause_has_a_case() -> None:
    """Of an SWA pool's causes there is one an invariant: they have no evidence to be drawn."""
    assert {case.breaks[1] for case in CASES} >= set(get_args(CacheCause))
    assert {case.breaks[0] for case in CASES} == set(INVARIANTS)


@pytest.fixture(params=CASES, ids=name)
def case(request: pytest.FixtureRequest) -> Case:
    assert isinstance(request.param, Case)
    return request.param


@pytest.fixture
def log(case: Case) -> list[Fact]:
    return log_of(case)


@pytest.fixture
def violation(case: Case, log: list[Fact]) -> Violation:
    return check(log).violations[case.breaks]


def test_it_says_what_broke_when_and_on_what(
    case: Case, log: list[Fact], violation: Violation
) -> None:
    story = tell(violation, log)
    invariant, _ = case.breaks
    assert max(map(len, story.partition("Operations")[0].splitlines())) <= WIDTH
    assert story.startswith(f"{invariant} is broken on model (backend rules)\n")
    assert f" In step {violation.step + 1}, {violation.sentence}." in unwrapped(story)
    assert f"{invariant}: {INVARIANTS[invariant]}." in unwrapped(story)
    assert isinstance(log[0], Started)
    ring = "" if log[0].ring_stride is None else f", ring_stride {log[0].ring_stride}"
    assert f"window 4, page_size 2{ring}" in story


def test_it_lists_every_operation_and_marks_the_one_that_breaks(
    case: Case, log: list[Fact], violation: Violation
) -> None:
    lines = tell(violation, log).splitlines()
    listed = lines[lines.index("Operations") + 1 :][: len(case.operations)]
    for number, (line, operation) in enumerate(zip(listed, case.operations, strict=True), start=1):
        assert line.startswith(f"  {number:>3}  {spell_operation(operation)}")
        assert line.endswith("<- breaks here") == (number == violation.step + 1)
        assert line == line.rstrip()


def test_it_draws_the_ring_with_its_stale_rows(log: list[Fact], violation: Violation) -> None:
    story = tell(violation, log)
    evidence = violation.evidence
    assert (evidence is not None) == violation.invariant.startswith("FRESH")
    if evidence is None:
        assert STALE not in story
        assert "How it came to that" not in story
        return
    drawing = draw_ring(evidence)
    assert "\n".join(drawing) in story
    header, *rows = drawing
    assert header.split() == ["row", "stands", "for", "holds"]
    assert len(rows) == log[0].ring_stride  # type: ignore[union-attr]
    for row, cell in zip(rows, evidence.ring, strict=True):
        assert row.endswith(STALE) == (cell.cause not in {None, "same-content"})
        assert row.endswith(LUCKY) == (cell.cause == "same-content")
        assert row.startswith(" >") == (cell.row == evidence.row)
        if cell.writer is None:
            assert "nobody wrote it" in row
        else:
            assert f"position {cell.writer.position} of {cell.writer.request}" in row
    [read] = [cell for cell in evidence.ring if cell.row == evidence.row]
    assert read.cause == violation.cause
    assert read.stands_for == evidence.stands_for


def test_it_tells_how_it_came_to_that(log: list[Fact], violation: Violation) -> None:
    if violation.evidence is None:
        assert chain(violation, 4) == []
        return
    evidence = violation.evidence
    links = chain(violation, 4)
    story = unwrapped(tell(violation, log))
    for number, link in enumerate(links, start=1):
        assert f" {number}. {link}" in story
    told = " ".join(links)
    reader = evidence.reader
    if reader.matched_len:
        assert f"{reader.matched_len} of its {reader.prompt_len} tokens are in the tree" in told
        assert f"Its tail is {reader.tail} token" in told
    else:
        assert f"{reader.request} reuses nothing" in told
    if evidence.previous is None:
        assert f"{reader.request} is the first that was lent slot {reader.slot}" in told
    else:
        assert f"which {evidence.previous.request} (occupancy" in told


STORY = """\
FRESH-DECODE is broken on model (backend rules)

  In step 6, the decode of request B at position 3 reads row 4 of slot 1 for its position 0, which
  holds position 4 of request A (occupancy 1, written in step 2): the row holds what another request
  wrote, for another position or prefix.

  FRESH-DECODE: every row that a decode or verify query reads was written by this request, in this
  occupancy, at exactly the position that it stands for.

Sizes: window 4, page_size 2, ring_stride 4, slots 1, pool_tokens 64, reprefill_tail 0

Operations
    1  submit A: A[0:5]
    2  prefill A                slot 1, reuses 0 of 5 tokens; A writes positions 1 to 4
    3  finish A
    4  submit B: A[0:2] B[2:3]
    5  prefill B                slot 1, reuses 2 of 3 tokens; B writes position 2
    6  decode                   B writes position 3; B reads positions 0 to 3   <- breaks here

Ring of slot 1 when B at position 3 reads it
   row  stands for  holds
 >   4           0  position 4 of A (occupancy 1, step 2)  <- STALE
     5           1  position 1 of A (occupancy 1, step 2)  <- not its own; the same token by luck
     6           2  position 2 of B (occupancy 2, step 5)
     7           3  position 3 of B (occupancy 2, step 6)

How it came to that
  1. B hits: 2 of its 3 tokens are in the tree, computed by A (occupancy 1). It does not compute
     them, so it writes no ring rows for them.
  2. Its tail is 1 token. A query at position 3 sees 4 positions, so its window reaches 2 positions
     into the reused prefix.
  3. B was lent slot 1, which A (occupancy 1) held before. Ring rows belong to the slot, not to the
     tree: what A left there is what B reads.
"""


def test_the_whole_story_of_the_main_finding() -> None:
    log = log_of(CASES[0])
    assert tell(check(log).violations["FRESH-DECODE", "other-request"], log) == STORY


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (Submit(request="A", prompt=(Piece("A", 4), Piece("C", 6))), "submit A: A[0:4] C[4:6]"),
        (Prefill(request="A"), "prefill A"),
        (Prefill(request="A", tokens=0), "prefill A, 0 tokens"),
        (Decode(), "decode"),
        (Decode(pad=2), "decode, 2 padded rows"),
        (Verify(accepted=2), "verify, 2 accepted"),
        (Finish(request="A"), "finish A"),
        (Abort(request="A"), "abort A"),
        (Retract(request="A"), "retract A"),
        (Evict(tokens=8), "evict 8 tokens"),
        (Flush(), "flush"),
    ],
)
def test_operations_in_words(operation: Operation, words: str) -> None:
    assert spell_operation(operation) == words


def test_a_piece_without_tokens_is_spelled_out_too() -> None:
    assert spell_prompt((Piece("A", 4), Piece("B", 2), Piece("C", 6))) == "A[0:4] B[4:2] C[4:6]"
    assert spell_prompt((Piece("A", 4), Piece("B", 2))) == "A[0:4] B[4:2]"


def test_what_was_skipped_is_said() -> None:
    case = Case(breaks=("FRESH-DECODE", "other-request"), operations=[Flush(), *AGAIN, Decode()])
    case.operations.insert(1, Finish(request="Z"))
    log = log_of(case)
    story = tell(check(log).violations[case.breaks], log)
    assert "finish Z" in story
    assert "skipped: there is no request Z" in story
