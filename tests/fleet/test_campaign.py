"""A campaign's sessions: what they find, what they keep, and what no worker can do to them."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz.fleet.ledger import FILE, Closed, Ledger, read_ledger
from kvproof.fuzz.fleet.subjects import CANARIES, find_subjects
from kvproof.fuzz.fleet.tally import GIVEN_UP_AFTER, Tallies
from kvproof.fuzz.fleet.units import (
    Lost,
    Plan,
    Search,
    Searched,
    Shrunk,
    Told,
    Unit,
    Worker,
    seed_of,
)
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.files import load_scenario
from kvproof.model.monitor import check
from kvproof.model.players import model_player
from kvproof.model.reference import Policy
from kvproof.model.scenario import BadFileError

from .conftest import FAULT, DiedError, HereLane, Session

UNCAPPED, SOUND = CANARIES


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Session, Tallies]:
    one = Session(tmp_path_factory.mktemp("campaign") / "c")
    return one, one.run()


def test_the_canaries_behave_and_the_fault_is_found(session: tuple[Session, Tallies]) -> None:
    _, tallies = session
    assert [tally.canary_problem for tally in tallies.by_name.values()] == ["", "", ""]
    tally = tallies.by_name[FAULT.name]
    finding = tally.findings["USEFUL", "no-reuse"]
    assert finding.confirmed
    assert len(finding.scenario.operations) <= 5
    assert tally.survey.sequences > 0
    assert tally.survey.seconds > 0


def test_every_failure_is_shrunk_once_and_canaries_are_not(
    session: tuple[Session, Tallies],
) -> None:
    one, tallies = session
    shrunk = [
        (entry.target, entry.finding.name)
        for entry in one.view.entries
        if isinstance(entry, Shrunk)
    ]
    assert len(shrunk) == len({*shrunk})
    assert {target for target, _ in shrunk} == {FAULT.name}
    tally = tallies.by_name[FAULT.name]
    assert tally.findings.keys() == tally.survey.smallest.keys()


def test_the_ledger_says_the_same_again(session: tuple[Session, Tallies]) -> None:
    one, tallies = session
    again = Tallies(one.subjects)
    again.extend(read_ledger(one.root / FILE))
    assert again.is_closed
    for name, tally in tallies.by_name.items():
        assert again.by_name[name].result(0) == tally.result(0)
        assert again.by_name[name].behaviours == tally.behaviours
        assert again.by_name[name].quickest == tally.quickest


def test_the_files_are_those_of_a_run(session: tuple[Session, Tallies]) -> None:
    one, tallies = session
    [file] = one.root.glob("*/USEFUL-no-reuse.scenario.json")
    scenario = load_scenario(file)
    assert scenario == tallies.by_name[FAULT.name].findings["USEFUL", "no-reuse"].scenario
    assert FAULT.policy is not None
    broken = check(model_player(scenario, FAULT.policy).play(scenario)).violations
    assert ("USEFUL", "no-reuse") in broken
    assert file.with_name("USEFUL-no-reuse.txt").exists()


def test_a_known_behaviour_and_failure_is_not_written_again(
    session: tuple[Session, Tallies],
) -> None:
    one, _ = session
    seen: list[str] = []
    for entry in one.view.entries:
        if isinstance(entry, Searched) and entry.target == FAULT.name:
            seen += entry.behaviours
    assert len(seen) == len({*seen})


def test_a_resumed_session_does_no_search_twice(tmp_path: Path) -> None:
    first = Session(tmp_path / "c", subjects=(FAULT,))
    first.run()
    past = tuple(read_ledger(first.root / FILE))
    second = Session(tmp_path / "c", subjects=(FAULT,), seconds=first.seconds + 15.0)
    tallies = second.run(past)
    numbers = [
        entry.number for entry in read_ledger(first.root / FILE) if isinstance(entry, Searched)
    ]
    assert numbers == [*range(len(numbers))]
    assert len(numbers) > sum(isinstance(entry, Searched) for entry in past)
    assert tallies.elapsed > 30.0
    assert sum(isinstance(entry, Closed) for entry in read_ledger(first.root / FILE)) == 2


def test_a_worker_that_dies_is_recorded_and_replaced(tmp_path: Path) -> None:
    deaths = [1]

    def spoil(unit: Unit) -> Future[Told] | None:
        if not isinstance(unit, Search) or unit.number != 1 or not deaths:
            return None
        deaths.pop()
        future: Future[Told] = Future()
        future.set_exception(DiedError("killed by SIGKILL"))
        return future

    session = Session(tmp_path / "c", subjects=(FAULT,), lane=lambda: HereLane(spoil))
    tally = session.run().by_name[FAULT.name]
    [lost] = tally.lost
    assert (lost.cause, lost.number, lost.message) == ("died", 1, "killed by SIGKILL")
    assert len(session.lanes) == 2
    assert 1 in tally.done  # it was given out again
    assert not tally.is_given_up


def test_a_worker_that_died_with_nothing_to_do_is_replaced(tmp_path: Path) -> None:
    deaths = [1]

    def spoil(_unit: Unit) -> Future[Told] | None:
        if deaths:
            deaths.pop()
            raise DiedError("the process is gone")
        return None

    session = Session(
        tmp_path / "c", subjects=(FAULT,), lane=lambda: HereLane(spoil), seconds=1.0, sequences=5
    )
    [lost] = session.run().by_name[FAULT.name].lost
    assert (lost.cause, lost.number) == ("died", 0)
    assert len(session.lanes) == 2


def test_a_worker_that_hangs_is_killed_and_recorded(tmp_path: Path) -> None:
    hangs = [1]

    def spoil(_unit: Unit) -> Future[Told] | None:
        if not hangs:
            return None
        hangs.pop()
        return Future()

    session = Session(tmp_path / "c", subjects=(FAULT,), lane=lambda: HereLane(spoil), grace=-990.0)
    [lost] = session.run().by_name[FAULT.name].lost
    assert (lost.cause, lost.number) == ("hung", 0)
    assert session.lanes[0].killed == 2  # when it hung, and when it was replaced
    assert len(session.lanes) == 2


def test_a_target_that_loses_every_worker_is_given_up_and_does_not_hold(tmp_path: Path) -> None:
    def spoil(_unit: Unit) -> Future[Told]:
        future: Future[Told] = Future()
        future.set_exception(MemoryError("no memory"))
        return future

    session = Session(tmp_path / "c", subjects=(FAULT,), lane=lambda: HereLane(spoil))
    tally = session.run().by_name[FAULT.name]
    assert [lost.cause for lost in tally.lost] == ["raised"] * GIVEN_UP_AFTER
    assert tally.is_given_up
    assert {verdict.status for verdict in tally.result(0).verdicts} <= {"unknown", "skipped"}


def test_canaries_that_do_not_behave_are_told_from_those_that_do(tmp_path: Path) -> None:
    # Each with the policy of the other: one that should break holds, and the other way round.
    swapped = tuple(
        type(canary)(
            target=canary.target,
            policy=policy,
            sequences=60,
            must_break=canary.must_break,
        )
        for canary, policy in ((UNCAPPED, Policy()), (SOUND, Policy(reprefill_tail=0)))
    )
    for canary in swapped:
        tallies = Tallies([canary])
        entry, _ = _searched(canary.name, tmp_path, canary.policy)
        tallies.add(entry)
        assert tallies.by_name[canary.name].canary_problem


def _searched(name: str, folder: Path, policy: Policy | None) -> tuple[Searched, list[object]]:
    """What a search on a subject of that name would say if it had another policy."""
    source = "model-uncapped" if policy is not None and policy.reprefill_tail == 0 else FAULT.name
    unit = Search(target=source, number=0, seed=seed_of(0, source, 0))
    entry, _ = Worker().work(unit, Plan(examples=str(folder), sequences=5))
    assert isinstance(entry, Searched)
    if source == FAULT.name:
        entry = replace(entry, failures=(), counts=())
    return replace(entry, target=name), []


def test_a_canary_that_was_never_played_is_a_problem() -> None:
    tallies = Tallies(CANARIES)
    assert all(tally.canary_problem for tally in tallies.by_name.values())


# The ledger


def test_a_line_that_was_cut_off_is_dropped_and_the_rest_stays(tmp_path: Path) -> None:
    lost = Lost(target="t", cause="died", message="m", number=3)
    with Ledger(tmp_path) as ledger:
        ledger.append(lost)
        ledger.append(Closed(elapsed=2.0))
    whole = (tmp_path / FILE).read_bytes()
    for end in range(len(whole)):
        (tmp_path / FILE).write_bytes(whole[:end])
        kept = [*read_ledger(tmp_path / FILE)]
        assert kept == [lost, Closed(elapsed=2.0)][: whole[:end].count(b"\n")]
    with Ledger(tmp_path) as ledger:
        ledger.append(Closed(elapsed=3.0))
    assert [*read_ledger(tmp_path / FILE)] == [lost, Closed(elapsed=3.0)]


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"type":"closed","elapsed":1.0}\n{"type":"else"}\n')
    with pytest.raises(BadFileError, match="line 2"):
        list(read_ledger(tmp_path / FILE))


def test_one_campaign_at_a_time_writes_to_a_folder(tmp_path: Path) -> None:
    with Ledger(tmp_path), pytest.raises(EngineError, match="another process"):
        Ledger(tmp_path)


def test_an_unknown_reference_engine_is_refused() -> None:
    with pytest.raises(EngineError, match="model-nothing") as caught:
        find_subjects(["model-nothing"], EngineStore())
    assert "model-leak-on-abort" in caught.value.fix
