"""The saved sweep of `kvproof layers`: the document's table is of it, and all is as proved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.fuzz.sweep import BEGIN, END, Point, load, markdown, save
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.scenario import BadFileError
from kvproof.spec.exact import exact_logits_tail

DOCS = Path(__file__).parents[2] / "docs"
SAVED = DOCS / "exactness-sweep.jsonl"


@pytest.fixture(scope="module")
def measured() -> list[Point]:
    return load(SAVED)


def test_the_documents_table_is_of_the_saved_sweep(measured: list[Point]) -> None:
    text = (DOCS / "exactness.md").read_text()
    assert f"{BEGIN}\n{markdown(measured)}\n{END}" in text


def test_each_point_is_the_theorems_and_none_below_it_passes(measured: list[Point]) -> None:
    assert all(point.as_expected for point in measured)
    plain = [point for point in measured if not any(point.ratios)]
    for point in plain:
        assert point.exact_from == exact_logits_tail(len(point.ratios), point.window)
        assert point.exact_below == ()
        assert point.longest > point.bound
    # L = 8 with windows above 2 on every release's kernels, and all depths in several sizes.
    deep = {(point.target, point.window) for point in plain if point.backend == "interpreter" and
            len(point.ratios) == 8}  # fmt: skip
    assert {release for release, window in deep if window > 2} == {
        f"sglang-{release}:registry" for release in ("0.5.15", "0.5.16", "0.5.23")
    }
    assert {(len(point.ratios), point.window, point.page_size) for point in plain} >= {
        (depth, *size) for depth in (1, 2, 4, 8) for size in ((2, 1), (3, 1), (3, 2), (4, 4))
    }


def test_what_is_saved_is_told_and_not_measured_again(
    measured: list[Point], tmp_path: Path
) -> None:
    if not {"0.5.15", "0.5.16", "0.5.23"} <= {e.version for e in EngineStore().list()}:
        pytest.skip("the releases of the saved sweep are not installed")
    saved, document = tmp_path / "sweep.jsonl", tmp_path / "table.md"
    for point in measured:
        save(saved, point)
    document.write_text(f"{BEGIN}\n{END}\n")
    arguments = ["layers", "--backend", "rules", "--layers", "1,8", "--size", "3,2"]
    for engine in ("0.5.15:registry", "0.5.23:registry"):
        arguments += ["--engine", engine]
    done = CliRunner().invoke(
        app, [*arguments, "--save", str(saved), "--table", str(document), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["points"]) == len(measured)
    assert saved.read_bytes() == SAVED.read_bytes()
    assert markdown(measured) in document.read_text()


def test_what_is_no_saved_sweep_is_told(tmp_path: Path) -> None:
    assert load(tmp_path / "none.jsonl") == []
    (tmp_path / "other.jsonl").write_text("{}\n")
    with pytest.raises(BadFileError, match="not a saved sweep"):
        load(tmp_path / "other.jsonl")
