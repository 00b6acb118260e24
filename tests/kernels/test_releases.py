"""The installed releases' own kernels: theorems, mutants, widths, and the machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.kernels.capture import KernelProcess, Order, Report
from kvproof.kernels.catalogue import FAMILIES
from kvproof.kernels.evaluate import compare, difference, predict
from kvproof.kernels.symbolic import Bits, execute
from kvproof.kernels.ttir import parse
from kvproof.kernels.width import Breaking, smallest_breaking
from kvproof.proofs.kernels import theorems
from kvproof.proofs.kernels.mutants import MUTANTS
from kvproof.proofs.kernels.report import KernelReport, code_of, examine, judge
from kvproof.proofs.kernels.scatter import SCATTER
from kvproof.proofs.kernels.stores import PAGED
from kvproof.proofs.solver import Prover

Start = Callable[[str], KernelProcess]
Capture = Callable[[str], Report]

RELEASES = ("0.5.15", "0.5.16", "0.5.23")
NEWEST = RELEASES[-1]


@pytest.fixture(scope="module", params=RELEASES)
def report(request: pytest.FixtureRequest, start: Start) -> KernelReport:
    return examine(start(request.param), prover=Prover(), launches=1)


def test_every_theorem_is_as_expected_and_nothing_is_left_out(report: KernelReport) -> None:
    assert [one.status for one in report.theorems if one.verdict != "as expected"] == []
    assert [note.name for note in report.kernels if note.abstained] == []
    family = next(one for one in FAMILIES if one.name == report.family)
    proved = {note.name.partition(" ")[0] for note in report.kernels}
    for kernel in family.kernels.values():
        assert {jit.partition(":")[2] for jit in kernel.jit} <= proved
    # Every one of them is what a theorem is about.
    sources = " ".join(one.source for one in report.theorems)
    assert {name for name in proved if name not in sources} == set()


def test_a_supported_release_is_as_recorded(report: KernelReport) -> None:
    assert report.changes == ()


def test_tight_bounds_break_on_the_real_kernels(report: KernelReport) -> None:
    played = [
        each
        for theorem in report.theorems
        for one in theorem.obligations
        for each in one.confirmations
    ]
    assert all(one.broken for one in played)
    # An address of gigabytes is not run: it is evaluated in the true widths.
    where = {one.target.removeprefix(report.release) for one in played}
    assert where == {" in the interpreter", "bit-vectors of the true widths"}
    assert sum("interpreter" in one.target for one in played) >= 4


def test_models_predict_every_cell(report: KernelReport) -> None:
    assert [one.difference for one in report.comparisons if one.difference] == []
    assert all(one.cells for one in report.comparisons)
    ran = {one.kernel for one in report.comparisons}
    assert {note.name for note in report.kernels if "V4" not in note.name} == ran


def _widths(report: KernelReport) -> dict[tuple[str, str, str], Breaking]:
    return {(one.kernel, one.access.partition(",")[0], one.size): one for one in report.widths}


def test_widths_are_real_overflows(report: KernelReport) -> None:
    widths = _widths(report)
    # Rows of 512 elements, numbered in int32: 2**31 / 512 is the first that is too many.
    scatter = widths[SCATTER, "", "tokens"]
    assert scatter.smallest == (1 << 31) // 512 + 1
    assert "address -2,147,483,648 instead of 2,147,483,648" in scatter.wraps
    # Its rows are int64: no pool is too large.
    assert widths[SCATTER, "", "rows"].smallest is None


def test_paged_stores_break_at_the_locations_of_the_pull_request(report: KernelReport) -> None:
    """PR #40351: pages of 256 tokens and 149,760 bytes; a pool ends behind its last location."""
    widths = _widths(report)
    whole = widths[PAGED, "", "locations"]
    if report.family == NEWEST:
        assert whole.smallest is None
        return
    assert widths[PAGED, "store cache_fp8_ptr", "locations"].smallest == 3_670_914 + 1
    assert widths[PAGED, "store cache_bf16_ptr", "locations"].smallest == 7_341_824 + 1
    assert "address -2,147" in widths[PAGED, "store cache_fp8_ptr", "locations"].wraps
    assert "--max-total-tokens" in whole.configuration


