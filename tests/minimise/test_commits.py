"""Bisecting a checkout: git's bisection finds the commit, and the checkout is only read."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.triage.bisect import Bisection, Player, Seen
from kvproof.triage.commits import Repository, bisect_commits
from kvproof.triage.subjects import EngineSubject, Subject

from .conftest import STALE, STALE_DECODE

STATES = {
    "good": {},
    "bad": {"symptoms": (STALE_DECODE,)},
    "broken build": {"symptoms": ("engine error/died",)},
    "other": {"symptoms": ("FRESH-DECODE/never-written",)},
}


@dataclass(kw_only=True, slots=True)
class Reader(Player):
    """Does not play: an engine's file says what would come out."""

    read: list[str] = field(default_factory=list)

    def on_subject(self, version: str, subject: Subject) -> Seen:
        assert isinstance(subject, EngineSubject)
        state = (subject.target.engine.root / "sglang" / "state").read_text()
        self.read.append(state)
        if state == "no import":
            raise EngineError("it cannot be imported", fix="mend it")
        return Seen(version=version, **STATES[state])


class History:
    """A repository with one file, and names for its commits."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "python" / "sglang" / "state"
        self.file.parent.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch", "main")
        self.git("config", "user.name", "A")
        self.git("config", "user.email", "a@b.c")

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.root), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, state: str) -> str:
        self.file.write_text(state)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", state)
        return self.git("rev-parse", "HEAD")[:12]


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "repo")


@pytest.fixture
def search(history: History, tmp_path: Path) -> Callable[..., Bisection]:
    store = EngineStore(cache=tmp_path / "cache", releases={})
    store.deps.mkdir(parents=True)

    def run(good: str, bad: str, *, wanted: str | None = None, player: Player | None = None):
        player = player or Reader(scenario=STALE, cache=None)  # type: ignore[arg-type]
        return bisect_commits(player, history.root, store, good=good, bad=bad, wanted=wanted)

    return run


def verdicts(found: Bisection) -> dict[str, str]:
    return {each.version: each.verdict for each in found.versions}


def test_the_commit_that_broke_it(history: History, search: Callable[..., Bisection]) -> None:
    names = [history.commit("good" if number < 20 else "bad") for number in range(32)]
    player = Reader(scenario=STALE, cache=None)  # type: ignore[arg-type]
    found = search(names[0], "main", player=player)
    assert found.symptom == STALE_DECODE
    assert found.assumes_one_change
    [change] = found.changes
    assert (change.before, change.after, change.verdict) == (names[19], names[20], "bad")
    assert (found.first_bad, found.first_good_after) == (names[20], None)
    assert len(player.read) <= 2 + 6
    assert {each.title for each in found.versions} == {"good", "bad"}
    # Oldest first.
    order = [names.index(each.version) for each in found.versions]
    assert order == sorted(order)


def test_the_commit_that_mended_it(history: History, search: Callable[..., Bisection]) -> None:
    names = [history.commit("bad" if number < 5 else "good") for number in range(9)]
    found = search("main", names[0])
    [change] = found.changes
    assert (change.before, change.after, change.verdict) == (names[4], names[5], "good")
    assert (found.first_bad, found.first_good_after) == (names[0], names[5])


@pytest.mark.parametrize("state", ["no import", "broken build", "other"])
def test_commits_that_cannot_be_judged_are_skipped(
    history: History, search: Callable[..., Bisection], state: str
) -> None:
    names = [history.commit(each) for each in ["good", "good", state, state, "bad", "bad", "bad"]]
    found = search(names[0], "main")
    [change] = found.changes
    assert (change.before, change.after) == (names[1], names[4])
    assert set(change.skipped) <= {names[2], names[3]}
    assert change.skipped
    assert all(verdicts(found)[name] == "skipped" for name in change.skipped)


def test_a_branch_that_was_merged(history: History, search: Callable[..., Bisection]) -> None:
    base = history.commit("good")
    history.git("switch", "--quiet", "--create", "topic")
    broke = history.commit("bad")
    history.git("switch", "--quiet", "main")
    other = history.root / "other"
    other.write_text("unrelated")
    history.git("add", "--all")
    history.git("commit", "--quiet", "--message", "unrelated")
    history.git("merge", "--quiet", "--no-edit", "topic")
    found = search(base, "main")
    assert found.first_bad == broke


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_checkout_is_only_read(history: History, search: Callable[..., Bisection]) -> None:
    names = [history.commit("good"), history.commit("good"), history.commit("bad")]
    history.commit("bad")
    history.file.write_text("an edit that is not committed")
    (history.root / "untracked").write_text("mine")
    before = files(history.root)
    assert search(names[0], "main").first_bad == names[2]
    assert files(history.root) == before


def test_the_checkout_may_be_a_worktree_or_a_folder_of_it(history: History, tmp_path: Path) -> None:
    names = [history.commit("good"), history.commit("bad")]
    tree = tmp_path / "tree"
    history.git("worktree", "add", "--quiet", "--detach", str(tree))
    store = EngineStore(cache=tmp_path / "cache", releases={})
    store.deps.mkdir(parents=True)
    for folder in (tree, tree / "python"):
        player = Reader(scenario=STALE, cache=None)  # type: ignore[arg-type]
        found = bisect_commits(player, folder, store, good=names[0], bad="HEAD", wanted=None)
        assert found.first_bad == names[1]


def test_ends_that_are_not_as_said_are_refused(
    history: History, search: Callable[..., Bisection]
) -> None:
    first, second = history.commit("bad"), history.commit("bad")
    with pytest.raises(EngineError, match="is not good but bad"):
        search(first, second)
    third = history.commit("good")
    with pytest.raises(EngineError, match="does not break anything"):
        search(second, third)
    with pytest.raises(EngineError, match="does not break PADDING"):
        search(third, second, wanted="PADDING")
    history.git("switch", "--quiet", "--orphan", "elsewhere")
    history.file.parent.mkdir(parents=True, exist_ok=True)
    other = history.commit("good")
    with pytest.raises(EngineError, match="contains the other"):
        search(other, second)


def test_what_git_does_not_know_is_refused(history: History, tmp_path: Path) -> None:
    history.commit("good")
    with pytest.raises(EngineError, match="git rev-parse"):
        Repository(history.root).commit("no-such-branch")
    with pytest.raises(EngineError, match="git rev-parse"):
        Repository(tmp_path / "nowhere").commit("HEAD")
