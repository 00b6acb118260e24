"""What the monitor says of a log: evidence, order, words, witnesses, whose prompt is whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from kvproof.model.facts import (
    Admitted,
    EngineError,
    Fact,
    Node,
    Pools,
    Read,
    Started,
    Step,
    Wrote,
    decode_fact,
    encode_fact,
)
from kvproof.model.monitor import check, statuses
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
    BadFileError,
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
from kvproof.model.snapshot import cached_len, last_cached_page
from kvproof.model.verdict import (
    CAUSES,
    EXACTNESS_CAUSES,
    EXACTNESS_INVARIANTS,
    INVARIANTS,
    SEVERITY,
    TRANSLATION_CAUSES,
    TRANSLATION_INVARIANTS,
    Lease,
    Writer,
)
from kvproof.model.witness import (
    CAP_WITNESS,
    DRAFT_WITNESSES,
    HOST_WITNESSES,
    OVERLAP_WITNESSES,
    OVERLAPPED_DRAFT_WITNESSES,
    SWA_WITNESSES,
    WITNESSES,
    CacheWitness,
    Witness,
)

SIZES = Geometry(window=4, page_size=1, slots=1, pool_tokens=64)


def arrive(name: str, *pieces: tuple[str, int], chunk: int | None = None) -> list[Operation]:
    prompt = tuple(Piece(text, until) for text, until in pieces)
    return [Submit(request=name, prompt=prompt), Prefill(request=name, tokens=chunk)]


def come_and_go(name: str, *pieces: tuple[str, int]) -> list[Operation]:
    return [*arrive(name, *pieces), Finish(request=name)]


def play(operations: Sequence[Operation], sizes: Geometry = SIZES, **policy: Any) -> list[Fact]:
    player = reference_player(sizes, Policy(**policy))
    return list(player.play(Scenario(geometry=sizes, operations=tuple(operations))))


RECYCLED = [
    *come_and_go("A", ("A", 16)), *come_and_go("B", ("B", 16)), *arrive("C", ("A", 16), ("C", 18)),
]  # fmt: skip


# Evidence


def test_stale_decode_is_explained() -> None:
    worst = check(play([*RECYCLED, Decode()], reprefill_tail=0)).worst()
    assert worst is not None
    assert (worst.invariant, worst.cause, worst.step) == ("FRESH-DECODE", "other-request", 8)
    assert worst.sentence == (
        "the decode of request C at position 18 reads row 7 of slot 1 for its position 15, which "
        "holds position 15 of request B (occupancy 2, written in step 5): "
        "the row holds what another request wrote, for another position or prefix"
    )
    evidence = worst.evidence
    assert evidence is not None
    assert (evidence.position, evidence.row, evidence.stands_for) == (18, 7, 15)
    assert evidence.writer == Writer(occupancy=2, request="B", position=15, step=4)
    assert evidence.reader == Lease(
        occupancy=3, request="C", slot=1, prompt_len=18, matched_len=16, step=7
    )
    assert evidence.reader.tail == 2
    assert evidence.previous is not None
    assert evidence.previous.request == "B"
    assert evidence.publisher is not None
    assert evidence.publisher.request == "A"
    assert [
        (cell.row, cell.stands_for, cell.writer and cell.writer.request, cell.cause)
        for cell in evidence.ring
    ] == [(4, 16, "C", None), (5, 17, "C", None), (6, 18, "C", None), (7, 15, "B", "other-request")]


def test_first_occupant_of_a_slot_has_no_previous_one() -> None:
    sizes = Geometry(window=4, page_size=1, slots=2, pool_tokens=64)
    operations = [*arrive("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 18)), Decode()]
    violation = check(play(operations, sizes, reprefill_tail=0)).worst_of("FRESH-DECODE")
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.previous is None
    assert violation.evidence.writer is None
    assert violation.evidence.publisher is not None
    assert violation.evidence.publisher.request == "A"
    assert "which nobody has written" in violation.sentence


def test_publisher_is_who_computed_the_last_reused_page() -> None:
    """B extends A's prefix, so the page that C reuses last is B's."""
    operations = [
        *come_and_go("A", ("A", 8)),
        *come_and_go("B", ("A", 8), ("B", 16)),
        *come_and_go("Z", ("Z", 16)),
        *arrive("C", ("A", 8), ("B", 16), ("C", 18)),
        Decode(),
    ]
    violation = check(play(operations, reprefill_tail=0)).worst_of("FRESH-DECODE")
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.publisher is not None
    assert violation.evidence.publisher.request == "B"
    assert violation.evidence.previous is not None
    assert violation.evidence.previous.request == "Z"


def test_publisher_is_the_last_one_where_a_page_changes_hands_in_one_operation() -> None:
    """C's prefill evicts A's page, takes it and publishes it: the third page of what D reuses."""
    sizes = Geometry(window=4, page_size=4, slots=1, pool_tokens=16)
    operations = [
        *come_and_go("A", ("A", 8)), *come_and_go("C", ("C", 16)),
        *arrive("D", ("C", 12), ("D", 14)), Decode(),
    ]  # fmt: skip
    violation = check(play(operations, sizes, reprefill_tail=0)).worst_of("FRESH-DECODE")
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.publisher is not None
    assert violation.evidence.publisher.request == "C"


def test_publisher_of_an_answer_is_who_gave_it_though_others_came_later() -> None:
    sizes = Geometry(window=4, page_size=4, slots=3, pool_tokens=64)
    operations = [
        *arrive("Z", ("Z", 6)), *arrive("A", ("A", 6)), *arrive("B", ("B", 6)),
        Decode(), Decode(), Finish(request="A"),
        *arrive("C", ("A", 8), ("C", 10)), Decode(),
    ]  # fmt: skip
    violation = check(play(operations, sizes, reprefill_tail=0)).worst()
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.reader.matched_len == 8
    assert violation.evidence.publisher is not None
    assert violation.evidence.publisher.request == "A"


def in_long_nodes(pools: Pools) -> Pools:
    """The same tree cut into as few nodes as it can be: an only child joins its parent."""
    children = [sum(n.parent == at for n in pools.nodes) for at in range(len(pools.nodes))]
    nodes: list[Node] = []
    moved: dict[int, int] = {-1: -1}
    for at, node in enumerate(pools.nodes):
        parent = moved[node.parent]
        above = nodes[parent] if parent >= 0 else None
        if (
            above is not None
            and children[node.parent] == 1
            and (above.full_lock, above.swa_lock) == (node.full_lock, node.swa_lock)
        ):
            tokens, locs = above.tokens + node.tokens, above.locs + node.locs
            nodes[parent] = msgspec.structs.replace(above, tokens=tokens, locs=locs)
            moved[at] = parent
        else:
            moved[at] = len(nodes)
            nodes.append(msgspec.structs.replace(node, parent=parent))
    holdings = [
        msgspec.structs.replace(
            holding,
            locked=None if holding.locked is None else moved[holding.locked],
            swa_locked_from=(
                None if holding.swa_locked_from is None else moved[holding.swa_locked_from]
            ),
        )
        for holding in pools.holdings
    ]
    return msgspec.structs.replace(pools, nodes=tuple(nodes), holdings=tuple(holdings))


@pytest.mark.parametrize("page_size", [1, 2, 4])
def test_how_the_tree_is_cut_into_nodes_changes_nothing(page_size: int) -> None:
    operations = [
        *come_and_go("A", ("A", 8)),
        *come_and_go("B", ("A", 8), ("B", 16)),
        *come_and_go("E", ("A", 4), ("E", 16)),
        *come_and_go("Z", ("Z", 16)),
        *arrive("C", ("A", 8), ("B", 16), ("C", 18)),
        Decode(),
    ]
    sizes = Geometry(window=4, page_size=page_size, slots=1, pool_tokens=64)
    log = play(operations, sizes, reprefill_tail=0)
    recut = [in_long_nodes(fact) if isinstance(fact, Pools) else fact for fact in log]
    assert recut != log
    assert check(recut).violations == check(log).violations
    assert check(recut).checked == check(log).checked
    violation = check(recut).worst_of("FRESH-DECODE")
    assert violation is not None
    assert violation.evidence is not None
    assert violation.evidence.publisher is not None
    assert violation.evidence.publisher.request == "B"


def test_a_wrong_window_is_said_with_both_windows() -> None:
    *rest, read, advanced, pools, ended = play([*arrive("A", ("A", 6)), Decode()])
    assert isinstance(read, Read)
    short = msgspec.structs.replace(read, rows=read.rows[:-1])
    worst = check([*rest, short, advanced, pools, ended]).worst()
    assert worst is not None
    assert worst.sentence == (
        "request A at position 6 reads positions 3 to 5; the rule gives 3 to 6"
    )


def test_each_stale_row_is_counted_and_the_first_one_kept() -> None:
    monitor = check(play([*RECYCLED, Decode(), Decode()], reprefill_tail=1))
    # Tail 2 of a window of 4: the query at 18 reads position 15, the query at 19 none.
    assert monitor.counts["FRESH-DECODE", "other-request"] == 1
    # Queries 16 and 17 read 13 14 15 and 14 15.
    assert monitor.counts["FRESH-PREFILL", "other-request"] == 5
    assert monitor.violations["FRESH-PREFILL", "other-request"].step == 7


@pytest.mark.parametrize(("agreed", "causes"), [(15, {"same-content"}), (14, {"other-request"})])
def test_same_content_means_the_same_prefix_up_to_that_very_token(
    agreed: int, causes: set[str]
) -> None:
    """The query at 18 reads position 15 only; B wrote it after as many tokens of A's text."""
    operations = [
        *come_and_go("A", ("A", 16)),
        *arrive("B", ("A", agreed + 1), ("B", 16)),
        Abort(request="B"),
        *arrive("C", ("A", 16), ("C", 18)),
        Decode(),
    ]
    broken = check(play(operations, reprefill_tail=0)).violations
    assert {cause for invariant, cause in broken if invariant == "FRESH-DECODE"} == causes


