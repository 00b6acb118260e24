"""The matrix of a run, as Markdown and on the console."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from kvproof.cli.verdicts import VerdictMatrix
from kvproof.fuzz.campaign import Fault, TargetResult
from kvproof.fuzz.expected import compare
from kvproof.fuzz.matrix import BEGIN, END, markdown, variants
from kvproof.fuzz.profiles import Profile
from kvproof.model.facts import EngineError
from kvproof.model.files import renew

from .conftest import UNCAPPED, FakeProcess, campaign


def test_releases_that_came_to_the_same_stand_in_one_row() -> None:
    result = campaign(FakeProcess(rules=UNCAPPED)).run()
    one = replace(result, target="sglang-1:registry", versions={"sglang": "1"})
    two = replace(result, target="sglang-2:registry", versions={"sglang": "2"})
    other = replace(
        two,
        target="sglang-3:registry",
        versions={"sglang": "3"},
        verdicts=tuple(replace(v, status="unknown", violation=None) for v in two.verdicts),
    )
    lines = markdown((one, two, other), note="note").splitlines()
    head, rule, *rows = lines
    assert head.startswith("| release | construction | FRESH-DECODE | FRESH-PREFILL |")
    assert rule.count("---") == 2 + len(result.verdicts)
    assert rows[0].startswith("| 1, 2 | registry | violated: ")
    assert rows[1].startswith("| 3 | registry | unknown |")
    assert rows[-1] == "note"


def test_the_rows_of_a_construction_stand_below_each_other() -> None:
    result = campaign(FakeProcess(rules=UNCAPPED)).run()
    unlike = tuple(replace(v, status="unknown", violation=None) for v in result.verdicts)
    one = replace(result, target="sglang-1:registry", versions={"sglang": "1"})
    paged = replace(one, target="sglang-1:paged-swa")
    two = replace(one, target="sglang-2:registry", versions={"sglang": "2"}, verdicts=unlike)
    rows = markdown((one, paged, two), note="").splitlines()[2:5]
    assert [row.split("|")[1:3] for row in rows] == [
        [" 1 ", " registry "], [" 2 ", " registry "], [" 1 ", " paged-swa "],
    ]  # fmt: skip


def test_a_release_without_a_ring_says_so() -> None:
    result = campaign(FakeProcess(rules=UNCAPPED)).run()
    verdicts = tuple(
        replace(v, status="skipped", violation=None, reason="this release has no ring")
        for v in result.verdicts
    )
    assert "| no ring |" in markdown((replace(result, verdicts=verdicts),), note="")


def test_a_document_is_renewed_between_its_markers(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert renew(document, begin=BEGIN, end=END, table="new")
    assert document.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    assert not renew(document, begin=BEGIN, end=END, table="new")


def rows_of_variants(*results: TargetResult) -> list[str]:
    head, _, *rows, _, note = variants(results, note="note").splitlines()
    assert head == "| construction | releases | sequences of each | broken |"
    assert note == "note"
    return rows


def test_a_variant_says_what_broke_in_any_of_its_runs() -> None:
    broken = replace(
        campaign(FakeProcess(rules=UNCAPPED)).run(),
        target="sglang-0.5.9:chunk",
        versions={"sglang": "0.5.9"},
    )
    held = replace(
        broken,
        verdicts=tuple(replace(v, status="holds", violation=None) for v in broken.verdicts),
    )
    later = replace(held, target="sglang-0.5.12:chunk", versions={"sglang": "0.5.12"})
    post = replace(held, target="sglang-0.5.12.post1:chunk", versions={"sglang": "0.5.12.post1"})
    own = replace(held, target="sglang-0.5.9:registry")
    breaks = "FRESH-DECODE: other-request; FRESH-PREFILL: other-request"
    assert rows_of_variants(post, held, broken, later, own) == [
        f"| chunk | 0.5.9 | {2 * held.sequences} | {breaks} |",
        f"| chunk | 0.5.12, 0.5.12.post1 | {held.sequences} | nothing |",
    ]
    assert rows_of_variants(held, later, later) == [
        f"| chunk | 0.5.9, 0.5.12 | {held.sequences} to {2 * held.sequences} | nothing |"
    ]


def test_what_no_run_of_a_variant_could_say_is_not_nothing() -> None:
    result = campaign(FakeProcess(rules=UNCAPPED)).run()
    fault = Fault(
        error=EngineError(cause="raised", message="TypeError"),
        scenario=result.findings[0].scenario,
        occurrences=1,
    )
    died = replace(
        result,
        target="sglang-1:chunk",
        versions={"sglang": "1"},
        faults=(fault,),
        verdicts=tuple(replace(v, status="engine error", violation=None) for v in result.verdicts),
    )
    assert "| engine error |" in rows_of_variants(died)[0]
    vacuous = replace(
        died,
        faults=(),
        verdicts=tuple(replace(v, status="unknown", violation=None) for v in died.verdicts[:2]),
    )
    assert "| FRESH-DECODE: unknown; FRESH-PREFILL: unknown |" in rows_of_variants(vacuous)[0]
    held = tuple(replace(v, status="holds", reason="") for v in vacuous.verdicts)
    assert "| nothing |" in rows_of_variants(vacuous, replace(vacuous, verdicts=held))[0]


def test_variants_of_releases_in_a_row_are_a_span() -> None:
    result = replace(campaign(FakeProcess(), profile=Profile(sequences=1)).run(), verdicts=())
    played = [
        replace(result, target=f"sglang-{release}:{construction}", versions={"sglang": release})
        for construction, releases in {"chunk": "12346", "paged": "1235"}.items()
        for release in releases
    ]
    rows = rows_of_variants(*played)
    assert [row.split(" | ")[1] for row in rows] == ["1 to 4, 6", "1 to 3, 5"]


@pytest.mark.parametrize(("width", "together"), [(32, 1), (50, 2), (62, 3), (300, 3)])
def test_on_the_console_as_many_targets_stand_together_as_fit(width: int, together: int) -> None:
    result = campaign(FakeProcess(rules=UNCAPPED)).run()
    results = [replace(result, target=f"sglang-0.5.{n}:registry") for n in (15, 16, 17)]
    told = io.StringIO()
    console = Console(file=told, width=width)
    console.print(
        VerdictMatrix(
            results=results, comparisons=[c for one in results for c in compare(one, ())]
        ),
        soft_wrap=True,
    )
    lines = told.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    tables = [line for line in lines if line.startswith("invariant")]
    assert [line.count("registry") for line in tables] == [
        min(together, 3 - first) for first in range(0, 3, together)
    ]
    broken = [line for line in lines if line.startswith("FRESH-DECODE")]
    assert sum(line.count("violated") for line in broken) == 3
    assert told.getvalue().count("not expected") >= 3
