"""What a ledger comes to: for each target what is known of it, and what there is left to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from kvproof.fuzz.campaign import Break, Fault, Finding, Survey, TargetResult, result_of
from kvproof.fuzz.fleet.ledger import Begun, Closed, Entry
from kvproof.fuzz.fleet.subjects import Subject
from kvproof.fuzz.fleet.units import Failure, Lost, Searched, Shrink, Shrunk
from kvproof.fuzz.simplify import scenario_size
from kvproof.model.verdict import SEVERITY

GIVEN_UP_AFTER = 3
"""Units of a target that may be lost in a row, and times that a shrinking may be lost."""


@dataclass(slots=True)
class Tally:
    """What is known of one subject.

    Attributes:
        survey: all searches together; its ``smallest`` are the smallest failures.
        quickest: the fewest sequences that a search took to a failure, and its seed if it had one.
        done: numbers of the searches that are kept.
        in_a_row: units lost since one came to something.
        hapless: times that the shrinking of a failure was lost.
    """

    subject: Subject
    survey: Survey = field(init=False)
    behaviours: set[str] = field(default_factory=set)
    quickest: dict[Break, tuple[int, int | None]] = field(default_factory=dict)
    findings: dict[Break, Finding] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    lost: list[Lost] = field(default_factory=list)
    in_a_row: int = 0
    hapless: Counter[Break] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.survey = Survey(target=self.subject.target)

    @property
    def is_given_up(self) -> bool:
        """Whether its units are lost again and again: it gets no more, and has no verdict."""
        return self.in_a_row >= GIVEN_UP_AFTER

    def news(self, searched: Searched) -> Searched:
        """A search without what is known already, for the ledger."""
        return msgspec.structs.replace(
            searched,
            behaviours=tuple(b for b in searched.behaviours if b not in self.behaviours),
            failures=tuple(filter(self._is_news, searched.failures)),
        )

    def _is_news(self, failure: Failure) -> bool:
        """Whether it is the first of its kind, the smallest, or the quickest."""
        seen = self.survey.smallest.get(failure.broken)
        return (
            seen is None
            or scenario_size(failure.scenario) < scenario_size(seen[0])
            or failure.found_after < self.quickest[failure.broken][0]
        )

    def searched(self, entry: Searched) -> None:
        """Add a search."""
        survey = self.survey
        self.done.add(entry.number)
        self.in_a_row = 0
        for failure in entry.failures:
            broken = failure.broken
            if survey.keep(failure.violation, failure.scenario, failure.backend):
                # Counted from the target's first sequence on, as a run of one target counts.
                survey.first[broken] = (
                    survey.sequences + failure.found_after, survey.seconds + failure.seconds,
                )  # fmt: skip
            quick = (failure.found_after, entry.seed)
            if broken not in self.quickest or quick[0] < self.quickest[broken][0]:
                self.quickest[broken] = quick
        survey.sequences += entry.sequences
        survey.kernel_sequences += entry.kernel_sequences
        survey.operations += entry.operations
        survey.skipped += entry.skipped
        survey.seconds += entry.seconds
        survey.witnesses.update(entry.witnesses)
        survey.counts.update({(i, cause): count for i, cause, count in entry.counts})
        survey.checked.update(entry.checked)
        survey.told.update(entry.told)
        survey.kernels = entry.kernels or survey.kernels
        survey.has_ring |= entry.has_ring
        survey.has_cap |= entry.has_cap
        survey.versions = entry.versions or survey.versions
        survey.classes = entry.classes or survey.classes
        self.behaviours.update(entry.behaviours)
        for fault in entry.faults:
            self._fault(fault)

    def _fault(self, fault: Fault) -> None:
        known = self.survey.faults.get(fault.error.message)
        if known is not None:
            occurrences = known.occurrences + fault.occurrences
            fault = msgspec.structs.replace(known, occurrences=occurrences)
        self.survey.faults[fault.error.message] = fault

    def shrunk(self, entry: Shrunk) -> None:
        """Add a finding."""
        violation = entry.finding.violation
        self.in_a_row = 0
        self.findings[violation.invariant, violation.cause] = entry.finding

    def missed(self, entry: Lost) -> None:
        """Add a unit that came to nothing."""
        self.lost.append(entry)
        self.in_a_row += 1
        if entry.broken is not None:
            self.hapless[entry.broken] += 1

    def to_shrink(self, seed: int) -> list[Shrink]:
        """Failures that are still to be made small, the worst first; none of a canary."""
        if self.subject.is_canary:
            return []
        return [
            Shrink(
                target=self.subject.name,
                seed=self._seed_of(broken, seed),
                scenario=scenario,
                backend=backend,
                violation=violation,
                occurrences=self.survey.counts[broken],
                found_after=self.survey.first[broken][0],
                find_seconds=self.survey.first[broken][1],
            )
            for broken, (scenario, backend, violation) in sorted(
                self.survey.smallest.items(), key=lambda item: SEVERITY[item[0]]
            )
            if broken not in self.findings and self.hapless[broken] < GIVEN_UP_AFTER
        ]

    def _seed_of(self, broken: Break, campaign: int) -> int:
        """Seed of a search that came upon a failure, so that it can be drawn again."""
        seed = self.quickest[broken][1]
        return campaign if seed is None else seed

    def result(self, seed: int) -> TargetResult:
        """As a campaign on this target alone would report it."""
        ranked = sorted(self.findings, key=SEVERITY.__getitem__)
        return result_of(
            self.survey,
            tuple(self.findings[broken] for broken in ranked),
            target=self.subject.target,
            seed=seed,
        )

    @property
    def canary_problem(self) -> str:
        """What a canary does that it must not; empty if it behaves, or is none."""
        subject = self.subject
        if not subject.is_canary:
            return ""
        broken = {invariant for invariant, _ in self.survey.first}
        if subject.must_break is not None and subject.must_break not in broken:
            return (
                f"{subject.must_break} must break, and did not in {self.survey.sequences} sequences"
            )
        if subject.must_break is None and broken:
            return f"nothing may break, and {', '.join(sorted(broken))} did"
        if subject.must_break is None and not self.survey.sequences:
            return "nothing was played on it"
        if self.survey.faults:
            return f"it failed: {next(iter(self.survey.faults))}"
        return ""


@dataclass(slots=True)
class Tallies:
    """A campaign's state: a tally for each subject, and how long it has run."""

    subjects: Sequence[Subject]
    by_name: dict[str, Tally] = field(init=False)
    elapsed: float = 0.0
    sessions: int = 0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.by_name = {subject.name: Tally(subject) for subject in self.subjects}

    def add(self, entry: Entry) -> None:
        """Take an entry in."""
        self.elapsed = max(self.elapsed, entry.elapsed)
        self.is_closed = isinstance(entry, Closed)
        match entry:
            case Begun():
                self.sessions += 1
            case Searched():
                self.by_name[entry.target].searched(entry)
            case Shrunk():
                self.by_name[entry.target].shrunk(entry)
            case Lost():
                self.by_name[entry.target].missed(entry)
            case Closed():
                pass

    def extend(self, entries: Iterable[Entry]) -> None:
        """Take entries in, in order."""
        for entry in entries:
            self.add(entry)