def test_attention_breaks_where_a_launch_of_128_heads_passes_int32(report: KernelReport) -> None:
    widths = _widths(report)
    prefill = "_sparse_attn_v4_paged_prefill_kernel [prefill attention, V4]"
    # Offsets of the queries: tokens times 128 heads of 512.
    assert widths[prefill, "load q_ptr", "tokens"].smallest == (1 << 31) // (128 * 512) + 1
    assert widths[prefill, "load unified_kv_ptr", "rows"].smallest == (1 << 31) // 512 + 1


@pytest.mark.parametrize("seed", [1, 2])
def test_proofs_do_not_depend_on_the_seed(seed: int, start: Start, capture: Capture) -> None:
    code = code_of(start(NEWEST), capture(NEWEST))
    prover = Prover(seed=seed)
    for theorem in theorems(code):
        for one in theorem.obligations:
            assert prover.decide(one.claim()).status == one.expected, one.name


def test_every_mutant_is_noticed(start: Start, capture: Capture) -> None:
    report = capture(NEWEST)
    code = code_of(start(NEWEST), report)
    assert len(MUTANTS) >= 25
    for edit in MUTANTS:
        found = [one for one in report.mutated if one.edit == edit]
        result = judge(code, edit, found, Prover(), ())
        assert result.killed_by, (edit, result.why)


def test_a_wrong_model_is_noticed(start: Start, capture: Capture) -> None:
    report = capture(NEWEST)
    launches = start(NEWEST).ask(Order(work="run", seeds=(5,), only=("scatter",))).launches
    [scatter] = [one for one in report.captured if one.name == SCATTER]
    good = execute(parse(scatter.parametric))
    assert compare(SCATTER, good, launches).difference == ""
    wrong = next(one for one in report.mutated if one.edit.by == "((pos + 1) % ring_stride)")
    assert difference(predict(execute(parse(wrong.parametric)), launches[0]), launches[0])


def test_a_narrow_row_number_has_a_smallest_pool_that_breaks_it(capture: Capture) -> None:
    """The method, on a mutant: an int32 row times 512 wraps at 2**22 rows."""
    narrow = next(one for one in capture(NEWEST).mutated if "loc.to(tl.int32)" in one.edit.by)
    found = smallest_breaking(
        SCATTER, execute(parse(narrow.ttir)), execute(parse(narrow.ttir), Bits()), "rows"
    )
    assert found.smallest is not None
    # The first slot with a row at or past 2**22, and all of its rows.
    assert (1 << 22) <= found.smallest < (1 << 22) + 2 * 131
    assert found.wraps


def test_a_breached_assumption_is_noticed_in_the_engine(start: Start) -> None:
    """Two tokens of one slot at one position: the launch runs, and H6 does not hold of it."""
    numbers = {"slots": [1, 1], "positions": [5, 5], "finals": [5, 5], "window": [4], "stride": [4]}
    found = start(NEWEST).ask(Order(work="play", wrapper="scatter", numbers=numbers))
    assert [(one.assumption, one.kernel) for one in found.breaches] == [
        ("H6", "_swa_scatter_kernel")
    ]
    numbers |= {"positions": [5, 6], "finals": [6, 6]}
    assert start(NEWEST).ask(Order(work="play", wrapper="scatter", numbers=numbers)).breaches == ()


def test_an_old_release_launches_before_it_counts_its_free_pages(start: Start) -> None:
    """0.5.15 and 0.5.16 read past the free list, and drop the result."""
    for release, breached in (("0.5.15", True), (NEWEST, False)):
        found = start(release).ask(Order(work="play", wrapper="exhausted"))
        assert ("H13" in {one.assumption for one in found.breaches}) is breached
