"""Many scenarios in one launch, on the real kernels in the interpreter."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from kvproof.cli.app import app
from kvproof.kernels.batch import Batch, Batched, Example, Judged, Play, play_batch
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.kernels.launch import RingKernels
from kvproof.model.text import parse_scenario
from kvproof.spec.ring import ring_row
from kvproof.spec.window import Order, decode_reads, prefill_ring_reads, scatter_keeps
from kvproof.triage.batch import scenario_of, shown_by_model

READS_FIRST, WRITES_FIRST = "0.5.15", "0.5.23"


ORDER = Play(
    backend="interpreter", slots=8, window=4, page_size=2, draft_tokens=1, reprefill_tail=4,
    short=0, seconds=0, seed=0,
)  # fmt: skip


def played(release: str, **changes: object) -> Batched:
    return play_batch(EngineStore().find(release), msgspec.structs.replace(ORDER, **changes))


def judged(batched: Batched, name: str) -> Judged:
    [one] = [one for one in batched.judged if one.name == name]
    return one


def check_as_the_theorems_say(batched: Batched, *, stale: bool, past_match: bool) -> None:
    assert batched.missing == ()
    assert batched.as_expected
    decode = judged(batched, "FRESH-DECODE")
    assert bool(decode.broken) == stale
    assert bool(decode.past_match) == past_match
    assert judged(batched, "FRESH-PREFILL").broken  # X1: every hit
    for name in ("REFINES rows", "REFINES payload"):
        assert judged(batched, name).checked
        assert not judged(batched, name).broken


def test_real_kernels_without_a_cap_read_stale_rows() -> None:
    check_as_the_theorems_say(played(READS_FIRST, reprefill_tail=0), stale=True, past_match=False)


def test_real_verifies_on_a_row_less_than_the_stride_read_stale_rows() -> None:
    check_as_the_theorems_say(
        played(WRITES_FIRST, draft_tokens=3, short=1), stale=True, past_match=True
    )


class RuleKernels:
    """The three launches by the rules; a fault makes one of them a wrong kernel."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def kernels(self, verify_order: Order) -> RingKernels:
        return RingKernels(
            store=self.store, decode_streams=self.decode_streams,
            prefill_indices=self.prefill_indices, verify_order=verify_order,
        )  # fmt: skip

    def store(self, *, kv, state_slot, positions, unified_kv, win, ring_stride, final_pos) -> None:  # type: ignore[no-untyped-def]
        kept = scatter_keeps(positions, final_pos, win)
        if self.fault == "the filter keeps one key less":
            kept = positions > final_pos - win + 1
        rows = ring_row(state_slot, positions, ring_stride)
        if self.fault == "a torn row":
            kv = kv.clone()
            kv[:, 5] = 0  # the position's last digit
        unified_kv[rows[kept]] = kv[kept]

    def decode_streams(self, *, state_slot, positions, win, ring_stride, **_):  # type: ignore[no-untyped-def]
        return self._rows(state_slot, positions, *decode_reads(positions, win), ring_stride)

    def prefill_indices(self, *, state_slot, positions, chunk_start, win, ring_stride, **_):  # type: ignore[no-untyped-def]
        start, end = prefill_ring_reads(positions, chunk_start, win)
        if self.fault == "a row too many":
            end = end + 1
        return self._rows(state_slot, positions, start, end, ring_stride)

    def _rows(self, slots, positions, start, end, stride):  # type: ignore[no-untyped-def]
        if self.fault == "the neighbour's rows":
            slots = slots + 1
        lists = [
            [ring_row(slot, at, stride) for at in range(first, last)]
            for slot, first, last in zip(slots.tolist(), start.tolist(), end.tolist(), strict=True)
        ]
        edges = torch.tensor([0, *(len(one) for one in lists)]).cumsum(0)
        return torch.tensor([row for one in lists for row in one], dtype=torch.int32), edges


def by_the_rules(fault: str = "", order: Order = "write, then read", **changes: object) -> Batched:
    batch = Batch(
        order=msgspec.structs.replace(ORDER, slots=40, **changes),
        kernels=RuleKernels(fault).kernels(order),
    )
    batch.play_round()
    return batch.report(release="rules", backend="rules")


@pytest.mark.parametrize(
    ("order", "changes", "stale", "past_match"),
    [
        pytest.param("write, then read", {}, False, False, id="the cap of a window"),
        pytest.param("write, then read", {"reprefill_tail": 3}, False, False, id="C3"),
        pytest.param("write, then read", {"reprefill_tail": 2}, True, False, id="C3 is tight"),
        pytest.param("write, then read", {"short": 1}, True, True, id="R5"),
        pytest.param("write, then read", {"draft_tokens": 3}, False, False, id="R6"),
        pytest.param("write, then read", {"draft_tokens": 3, "short": 1}, True, True,
                     id="R6 is tight"),
        pytest.param("read, then write", {"draft_tokens": 3, "short": 1}, False, False, id="R7"),
        pytest.param("read, then write", {"draft_tokens": 3, "short": 2}, True, True,
                     id="R7 is tight"),
    ],
)  # fmt: skip
def test_a_batch_breaks_what_the_theorems_say(
    order: Order, changes: dict[str, object], stale: bool, past_match: bool
) -> None:
    # Pages of one token, so that no cap is rounded.
    batched = by_the_rules(order=order, page_size=1, **changes)
    check_as_the_theorems_say(batched, stale=stale, past_match=past_match)


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        ("the filter keeps one key less", "REFINES payload"),
        ("a torn row", "REFINES payload"),
        ("a row too many", "REFINES rows"),
        ("the neighbour's rows", "REFINES rows"),
    ],
)
def test_a_wrong_kernel_is_noticed(fault: str, name: str) -> None:
    batched = by_the_rules(fault)
    assert judged(batched, name).broken
    assert not batched.as_expected


def test_a_stale_decode_becomes_a_scenario_that_the_model_breaks_too(tmp_path: Path) -> None:
    file = tmp_path / "stale.scenario"
    result = CliRunner().invoke(
        app,
        ["kernels", "batch", "--engine", READS_FIRST, "--tail", "0", "--slots", "8",
         "--time", "0", "--out", str(file), "--json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    report = msgspec.json.decode(result.stdout)
    [batched] = msgspec.convert(report["results"], list[Batched])
    example = judged(batched, "FRESH-DECODE").example
    assert example is not None
    scenario = parse_scenario(file.read_bytes())
    assert scenario == scenario_of(batched, example)
    assert shown_by_model(batched, scenario, "FRESH-DECODE")


def test_a_property_that_does_not_break_where_it_should_is_news() -> None:
    example = Example(
        slot=1, position=9, stands_for=8, found=(1, 4), occupancy=2, previous_end=5, prompt_len=8,
        matched_len=4, chunk_end=8, accepted=(1,),
    )  # fmt: skip
    one = Judged(name="FRESH-DECODE", checked=5, expected=True, why="", example=example)
    assert not one.as_expected
    assert msgspec.structs.replace(one, broken=1).as_expected
    assert not msgspec.structs.replace(one, broken=1, checked=0).as_expected


def test_a_process_that_ends_early_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"OverflowError|memory|RuntimeError"):
        played(READS_FIRST, slots=2**60)


def test_a_draft_longer_than_the_window_is_refused() -> None:
    result = CliRunner().invoke(app, ["kernels", "batch", "--draft", "9", "--window", "4"])
    assert result.exit_code == 2
    assert "R7" in result.stderr
