"""Bisect a git checkout: git's own bisection, in a clone that shares the checkout's objects.

The clone lies in a scratch folder. Unlike a worktree of the user's repository it leaves nothing
behind there, not even if it is killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import DISTRIBUTION, Engine, EngineStore
from kvproof.triage.bisect import Bisection, Judged, Player, Seen, judge, worst_of
from kvproof.triage.subjects import EngineSubject
from kvproof.triage.symptoms import Symptom

# With only skipped commits left git fails, having said so.
_ENDED = re.compile(r"is the first \w+ commit|only 'skip'ped commits left")
_SHORT = 12


@dataclass(frozen=True, slots=True)
class Repository:
    """A folder that git knows."""

    path: Path

    def git(self, *arguments: str) -> str:
        """What git prints.

        Raises:
            EngineError: git fails; the cause is what it says.
        """
        # What a hook or an alias of the user's does is not wanted here.
        command = ["git", "-C", str(self.path), "-c", "core.hooksPath=/dev/null", *arguments]
        # Set while git itself runs us, and then about another repository.
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        env["LC_ALL"] = "C"
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        except OSError as error:
            raise EngineError(f"git cannot be run: {error.strerror}", fix="install git") from error
        if done.returncode and not _ENDED.search(done.stdout):
            said = (done.stderr or done.stdout).strip().splitlines() or ["it fails"]
            raise EngineError(
                f"git {arguments[0]}: {said[-1].removeprefix('fatal: ')}",
                fix=f"see whether {self.path} is a git repository that has these commits",
            )
        return done.stdout.strip()

    def commit(self, revision: str) -> str:
        """Full name of a commit."""
        return self.git("rev-parse", "--verify", "--quiet", "--end-of-options",
                        f"{revision}^{{commit}}")  # fmt: skip

    def is_ancestor(self, one: str, other: str) -> bool:
        """Whether ``other`` contains ``one``."""
        return self.git("rev-list", "--count", one, f"^{other}") == "0"

    @contextmanager
    def scratch(self) -> Iterator[Repository]:
        """A clone without files of its own, gone at the end."""
        with tempfile.TemporaryDirectory(prefix="kvproof-bisect-") as folder:
            clone = Path(folder) / "engine"
            root = self.git("rev-parse", "--show-toplevel")
            self.git("clone", "--shared", "--no-checkout", "--quiet", root, str(clone))
            yield Repository(clone)


def bisect_commits(
    player: Player, checkout: Path, store: EngineStore, *, good: str, bad: str, wanted: str | None
) -> Bisection:
    """Find the commit between two at which the verdict changes.

    Args:
        player: what to play, and how.
        checkout: a folder of the engine's repository; it is only read.
        store: has the packages that engines need.
        good: a revision at which the scenario does not break.
        bad: one at which it does, before or after ``good``.
        wanted: a symptom or an invariant; None for the worst that ``bad`` shows.

    Raises:
        EngineError: no such revisions, or they are not what they are said to be.
    """
    if not store.deps.is_dir():
        raise EngineError(
            "the packages that engines need are not installed",
            fix="run: kvproof engine add sglang==0.5.23",
        )
    repository = Repository(checkout)
    is_good, is_bad = repository.commit(good), repository.commit(bad)
    if repository.is_ancestor(is_good, is_bad):
        old, new = is_good, is_bad
    elif repository.is_ancestor(is_bad, is_good):
        old, new = is_bad, is_good
    else:
        raise EngineError(
            f"neither of {good} and {bad} contains the other",
            fix="give two commits of one line of history",
        )
    with repository.scratch() as clone:
        commits = _Commits(player, clone, store)
        shown, held = commits.seen(is_bad), commits.seen(is_good)
        symptom = _symptom(bad, shown, wanted)
        _refuse_unless_good(good, judge([shown, held], symptom)[1], symptom)
        seen = {is_bad: shown, is_good: held}
        # git's own "good" and "bad" stand for before and after; ours may be the other way round.
        terms = {"skipped": "skip", "good": "old", "bad": "new"}
        if new == is_good:
            terms |= {"good": "new", "bad": "old"}
        said = clone.git("bisect", "start", "--term-old=old", "--term-new=new", new, old)
        while not _ENDED.search(said):
            name = clone.commit("HEAD")
            seen[name] = commits.seen(name, checked_out=True)
            [_, judged] = judge([shown, seen[name]], symptom)
            said = clone.git("bisect", terms[judged.verdict])
        later = clone.git("rev-list", "--reverse", "--topo-order", f"{old}..{new}").splitlines()
    in_order = [shown, *(seen[name] for name in (old, *later) if name in seen)]
    return Bisection.of(player, symptom, judge(in_order, symptom)[1:], assumes_one_change=True)


def _symptom(bad: str, shown: Seen, wanted: str | None) -> Symptom:
    symptom = worst_of([shown], wanted)
    if symptom is None:
        found = shown.unusable or f"it shows {', '.join(shown.symptoms) or 'nothing'}"
        raise EngineError(
            f"{bad} does not break {wanted or 'anything'}: {found}",
            fix="give a --bad revision at which `kvproof replay` breaks",
        )
    return symptom


def _refuse_unless_good(good: str, held: Judged, symptom: Symptom) -> None:
    if held.verdict != "good":
        raise EngineError(
            f"{good} is not good but {held.verdict}: {held.reason or symptom}",
            fix="give a --good revision at which the scenario holds",
        )


@dataclass(frozen=True, slots=True)
class _Commits:
    player: Player
    clone: Repository
    store: EngineStore

    def seen(self, name: str, *, checked_out: bool = False) -> Seen:
        if not checked_out:
            self.clone.git("checkout", "--quiet", "--detach", "--force", name)
        # Byte code of another commit might be taken for this one's.
        self.clone.git("clean", "--force", "-d", "-x", "--quiet")
        short = name[:_SHORT]
        title = self.clone.git("log", "-1", "--format=%s", name)
        root = self.clone.path / "python"
        if not (root / DISTRIBUTION).is_dir():
            root = self.clone.path
        engine = Engine(name=short, version=short, source="path", root=root, deps=self.store.deps)
        target = Target(engine=engine, construction=self.player.construction)
        try:
            seen = self.player.on_subject(short, EngineSubject(target))
        except EngineError as error:
            seen = Seen(version=short, unusable=error.cause)
        return replace(seen, title=title)
