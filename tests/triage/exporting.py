"""What the tests of exports share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Started
from kvproof.model.scenario import (
    Abort,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
)
from kvproof.triage.export import Case, Run, case_of

from .conftest import log_of, uncapped

NO_ENGINES = "KVPROOF_NO_ENGINES"

EVERYTHING = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=3, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 12),)),
        Prefill(request="A", tokens=6), Prefill(request="A"), Decode(pad=2),
        Submit(request="X", prompt=(Piece("X", 6), Piece("Z", 11))),
        Prefill(request="X"), Abort(request="X"), Abort(request="nobody"),
        Retract(request="A"), Prefill(request="A"), Decode(), Evict(tokens=4),
        Finish(request="A"), Flush(),
        Submit(request="A", prompt=(Piece("A", 12),)), Prefill(request="A"),
        Submit(request="P", prompt=(Piece("P", 12),)), Prefill(request="P", tokens=4),
        Abort(request="P"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 12), Piece("C", 13))), Prefill(request="B"),
        Decode(pad=1), Decode(),
    ),
)  # fmt: skip
"""Every operation that a driver plays, then a stale decode."""


def targets() -> tuple[Target, ...]:
    try:
        return find_targets((), EngineStore())
    except EngineError:
        return ()


def target_named(name: str) -> Target:
    found = {target.name: target for target in targets()}
    if name in found:
        return found[name]
    if os.environ.get(NO_ENGINES) == "1":
        pytest.skip(f"{name} is not installed, and {NO_ENGINES}=1 says that none is wanted")
    pytest.fail(f"{name} is not installed. Run `make engines`.", pytrace=False)


NAMES = (
    "sglang-0.5.15:registry",
    "sglang-0.5.16:registry",
    "sglang-0.5.16:SWARadixCache",
    "sglang-0.5.23:registry",
)


CLASSES = {
    NAMES[0]: {"tree": "SWARadixCache"},
    NAMES[1]: {"tree": "UnifiedRadixCache"},
    NAMES[2]: {"tree": "SWARadixCache"},
    NAMES[3]: {"tree": "UnifiedRadixCache", "tree core": "RustUnifiedTreeCore"},
}


def run_of(scenario: Scenario, name: str = NAMES[0]) -> Run:
    """As if the target had played it; the reference engine without a cap did."""
    started, *facts = log_of(scenario, uncapped())
    assert isinstance(started, Started)
    return Run(target=target_named(name), log=[replace(started, classes=CLASSES[name]), *facts])


def case_from(scenario: Scenario, invariant: str | None = None) -> tuple[Case, Run]:
    run = run_of(scenario)
    return case_of(scenario, [run], invariant), run


def is_good(path: Path, *, width: int) -> bool:
    """Whether a file, or each file of a folder, is formatted and without unused names."""
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--diff",
         "--line-length", str(width), path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not formatted.stdout, formatted.stdout
    linted = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert linted.returncode == 0, linted.stdout
    return formatted.returncode == 0


def is_formatted(text: str, tmp_path: Path, *, width: int) -> bool:
    """The same of a text."""
    file = tmp_path / "formatted.py"
    file.write_text(text)
    return is_good(file, width=width)
