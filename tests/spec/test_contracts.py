"""CrossHair on the contracts in the docstrings: no counterexample, and most are proved.

CrossHair runs each function on symbolic arguments. "Confirmed over all paths" is a proof for all
integers; "Not confirmed" says only that the time that it got showed no counterexample.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.spec import (
    cap,
    cursor,
    exact,
    pages,
    radix,
    ring,
    schedule,
    streams,
    terms,
    translate,
    window,
)

MODULES: tuple[ModuleType, ...] = (
    cap, cursor, exact, pages, radix, ring, schedule, streams, terms, translate, window,
)  # fmt: skip

NOT_CONFIRMED = {
    "page_prefixes": "a sequence of any length: CrossHair runs out of time, not of paths",
    "window_match": "a sequence of any length",
    "same_ring_row": "two remainders by one symbolic divisor: nonlinear, the solver gives up",
    "locked_from": "the same; theorem P1 proves it with lemmas",
    "cursor": "the same; theorem P5 proves it with lemmas",
    "swa_loc": "the same; theorem P4 proves it with lemmas",
}
"""Searched for a counterexample within the time limit, often no more; tested by brute force."""

NOT_ANALYSED = {"next_slot": "CrossHair makes no symbolic value of a Literal type"}


def contracts() -> dict[str, Callable[..., Any]]:
    """Functions with a postcondition; without one there is nothing to refute."""
    return {
        name: function
        for module in MODULES
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and "post:" in (function.__doc__ or "")
    }


def crosshair(targets: Iterable[str], seconds: float) -> list[tuple[str, int, str]]:
    """(file name, line, message) of each postcondition."""
    run = subprocess.run(
        [
            sys.executable, "-m", "crosshair", "check", "--analysis_kind=PEP316", "--report_all",
            f"--per_condition_timeout={seconds}", *targets,
        ],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert run.returncode in (0, 1), run.stderr
    assert not run.stderr, run.stderr
    found = []
    for line in run.stdout.splitlines():
        match = re.fullmatch(r"(.+):(\d+): (?:info|error|warning): (.+)", line)
        assert match, line
        found.append((Path(match[1]).name, int(match[2]), match[3]))
    return found


def messages(names: Iterable[str], seconds: float) -> dict[str, set[str]]:
    """What CrossHair says of each function's postconditions."""
    functions = {name: contracts()[name] for name in names}
    lines = {}
    for name, function in functions.items():
        source, first = inspect.getsourcelines(function)
        file = Path(inspect.getfile(function)).name
        lines.update({(file, first + offset): name for offset in range(len(source))})
    said = defaultdict(set)
    targets = [f"{f.__module__}.{name}" for name, f in functions.items()]
    for file, line, message in crosshair(targets, seconds):
        said[lines[file, line]].add(message)
    return said


def test_the_lists_name_functions_with_a_contract() -> None:
    assert contracts().keys() >= NOT_CONFIRMED.keys() | NOT_ANALYSED.keys()


def test_contracts_are_confirmed_over_all_paths() -> None:
    # They take some 3 s together; the limit is generous, because running into it is a failure.
    names = contracts().keys() - NOT_CONFIRMED.keys() - NOT_ANALYSED.keys()
    said = messages(sorted(names), seconds=20)
    assert said == {name: {"Confirmed over all paths."} for name in names}


def test_the_other_contracts_have_no_counterexample_within_the_time() -> None:
    said = messages(sorted(NOT_CONFIRMED), seconds=1.5)
    assert said.keys() == NOT_CONFIRMED.keys()
    # A quick machine confirms one now and then: better than asked, and no reason to fail.
    outcomes = {"Not confirmed.", "Confirmed over all paths."}
    assert {name: texts - outcomes for name, texts in said.items()} == {
        name: set() for name in said
    }


MUTANTS: list[tuple[Callable[..., Any], str, str]] = [
    (pages.page_floor, "return tokens - tokens % page_size", "return tokens"),
    (pages.page_ceil, "tokens + page_size - 1", "tokens + page_size"),
    (ring.ring_row, "position % stride", "position % (stride + 1)"),
    (ring.newest_position, "end - 1 - (end - 1 - offset)", "end - (end - offset)"),
    (window.window_start, "position - window + 1", "position - window"),
    (window.decode_reads, "Position(position + 1)", "Position(position + 2)"),
    (window.prefill_ring_reads, "window), chunk_start", "window), Position(position + 1)"),
    (cap.match_limit, "prompt_len - reprefill_tail))", "prompt_len - reprefill_tail + 1))"),
    (cap.capped_match, "return page_floor(", "return max(0, "),
    (schedule.chunk_end, "page_floor(budget, page_size)", "budget + page_size"),
    (radix.window_match, "return run.best", "return run.best + 1"),
    (cursor.cursor, "maximum(maximum(evicted, protected)", "maximum(evicted"),
    (translate.swa_loc, "+ loc % page_size", "+ 0"),
]


def test_a_broken_rule_is_refuted(tmp_path: Path) -> None:
    """The check can fail: a copy of each rule with one slip in it gets a counterexample."""
    targets, broken = [], []
    for function, right, wrong in MUTANTS:
        original = Path(inspect.getfile(function))
        file = tmp_path / f"broken_{function.__name__}.py"
        shutil.copy(original, file)
        text = file.read_text()
        source = inspect.getsource(function)
        assert source.count(right) == 1, function.__name__
        file.write_text(text.replace(source, source.replace(right, wrong)))
        _, first = inspect.getsourcelines(function)
        targets.append(f"{file}:{first}")
        broken.append(file.name)
    found = crosshair(targets, seconds=5)
    refuted = {file for file, _, message in found if "when calling" in message}
    assert refuted == set(broken)
