"""``kvproof explain`` and ``kvproof export`` as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli import explain as explain_module
from kvproof.model.facts import EngineError, Fact, Started, encode_fact
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    Decode,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
    encode_scenario,
)
from kvproof.triage.subjects import Subject

from .conftest import Kvproof

STALE = Scenario(
    geometry=Geometry(window=5, page_size=4, slots=1, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 7),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 4), Piece("B", 5))), Prefill(request="B"), Decode(),
    ),
)  # fmt: skip


def call(*arguments: object) -> Any:
    return CliRunner().invoke(app, [*map(str, arguments)])


def played(scenario: Scenario, policy: Policy | None = None) -> list[Fact]:
    return list(reference_player(scenario.geometry, policy).play(scenario))


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "stale.json"
    file.write_bytes(encode_scenario(STALE))
    return file


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "stale.jsonl"
    facts = played(STALE, Policy(reprefill_tail=0))
    file.write_bytes(b"".join(map(encode_fact, facts)))
    return file


@pytest.fixture
def as_if_uncapped(monkeypatch: pytest.MonkeyPatch, engines: None) -> None:  # noqa: ARG001
    """The engines are not started: 0.5.15 plays as the reference engine without a cap."""

    def play_on(
        subject: Subject, scenario: Scenario, *, report: Callable[[str], None]
    ) -> list[Fact]:
        report(subject.name)
        is_uncapped = subject.name == "sglang-0.5.15:registry"
        started, *facts = played(scenario, Policy(reprefill_tail=0) if is_uncapped else None)
        assert isinstance(started, Started)
        return [replace(started, classes={"tree": "SWARadixCache"}), *facts]

    monkeypatch.setattr(explain_module, "play_on", play_on)


# explain


def test_a_log_is_told_and_drawn(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call("explain", log, "--html", page)
    assert result.exit_code == 1, result.output
    assert "FRESH-DECODE is broken on model" in result.output
    assert "How it came to that" in result.output
    assert str(page) in result.output
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_log_as_json(log: Path) -> None:
    result = call("explain", log, "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert told["violations"][0]["invariant"] == "FRESH-DECODE"
    assert told["shown"] == [0, 1, 2, 3, 4, 5]
    assert told["steps"] == 6
    assert told["story"].startswith("FRESH-DECODE is broken")
    assert told["html"] is None


def test_a_scenario_that_holds_on_the_model(scenario: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call("explain", scenario, "--engine", "model", "--html", page)
    assert result.exit_code == 0, result.output
    assert "holds" in result.output
    assert "unknown" in result.output
    assert "No invariant is broken" in page.read_text()


def test_a_scenario_on_the_release_where_it_breaks(
    engines: None,  # noqa: ARG001  # asked for what it checks
    kvproof: Kvproof,
    scenario: Path,
) -> None:
    done = kvproof("explain", scenario, "--engine", "0.5.15")
    assert done.returncode == 1, done.stderr
    assert "FRESH-DECODE is broken on sglang-0.5.15:registry (backend interpreter)" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_log_says_itself_what_it_was_made_on(log: Path) -> None:
    result = call("explain", log, "--engine", "model")
    assert result.exit_code == 2
    assert "is a log" in result.output


def test_an_engine_that_failed_is_no_success(tmp_path: Path) -> None:
    facts = [*played(STALE)[:5], EngineError(cause="died", message="exit code 3")]
    file = tmp_path / "died.jsonl"
    file.write_bytes(b"".join(map(encode_fact, facts)))
    result = call("explain", file)
    assert result.exit_code == 1
    assert "exit code 3" in result.output


@pytest.mark.parametrize("command", [["explain"], ["export", "--as", "pytest"]])
@pytest.mark.parametrize(
    "content", [b"", b"\x00\xff", b"{", b'{"fact": "started"}\n', b"[" * 10_000, b'{"fact": 3}']
)
def test_a_broken_file_is_refused(command: list[str], content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken"
    file.write_bytes(content)
    result = call(*command, file)
    assert result.exit_code == 2
    assert "error:" in result.output
    assert "Traceback" not in result.output


def test_a_cut_off_log_in_which_nothing_broke_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    file.write_bytes(b"".join(map(encode_fact, played(STALE)[:-1])))
    result = call("explain", file)
    assert result.exit_code == 2
    assert "cut off" in result.output


def test_a_page_that_cannot_be_written(log: Path, tmp_path: Path) -> None:
    result = call("explain", log, "--html", tmp_path / "no" / "such" / "page.html")
    assert result.exit_code == 2
    assert "--html" in result.output


# export


@pytest.mark.usefixtures("as_if_uncapped")
class TestExport:
    def test_a_test_of_the_release_goes_to_a_folder(self, scenario: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        result = call("export", scenario, "--as", "sglang-test", "--out", out, "--json")
        assert result.exit_code == 0, result.output
        exported = json.loads(result.output[result.output.index("{") :])
        assert exported["seen_on"] == "sglang-0.5.15:registry"
        assert sorted(path.name for path in out.iterdir()) == [
            "import_stubs.py", "test_fresh_decode_other_request.py",
        ]  # fmt: skip
        assert (
            "class TestFreshDecode(CustomTestCase)"
            in (out / "test_fresh_decode_other_request.py").read_text()
        )

    def test_a_test_for_another_release(self, scenario: Path) -> None:
        result = call("export", scenario, "--as", "sglang-test", "--engine", "0.5.23")
        assert result.exit_code == 0, result.output
        assert "Made by kvproof for SGLang 0.5.23 (registry)" in result.output
        assert "On sglang-0.5.15:registry, in step 6" in result.output

    def test_a_log_is_exported_by_its_operations(self, log: Path) -> None:
        result = call("export", log, "--as", "pytest")
        assert result.exit_code == 0, result.output
        assert "def test_fresh_decode_other_request(" in result.output
        assert '"sglang-0.5.23:registry": False' in result.output

    def test_a_patch_is_printed_as_it_is(self, scenario: Path) -> None:
        root = Path(__file__).parents[2]
        result = call("export", scenario, "--as", "patch", "--repository", root)
        assert result.exit_code == 0, result.output
        assert "--- a/fuzz/tests/test_examples.py\n" in result.output
        assert '+            Submit(request="A", prompt=(Piece("A", 7),)),\n' in result.output

    def test_text_is_a_scenario_again(self, log: Path, tmp_path: Path) -> None:
        result = call("export", log, "--as", "text", "--out", tmp_path / "out")
        assert result.exit_code == 0, result.output
        again = call("explain", tmp_path / "out" / "stale.txt", "--engine", "model")
        assert again.exit_code == 0, again.output

    def test_what_breaks_nowhere(self, scenario: Path) -> None:
        result = call("export", scenario, "--as", "pytest", "--invariant", "USEFUL")
        assert result.exit_code == 2
        assert "USEFUL does not break on" in result.output

    def test_an_unknown_invariant(self, scenario: Path) -> None:
        result = call("export", scenario, "--as", "pytest", "--invariant", "FRESH")
        assert result.exit_code == 2
        assert "FRESH-DECODE" in result.output

    def test_too_many_operations(self, tmp_path: Path) -> None:
        file = tmp_path / "long.json"
        file.write_bytes(
            encode_scenario(Scenario(geometry=STALE.geometry, operations=(Decode(),) * 201))
        )
        result = call("export", file, "--as", "pytest")
        assert result.exit_code == 2
        assert "too many" in result.output
