"""Overlap scheduling on the real releases: the loop's order, and what a step in flight survives."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from kvproof.fuzz.constructions import CHUNK, REGISTRY
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.strategies import EVERYTHING, _hand_over, _spell_out
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError as SetupError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import (
    Admitted,
    Completed,
    Ended,
    Fact,
    Launched,
    Pools,
    Released,
    Skipped,
    Started,
    encode_fact,
)
from kvproof.model.monitor import check
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Abort,
    Accepted,
    Complete,
    Decode,
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
from kvproof.model.text import parse_scenario
from kvproof.mutants.engine import EngineMutant, engine_mutants


def targets():
    """What is installed and overlaps; without an engine there is nothing to drive."""
    try:
        return [target for target in find_targets((), EngineStore()) if 1 in target.sizes.overlaps]
    except SetupError:
        return []


INSTALLED = [(target.engine.version, target.construction) for target in targets()]
PAGED = Geometry(window=4, page_size=4, slots=3, pool_tokens=128, overlap=1)
DRAFTING = Geometry(window=4, page_size=4, slots=2, pool_tokens=128, draft_tokens=3, overlap=1)


def arrive(name: str, *pieces: tuple[str, int], chunk: int | None = None) -> list[Operation]:
    prompt = tuple(Piece(text, until) for text, until in pieces)
    return [Submit(request=name, prompt=prompt), Prefill(request=name, tokens=chunk)]


def of(name: str, tokens: int) -> tuple[Accepted, ...]:
    return (Accepted(name, tokens),)


SCENARIOS: dict[str, list[Operation]] = {
    "a request ends": [
        *arrive("A", ("A", 6)), Decode(), Finish(request="A"), Decode(), Decode(), Complete(),
    ],
    "an end with the first token": [
        *arrive("A", ("A", 6)), Finish(request="A"), Decode(), *arrive("B", ("B", 6)), Decode(),
    ],
    "an abort while it decodes": [
        *arrive("A", ("A", 6)), *arrive("B", ("B", 6)), Decode(), Abort(request="A"), Decode(),
        *arrive("C", ("C", 6)), Decode(),
    ],
    "an abort of a chunk in flight": [
        *arrive("A", ("A", 12), chunk=4), Prefill(request="A", tokens=4), Abort(request="A"),
        *arrive("B", ("B", 6)), Decode(), Complete(), Complete(), Flush(),
    ],
    "a retraction": [
        *arrive("A", ("A", 6)), *arrive("B", ("B", 6)), Decode(), Retract(request="A"), Decode(),
        Prefill(request="A"), Decode(), Decode(), Finish(request="A"), Decode(), Decode(),
    ],
    "a retraction before the first result": [
        *arrive("A", ("A", 6)), Retract(request="A"), Prefill(request="A"), Decode(),
    ],
    "two compute the same": [
        *arrive("A", ("A", 9)), *arrive("B", ("A", 9)), Decode(), Decode(), Finish(request="B"),
        Decode(), *arrive("C", ("C", 9)), Decode(), Finish(request="A"), Decode(),
    ],
}  # fmt: skip


DRAFTED: dict[str, list[Operation]] = {
    "a request ends": [
        *arrive("A", ("A", 6)), Verify(accepted=2), Verify(accepted=3), Finish(request="A"),
        Verify(accepted=2), Complete(), Complete(),
    ],
    "each keeps another number": [
        *arrive("A", ("A", 6)), *arrive("B", ("B", 9)), Verify(accepted=1, others=of("B", 3)),
        Verify(accepted=3, others=of("B", 2)), Verify(accepted=2, others=of("B", 1)),
        Finish(request="A"), Verify(accepted=3), Verify(accepted=1), Complete(),
    ],
    "a prefill between": [
        *arrive("A", ("A", 6)), Verify(accepted=3), *arrive("B", ("B", 12), chunk=4),
        Verify(accepted=1), Prefill(request="B"), Verify(accepted=3), Verify(accepted=2),
    ],
    "a retraction": [
        *arrive("A", ("A", 6)), *arrive("B", ("B", 6)), Verify(accepted=2), Retract(request="A"),
        Verify(accepted=2), Prefill(request="A"), Verify(accepted=3), Finish(request="A"),
        Verify(accepted=1), Verify(accepted=1),
    ],
    "an abort while it drafts": [
        *arrive("A", ("A", 6)), *arrive("B", ("B", 6)), Verify(accepted=2), Abort(request="A"),
        Verify(accepted=2), Verify(accepted=2), *arrive("C", ("A", 6), ("C", 9)),
        Verify(accepted=1), Complete(),
    ],
}  # fmt: skip


def order(log: list[Fact]) -> list[str]:
    """What was launched, taken, admitted and released, in order."""
    words = []
    for fact in log:
        match fact:
            case Launched():
                lanes = " ".join(f"{x.request}[{x.start}:{x.end}]" for x in fact.lanes)
                words.append(f"{fact.mode} {fact.launch}: {lanes}")
            case Completed():
                words.append(f"result {fact.launch}")
            case Admitted():
                words.append(f"admit {fact.request}, {fact.prompt_len} tokens")
            case Released():
                words.append(f"release {fact.request}")
            case Skipped():
                words.append("skip")
    return words


@pytest.fixture(params=INSTALLED, ids=":".join)
def process(request: pytest.FixtureRequest, start: Callable[..., EngineProcess]) -> EngineProcess:
    release, construction = request.param
    return start(release, construction=construction)


@pytest.mark.parametrize(
    ("geometry", "name"),
    [*((PAGED, name) for name in SCENARIOS), *((DRAFTING, name) for name in DRAFTED)],
    ids=[*SCENARIOS, *(f"{name}, with drafts" for name in DRAFTED)],
)
def test_a_release_goes_in_the_order_of_the_model(
    process: EngineProcess, geometry: Geometry, name: str
) -> None:
    drafts = geometry.draft_tokens > 1
    operations = (DRAFTED if drafts else SCENARIOS)[name]
    scenario = Scenario(geometry=geometry, operations=tuple(operations))
    log = process.play(scenario, timeout=60, backend="rules")
    assert isinstance(log[-1], Ended), log[-1]
    assert isinstance(log[0], Started)
    model = reference_player(geometry, Policy(reprefill_tail=log[0].reprefill_tail))
    assert order(log) == order(list(model.play(scenario)))
    monitor = check(log)
    assert monitor.witnesses["verify in flight" if drafts else "step in flight"] > 0
    # Prefills behind a hit are stale (X1), and on some releases decodes too.
    fresh = {"FRESH-PREFILL", "FRESH-DECODE"}
    assert {invariant for invariant, _ in monitor.violations} - fresh == set()


STREAM_MUTANTS = [one for one in engine_mutants() if one.area == "streams"]


@pytest.mark.parametrize("mutant", STREAM_MUTANTS, ids=lambda one: one.name)
def test_a_release_that_mistakes_the_lag_of_its_host_is_seen(
    start: Callable[..., EngineProcess], mutant: EngineMutant
) -> None:
    release, _, construction = mutant.target.partition(":")
    edits = tuple(one.edit for one in STREAM_MUTANTS if one.target == mutant.target)
    process = start(release, construction=construction, mutants=edits)
    scenario = parse_scenario(mutant.scenario.encode())
    assert scenario.geometry.overlap
    assert scenario.geometry.draft_tokens > 1
    clean = check(process.play(scenario, timeout=60, backend="rules"))
    assert clean.witnesses["verify in flight"] > 0
    assert not clean.violations
    mutated = check(process.play(scenario, timeout=60, backend="rules", mutant=mutant.name))
    assert mutated.engine_error is None
    assert {invariant for invariant, _ in mutated.violations} & {"IN-FLIGHT", "WINDOW", "REFINES"}


RECYCLED = Scenario(
    geometry=Geometry(
        window=4, page_size=4, slots=1, pool_tokens=64, draft_tokens=3, overlap=1
    ),
    operations=(
        *arrive("C", ("C", 16)), Finish(request="C"), Verify(accepted=1), Complete(),
        *arrive("A", ("A", 6)), Finish(request="A"), Verify(accepted=1),
        *arrive("B", ("C", 16), ("B", 24)), Complete(),
    ),
)  # fmt: skip


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
@pytest.mark.parametrize("barrier", [False, True], ids=["ROCm", "barrier"])
def test_a_verify_writes_by_its_next_tenants_row(
    start: Callable[..., EngineProcess], release: str, barrier: bool
) -> None:
    """B reuses C's pages where A's last verify looks up its locations: without a barrier."""
    process = start(release, construction=REGISTRY, rocm_gate=not barrier)
    monitor = check(process.play(RECYCLED, timeout=60, backend="rules"))
    assert monitor.witnesses["verified after its end"] > 0
    assert monitor.witnesses["table rewritten in flight"] > 0
    found = monitor.violations.get(("IN-FLIGHT", "rewritten"))
    assert (found is None) == barrier
    if found is not None:
        assert "the verify of request A (launch 4) writes position 6 by row 1" in found.sentence
        assert "a location which holds position 6 of request C" in found.sentence


def test_without_a_tree_it_takes_the_slot_of_one_and_the_pages_of_another(
    start: Callable[..., EngineProcess],
) -> None:
    """Two end in one round: the pages of the first are lent next, and the slot of the second."""
    scenario = Scenario(
        geometry=msgspec.structs.replace(DRAFTING, pool_tokens=64),
        operations=(
            *arrive("A", ("A", 6)), *arrive("D", ("D", 6)), Verify(accepted=1),
            Finish(request="A"), Finish(request="D"), Verify(accepted=1),
            *arrive("B", ("B", 16)), Complete(),
        ),
    )  # fmt: skip
    monitor = check(start("0.5.23", construction=CHUNK).play(scenario, timeout=60, backend="rules"))
    assert [*monitor.violations] == [("IN-FLIGHT", "rewritten")]


@pytest.mark.parametrize(
    ("release", "draft_tokens"), [("0.5.15", 3), ("0.5.16", 3), ("0.5.23", 3), ("0.5.23", 1)]
)
def test_a_move_rewrites_a_row_in_flight_where_no_tree_does(
    start: Callable[..., EngineProcess], release: str, draft_tokens: int
) -> None:
    geometry = msgspec.structs.replace(DRAFTING, pool_tokens=64, draft_tokens=draft_tokens)
    scenario = _spell_out(geometry, EVERYTHING, [(_hand_over, (9,))])
    monitor = check(start(release, construction=CHUNK).play(scenario, timeout=60, backend="rules"))
    assert monitor.engine_error is None
    assert monitor.witnesses["table rewritten in flight"] > 0


@pytest.mark.parametrize("release", ["0.5.15", "0.5.16", "0.5.23"])
def test_what_a_prefill_in_flight_reads_is_not_hoarded(
    start: Callable[..., EngineProcess], release: str
) -> None:
    """The host gives no window back before it has taken the prefill that reads it."""
    geometry = Geometry(
        window=8, page_size=2, slots=2, pool_tokens=40, draft_tokens=4, swa_tokens=20, overlap=1
    )
    scenario = Scenario(geometry=geometry, operations=(*arrive("A", ("A", 13)), Verify(accepted=4)))
    log = start(release, construction="paged-swa").play(scenario, timeout=60, backend="none")
    assert [fact.no_memory for fact in log if isinstance(fact, Skipped)] == [True]
    monitor = check(log)
    assert monitor.checked["PROGRESS"] > 0
    assert not monitor.violations


def test_nothing_is_left_when_all_have_gone(process: EngineProcess) -> None:
    operations = [*SCENARIOS["a retraction"], Abort(request="B"), Decode(), Complete(), Complete(),
                  Flush()]  # fmt: skip
    scenario = Scenario(geometry=PAGED, operations=tuple(operations))
    log = process.play(scenario, timeout=60, backend="rules")
    *_, pools = [fact for fact in log if isinstance(fact, Pools)]
    assert (pools.holdings, pools.nodes) == ((), ())
    assert sorted(pools.free_slots) == [1, 2, 3]
    assert len(pools.free) == PAGED.pool_tokens // PAGED.page_size


def test_what_was_sampled_unseen_is_published(process: EngineProcess) -> None:
    """A's answer is relayed from step to step; B reuses it as without overlap."""
    operations = [
        *arrive("A", ("A", 6)), *[Decode()] * 8, Finish(request="A"), Decode(), Complete(),
        *arrive("B", ("A", 12), ("B", 20)),
    ]  # fmt: skip
    matched = []
    for geometry in (PAGED, msgspec.structs.replace(PAGED, overlap=msgspec.UNSET)):
        scenario = Scenario(geometry=geometry, operations=tuple(operations))
        log = process.play(scenario, timeout=60, backend="rules")
        assert not {"REFINES", "PARTITION"} & {broken for broken, _ in check(log).violations}
        matched += [fact.matched_len for fact in log if isinstance(fact, Admitted)][-1:]
    assert matched == [12, 12]


def test_the_same_bytes_every_time(process: EngineProcess) -> None:
    scenario = Scenario(geometry=PAGED, operations=tuple(SCENARIOS["two compute the same"]))
    first, second = (
        b"".join(map(encode_fact, process.play(scenario, timeout=60, backend="rules")))
        for _ in range(2)
    )
    assert first == second
