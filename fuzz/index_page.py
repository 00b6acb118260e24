"""The page of a run folder: what was run, what came out, which file is what, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from kvproof.fuzz.campaign import TargetResult
from kvproof.fuzz.manifest import Manifest
from kvproof.model.verdict import INVARIANTS

FILE = "README.md"


def index_page(folder: Path, manifest: Manifest, results: tuple[TargetResult, ...]) -> str:
    """The page as Markdown; ``results`` are of the targets that are done."""
    return "\n".join(_lines(folder, manifest, results)) + "\n"


def _lines(folder: Path, manifest: Manifest, results: tuple[TargetResult, ...]) -> Iterator[str]:
    yield f"# Run {folder.name}"
    yield ""
    done = f"{len(results)} of {len(manifest.targets)} targets are done."
    yield (
        f"Seed {manifest.seed}, {manifest.profile.sequences} sequences a target, kvproof "
        f"{manifest.kvproof} (sources {manifest.sources[:12]}), Python {manifest.python}. {done}"
    )
    yield ""
    yield f"| target | {' | '.join(INVARIANTS)} |"
    yield "|---" * (len(INVARIANTS) + 1) + "|"
    for result in results:
        words = {verdict.invariant: verdict.status for verdict in result.verdicts}
        yield f"| {result.target} | {' | '.join(words[name] for name in INVARIANTS)} |"
    yield ""
    yield "## Repeat it"
    yield ""
    yield "```"
    yield shlex.join(manifest.command)
    yield "```"
    yield ""
    yield "with these engines:"
    yield ""
    for used in manifest.engines:
        origin = f"wheel {used.sha256}" if used.sha256 else f"a checkout at {used.version}"
        yield f"- {used.name}, {origin}"
    yield ""
    yield "## Files"
    yield ""
    yield "- [run.json](run.json): all that the run depends on"
    yield "- [result.json](result.json): verdicts, witnesses, counts, findings"
    for path in sorted(folder.glob("*/*")):
        name = path.relative_to(folder).as_posix()
        yield f"- [{name}]({name})"
