"""Coverage marks: every rule has a count or a reason, every count a target and a test.

That every rule has a test of its own is asked in tests/spec/test_readme.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.fuzz.marks import BRANCHES, MARKS, UNCOUNTED, marks, rules, unmarked
from kvproof.fuzz.targets import Target, targets_of
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.witness import (
    ANY_CALLER_WITNESSES,
    CAP_WITNESS,
    DRAFT_WITNESSES,
    HOST_WITNESSES,
    OVERLAP_WITNESSES,
    OVERLAPPED_DRAFT_WITNESSES,
    RESOLVER_WITNESSES,
    SWA_WITNESSES,
    TRANSLATION_WITNESSES,
    WITNESSES,
)

ROOT = Path(__file__).parents[2]
NUMBERS = {rule.number for rule in rules()}
COUNTED = {witness for witnesses in MARKS.values() for witness in witnesses} | set(BRANCHES)

TABLES = {
    "ANY_CALLER_WITNESSES": ANY_CALLER_WITNESSES,
    "HOST_WITNESSES": HOST_WITNESSES,
    "OVERLAP_WITNESSES": OVERLAP_WITNESSES,
    "OVERLAPPED_DRAFT_WITNESSES": OVERLAPPED_DRAFT_WITNESSES,
    "RESOLVER_WITNESSES": RESOLVER_WITNESSES,
    "SWA_WITNESSES": SWA_WITNESSES,
    "TRANSLATION_WITNESSES": TRANSLATION_WITNESSES,
}


def test_rules_are_those_of_the_page() -> None:
    page = (ROOT / "spec" / "README.md").read_text()
    assert set(re.findall(r"^\| ([A-Z]+-\d+) \|", page, re.MULTILINE)) == NUMBERS
    assert len(rules()) == len(NUMBERS)


def test_every_rule_is_counted_or_says_why_not() -> None:
    assert MARKS.keys() | UNCOUNTED.keys() == NUMBERS
    assert not MARKS.keys() & UNCOUNTED.keys()
    assert all(MARKS.values())
    assert all(UNCOUNTED.values())
    assert unmarked() == ()


def test_every_witness_that_counts_is_required_of_some_target_and_named_in_a_test() -> None:
    required = {witness for table in TABLES.values() for witness in table}
    assert required | WITNESSES.keys() | DRAFT_WITNESSES.keys() | {CAP_WITNESS} >= COUNTED
    tests = "\n".join(
        source.read_text()
        for folder in (ROOT / "tests", ROOT / "fuzz" / "tests")
        for source in folder.rglob("test_*.py")
        if source != Path(__file__)
    )
    # By name, or through the table that a test goes through.
    through = {
        witness
        for name, table in TABLES.items()
        if re.search(rf"\b{name}\b", tests)
        for witness in table
    }
    assert {witness for witness in COUNTED - through if f'"{witness}"' not in tests} == set()


def test_installed_targets_require_what_the_marks_count() -> None:
    """A campaign over what is installed here counts every mark, if the usual three are."""
    engines = [engine for engine in EngineStore().list() if engine.problem is None]
    targets: list[Target] = [target for engine in engines for target in targets_of(engine)]
    required = {witness for target in targets for witness in target.witnesses} | {CAP_WITNESS}
    if {"0.5.15", "0.5.16", "0.5.23"} <= {engine.version for engine in engines}:
        assert required >= COUNTED


def test_command_lists_marks_and_fails_by_name_on_a_run_that_reached_nothing(
    tmp_path: Path,
) -> None:
    listed = CliRunner().invoke(app, ["marks", "--json"])
    assert listed.exit_code == 0, listed.output
    found = {mark["name"]: mark for mark in json.loads(listed.stdout)["marks"]}
    assert found["CAP-3"]["witnesses"] == ["cap bound"]
    assert found["CAP-3"]["where"].startswith("spec/cap.py:")
    gone = CliRunner().invoke(app, ["marks", "--run", str(tmp_path)])
    assert gone.exit_code == 2


def test_a_mark_is_reached_if_one_of_its_witnesses_is_counted() -> None:
    reached = {mark.name for mark in marks({"ring wrapped": 3}) if mark.reached}
    assert reached == {"RING-1", "RING-3"} | UNCOUNTED.keys()
