"""Controls: runs that must not pass, and a table of expected results that lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.fuzz.campaign import Campaign
from kvproof.fuzz.expected import compare, load_expected
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.targets import Target
from kvproof.model.witness import CAP_WITNESS

from .conftest import Run

SHORT = Profile(sequences=40)


def test_without_the_gate_a_run_is_vacuous(release: Target) -> None:
    """The ring is gone with the gate, so nothing was seen of what is in question."""
    if not release.has_ring:
        pytest.skip("this release has no gate")
    with release.process(rocm_gate=False) as process:
        result = Campaign(target=release, process=process, profile=SHORT, seed=0).run()
    assert result.sequences == SHORT.sequences
    assert result.faults == ()
    assert result.kernel_sequences == 0
    assert "ring read by decode" in result.missing
    assert "ring read by prefill" in result.missing
    assert result.witnesses[CAP_WITNESS] == 0
    assert {verdict.status for verdict in result.verdicts} == {"unknown"}
    for verdict in result.verdicts:
        assert "there is no ring" in verdict.reason or verdict.reason.startswith("vacuous")
    # What holds there by the table is news as well: such a run is never as expected.
    assert {cell.agreement for cell in compare(result, load_expected())} == {"changed"}


DOCTORED = """\
[[expected]]
target = "{target}"
invariant = "PADDING"
cause = "padding-escapes"
reason = "a lie"
reference = "none"

[[expected]]
target = "{target}"
invariant = "FRESH-PREFILL"
cause = "rejected-draft"
reason = "a lie"
reference = "none"
"""


def test_a_doctored_table_is_contradicted(target: Target, run: Run, tmp_path: Path) -> None:
    if not target.has_ring:
        pytest.skip("this release has no ring, so nothing of it is asked")
    doctored = tmp_path / "expected.toml"
    doctored.write_text(DOCTORED.format(target=target.name))
    cells = {cell.invariant: cell for cell in compare(run.result, load_expected(doctored))}
    assert cells["PADDING"].agreement == "changed"
    assert cells["FRESH-PREFILL"].agreement == "changed"
    for verdict in run.result.verdicts:
        if verdict.status == "violated" and verdict.invariant != "FRESH-PREFILL":
            assert cells[verdict.invariant].agreement == "not expected"
