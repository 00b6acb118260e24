"""Bisect: in which release, or which commit, a scenario began to break, and where it stopped.

Releases are few and a play takes seconds, so each release of a range is played: a defect may come,
go and come again. Commits are many, and are left to git's own bisection, which assumes one change.

A version is *bad* if it breaks the same invariant for the same cause, *good* if it played the same
steps and the invariant holds, and else *skipped*: it cannot be driven, its engine fails, it has no
room for a step, or the invariant breaks for another cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec
from packaging.version import InvalidVersion, Version

from kvproof.fuzz.confirm import KERNELS
from kvproof.fuzz.constructions import REGISTRY
from kvproof.fuzz.drivers.wire import Backend
from kvproof.fuzz.targets import find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Skipped, Step
from kvproof.model.monitor import check, statuses
from kvproof.model.scenario import Scenario
from kvproof.model.verdict import SEVERITY
from kvproof.triage.cache import ResultCache, key_of
from kvproof.triage.subjects import EngineSubject, Subject
from kvproof.triage.symptoms import (
    ENGINE_ERROR,
    TIMED_OUT,
    Symptom,
    choose,
    invariant_of,
    shows,
    symptoms_of,
)

Judgement: TypeAlias = Literal["good", "bad", "skipped"]
Report: TypeAlias = Callable[[str], None]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one version did with the scenario.

    Attributes:
        title: a commit's first line.
        refused: the reason by step, for steps that did nothing.
        untested: invariants that nothing in the log put to the test.
        unusable: why the version could not be played on at all; empty if it could.
    """

    version: str
    title: str = ""
    symptoms: tuple[Symptom, ...] = ()
    refused: dict[int, str] = {}
    untested: tuple[str, ...] = ()
    has_ring: bool = True
    unusable: str = ""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One version's verdict; ``reason`` says why one was skipped, or what else is wrong with it."""

    version: str
    verdict: Judgement
    title: str = ""
    reason: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Two neighbours among the versions that could be judged, with different verdicts.

    Attributes:
        verdict: of ``after``; ``before`` has the other.
        skipped: versions between the two: the change is at one of them or at ``after``.
    """

    before: str
    after: str
    verdict: Judgement
    skipped: tuple[str, ...] = ()


class Bisection(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    Attributes:
        symptom: what makes a version bad; None if no version breaks anything.
        first_bad: the first bad version, whether or not a good one comes before it.
        first_good_after: the first good version after that one.
        assumes_one_change: not all versions were judged.
    """

    symptom: Symptom | None
    construction: str
    backend: Backend
    versions: tuple[Judged, ...]
    changes: tuple[Change, ...]
    first_bad: str | None
    first_good_after: str | None
    assumes_one_change: bool = False

    @classmethod
    def of(
        cls,
        player: Player,
        symptom: Symptom | None,
        judged: tuple[Judged, ...],
        *,
        assumes_one_change: bool = False,
    ) -> Bisection:
        """What the verdicts, oldest first, come to."""
        bad = next((n for n, each in enumerate(judged) if each.verdict == "bad"), None)
        good_after = (
            None
            if bad is None
            else next((each.version for each in judged[bad:] if each.verdict == "good"), None)
        )
        return cls(
            symptom=symptom,
            construction=player.construction,
            backend=player.backend,
            versions=judged,
            changes=changes_of(judged),
            first_bad=None if bad is None else judged[bad].version,
            first_good_after=good_after,
            assumes_one_change=assumes_one_change,
        )

    @property
    def versions_before_bad(self) -> tuple[Judged, ...]:
        """Verdicts of what is older than the first bad version."""
        names = [each.version for each in self.versions]
        return self.versions[: names.index(self.first_bad)] if self.first_bad else ()


@dataclass(kw_only=True, slots=True)
class Player:
    """Plays one scenario on one version after another."""

    scenario: Scenario
    cache: ResultCache
    construction: str = REGISTRY
    backend: Backend = KERNELS
    timeout: float = 60.0
    report: Report = field(default=lambda _: None)

    def on_release(self, version: str, store: EngineStore) -> Seen:
        """Play on a release; it is installed if it is not."""
        try:
            try:
                store.find(version)
            except EngineError:
                store.add(version, unpinned=version not in store.releases)
            [target] = find_targets([f"{version}:{self.construction}"], store)
            return self.on_subject(version, EngineSubject(target))
        except EngineError as error:
            return Seen(version=version, unusable=error.cause)

    def on_subject(self, version: str, subject: Subject) -> Seen:
        """Play on anything.

        Raises:
            EngineError: the engine cannot be started.
        """
        key = key_of(
            "seen", subject.name, subject.code, self.backend, msgspec.json.encode(self.scenario)
        )
        known = self.cache.get(key)
        if known is not None:
            return msgspec.structs.replace(msgspec.json.decode(known, type=Seen), version=version)
        self.report(f"playing on {version}")
        seen = self._play(version, subject)
        if TIMED_OUT not in seen.symptoms:
            self.cache.put(key, msgspec.json.encode(seen))
        return seen

    def _play(self, version: str, subject: Subject) -> Seen:
        process = subject.process()
        try:
            log = process.play(self.scenario, timeout=self.timeout, backend=self.backend)
        finally:
            process.close()
        monitor = check(log)
        refused: dict[int, str] = {}
        step = -1
        for fact in log:
            if isinstance(fact, Step):
                step = fact.index
            elif isinstance(fact, Skipped):
                refused[step] = fact.reason
        return Seen(
            version=version,
            symptoms=symptoms_of(monitor),
            refused=refused,
            untested=tuple(str(i) for i, word in statuses(monitor).items() if word == "unknown"),
            has_ring=monitor.started is not None and monitor.started.ring_stride is not None,
        )


