"""``kvproof kernels compare``, end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvproof.kernels import backends

from .conftest import Kvproof


@pytest.mark.usefixtures("engines")
def test_each_result_is_printed_and_on_disk(kvproof: Kvproof, tmp_path: Path) -> None:
    lines = tmp_path / "results.jsonl"
    done = kvproof(
        "kernels", "compare", "--engine", "0.5.15", "--only", "scatter", "--only", "split-K, bf16",
        "--launches", "2", "--out", lines, "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    results = {one["name"]: one for one in report["results"]}
    assert set(results) == {"scatter, bf16", "decode attention, split-K, bf16"}
    for one in results.values():
        assert (one["verdict"], one["backend"], one["launches"]) == ("holds", "interpreter", 2)
        assert one["cells"] > 0
    assert results["scatter, bf16"]["worst"] == 0
    assert 0 < results["decode attention, split-K, bf16"]["worst"] < 1
    assert [json.loads(line)["name"] for line in lines.read_text().splitlines()] == list(results)


@pytest.mark.usefixtures("engines")
def test_without_a_gpu_nothing_is_passed(kvproof: Kvproof) -> None:
    if backends.missing("cuda") is None:
        pytest.skip("this machine has one")
    done = kvproof("kernels", "compare", "--engine", "0.5.15", "--backend", "cuda", "--json")
    assert done.returncode == 2
    report = json.loads(done.stdout)
    assert not report["ok"]
    assert {one["verdict"] for one in report["results"]} == {"skipped"}
    assert all("without cuda" in one["reason"] for one in report["results"])


@pytest.mark.usefixtures("engines")
def test_a_name_of_no_kernel_is_a_mistake(kvproof: Kvproof) -> None:
    done = kvproof("kernels", "compare", "--engine", "0.5.15", "--only", "no such kernel")
    assert done.returncode == 2
    assert "no kernel has no such kernel in its name" in done.stderr