@pytest.mark.parametrize("prompt_len", range(4, 16))
def test_a_rejected_draft_is_known_whatever_row_of_whatever_slot_it_lies_in(
    prompt_len: int,
) -> None:
    sizes = Geometry(window=4, page_size=1, slots=3, pool_tokens=64, draft_tokens=2)
    operations = [
        *arrive("A", ("A", 2)), *arrive("B", ("B", 3)), *arrive("C", ("C", prompt_len)),
        Abort(request="A"), Abort(request="B"), Verify(accepted=1), Decode(),
    ]  # fmt: skip
    monitor = check(play(operations, sizes, decode_order="read, then write"))
    assert monitor.counts == {("FRESH-DECODE", "rejected-draft"): 1}
    violation = monitor.worst()
    assert violation is not None
    assert violation.evidence is not None
    assert (violation.evidence.reader.slot, violation.evidence.stands_for) == (3, prompt_len + 1)


def test_the_first_of_several_breaks_is_kept_and_all_are_counted() -> None:
    """A leaked page stays leaked in every later snapshot."""
    sizes = Geometry(window=4, page_size=4, slots=1, pool_tokens=64)
    operations = [*arrive("A", ("A", 6)), Abort(request="A"), *come_and_go("B", ("B", 6))]
    monitor = check(play(operations, sizes, faults=frozenset({"leak on abort"})))
    assert monitor.violations["PARTITION", "leak"].step == 2
    assert monitor.counts["PARTITION", "leak"] == 3


