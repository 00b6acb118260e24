"""Vectors: each rule's cases tell it from its neighbours, and the scenarios say what they show."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.fuzz.corpus import load_corpus
from kvproof.model.monitor import check
from kvproof.triage.vectors import Vectors, make_vectors, rules_of_integers

CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"

RULES = {rule: function for rule, _, function in rules_of_integers()}

WITHOUT_EFFECT = {
    ("VERIFY-1", "draft_tokens"): "no more tokens are accepted than were drafted",
}


@pytest.fixture(scope="module")
def made() -> Vectors:
    return make_vectors(load_corpus(CORPUS))


@pytest.mark.parametrize("rule", RULES)
def test_the_cases_of_a_rule_tell_when_an_argument_is_off_by_one(made: Vectors, rule: str) -> None:
    [vectors] = [each for each in made.rules if each.rule == rule]
    function = RULES[rule]
    for index, argument in enumerate(vectors.arguments):
        differing = 0
        for *inputs, result in vectors.cases:
            assert function(*inputs) == result
            moved = [value + (place == index) for place, value in enumerate(inputs)]
            differing += function(*moved) != result
        assert bool(differing) != ((rule, argument) in WITHOUT_EFFECT), argument


def test_a_stale_decode_is_expected_without_the_cap_and_not_with_it(made: Vectors) -> None:
    [vector] = [each for each in made.scenarios if each.name == "stale-decode"]
    assert "FRESH-DECODE/other-request" in vector.expected["no cap"].breaks
    assert vector.expected["no cap"].reprefill_tail == 0
    cap = vector.expected["cap"]
    assert not any(each.startswith("FRESH-DECODE") for each in cap.breaks)
    assert cap.reprefill_tail == vector.scenario.geometry.window


def test_a_file_of_vectors_holds_what_was_made(made: Vectors) -> None:
    read = msgspec.json.decode(msgspec.json.encode(made), type=Vectors)
    assert [each.name for each in read.scenarios] == [each.name for each in made.scenarios]
    for vector in read.scenarios:
        for expected in vector.expected.values():
            found = sorted("/".join(pair) for pair in check(expected.facts).violations)
            assert tuple(found) == expected.breaks


def test_two_runs_make_the_same_bytes(made: Vectors) -> None:
    again = make_vectors(load_corpus(CORPUS))
    assert msgspec.json.encode(again) == msgspec.json.encode(made)


def test_the_command_writes_the_file_and_says_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "vectors.json"
    done = CliRunner().invoke(app, ["vectors", str(file), "--corpus", str(CORPUS), "--json"])
    assert done.exit_code == 0
    read = msgspec.json.decode(file.read_bytes(), type=Vectors)
    said = msgspec.json.decode(done.stdout)
    assert said["rules"] == {each.rule: len(each.cases) for each in read.rules}
    empty = CliRunner().invoke(app, ["vectors", str(file), "--corpus", str(tmp_path)])
    assert empty.exit_code == 2
