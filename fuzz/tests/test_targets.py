"""What campaigns find on the real releases, and that they looked where they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvproof.fuzz.constructions import CONSTRUCTIONS, PAGED_SWA
from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.expected import compare, load_expected
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.story import STALE, tell
from kvproof.fuzz.targets import PAGE_HOLDS_WINDOW, Target
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.catalogue import family_of
from kvproof.model.facts import Ended, EngineError, Started, encode_fact
from kvproof.model.monitor import check
from kvproof.model.scenario import Finish, Geometry, Piece, Prefill, Scenario, Submit
from kvproof.model.verdict import INVARIANTS

from .conftest import NO_ENGINES, Run, targets

MOST_OPERATIONS = 8
"""What the shortest stale decode may take; it takes six."""

CI = {"sglang-0.5.15", "sglang-0.5.16", "sglang-0.5.23"}
"""What `make engines` installs."""

STALE_DECODE = {
    f"sglang-{release}:registry"
    for release in (
        "0.5.14", "0.5.15", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.19",
    )
}  # fmt: skip
FRESH_DECODE = {
    f"sglang-{release}"
    for release in (
        "0.5.16:SWARadixCache", "0.5.17:SWARadixCache", "0.5.18:SWARadixCache",
        "0.5.19:SWARadixCache", "0.5.20:SWARadixCache", "0.5.20:registry", "0.5.21:registry",
        "0.5.22:registry", "0.5.23:registry",
    )
}  # fmt: skip


def test_the_table_knows_the_target_s_verdicts(target: Target, run: Run) -> None:
    table = load_expected()
    if target.has_ring and target.name not in {entry.target for entry in table}:
        pytest.skip(f"the table says nothing of {target.name}: it is not a supported release")
    cells = compare(run.result, table)
    assert [cell.invariant for cell in cells] == list(INVARIANTS)
    assert [cell for cell in cells if cell.agreement != "as expected"] == []


def is_variant(target: str) -> bool:
    """Whether a target is played only where it is asked for by name."""
    construction = CONSTRUCTIONS.get(target.partition(":")[2])
    return construction is not None and construction.by_name


def test_every_target_of_the_table_that_ci_fuzzes_is_installed() -> None:
    """A release that is not here would pass its tests by not having any."""
    if os.environ.get(NO_ENGINES) == "1":
        pytest.skip(f"{NO_ENGINES}=1 says that no engine is wanted")
    named = {entry.target for entry in load_expected() if not is_variant(entry.target)}
    needed = {target for target in named if target.partition(":")[0] in CI}
    installed = (*targets(), *targets(family="translation"))
    missing = needed - {found.name for found in installed}
    assert not missing, f"not installed: {', '.join(sorted(missing))}. Run `make engines`."


def test_every_witness_is_reached(run: Run) -> None:
    assert run.result.missing == ()


def test_every_sequence_of_the_profile_is_played(
    target: Target, run: Run, profile: Profile
) -> None:
    result = run.result
    assert result.sequences == profile.sequences
    assert (0 < result.kernel_sequences <= result.sequences) == target.has_ring
    assert result.operations > 8 * result.sequences
    assert result.skipped < result.operations * 2 / 5


def test_no_engine_fails(run: Run) -> None:
    assert run.result.faults == ()


def test_every_finding_is_confirmed_on_the_real_kernels_and_repeats(
    target: Target, run: Run
) -> None:
    # With rings X1 is found at least; what a paged pool's short run meets is rare.
    assert run.result.findings or not target.has_ring
    for finding in run.result.findings:
        assert finding.confirmed, finding.name
        assert finding.deterministic, finding.name


def test_every_finding_can_be_seen_again_in_its_log(
    target: Target, run: Run, backend: KernelBackend
) -> None:
    for finding in run.result.findings:
        log = run.logs[finding.name]
        started = log[0]
        assert isinstance(started, Started)
        # Without rings no kernel of this kind has a part in a play.
        assert started.backend.partition(":")[0] == (backend if target.has_ring else "none")
        broken = (finding.violation.invariant, finding.violation.cause)
        assert check(log).violations[broken] == finding.violation
        story = tell(finding.violation, log)
        assert finding.violation.sentence in " ".join(story.split())
        assert (STALE in story) == finding.violation.invariant.startswith("FRESH")


def test_the_same_scenario_gives_the_same_bytes(run: Run, process: EngineProcess) -> None:
    """The log was made by a process that had played the survey; this is another one."""
    for finding in run.result.findings:
        again = process.play(finding.scenario, timeout=60)
        assert b"".join(map(encode_fact, again)) == b"".join(
            map(encode_fact, run.logs[finding.name])
        )


def test_no_operation_of_a_finding_can_be_dropped(run: Run, process: EngineProcess) -> None:
    for finding in run.result.findings:
        operations = finding.scenario.operations
        for gone in range(len(operations)):
            fewer = Scenario(
                geometry=finding.scenario.geometry,
                operations=operations[:gone] + operations[gone + 1 :],
            )
            log = process.play(fewer, timeout=60, backend="rules")
            assert isinstance(log[-1], Ended)
            broken = (finding.violation.invariant, finding.violation.cause)
            assert broken not in check(log).violations, gone


def test_decode_is_stale_exactly_where_nothing_caps_the_match(target: Target, run: Run) -> None:
    counts = {name for name in run.result.counts if name.startswith("FRESH-DECODE/")}
    findings = [f for f in run.result.findings if f.violation.invariant == "FRESH-DECODE"]
    if target.name in STALE_DECODE:
        [finding] = findings
        assert finding.violation.cause == "other-request"
        assert len(finding.scenario.operations) <= MOST_OPERATIONS
        assert counts
    elif target.name in FRESH_DECODE:
        assert findings == []
        assert counts == set()
    else:
        pytest.skip(f"nothing is known of {target.name}")


def test_the_cap_binds_where_there_is_one(target: Target, run: Run) -> None:
    """And where there is none, it would have."""
    witnesses = run.result.witnesses
    assert witnesses["cap would bind"] > 0
    if target.name in FRESH_DECODE:
        assert witnesses["cap bound"] > 0
    elif target.name in STALE_DECODE:
        assert witnesses["cap bound"] == 0
    else:
        pytest.skip(f"nothing is known of {target.name}")


def test_the_classes_are_the_release_s_own(target: Target, run: Run) -> None:
    classes = run.result.classes
    assert classes
    assert run.result.versions
    if target.construction == "SWARadixCache":
        assert any("SWARadixCache" in name for name in classes.values())


def test_without_a_ring_its_invariants_are_skipped_and_the_others_as_known(
    target: Target, run: Run
) -> None:
    if target.has_ring:
        pytest.skip("this release has a ring")
    found = {verdict.invariant: verdict.status for verdict in run.result.verdicts}
    known = {entry.invariant: entry for entry in load_expected() if entry.target == target.name}
    rings = {"FRESH-DECODE", "FRESH-PREFILL", "PADDING"}
    overlap = set() if 1 in target.sizes.overlaps else {"IN-FLIGHT"}
    for invariant in INVARIANTS:
        may = {"skipped"} if invariant in rings | overlap else {"holds"}
        if entry := known.get(invariant):
            may = {"violated", "holds"} if entry.rare else {"violated"}
        assert found[invariant] in may, invariant


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


SUB_WINDOW_RUN = Scenario(
    geometry=Geometry(window=3, page_size=1, slots=1, pool_tokens=40),
    operations=(
        Submit(request="A", prompt=(Piece("A", 5),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 4), Piece("B", 5))), Prefill(request="B"),
    ),
)  # fmt: skip


def test_an_insert_may_end_in_less_than_a_window_of_live_nodes(
    target: Target, process: EngineProcess
) -> None:
    """0.5.20 to 0.5.22 assert that it does not; a page that holds a window makes that so."""
    log = process.play(SUB_WINDOW_RUN, timeout=60, backend="rules")
    if target.name in {f"sglang-0.5.{patch}:registry" for patch in (20, 21, 22)}:
        assert isinstance(log[-1], EngineError)
        assert "AssertionError: new_prefix_len=2, len(new_indices)=1" in log[-1].message
    else:
        assert isinstance(log[-1], Ended)


ODD_WINDOW = Scenario(
    geometry=Geometry(window=5, page_size=4, slots=1, pool_tokens=64, swa_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 10),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 4),)), Prefill(request="B"),
    ),
)  # fmt: skip


def test_less_than_a_window_behind_the_cursor_ends_in_a_double_free(
    target: Target, process: EngineProcess
) -> None:
    """0.5.18 to 0.5.21; 0.5.22 asserts that it does not, and 0.5.23 keeps a window of pages."""
    if target.construction != PAGED_SWA:
        pytest.skip("the tree gives no SWA pages back")
    log = process.play(ODD_WINDOW, timeout=60, backend="none")
    family = family_of(target.engine.root).name
    broken = {cause for invariant, cause in check(log).violations if invariant == "PARTITION"}
    assert isinstance(log[-1], EngineError if family == "0.5.22" else Ended)
    if family in PAGE_HOLDS_WINDOW:
        assert broken == ({"shared"} if family == "0.5.22" else {"shared", "double-free"})
    else:
        assert broken == set()
