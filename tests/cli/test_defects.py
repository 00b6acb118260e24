"""``kvproof defects``: the list, a run of what needs no engine, and a document renewed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli.app import app
from kvproof.cli.defects import BEGIN, END
from kvproof.triage.known_defects import load_defects

CHEAP = ("repeated-prompt", "graph-tail-kept", "prefix-of-one-page")
"""A mutant of either reference engine, and one that is out of reach."""


def defects(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["defects", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


def test_the_list_names_every_report() -> None:
    code, out, _ = defects("--json")
    assert code == 0
    assert [entry["name"] for entry in json.loads(out)] == [d.name for d in load_defects()]


def test_a_report_is_found_by_its_number() -> None:
    code, out, _ = defects("--only", "#30339", "--json")
    assert code == 0
    [entry] = json.loads(out)
    assert entry["name"] == "uncapped-match"


def test_a_name_that_nothing_has_is_a_set_up_error() -> None:
    code, _, err = defects("--only", "nonsense")
    assert code == 2
    assert "no known defect is called nonsense" in err


def test_a_table_needs_a_run(tmp_path: Path) -> None:
    code, _, err = defects("--table", tmp_path / "x.md")
    assert code == 2
    assert "--run" in err


@pytest.mark.usefixtures("own_cache")
def test_a_run_finds_them_and_renews_a_document(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    chosen = [argument for name in CHEAP for argument in ("--only", name)]
    code, out, _ = defects(*chosen, "--run", "--json", "--table", document)
    assert code == 0
    report = json.loads(out)
    states = {r["defect"]["name"]: r["outcomes"][0]["state"] for r in report["defects"]}
    assert states == dict.fromkeys(CHEAP[:2], "found") | {CHEAP[2]: "out of reach"}
    assert (report["on_releases"], report["broken"], report["not_run"]) == ([], [], [])
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| ATOM #1417, ATOM #1423, ATOM #1573 |" in text
    assert "mutant" in text


def test_what_is_not_installed_is_not_called_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPROOF_CACHE", str(tmp_path))
    code, out, _ = defects("--only", "uncapped-match", "--run", "--json")
    assert code == 0
    report = json.loads(out)
    assert {o["state"] for r in report["defects"] for o in r["outcomes"]} == {"not run"}
    assert report["on_releases"] == []
    assert report["not_run"] == ["uncapped-match"]


def test_a_document_without_markers_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("nothing\n")
    code, _, err = defects("--only", CHEAP[2], "--run", "--table", document)
    assert code == 2
    assert "lacks the lines" in err
