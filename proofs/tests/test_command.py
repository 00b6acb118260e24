"""``kvproof prove``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import z3
from typer.testing import CliRunner

from kvproof.cli.app import app
from kvproof.proofs.catalogue import CATALOGUE
from kvproof.proofs.table import BEGIN, END

run = CliRunner().invoke


def test_json_has_every_obligation() -> None:
    result = run(app, ["prove", "--only", "R5", "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    [theorem] = data["theorems"]
    assert (data["ok"], theorem["identifier"]) == (True, "R5")
    [tight] = [o for o in theorem["obligations"] if o["expected"] == "refuted"]
    assert tight["values"]["S"] == tight["values"]["W"] - 1
    assert tight["confirmations"][0]["broken"]


def test_families() -> None:
    result = run(app, ["prove", "--only", "c", "--json"])
    names = [theorem["identifier"] for theorem in json.loads(result.stdout)["theorems"]]
    assert names == ["C1", "C2", "C3", "C4", "C5"]


def test_an_unknown_theorem_is_a_usage_error() -> None:
    result = run(app, ["prove", "--only", "R99"])
    assert result.exit_code == 2
    assert "there is no theorem R99" in result.stderr


def test_out_of_time_is_a_violation_not_a_proof() -> None:
    result = run(app, ["prove", "--only", "P1", "--timeout", "0.1", "--json"])
    data = json.loads(result.stdout)
    assert result.exit_code == (0 if data["ok"] else 1)


def test_smt2_files_are_queries(tmp_path: Path) -> None:
    assert run(app, ["prove", "--only", "R1", "--smt2", str(tmp_path)]).exit_code == 0
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files[0] == "R1-a-row-lies-in-its-slot.exact.smt2"
    for path in tmp_path.iterdir():
        solver = z3.Solver()
        solver.from_file(str(path))
        assert solver.check() == z3.unsat


def test_mutants_of_one_theorem() -> None:
    result = run(app, ["prove", "--mutants", "--only", "C2", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["mutants"]
    assert found["cap off by one"][0]["theorem"] == "C2"
    assert found["occupancy given twice"] == []


def test_a_table_is_renewed_between_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    assert run(app, ["prove", "--only", "P8", "--table", str(page)]).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "| P8 | Every lease of a slot" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing", encoding="utf-8")
    result = run(app, ["prove", "--only", "P8", "--table", str(page)])
    assert result.exit_code == 2
    assert page.read_text(encoding="utf-8") == "nothing"


@pytest.mark.parametrize("solver", ["z4", ""])
def test_an_unknown_solver_is_a_usage_error(solver: str) -> None:
    assert run(app, ["prove", "--only", "P8", "--solver", solver]).exit_code == 2


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("document", ["README.md", "docs/theorems.md"])
def test_the_table_has_every_theorem(document: str) -> None:
    """The table is made by the command; its statements must not fall behind."""
    text = (ROOT / document).read_text(encoding="utf-8")
    table = text.partition(BEGIN)[2].partition(END)[0]
    for theorem in CATALOGUE:
        assert f"| {theorem.identifier} | {theorem.statement} | {theorem.scope} |" in table


def test_every_theorem_is_explained() -> None:
    text = (ROOT / "docs" / "theorems.md").read_text(encoding="utf-8")
    for theorem in CATALOGUE:
        assert f"\n### {theorem.identifier}: " in text, theorem.identifier
