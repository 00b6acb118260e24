"""The harness in process: which tails diverge is the theorem's bound, under every policy."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.determinism.in_process import SMALL, run_cell
from kvproof.determinism.judge import Judgement, judge
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.layers import Stack
from kvproof.model.policies import (
    FLOORED_READS,
    LAYERED_CAP,
    NO_CAP,
    POLICIES,
    REBUILD,
    RELEASE_CAP,
    CachePolicy,
    Sizes,
)
from kvproof.model.reference import reference_player
from kvproof.spec.exact import exact_logits_tail

QUICK = msgspec.structs.replace(SMALL, requests=10, churn=16, output_len=2)


def judged(policy: CachePolicy, stack: Stack, *, page: int = 8) -> Judgement:
    kept = policy.reference(Sizes(window=QUICK.window, page_size=page, layers=stack.layers))
    stack = replace(stack, reading=policy.reading)
    cells = [
        run_cell(
            lambda scenario: reference_player(scenario.geometry, kept).play(scenario),
            QUICK, stack, round_number=number, tail=tail, page_size=page,
        )
        for number, tail in QUICK.cells()
    ]  # fmt: skip
    return judge(QUICK, cells, floor="cold")


def diverging(found: Judgement) -> set[int]:
    return {row.tail for row in found.rows if row.verdict == "exceeds the floor"}


@pytest.mark.parametrize("layers", [1, 2])
def test_without_a_cap_tails_below_the_bound_diverge(layers: int) -> None:
    found = judged(NO_CAP, Stack.of(layers=layers))
    bound = exact_logits_tail(layers, QUICK.window)
    assert diverging(found) == {tail for tail in QUICK.tails if tail < bound}


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_after_a_policy_only_what_it_leaves_out_diverges(policy: CachePolicy) -> None:
    """Two layers with compressed rows: deterministic are the floored reads and the rebuild."""
    found = judged(policy, Stack.of(layers=2, compressed=(1, 2), ratio=4))
    assert (found.status == "holds") == (policy in (FLOORED_READS, REBUILD))


@pytest.mark.parametrize("policy", [RELEASE_CAP, LAYERED_CAP, FLOORED_READS, REBUILD])
def test_one_layer_needs_no_more_than_the_releases_cap(policy: CachePolicy) -> None:
    assert judged(policy, Stack.of(layers=1)).status == "holds"


def test_the_layered_cap_is_enough_without_compressed_rows() -> None:
    assert judged(LAYERED_CAP, Stack.of(layers=2)).status == "holds"
    assert diverging(judged(RELEASE_CAP, Stack.of(layers=2))) == {4, 6}, "the bound is 7"


def test_the_release_of_the_bug_diverges_below_the_window() -> None:
    try:
        EngineStore().find("0.5.15")
    except EngineError as error:
        pytest.skip(str(error))
    arguments = [
        "--engine",
        "0.5.15:registry",
        "--through",
        "rules",
        "--requests",
        "8",
        "--churn",
        "16",
    ]
    tails = [word for tail in (1, 3, 4, 8) for word in ("--tail", str(tail))]
    done = CliRunner().invoke(app, ["determinism", *arguments, *tails, "--json"])
    assert done.exit_code == 1, done.output
    [result] = json.loads(done.stdout)["results"]
    rows = {row["tail"]: row for row in result["judgement"]["rows"]}
    assert [tail for tail, row in rows.items() if row["off"]] == [1, 3]
    assert rows[1]["cached"] == [16, 16]
    assert rows[0]["cached"] == [0, 0]
