"""``kvproof corpus add LOG``: what no scenario shows is kept as a log, and judged again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from kvproof.cli import app
from kvproof.fuzz.corpus import load_corpus, load_log_case, load_logs, what_breaks
from kvproof.model.facts import Allocated, Ended, Fact, Freed, Gap, Ran, Started, Step, encode_fact
from kvproof.model.monitor import check
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import BadFileError, Geometry
from kvproof.triage.rehearse import as_recorded, busy_run

runner = CliRunner()
pytestmark = pytest.mark.usefixtures("own_cache")

WHY = "What no scenario shows."


def busy() -> list[Fact]:
    """A busy run of the model, as a recorder writes it."""
    geometry = Geometry(window=8, page_size=4, slots=8, pool_tokens=2**11)
    scenario = busy_run(requests=40, geometry=geometry, answer=6)
    facts = reference_player(geometry, Policy(reprefill_tail=0)).play(scenario)
    return [*as_recorded(facts)]


def with_double_free() -> list[Fact]:
    """The same without a ring, and its allocator takes a page back twice in the 31st step."""
    page = ((4, 8),)
    said: list[Fact] = []
    for fact in busy():
        if isinstance(fact, Ran):
            continue
        said.append(replace(fact, ring_stride=None) if isinstance(fact, Started) else fact)
        if isinstance(fact, Step) and fact.index == 10:
            said.append(Allocated(pool="full", locs=page))
        if isinstance(fact, Step) and fact.index == 30:
            said += [Freed(pool="full", locs=page)] * 2
    return said


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Sequence[Fact]], Path]:
    def write(facts: Sequence[Fact]) -> Path:
        path = tmp_path / "log.jsonl"
        path.write_bytes(b"".join(map(encode_fact, facts)))
        return path

    return write


Written = Callable[[Sequence[Fact]], Path]


def add(log: Path, corpus: Path, *more: str) -> Result:
    arguments = ["corpus", "add", str(log), "--name", "one", "--why", WHY, "--corpus", str(corpus)]
    return runner.invoke(app, [*arguments, *more])


def test_a_log_that_no_scenario_shows_is_kept_up_to_where_it_breaks(
    written: Written, tmp_path: Path
) -> None:
    """The double free is in the log alone: `minimise` says so, and the log becomes the case."""
    facts = with_double_free()
    log, corpus = written(facts), tmp_path / "corpus"
    wanted = ("--invariant", "PARTITION", "--out", str(tmp_path / "runs"))
    refused = runner.invoke(app, ["minimise", str(log), "--engine", "model", *wanted])
    assert refused.exit_code == 2
    words = " ".join(refused.stderr.split())
    assert "does not break PARTITION/double-free when played on model" in words
    assert "kvproof corpus add" in words

    done = add(log, corpus)
    assert done.exit_code == 0, done.output
    assert load_corpus(corpus) == ()
    [case] = load_logs(corpus)
    started = facts[0]
    assert isinstance(started, Started)
    broken = what_breaks(case.facts)
    assert case.verdicts.breaks == {started.target: broken}
    assert "PARTITION/double-free" in broken
    assert case.facts[-1] == Ended(steps=31)
    assert [*case.facts[:-1]] == facts[: len(case.facts) - 1]

    listed = runner.invoke(app, ["corpus", "list", "--corpus", str(corpus), "--json"])
    assert [each["name"] for each in json.loads(listed.stdout)] == ["one"]
    assert add(log, corpus).exit_code == 2  # it is there
    assert add(log, corpus, "--replace").exit_code == 0
    assert load_logs(corpus) == (case,)


def test_what_a_log_is_kept_for_can_be_chosen(written: Written, tmp_path: Path) -> None:
    facts = busy()
    log, corpus = written(facts), tmp_path / "corpus"
    violations = check(facts).violations
    ends = {}
    for cause in ("never-written", "other-request"):
        done = add(log, corpus, "--invariant", f"FRESH-PREFILL/{cause}", "--replace")
        assert done.exit_code == 0, done.output
        case = load_log_case(corpus, "one")
        kept = check(case.facts).violations["FRESH-PREFILL", cause]
        assert kept.sentence == violations["FRESH-PREFILL", cause].sentence
        ends[cause] = len(case.facts)
    assert ends["never-written"] != ends["other-request"]
    assert add(log, corpus, "--invariant", "MAP", "--replace").exit_code == 2
    assert add(log, corpus, "--invariant", "MAPS", "--replace").exit_code == 2


def test_logs_that_show_nothing_or_too_much_are_refused(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus, facts = tmp_path / "corpus", with_double_free()
    sound = [fact for fact in facts if not isinstance(fact, Freed)]
    for wrong, cause in (
        (sound, "nothing in the log is wrong"),
        ([sound[0], Gap(reason="the disk did not keep up"), *facts[1:]], "nothing in the log"),
    ):
        done = add(written(wrong), corpus)
        assert done.exit_code == 2
        assert cause in done.stderr
    monkeypatch.setattr("kvproof.cli.corpus.MOST_FACTS", 10)
    done = add(written(facts), corpus)
    assert done.exit_code == 2
    assert "a case has up to 10" in " ".join(done.stderr.split())
    assert not corpus.exists()


@pytest.mark.parametrize("gone", [".log.jsonl", ".log.toml"])
def test_half_a_log_case_is_an_error(written: Written, tmp_path: Path, gone: str) -> None:
    corpus = tmp_path / "corpus"
    assert add(written(with_double_free()), corpus).exit_code == 0
    (corpus / f"one{gone}").unlink()
    with pytest.raises(BadFileError, match=rf"one\{gone}: No such file"):
        load_logs(corpus)


def test_a_log_that_says_something_else_is_noticed(written: Written, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    assert add(written(with_double_free()), corpus).exit_code == 0
    case = load_log_case(corpus, "one")
    [broken] = case.verdicts.breaks.values()
    once = [fact for fact in case.facts if not isinstance(fact, Freed)]
    assert what_breaks(once) != broken
    foreign = [*case.facts[:-3], replace(case.facts[-2], pool="swa"), case.facts[-1]]
    assert what_breaks(foreign) != broken
