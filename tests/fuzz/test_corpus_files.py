"""Cases of the corpus as files, and the manifest and page of a run folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kvproof.cli import app
from kvproof.cli.fuzz import Report
from kvproof.fuzz.campaign import Finding, result_of
from kvproof.fuzz.corpus import (
    ENGINE_ERROR,
    Case,
    Verdicts,
    decode_verdicts,
    encode_verdicts,
    load_case,
    load_corpus,
    what_breaks,
    write_case,
)
from kvproof.fuzz.index_page import index_page
from kvproof.fuzz.manifest import Manifest, decode_manifest, load_manifest, manifest_of
from kvproof.fuzz.matrix import VARIANTS_BEGIN, VARIANTS_END
from kvproof.fuzz.profiles import PROFILES, Profile
from kvproof.fuzz.run_folder import RunFolder
from kvproof.fuzz.strategies import Sizes
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.model.facts import EngineError, Fact
from kvproof.model.files import load_scenario
from kvproof.model.monitor import check
from kvproof.model.redact import Redactor
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    BadFileError,
    Decode,
    Finish,
    Geometry,
    Piece,
    Prefill,
    Scenario,
    Submit,
)

from .conftest import UNCAPPED, FakeProcess, campaign, fake_target

runner = CliRunner()

SCENARIO = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=8), operations=(Decode(),)
)
VERDICTS = Verdicts(
    why='A "quoted" reason.', kernels=False, breaks={"a:b": ("USEFUL/no-reuse",), "c:d": ()}
)


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    case = Case(name="one", scenario=SCENARIO, verdicts=VERDICTS)
    write_case(tmp_path / "corpus", case)
    assert load_corpus(tmp_path / "corpus") == (case,)
    assert decode_verdicts(encode_verdicts(VERDICTS)) == VERDICTS


def test_a_case_that_breaks_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="breaks nothing"):
        Verdicts(why="", kernels=True, breaks={"a:b": ()})
    with pytest.raises(BadFileError, match="breaks nothing"):
        decode_verdicts(b'why = ""\nkernels = true\n[breaks]\n"a:b" = []\n')


@pytest.mark.parametrize("gone", [".scenario", ".toml"])
def test_half_a_case_is_an_error(tmp_path: Path, gone: str) -> None:
    write_case(tmp_path, Case(name="one", scenario=SCENARIO, verdicts=VERDICTS))
    (tmp_path / f"one{gone}").unlink()
    with pytest.raises(BadFileError, match=rf"one\{gone}: No such file"):
        load_corpus(tmp_path)


def test_what_breaks_names_violations_and_engine_errors() -> None:
    log = [*reference_player(SCENARIO.geometry, Policy(reprefill_tail=0)).play(SCENARIO)]
    assert what_breaks(log) == ()
    assert what_breaks([*log[:-1], EngineError(cause="died", message="")]) == (ENGINE_ERROR,)


def test_the_command_lists_and_refuses_names(tmp_path: Path) -> None:
    write_case(tmp_path, Case(name="one", scenario=SCENARIO, verdicts=VERDICTS))
    listed = runner.invoke(app, ["corpus", "list", "--corpus", str(tmp_path), "--json"])
    assert [case["name"] for case in json.loads(listed.stdout)] == ["one"]
    file = str(tmp_path / "one.scenario")
    for name, cause in (("../up", "no name of a case"), ("one", "has a case one")):
        done = runner.invoke(
            app,
            ["corpus", "add", file, "--name", name, "--why", "W.", "--corpus", str(tmp_path)],
        )
        assert done.exit_code == 2
        assert cause in done.stderr
    assert load_case(tmp_path, "one").verdicts == VERDICTS


# Run folders


def manifest(
    command: list[str],
    environment: dict[str, str],
    *,
    sizes: Sizes | None = None,
    construction: str = "registry",
) -> Manifest:
    engine = Engine(
        name="sglang-9", version="9", source="pypi", root=Path("/nowhere"), deps=Path("/nowhere"),
        sha256="ab" * 32,
    )  # fmt: skip
    return manifest_of(
        [Target(engine=engine, construction=construction, sizes=sizes or Sizes())],
        profile=PROFILES["smoke"], seed=7, time_limit=None, redacted=False, store=EngineStore(),
        command=command, environment=environment,
    )  # fmt: skip


def test_the_manifest_holds_what_repeats_the_run_and_no_secret(tmp_path: Path) -> None:
    home = str(Path.home())
    made = manifest(
        [f"{home}/bin/kvproof", "fuzz", "--seed", "random", "--out", f"{home}/runs"],
        {"PYTHONHASHSEED": "0", "HF_TOKEN": "hf_secret", "HOME": home},
    )
    assert made.command == ("kvproof", "fuzz", "--seed", "7", "--out", "~/runs")
    assert made.environment == {"PYTHONHASHSEED": "0"}
    folder = RunFolder.create(tmp_path)
    folder.begun(made)
    data = (folder.path / "run.json").read_bytes()
    assert b"secret" not in data
    assert load_manifest(folder.path) == made == decode_manifest(data)
    assert len(made.sources) == len(made.requirements) == 64
    assert made.engines[0].sha256 == "ab" * 32


def test_the_manifest_holds_the_sizes_of_each_target() -> None:
    sizes = Sizes(draft_tokens=(1, 3), page_holds_window=True)
    made = manifest([], {}, sizes=sizes)
    assert made.drawn_from == {"sglang-9:registry": sizes}
    assert decode_manifest(msgspec.json.encode(made)) == made
    forwards = manifest([], {}, construction="triton")
    assert forwards.drawn_from == {}


def test_the_manifest_of_an_older_version_is_read() -> None:
    """Sizes and bounds that it could not say have the value that was always taken then."""
    sizes = Sizes(windows=(4,))
    made = manifest([], {}, sizes=sizes)
    older = msgspec.to_builtins(made)
    for name in ("overlaps", "no_overlap", "draft_tokens", "swa_shares"):
        del older["drawn_from"]["sglang-9:registry"][name]
    assert decode_manifest(json.dumps(older).encode()) == made
    oldest = {**older, "sizes": msgspec.to_builtins(Sizes())}
    del oldest["drawn_from"]
    del oldest["profile"]["swarm"]
    read = decode_manifest(json.dumps(oldest).encode())
    assert (read.drawn_from, read.sizes) == ({}, Sizes())
    assert read.profile == dataclasses.replace(made.profile, swarm=False)
    assert read.unknown is msgspec.UNSET


def test_the_manifest_of_a_newer_version_is_read_and_says_what_is_left_out(tmp_path: Path) -> None:
    made = manifest([], {})
    newer = msgspec.to_builtins(made)
    newer["colour"] = 1
    newer["profile"]["x/y"] = None
    newer["drawn_from"]["sglang-9:registry"]["depths"] = [1, 2]
    newer["engines"][0]["licence"] = ""
    left_out = (
        "/profile/x~1y", "/drawn_from/sglang-9:registry/depths", "/engines/0/licence", "/colour",
    )  # fmt: skip
    data = json.dumps(newer).encode()
    read = decode_manifest(data)
    assert isinstance(read.unknown, tuple)
    assert sorted(read.unknown) == sorted(left_out)
    assert msgspec.structs.replace(read, unknown=msgspec.UNSET) == made
    assert decode_manifest(msgspec.json.encode(read)) == read
    (RunFolder.create(tmp_path).path / "run.json").write_bytes(data)
    listed = runner.invoke(app, ["runs", "--out", str(tmp_path)])
    assert listed.exit_code == 0, listed.output
    assert "/engines/0/licence" in "".join(listed.stdout.split("\n"))


def test_a_manifest_that_says_something_else_is_refused() -> None:
    whole = msgspec.to_builtins(manifest([], {}))
    lacking = {name: value for name, value in whole.items() if name != "seed"}
    for changed in (lacking, {**whole, "seed": "7"}, {**whole, "profile": {"swarm": True}}):
        with pytest.raises(BadFileError, match="not a manifest of a run"):
            decode_manifest(json.dumps(changed).encode())


STALE = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 5),)), Prefill(request="A"), Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 2), Piece("B", 3))), Prefill(request="B"), Decode(),
    ),
)  # fmt: skip


def finding() -> tuple[Finding, list[Fact]]:
    """A stale decode on the reference engine, and its log."""
    log = [*reference_player(STALE.geometry, UNCAPPED).play(STALE)]
    violation = check(log).worst()
    assert violation is not None
    made = Finding(
        violation=violation, scenario=STALE, occurrences=1, found_after=1, find_seconds=0.0,
        shrink_seconds=0.0, confirmed=True, deterministic=True,
    )  # fmt: skip
    return made, log


def target() -> Target:
    engine = Engine(
        name="fake", version="1", source="path", root=Path("/nowhere"), deps=Path("/nowhere")
    )
    return Target(engine=engine, construction="registry")


def test_the_page_names_every_file_and_verdict(tmp_path: Path) -> None:
    result = campaign(FakeProcess(), profile=Profile(sequences=1)).run()
    folder = RunFolder.create(tmp_path)
    folder.found(target(), *finding())
    made = manifest(["kvproof", "fuzz", "--seed", "7"], {})
    folder.index(made, (result,))
    page = (folder.path / "README.md").read_text()
    assert page == index_page(folder.path, made, (result,))
    assert "kvproof fuzz --seed 7" in page
    names = [f"fake-registry/FRESH-DECODE-other-request{suffix}" for suffix in
             (".scenario.json", ".log.jsonl", ".txt")]  # fmt: skip
    assert all(f"]({name})" in page for name in names)
    [row] = [line for line in page.splitlines() if line.startswith("| fake:registry |")]
    for verdict in result.verdicts:
        assert f" {verdict.status} |" in row


def test_a_redacted_run_has_the_same_findings_under_other_names(tmp_path: Path) -> None:
    plain = RunFolder.create(tmp_path)
    hidden = RunFolder.create(tmp_path, redactor=Redactor(b"key"))
    found, log = finding()
    for folder in (plain, hidden):
        folder.seen(target(), ("FRESH-PREFILL", "never-written"), STALE)
        folder.found(target(), found, log)
    names = {path.name for path in (plain.path / "fake-registry").iterdir()}
    assert len(names) == 4
    for path in (hidden.path / "fake-registry").iterdir():
        names.remove(path.name)
        known = (plain.path / "fake-registry" / path.name).read_text()
        text = path.read_text()
        assert "request B" in known or '"B"' in known
        assert "request B" not in text
        assert '"B"' not in text
        if path.suffix == ".json":
            assert load_scenario(path) == Redactor(b"key").scenario(STALE)
        if path.suffix == ".txt":
            assert text.splitlines()[0] == known.splitlines()[0]
    assert not names
    kept = hidden.redacted(found, log)
    assert (kept.violation.step, kept.violation.cause) == (found.violation.step, "other-request")
    assert "request B" not in msgspec.json.encode(kept).decode()
    unconfirmed = hidden.redacted(found, log[:3])
    assert unconfirmed.violation.sentence == "redacted"


def test_runs_are_listed_finished_or_not(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    folder.begun(manifest(["kvproof", "fuzz"], {}))
    (tmp_path / "notes").mkdir()
    done = runner.invoke(app, ["runs", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "0 of 1 targets done" in done.stdout
    (folder.path / "result.json").write_text("{}")
    done = runner.invoke(app, ["runs", "--out", str(tmp_path)])
    assert done.exit_code == 2
    assert "not a result of a run" in done.stderr


def test_runs_of_several_folders_renew_one_table(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    result = campaign(FakeProcess(), profile=Profile(sequences=2)).survey()
    for release in ("1", "2"):
        survey = dataclasses.replace(result, versions={"sglang": release})
        target = dataclasses.replace(fake_target(), construction="chunk")
        folder = RunFolder.create(tmp_path / release)
        folder.begun(manifest(["kvproof", "fuzz"], {}))
        folder.result(
            Report(
                seed=1, profile="smoke", folder="", comparisons=(), vacuous=(), as_expected=True,
                targets=(result_of(survey, (), target=target, seed=1),),
            )
        )  # fmt: skip
    asked = ["runs", *(f"--out={tmp_path / release}" for release in ("1", "2"))]
    done = runner.invoke(app, [*asked, "--table", str(document)])
    assert done.exit_code == 2, "there is no document yet"
    document.write_text(f"before\n{VARIANTS_BEGIN}\n{VARIANTS_END}\nafter\n")
    done = runner.invoke(app, [*asked, "--table", str(document)])
    assert done.exit_code == 0, done.output
    assert "| chunk | 1, 2 | 2 |" in document.read_text()
    assert "Made with the profiles smoke with seed 1." in document.read_text()
