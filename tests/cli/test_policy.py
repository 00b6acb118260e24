"""``kvproof policy`` as a user runs it."""

from __future__ import annotations

import json

from .conftest import Kvproof


def test_table_of_a_model(kvproof: Kvproof) -> None:
    done = kvproof("policy", "--window", 128, "--page", 256, "--layers", 61)
    assert done.returncode == 0, done.stderr
    assert "7748 to 8003" in done.stdout
    assert "cap of W         320 (88%)" in done.stdout, "one page of 2048 cached tokens again"
    assert "docs/theorems.md" in done.stdout


def test_json_has_verdicts_with_their_runs_and_costs(kvproof: Kvproof) -> None:
    done = kvproof(
        "policy", "--layers", 43, "--draft", 4, "--bigram", "--ratios", 0,
        "--prompt-len", 2176, "--shared", 2048, "--prompt-len", 2177, "--shared", 2048, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ring_rows"] == 131
    assert result["exact_tail"] == 43 * 127 + 1
    rows = {row["name"]: row for row in result["policies"]}
    # The threshold of the speed table of PR #30339: bigram keys, one token more.
    assert [hit["matched"] for hit in rows["cap of W"]["hits"]] == [1792, 2048]
    assert rows["cap of L(W-1)+1"]["verdicts"]["EXACT"]["status"] == "holds"
    broken = rows["no cap"]["verdicts"]["FRESH-DECODE"]
    assert broken["status"] == "violated"
    assert broken["broken"] <= broken["runs"]
    assert broken["scenario"]["operations"]


def test_what_cannot_be_is_refused_with_a_fix(kvproof: Kvproof) -> None:
    for wrong in (
        ("--ratios", "four"),
        ("--prompt-len", 10, "--shared", 11),
        ("--prompt-len", 10, "--prompt-len", 20, "--shared", 5),
    ):
        done = kvproof("policy", *wrong)
        assert done.returncode == 2
        assert "fix:" in done.stderr
