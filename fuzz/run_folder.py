"""A folder a run, with a stable ``latest`` beside it. What was found is on disk at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvproof.fuzz.campaign import Break, Fault, Finding, TargetResult
from kvproof.fuzz.index_page import FILE as INDEX_FILE
from kvproof.fuzz.index_page import index_page
from kvproof.fuzz.manifest import FILE as MANIFEST_FILE
from kvproof.fuzz.manifest import Manifest
from kvproof.fuzz.story import tell
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import Fact, encode_fact
from kvproof.model.monitor import check
from kvproof.model.redact import HIDDEN, Redactor
from kvproof.model.scenario import Scenario, encode_scenario

DEFAULT_ROOT = Path(".kvproof/runs")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's files.

    For each target: ``<invariant>-<cause>.unshrunk.json`` as soon as it is seen; then, shrunk,
    ``.scenario.json``, ``.log.jsonl`` and ``.txt`` with the story. What the real kernels do not
    repeat has no story, and stays unshrunk too. ``run.json`` from the start, ``result.json`` and
    ``README.md`` after each target.

    Attributes:
        redactor: what the names in all files are hidden with; None to keep them.
    """

    path: Path
    redactor: Redactor | None = None

    @classmethod
    def create(cls, root: Path, *, redactor: Redactor | None = None) -> RunFolder:
        """The next numbered folder, with ``latest`` pointing to it.

        Raises:
            EngineError: the folder cannot be written.
        """
        try:
            root.mkdir(parents=True, exist_ok=True)
            taken = [int(p.name) for p in root.iterdir() if p.name.isdecimal()]
            number = max(taken, default=0) + 1
            while True:
                path = root / f"{number:04}"
                try:
                    path.mkdir()
                    break
                except FileExistsError:  # another run was quicker
                    number += 1
            link = root / f"latest.{path.name}"  # a name of its own: runs may start at once
            link.unlink(missing_ok=True)
            link.symlink_to(path.name)
            link.replace(root / "latest")
        except OSError as error:
            raise EngineError(
                f"{root} cannot be written: {error.strerror}", fix="give another folder with --out"
            ) from error
        return cls(path, redactor)

    def seen(self, target: Target, broken: Break, scenario: Scenario) -> None:
        """Keep a scenario that is not shrunk yet."""
        data = encode_scenario(self._scenario(scenario))
        self._unshrunk(target, "-".join(broken)).write_bytes(data)

    def found(self, target: Target, finding: Finding, log: Sequence[Fact]) -> Path:
        """Keep a finding; the path of its scenario."""
        finding, log = self.redacted(finding, log), self._log(log)
        base = self._folder(target) / finding.name
        scenario = base.with_name(finding.name + ".scenario.json")
        scenario.write_bytes(encode_scenario(finding.scenario))
        base.with_name(finding.name + ".log.jsonl").write_bytes(
            b"".join(encode_fact(fact) for fact in log)
        )
        if finding.confirmed:
            base.with_name(finding.name + ".txt").write_text(tell(finding.violation, log))
            self._unshrunk(target, finding.name).unlink(missing_ok=True)
        return scenario

    def faulted(self, target: Target, fault: Fault, log: Sequence[Fact]) -> Path:
        """Keep a scenario under which the engine failed, with its log if there is one; its path."""
        folder = self._folder(target)
        number = len(list(folder.glob("engine-error-*.scenario.json"))) + 1
        scenario = folder / f"engine-error-{number}.scenario.json"
        scenario.write_bytes(encode_scenario(self._scenario(fault.scenario)))
        if log:
            log_file = folder / f"engine-error-{number}.log.jsonl"
            log_file.write_bytes(b"".join(encode_fact(fact) for fact in self._log(log)))
        return scenario

    def redacted(self, finding: Finding, log: Sequence[Fact]) -> Finding:
        """The finding as it is kept: judged again under other names, if names are hidden."""
        broken = (finding.violation.invariant, finding.violation.cause)
        if self.redactor is None:
            return finding
        violation = check(self._log(log)).violations.get(broken)
        if violation is None:  # not confirmed: what was seen elsewhere has no log here
            violation = msgspec.structs.replace(finding.violation, sentence=HIDDEN, evidence=None)
        return msgspec.structs.replace(
            finding, scenario=self._scenario(finding.scenario), violation=violation
        )

    def _scenario(self, scenario: Scenario) -> Scenario:
        return self.redactor.scenario(scenario) if self.redactor else scenario

    def _log(self, log: Sequence[Fact]) -> Sequence[Fact]:
        return [*self.redactor.log(log)] if self.redactor else log

    def begun(self, manifest: Manifest) -> None:
        """Keep what the run depends on."""
        data = msgspec.json.format(msgspec.json.encode(manifest))
        (self.path / MANIFEST_FILE).write_bytes(data + b"\n")

    def index(self, manifest: Manifest, results: tuple[TargetResult, ...]) -> None:
        """Renew the page."""
        (self.path / INDEX_FILE).write_text(index_page(self.path, manifest, results))

    def result(self, result: object) -> None:
        """Keep the run's result."""
        data = msgspec.json.format(msgspec.json.encode(result))
        (self.path / "result.json").write_bytes(data + b"\n")

    def _folder(self, target: Target) -> Path:
        folder = self.path / target.name.replace(":", "-")
        folder.mkdir(exist_ok=True)
        return folder

    def _unshrunk(self, target: Target, name: str) -> Path:
        return self._folder(target) / f"{name}.unshrunk.json"
