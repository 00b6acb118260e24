"""The table of expected results: what a run is compared with, and never more than that."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from kvproof.fuzz import expected
from kvproof.fuzz.campaign import Fault, TargetResult
from kvproof.fuzz.expected import Agreement, Expected, compare, load_expected
from kvproof.fuzz.profiles import Profile
from kvproof.model.facts import EngineError
from kvproof.model.scenario import BadFileError, Geometry, Scenario
from kvproof.model.verdict import INVARIANTS, Cause, Invariant, Status, Verdict, Violation

from .conftest import FakeProcess, campaign

TARGET = "fake:registry"


def verdict(invariant: Invariant, status: Status = "holds", cause: Cause = "leak") -> Verdict:
    violation = Violation(invariant=invariant, cause=cause, step=0, sentence="it broke")
    return Verdict(
        invariant=invariant, status=status, scope="all", backend="rules",
        violation=violation if status == "violated" else None,
        reason="a reason" if status in {"unknown", "engine error"} else "",
    )  # fmt: skip


def result(*verdicts: Verdict) -> TargetResult:
    """A result in which everything holds but what is given."""
    given = {verdict.invariant: verdict for verdict in verdicts}
    return TargetResult(
        target=TARGET, seed=0, sequences=1, kernel_sequences=1, operations=1, skipped=0,
        seconds=1.0, witnesses={}, missing=(), counts={},
        verdicts=tuple(given.get(invariant, verdict(invariant)) for invariant in INVARIANTS),
        findings=(), faults=(), versions={}, classes={},
    )  # fmt: skip


def entry(
    invariant: Invariant = "PARTITION", cause: Cause = "leak", target: str = TARGET
) -> Expected:
    return Expected(
        target=target, invariant=invariant, cause=cause, reason="a page is lost", reference="#1"
    )


def cell(found: TargetResult, *table: Expected, baseline: str | None = None) -> tuple[str, str]:
    """Agreement and note of the PARTITION cell; the others must be as expected."""
    cells = {c.invariant: c for c in compare(found, table, baseline=baseline)}
    assert list(cells) == list(INVARIANTS)
    for invariant, other in cells.items():
        assert other.target == TARGET
        assert invariant == "PARTITION" or other.agreement == "as expected"
    return cells["PARTITION"].agreement, cells["PARTITION"].note


def test_what_holds_without_an_entry_is_expected() -> None:
    assert cell(result()) == ("as expected", "")


def test_a_known_violation_is_expected_and_says_why() -> None:
    found = result(verdict("PARTITION", "violated"))
    assert cell(found, entry()) == ("as expected", "a page is lost")


@pytest.mark.parametrize(
    ("found", "table", "agreement", "note"),
    [
        (verdict("PARTITION", "violated"), [], "not expected", "no entry"),
        (verdict("PARTITION", "violated"), [entry(target="other")], "not expected", "no entry"),
        (verdict("PARTITION"), [entry()], "changed", "expects a violation (#1); the run says: h"),
        (verdict("PARTITION", "violated", "shared"), [entry()], "changed", "found shared"),
        (verdict("PARTITION", "unknown"), [entry()], "changed", "a reason"),
        (verdict("PARTITION", "unknown"), [], "changed", "a reason"),
        (verdict("PARTITION", "engine error"), [], "changed", "a reason"),
    ],
)
def test_news_is_said(
    found: Verdict, table: list[Expected], agreement: Agreement, note: str
) -> None:
    said, why = cell(result(found), *table)
    assert said == agreement
    assert note in why


def test_a_rare_violation_that_was_not_met_is_no_news() -> None:
    rare = replace(entry(), rare=True)
    said, why = cell(result(verdict("PARTITION")), rare)
    assert said == "as expected"
    assert "not in this run" in why
    assert cell(result(verdict("PARTITION", "skipped")), rare)[0] == "as expected"
    assert cell(result(verdict("PARTITION", "violated")), rare)[0] == "as expected"
    assert cell(result(verdict("PARTITION", "unknown")), rare)[0] == "changed"
    assert cell(result(verdict("PARTITION", "violated", "shared")), rare)[0] == "changed"


def test_either_of_two_causes_is_as_expected() -> None:
    table = (entry(), entry(cause="shared"))
    for cause in ("leak", "shared"):
        assert cell(result(verdict("PARTITION", "violated", cause)), *table)[0] == "as expected"
    assert cell(result(verdict("PARTITION", "violated", "sizes")), *table)[0] == "changed"
    assert cell(result(verdict("PARTITION")), *table)[0] == "changed"


def test_an_end_that_is_known_is_as_expected_and_no_other() -> None:
    raised = verdict("PARTITION", "engine error")
    known = replace(entry(), cause="engine error", error="a rea")
    assert cell(result(raised), known) == ("as expected", "a page is lost")
    assert cell(result(raised), replace(known, error="TypeError"))[0] == "changed"
    assert cell(result(raised), entry())[0] == "changed"
    for status in ("holds", "unknown", "violated"):
        assert cell(result(verdict("PARTITION", status)), known)[0] == "changed"


def test_an_engine_that_fails_beside_a_known_violation_is_news_unless_it_is_known_to() -> None:
    error = EngineError(cause="raised", message="IndexError: a row")
    scenario = Scenario(
        geometry=Geometry(window=1, page_size=1, slots=1, pool_tokens=64), operations=()
    )
    found = replace(
        result(verdict("PARTITION", "violated")),
        faults=(Fault(error=error, scenario=scenario, occurrences=1),),
    )
    said, why = cell(found, entry())
    assert said == "changed"
    assert "IndexError: a row" in why
    known = replace(entry(), cause="engine error", error="IndexError")
    assert cell(found, entry(), known)[0] == "as expected"
    assert cell(found, entry(), replace(known, error="TypeError"))[0] == "changed"


def test_a_baseline_lends_its_entries() -> None:
    found = result(verdict("PARTITION", "violated"))
    table = (entry(target="known"), replace(entry(), cause="shared"))
    assert cell(found, *table, baseline="known")[0] == "as expected"
    assert cell(found, *table)[0] == "changed"


def test_the_table_is_well_formed() -> None:
    table = load_expected()
    assert len({(e.target, e.invariant, e.cause) for e in table}) == len(table)
    assert all(e.reason and e.reference for e in table)


def test_a_pattern_means_the_targets_of_the_releases(tmp_path: Path) -> None:
    file = tmp_path / "expected.toml"

    def targets(pattern: str) -> set[str]:
        file.write_text(
            f'[[expected]]\ntarget = "{pattern}"\ninvariant = "MAP"\ncause = "torn"\n'
            'reason = "r"\nreference = "x"\n'
        )
        return {entry.target for entry in load_expected(file)}

    assert targets("sglang-0.5.1[23]*:chunk") == {
        "sglang-0.5.12:chunk", "sglang-0.5.12.post1:chunk",
        "sglang-0.5.13:chunk", "sglang-0.5.13.post1:chunk",
    }  # fmt: skip
    # A post release has the constructions of its family, and a family those of its oldest release.
    assert targets("*:paged-swa-unified-early-release") == {
        f"sglang-{release}:paged-swa-unified-early-release"
        for release in ("0.5.14", "0.5.15", "0.5.15.post1")
    }
    assert targets("mine:paged") == {"mine:paged"}
    with pytest.raises(BadFileError, match="no supported release"):
        targets("sglang-0.6*:paged")


DOCTORED = """\
[[expected]]
target = "fake:registry"
invariant = "PADDING"
cause = "padding-escapes"
reason = "a lie"
reference = "none"
"""


def test_a_doctored_table_changes_the_comparison_and_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> TargetResult:
        result = campaign(FakeProcess(), profile=Profile(sequences=15)).run()
        findings = tuple(replace(f, find_seconds=0, shrink_seconds=0) for f in result.findings)
        return replace(result, seconds=0, findings=findings)

    honest = run()
    doctored = tmp_path / "expected.toml"
    doctored.write_text(DOCTORED)
    monkeypatch.setattr(expected, "TABLE", doctored)
    assert run() == honest
    cells = {cell.invariant: cell.agreement for cell in compare(honest, load_expected(doctored))}
    assert cells["PADDING"] == "changed"
    assert cells["FRESH-PREFILL"] == "not expected"


@pytest.mark.parametrize("line", ['cause = "because"', 'severity = "high"', 'invariant = "FRESH"'])
def test_an_entry_that_means_nothing_is_refused(tmp_path: Path, line: str) -> None:
    fields = {
        "target": TARGET, "invariant": "PARTITION", "cause": "leak", "reason": "r",
        "reference": "x",
    }  # fmt: skip
    text = "".join(f'{k} = "{v}"\n' for k, v in fields.items() if not line.startswith(k))
    file = tmp_path / "expected.toml"
    file.write_text(f"[[expected]]\n{text}{line}\n")
    with pytest.raises(BadFileError):
        load_expected(file)