# Order and words


def test_severity_follows_the_ladder_then_the_causes() -> None:
    pairs = [(invariant, cause) for invariant in INVARIANTS for cause in CAUSES]
    pairs += [(i, cause) for i in TRANSLATION_INVARIANTS for cause in TRANSLATION_CAUSES]
    pairs += [(i, cause) for i in EXACTNESS_INVARIANTS for cause in EXACTNESS_CAUSES]
    assert sorted(SEVERITY, key=SEVERITY.__getitem__) == pairs


def test_the_worst_violation_comes_first_whatever_came_first_in_the_log() -> None:
    monitor = check(play([*RECYCLED, Decode()], reprefill_tail=0))
    assert next(iter(monitor.violations))[0] == "FRESH-PREFILL"
    worst = monitor.worst()
    assert worst is not None
    assert worst.invariant == "FRESH-DECODE"
    assert monitor.worst_of("PARTITION") is None
    assert check(play([])).worst() is None


def test_status_words() -> None:
    log = play([*RECYCLED, Decode()], reprefill_tail=0)
    assert statuses(check(log)) == {
        "FRESH-DECODE": "violated",
        "FRESH-PREFILL": "violated",
        "WINDOW": "skipped",
        "IN-FLIGHT": "skipped",
        "PARTITION": "holds",
        "MAP": "skipped",
        "LOCK": "holds",
        "CURSOR": "skipped",
        "PADDING": "unknown",
        "PROGRESS": "skipped",
        "USEFUL": "holds",
        "REFINES": "holds",
    }
    padded = statuses(check(play([*arrive("A", ("A", 3)), Decode(pad=1)])))
    assert padded["PADDING"] == "holds"
    assert padded["USEFUL"] == "unknown", "nothing was cached, so nothing could be reused"
    assert statuses(check(play([])))["FRESH-DECODE"] == "unknown"


