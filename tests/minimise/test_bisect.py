"""Bisecting releases: every verdict is earned, and every change is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.facts import Admitted
from kvproof.model.reference import Policy
from kvproof.model.scenario import Geometry, Scenario
from kvproof.triage.bisect import (
    Bisection,
    Judgement,
    Player,
    Seen,
    bisect_releases,
    judge,
    releases_named,
    worst_of,
)
from kvproof.triage.cache import ResultCache

from .conftest import CAPPED, STALE, STALE_DECODE, UNCAPPED, FakeSubject, fails_at

PREFILL = "FRESH-PREFILL/other-request"


def bad(version: str, *others: str, **more: object) -> Seen:
    return Seen(version=version, symptoms=(STALE_DECODE, *others), **more)  # type: ignore[arg-type]


def good(version: str, **more: object) -> Seen:
    return Seen(version=version, **more)  # type: ignore[arg-type]


def unusable(version: str) -> Seen:
    return Seen(version=version, unusable="it has no unified_kv gate")


def bisected(*seen: Seen) -> Bisection:
    player = Player(scenario=STALE, cache=None)  # type: ignore[arg-type]  # nothing is played
    return Bisection.of(player, STALE_DECODE, judge(seen, STALE_DECODE))


def changes(found: Bisection) -> list[tuple[str, str, Judgement, tuple[str, ...]]]:
    return [(each.before, each.after, each.verdict, each.skipped) for each in found.changes]


def test_it_came_in_and_was_mended() -> None:
    found = bisected(good("1"), bad("2"), bad("3"), good("4"))
    assert changes(found) == [("1", "2", "bad", ()), ("3", "4", "good", ())]
    assert (found.first_bad, found.first_good_after) == ("2", "4")


def test_it_came_back() -> None:
    found = bisected(good("1"), bad("2"), good("3"), bad("4"), good("5"))
    assert [each.after for each in found.changes] == ["2", "3", "4", "5"]
    assert (found.first_bad, found.first_good_after) == ("2", "3")


def test_a_range_that_begins_bad_has_no_good_before_it() -> None:
    found = bisected(unusable("1"), bad("2"), good("3"))
    assert (found.first_bad, found.first_good_after) == ("2", "3")
    assert [each.verdict for each in found.versions_before_bad] == ["skipped"]


def test_what_is_skipped_is_neither_good_nor_bad() -> None:
    found = bisected(good("1"), unusable("2"), bad("3"), unusable("4"), bad("5"), unusable("6"))
    assert changes(found) == [("1", "3", "bad", ("2",))]
    assert found.first_good_after is None
    assert [each.verdict for each in found.versions] == [
        "good", "skipped", "bad", "skipped", "bad", "skipped",
    ]  # fmt: skip
    assert found.versions[1].reason == "it has no unified_kv gate"


SKIPPED = {
    "its engine fails": (Seen(version="v", symptoms=("engine error/died",)), "the engine failed"),
    "another cause": (
        Seen(version="v", symptoms=("FRESH-DECODE/never-written",)), "breaks for another cause",
    ),
    "no ring": (
        Seen(version="v", untested=("FRESH-DECODE",), has_ring=False), "there is no ring",
    ),
    "a step without room": (Seen(version="v", refused={4: "no memory"}), "step 5 was not played"),
}  # fmt: skip


@pytest.mark.parametrize("why", SKIPPED)
def test_a_version_that_did_not_play_the_case_is_skipped(why: str) -> None:
    seen, reason = SKIPPED[why]
    judged = judge([bad("b"), seen], STALE_DECODE)[1]
    assert judged.verdict == "skipped"
    assert reason in judged.reason


def test_a_step_that_a_bad_version_refuses_too_has_no_part_in_it() -> None:
    seen = [bad("b", refused={2: "no request runs"}), good("g", refused={2: "no request runs"})]
    assert [each.verdict for each in judge(seen, STALE_DECODE)] == ["bad", "good"]


def test_what_else_is_wrong_is_said() -> None:
    seen = [bad("b", PREFILL), Seen(version="g", symptoms=(PREFILL,))]
    assert [(each.verdict, each.reason) for each in judge(seen, STALE_DECODE)] == [
        ("bad", f"also: {PREFILL}"), ("good", f"but: {PREFILL}"),
    ]  # fmt: skip


def test_the_worst_of_all_versions_is_looked_for() -> None:
    seen = [
        Seen(version="1", symptoms=("engine error/died",)),
        Seen(version="2", symptoms=(PREFILL,)),
        bad("3"),
    ]
    assert worst_of(seen, None) == STALE_DECODE
    assert worst_of(seen, "FRESH-PREFILL") == PREFILL
    assert worst_of(seen, "engine error") == "engine error/died"
    assert worst_of(seen, "USEFUL") is None


def test_an_engine_failure_is_bad_only_where_it_is_the_same() -> None:
    here = "engine error/ValueError in alloc of sglang/x.py"
    seen = [
        Seen(version="1", symptoms=(here,)),
        Seen(version="2", symptoms=("engine error/ValueError in free of sglang/x.py",)),
        good("3"),
    ]
    assert [each.verdict for each in judge(seen, here)] == ["bad", "skipped", "good"]


# On something that plays


@pytest.mark.parametrize(
    ("policy", "verdict"),
    [(UNCAPPED, "bad"), (CAPPED, "good"), (Policy(faults=frozenset({"never reuse"})), "good")],
)
def test_a_play_gives_a_verdict(cache: ResultCache, policy: Policy, verdict: str) -> None:
    seen = Player(scenario=STALE, cache=cache).on_subject("v", FakeSubject(policy=policy))
    [judged] = judge([seen], STALE_DECODE)
    assert judged.verdict == verdict


def test_a_play_with_too_little_room_is_skipped(cache: ResultCache) -> None:
    """The cap wants another page than the pool has: what would break is never played."""
    small = Scenario(
        geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=2),
        operations=STALE.operations,
    )
    seen = Player(scenario=small, cache=cache).on_subject("v", FakeSubject())
    assert set(seen.refused) == {1, 2, 4, 5}
    [judged] = judge([seen], STALE_DECODE)
    assert (judged.verdict, judged.reason) == ("skipped", "nothing put FRESH-DECODE to the test")


def test_an_engine_that_raises_is_skipped(cache: ResultCache) -> None:
    subject = FakeSubject(spoil=fails_at(Admitted, "ValueError: no at sglang/x.py:1 in alloc"))
    seen = Player(scenario=STALE, cache=cache).on_subject("v", subject)
    [judged] = judge([seen], STALE_DECODE)
    assert judged.verdict == "skipped"
    assert judged.reason == "the engine failed: ValueError in alloc of sglang/x.py"


def test_a_version_is_played_once(cache: ResultCache) -> None:
    subject = FakeSubject()
    player = Player(scenario=STALE, cache=cache)
    assert player.on_subject("v", subject) == player.on_subject("v", subject)
    assert subject.plays == 1
    assert player.on_subject("v", FakeSubject(code="2")).version == "v"


@dataclass(frozen=True)
class FakeStore:
    """A store of releases that cannot be driven, some of which cannot be installed."""

    root: Path
    releases: dict[str, dict[str, str]] = field(default_factory=dict)

    def list(self) -> tuple[Engine, ...]:
        return ()

    def find(self, name: str) -> Engine:
        raise EngineError(f"{name} is not installed", fix="add it")

    def add(self, name: str, *, unpinned: bool = False) -> Engine:
        raise EngineError(f"{name} cannot be downloaded", fix="check the network")


def test_releases_that_cannot_be_had_are_an_error_if_there_are_no_others(
    cache: ResultCache, tmp_path: Path
) -> None:
    player = Player(scenario=STALE, cache=cache)
    with pytest.raises(EngineError, match="no release could be played on; 1: 1 cannot be down"):
        bisect_releases(
            player, ["1", "2"], FakeStore(tmp_path), wanted=None, jobs=2,  # type: ignore[arg-type]
        )  # fmt: skip


def store_with(tmp_path: Path, *releases: str) -> EngineStore:
    return EngineStore(cache=tmp_path, releases={version: {} for version in releases})


def test_a_range_has_all_known_releases_named_its_ends(tmp_path: Path) -> None:
    store = store_with(tmp_path, "0.5.9", "0.5.15.post1", "0.5.16", "0.5.15", "0.5.12")
    assert releases_named("0.5.12..0.5.16", store) == [
        "0.5.12", "0.5.15", "0.5.15.post1", "0.5.16",
    ]  # fmt: skip
    assert releases_named("0.5.16", store) == ["0.5.16"]
    assert releases_named("0.5.16,0.5.9..0.5.12", store) == ["0.5.9", "0.5.12", "0.5.16"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("", "names no releases"),
        ("0.5.15..", "names no releases"),
        ("0.5.15..mine", "names no releases"),
        ("0.5.15..0.5.16..0.5.16", "names no releases"),
        ("0.5.15..0.5.14", "release 0.5.14 is not known; known: 0.5.15, 0.5.16"),
        ("0.5.16..0.5.15", "0.5.16 is newer than 0.5.15"),
    ],
)
def test_a_bad_range_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    with pytest.raises(EngineError, match=cause):
        releases_named(text, store_with(tmp_path, "0.5.15", "0.5.16"))
