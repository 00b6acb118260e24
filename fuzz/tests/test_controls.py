"""Controls: runs that must not pass, and a table of expected results that lies."""

from __future__ import annotations

import pytest

from kvproof.fuzz.campaign import Campaign
from kvproof.fuzz.expected import compare, load_expected
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.targets import Target
from kvproof.model.witness import CAP_WITNESS

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