def test_what_was_put_to_the_test_is_counted() -> None:
    # A hit of 14 tokens with a tail of 4, one decode with one padded row.
    operations = [*come_and_go("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 18)), Decode(pad=1)]
    monitor = check(play(operations))
    assert (monitor.steps, monitor.skipped) == (6, 0)
    assert monitor.checked == {
        "PARTITION": 7,  # 5 snapshots: at the start and after all steps but the submits; 2 slots
        "LOCK": 5,
        "REFINES": 10,  # 2 matches, 4 launches' writes with the padded one, 3 + 1 queries
        "USEFUL": 1,
        "FRESH-PREFILL": 3,
        "FRESH-DECODE": 1,
        "PADDING": 2,  # one row written, one read
    }


def test_an_engine_error_is_no_verdict() -> None:
    log = [*play(RECYCLED)[:-1], EngineError(cause="died", message="signal 9")]
    words = statuses(check(log))
    assert words["FRESH-DECODE"] == "engine error"
    assert words["FRESH-PREFILL"] == "violated", "what was seen before stays seen"
    monitor = check(log)
    assert monitor.engine_error is not None
    assert not monitor.ended
    assert check(play(RECYCLED)).ended


def test_a_log_read_back_gives_the_same_verdicts() -> None:
    log = play([*RECYCLED, Decode()], reprefill_tail=0)
    again = check(decode_fact(encode_fact(fact)) for fact in log)
    assert again.violations == check(log).violations
    assert again.witnesses == check(log).witnesses


# Witnesses

REACHED: dict[Witness, list[Operation]] = {
    "prefix hit": RECYCLED,
    "cap would bind": RECYCLED,
    "cap bound": RECYCLED,
    "ring read by decode": [*arrive("A", ("A", 3)), Decode()],
    "ring read by prefill": RECYCLED,
    "ring wrapped": [*arrive("A", ("A", 3)), Decode(), Decode()],
    "foreign row in window": RECYCLED,
    "chunk boundary in window": [*arrive("A", ("A", 6), chunk=3), Prefill(request="A")],
    "page evicted": [*come_and_go("A", ("A", 6)), Evict(tokens=1)],
    "padded row": [*arrive("A", ("A", 3)), Decode(pad=1)],
    "verify": [*arrive("A", ("A", 3)), Verify(accepted=2)],
    "draft rejected": [*arrive("A", ("A", 3)), Verify(accepted=1)],
    "rejected row rewritten": [*arrive("A", ("A", 3)), Verify(accepted=1), Verify(accepted=1)],
    "wrap inside a verify": [*arrive("A", ("A", 4)), Verify(accepted=1)],
}

MISSED: dict[Witness, list[Operation]] = {
    "prefix hit": [*come_and_go("A", ("A", 16)), *arrive("C", ("C", 18))],
    "cap would bind": [*come_and_go("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 20))],
    "cap bound": [*come_and_go("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 20))],
    "ring read by decode": arrive("A", ("A", 3)),
    "ring read by prefill": arrive("A", ("A", 30)),
    "ring wrapped": [*arrive("A", ("A", 3)), Decode()],
    "foreign row in window": [*come_and_go("A", ("A", 16)), *arrive("C", ("C", 18))],
    "chunk boundary in window": RECYCLED,
    "page evicted": [*come_and_go("A", ("A", 6)), Flush()],
    "padded row": [*arrive("A", ("A", 3)), Decode()],
    "verify": [*arrive("A", ("A", 3)), Decode()],
    "draft rejected": [*arrive("A", ("A", 3)), Verify(accepted=2)],
    "rejected row rewritten": [*arrive("A", ("A", 3)), Verify(accepted=1), Finish(request="A")],
    "wrap inside a verify": [*arrive("A", ("A", 3)), Verify(accepted=1)],
}
PLAYED = sorted(
    {*get_args(CacheWitness)}
    - {"over-allocation released"}
    - SWA_WITNESSES.keys()
    - OVERLAP_WITNESSES.keys()
    - OVERLAPPED_DRAFT_WITNESSES.keys()
    - HOST_WITNESSES.keys()
)
"""The model allocates nothing ahead; of others see test_swa_reference.py, test_overlap.py and
tests/drivers/test_hicache.py."""

DRAFTING = replace(SIZES, draft_tokens=2)


def play_witness(witness: Witness, operations: Sequence[Operation]) -> list[Fact]:
    return play(operations, DRAFTING if witness in DRAFT_WITNESSES else SIZES)


def test_every_witness_is_known() -> None:
    known = WITNESSES.keys() | DRAFT_WITNESSES.keys() | {CAP_WITNESS}
    played = known | SWA_WITNESSES.keys() | OVERLAPPED_DRAFT_WITNESSES.keys()
    assert set(get_args(CacheWitness)) == (
        played | OVERLAP_WITNESSES.keys() | HOST_WITNESSES.keys()
    )
    assert REACHED.keys() == MISSED.keys() == set(PLAYED)


@pytest.mark.parametrize("witness", PLAYED)
def test_witness_is_reached(witness: Witness) -> None:
    assert check(play_witness(witness, REACHED[witness])).witnesses[witness] > 0


@pytest.mark.parametrize("witness", PLAYED)
def test_witness_is_not_counted_for_what_only_resembles_it(witness: Witness) -> None:
    assert check(play_witness(witness, MISSED[witness])).witnesses[witness] == 0


def test_over_allocation_is_seen_as_it_is_released() -> None:
    """What the engines reserve for the next drafts: two locations more than were computed."""
    log = play(come_and_go("A", ("A", 4)))
    assert check(log).witnesses["over-allocation released"] == 0
    held = [at for at, fact in enumerate(log) if isinstance(fact, Pools) and fact.holdings][-1]
    pools = log[held]
    assert isinstance(pools, Pools)
    [holding] = pools.holdings
    ahead = replace(holding, locs=(*holding.locs, *pools.free[:2]))
    log[held] = replace(pools, holdings=(ahead,), free=pools.free[2:])
    assert check(log).witnesses["over-allocation released"] == 1


def test_bigram_keys_match_by_pairs() -> None:
    """Two edges with the same first tokens differ in the token after them, which is in the key."""
    edge = Node(parent=-1, tokens=(1, 2, 3), locs=(1, 2))
    pools = Pools(free=(), free_slots=(), nodes=(edge,), holdings=(), counters={})
    for prompt, cached in (((1, 2, 3), 2), ((1, 2, 4), 1), ((1, 2), 1), ((1,), 0)):
        found = cached_len(pools, prompt, SIZES, tombstones_gate=True, bigram_keys=True)
        assert found == cached
    assert last_cached_page(pools, (1, 2, 3, 4), 1, bigram_keys=True) == 2
    assert last_cached_page(pools, (1, 2, 4), 1, bigram_keys=True) == 1


def test_without_a_cap_none_binds_though_it_would() -> None:
    witnesses = check(play(RECYCLED, reprefill_tail=0)).witnesses
    assert witnesses["cap would bind"] == 1
    assert witnesses[CAP_WITNESS] == 0


def test_witnesses_are_counted_once_each_time() -> None:
    operations = [
        *RECYCLED, Decode(pad=1), Finish(request="C"), Evict(tokens=3),
        *arrive("D", ("D", 6), chunk=3), Prefill(request="D"),
    ]  # fmt: skip
    assert check(play(operations)).witnesses == {
        "prefix hit": 1,
        "cap would bind": 1,
        "cap bound": 1,
        "foreign row in window": 1,
        # C at 14 15 16, and D at 3 4 5 over its chunk boundary.
        "ring read by prefill": 6,
        "chunk boundary in window": 3,
        "ring read by decode": 1,
        "padded row": 2,
        # Of A and B the last 4 of 16, of C 14 to 17 and 18, of D 4 and 5.
        "ring wrapped": 4 + 4 + 4 + 1 + 2,
        "page evicted": 1,
    }


def test_a_page_counts_as_cached_only_behind_all_pages_before_it() -> None:
    """C agrees with A from position 4 on, and not before: nothing of it is cached."""
    sizes = Geometry(window=4, page_size=4, slots=1, pool_tokens=64)
    operations = [*come_and_go("A", ("A", 12)), *arrive("C", ("C", 4), ("A", 12))]
    monitor = check(play(operations, sizes))
    assert monitor.checked["USEFUL"] == 0
    assert not monitor.violations


def test_no_row_is_foreign_in_a_slot_that_nobody_held() -> None:
    sizes = Geometry(window=4, page_size=1, slots=2, pool_tokens=64)
    operations = [*come_and_go("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 18))]
    assert check(play(operations, sizes)).witnesses["foreign row in window"] == 0
    assert check(play(operations)).witnesses["foreign row in window"] == 1


def test_what_is_cached_and_not_reused_is_no_hit() -> None:
    witnesses = check(play(RECYCLED, reprefill_tail=18)).witnesses
    assert witnesses["prefix hit"] == 0
    assert witnesses[CAP_WITNESS] == 1


# Whose prompt is whose


@pytest.mark.parametrize("admitted_before", [False, True])
def test_a_refused_submit_leaves_the_prompt_of_the_request_that_has_the_name(
    admitted_before: bool,
) -> None:
    """Had the monitor taken the second prompt, the reuse of the first one would look wrong."""
    taken = Submit(request="B", prompt=(Piece("Z", 16),))
    first, prefill = arrive("B", ("A", 16))
    order = [first, prefill, taken] if admitted_before else [first, taken, prefill]
    monitor = check(play([*come_and_go("A", ("A", 16)), *order, Decode(), Finish(request="B")]))
    assert monitor.skipped == 1
    assert {invariant for invariant, _ in monitor.violations} <= {"FRESH-PREFILL"}
    assert monitor.checked["USEFUL"] == 1


def test_a_name_used_again_has_its_new_prompt() -> None:
    operations = [
        *come_and_go("A", ("A", 16)), *come_and_go("A", ("B", 16)), *arrive("A", ("B", 18)),
    ]  # fmt: skip
    assert set(check(play(operations)).violations) <= {("FRESH-PREFILL", cause) for cause in CAUSES}


def test_a_retracted_request_comes_back_with_what_it_had_computed() -> None:
    """Its own answer is part of what it may reuse."""
    operations = [
        *arrive("A", ("A", 10)), Decode(), Decode(), Retract(request="A"), Prefill(request="A"),
        Decode(), Abort(request="A"),
    ]  # fmt: skip
    log = play(operations)
    lengths = [(fact.prompt_len, fact.matched_len) for fact in log if isinstance(fact, Admitted)]
    assert lengths == [(10, 0), (13, 9)]
    assert {invariant for invariant, _ in check(log).violations} <= {"FRESH-PREFILL"}


# Logs that no engine can have written


def test_an_admission_without_a_submit_is_refused() -> None:
    log = [fact for fact in play(arrive("A", ("A", 3))) if not _is_submit(fact)]
    with pytest.raises(BadFileError, match="request A is admitted and was never submitted"):
        check(log)


def _is_submit(fact: Fact) -> bool:
    return isinstance(fact, Step) and isinstance(fact.operation, Submit)


@pytest.mark.parametrize("kind", [Read, Wrote])
def test_rows_of_a_target_without_a_ring_are_refused(kind: type[Fact]) -> None:
    started, *rest = play([*RECYCLED, Decode()])
    assert isinstance(started, Started)
    ringless = Started(
        target="model", backend="rules", geometry=SIZES, ring_stride=None, reprefill_tail=0
    )
    assert check([ringless, *[f for f in rest if not isinstance(f, Read | Wrote)]]).ended
    kept = [f for f in rest if isinstance(f, kind) or not isinstance(f, Read | Wrote)]
    with pytest.raises(BadFileError, match="the target has no ring"):
        check([ringless, *kept])


def test_a_tombstone_in_the_last_window_is_no_match_where_it_gates() -> None:
    """The same tree: with the gate nothing can be reused, without it the whole path."""
    sizes = Geometry(window=4, page_size=4, slots=1, pool_tokens=64)
    log = play([*come_and_go("A", ("A", 16)), *arrive("C", ("A", 16), ("C", 24))], sizes)
    buried: list[Fact] = []
    for fact in log:
        edited = fact
        if isinstance(fact, Pools):
            nodes = tuple(msgspec.structs.replace(node, tombstone=True) for node in fact.nodes)
            edited = msgspec.structs.replace(fact, nodes=nodes)
        buried.append(edited)
    assert ("REFINES", "match") in check(buried).violations
    assert isinstance(buried[0], Started)
    open_gate = msgspec.structs.replace(buried[0], tombstones_gate=False)
    assert ("REFINES", "match") not in check([open_gate, *buried[1:]]).violations