def bisect_releases(
    player: Player, versions: Sequence[str], store: EngineStore, *, wanted: str | None, jobs: int
) -> Bisection:
    """Play on each release and say where the verdict changes.

    Args:
        player: what to play, and how.
        versions: oldest first.
        store: where engines are, and are installed to.
        wanted: a symptom or an invariant; None for the worst that any release shows.
        jobs: how many engine processes at once.

    Raises:
        EngineError: no release could be played on.
    """
    with ThreadPoolExecutor(jobs) as threads:
        seen = list(threads.map(lambda version: player.on_release(version, store), versions))
    if all(each.unusable for each in seen):
        raise EngineError(
            f"no release could be played on; {seen[0].version}: {seen[0].unusable}",
            fix="run `kvproof engine doctor`, or give another range",
        )
    symptom = worst_of(seen, wanted)
    return Bisection.of(player, symptom, judge(seen, symptom))


def worst_of(seen: Iterable[Seen], wanted: str | None) -> Symptom | None:
    """The worst symptom that is wanted; an engine's failure only if nothing else is wrong."""
    ranks = {f"{invariant}/{cause}": rank for (invariant, cause), rank in SEVERITY.items()}
    found = {symptom for each in seen for symptom in each.symptoms}
    return choose(sorted(found, key=lambda s: (ranks.get(s, len(ranks)), s)), wanted)


def judge(seen: Sequence[Seen], symptom: Symptom | None) -> tuple[Judged, ...]:
    """Verdicts; see this module's text."""
    # What a bad version refuses too has no part in what breaks there.
    idle = {
        step
        for each in seen
        if symptom is not None and shows(each.symptoms, symptom)
        for step in each.refused
    }
    return tuple(_judged(each, symptom, idle) for each in seen)


def _judged(seen: Seen, symptom: Symptom | None, idle: set[int]) -> Judged:
    verdict, reason = _verdict(seen, symptom, idle)
    return Judged(version=seen.version, verdict=verdict, title=seen.title, reason=reason)


def _verdict(seen: Seen, symptom: Symptom | None, idle: set[int]) -> tuple[Judgement, str]:
    others = ", ".join(each for each in seen.symptoms if each != symptom)
    if seen.unusable:
        return "skipped", seen.unusable
    if symptom is not None and shows(seen.symptoms, symptom):
        return "bad", others and f"also: {others}"
    for other in seen.symptoms:
        if invariant_of(other) == ENGINE_ERROR:
            return "skipped", f"the engine failed: {other.partition('/')[2]}"
        if symptom is not None and invariant_of(other) == invariant_of(symptom):
            return "skipped", f"breaks for another cause: {other}"
    if symptom is not None:
        if invariant_of(symptom) in seen.untested:
            why = "" if seen.has_ring else ": there is no ring"
            return "skipped", f"nothing put {invariant_of(symptom)} to the test{why}"
        for step, reason in seen.refused.items():
            if step not in idle:
                return "skipped", f"step {step + 1} was not played: {reason}"
    return "good", others and f"but: {others}"


def changes_of(judged: Sequence[Judged]) -> tuple[Change, ...]:
    """Where the verdict changes, oldest first."""
    changes: list[Change] = []
    before: Judged | None = None
    between: list[str] = []
    for each in judged:
        if each.verdict == "skipped":
            between.append(each.version)
            continue
        if before is not None and before.verdict != each.verdict:
            changes.append(
                Change(
                    before=before.version,
                    after=each.version,
                    verdict=each.verdict,
                    skipped=tuple(between),
                )
            )
        before, between = each, []
    return tuple(changes)


def releases_named(text: str, store: EngineStore) -> list[str]:
    """Releases by name and by range: ``0.5.12..0.5.23``, ``0.5.15,0.5.20..0.5.23``; oldest first.

    Both ends are part of a range. The supported releases and those that are installed are known.

    Raises:
        EngineError: it is no such list, or a release is not known.
    """
    installed = [each.version for each in store.list() if each.source == "pypi"]
    known = {Version(each): each for each in (*store.releases, *installed)}
    found: set[Version] = set()
    for part in text.split(","):
        first, last = _ends(part, known)
        if first > last:
            raise EngineError(f"{first} is newer than {last}", fix=f"write {last}..{first}")
        found |= {version for version in known if first <= version <= last}
    return [known[version] for version in sorted(found)]


def _ends(part: str, known: Mapping[Version, str]) -> tuple[Version, Version]:
    try:
        ends = [Version(end) for end in part.split("..")]
        first, last = ends * 2 if len(ends) == 1 else ends
    except (InvalidVersion, ValueError) as error:
        raise EngineError(
            f"{part!r} names no releases", fix="write it like 0.5.12..0.5.23, or 0.5.15,0.5.23"
        ) from error
    for end in (first, last):
        if end not in known:
            raise EngineError(
                f"release {end} is not known; known: {', '.join(known[v] for v in sorted(known))}",
                fix=f"choose of these, or run: kvproof engine add sglang=={end} --unpinned",
            )
    return first, last
