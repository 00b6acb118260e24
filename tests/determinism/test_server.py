"""The harness against a real HTTP server that serves a layered run, and one that fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import pytest
from typer.testing import CliRunner, Result

from kvproof.cli import app
from kvproof.determinism.prompts import FILLER
from kvproof.model.layers import Stack
from kvproof.model.reference import Policy

from .served import LayeredModel, Model, Served, Trouble, free_port, serve

SMALL = (
    "--window", "4", "--prefix-len", "16", "--requests", "10", "--churn", "22", "--churn-len", "8",
    "--output-len", "2", "--rounds", "1", "--timeout", "10", "--token-ids", "0:1000",
    *(word for tail in (1, 2, 3, 4, 6, 8) for word in ("--tail", str(tail))),
)  # fmt: skip

UNCAPPED, CAPPED = Policy(reprefill_tail=0), Policy()

Start = Callable[..., Served]
Api = Literal["sglang", "openai"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a server."""
    with ExitStack() as running:

        def start(
            policy: Policy = UNCAPPED, *, api: Api = "sglang", layers: int = 1,
            model: type[Model] = Model, **options: Any,
        ) -> Served:  # fmt: skip
            behind = model(policy, Stack.of(layers=layers))
            return running.enter_context(serve(Served(behind, api, **options)))

        yield start


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["determinism", *map(str, arguments)])


def measured(served: Served, out: Path, *more: object, code: int) -> dict[str, Any]:
    done = run("--url", served.url, *SMALL, "--out", out, "--json", *more)
    assert done.exit_code == code, done.output
    [result] = json.loads(done.stdout)["results"]
    assert isinstance(result, dict)
    return result


def verdicts(result: dict[str, Any]) -> dict[int, str]:
    return {row["tail"]: row["verdict"] for row in result["judgement"]["rows"]}


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_an_uncapped_engine_diverges_below_the_window_alone(
    start: Start, tmp_path: Path, api: Api
) -> None:
    result = measured(start(api=api), tmp_path, code=1)
    assert result["judgement"]["status"] == "violated"
    found = verdicts(result)
    assert {tail for tail, verdict in found.items() if verdict == "exceeds the floor"} == {1, 2, 3}
    assert {found[tail] for tail in (4, 6, 8)} == {"floor"}
    rows = {row["tail"]: row for row in result["judgement"]["rows"]}
    assert rows[0]["kind"] == "cold"
    assert rows[0]["cached"] == [0, 0]
    assert rows[1]["cached"] == [16, 16]
    assert rows[1]["off"] >= 7, "each slot has another past"
    assert result["server"]["api"] == api


@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_a_capped_engine_does_not(start: Start, tmp_path: Path, api: Api) -> None:
    result = measured(start(CAPPED, api=api), tmp_path, code=0)
    assert result["judgement"]["status"] == "holds"
    assert {row["off"] for row in result["judgement"]["rows"]} == {0}


@pytest.mark.parametrize(
    ("policy", "layers", "exceeding"), [(UNCAPPED, 1, {1, 2, 3}), (CAPPED, 2, {4, 6})]
)
@pytest.mark.parametrize("api", ["sglang", "openai"])
def test_the_layered_run_behind_http(
    start: Start, tmp_path: Path, api: Api, policy: Policy, layers: int, exceeding: set[int]
) -> None:
    """The states of a stack of layers are what is served; X3's bound is what diverges."""
    served = start(policy, api=api, layers=layers, model=LayeredModel)
    result = measured(served, tmp_path, "--floor", "cold", code=1)
    assert {t for t, v in verdicts(result).items() if v == "exceeds the floor"} == exceeding
    assert {row["off"] for row in result["judgement"]["rows"] if row["kind"] == "cold"} == {0}


def test_the_cold_control_shows_that_a_floor_is_none(start: Start, tmp_path: Path) -> None:
    """Two layers under the cap: long tails read what is stale, and there is no clean floor."""
    result = measured(start(CAPPED, layers=2), tmp_path, code=2)
    assert result["judgement"]["status"] == "unknown"
    assert verdicts(result)[4] == "exceeds the cold control"
    assert "no floor" in result["judgement"]["says"]
    judged_by_cold = measured(start(CAPPED, layers=2), tmp_path, "--floor", "cold", code=1)
    exceeding = {t for t, v in verdicts(judged_by_cold).items() if v == "exceeds the floor"}
    assert exceeding == {4, 6}, "the theorem's bound is 2 * 3 + 1 = 7"


def test_without_salts_the_cold_control_is_left_out(start: Start, tmp_path: Path) -> None:
    result = measured(start(CAPPED, salts=False), tmp_path, code=0)
    [cold] = [row for row in result["judgement"]["rows"] if row["kind"] == "cold"]
    assert "ignores salts" in cold["why"]


def test_silence_about_reuse_is_no_clean_bill(start: Start, tmp_path: Path) -> None:
    result = measured(start(CAPPED, says_cached=False), tmp_path, code=2)
    assert result["judgement"]["status"] == "unknown"
    assert "does not say" in result["judgement"]["says"]


def test_excess_is_excess_though_the_server_is_silent(start: Start, tmp_path: Path) -> None:
    assert measured(start(says_cached=False), tmp_path, code=1)


def test_a_server_that_reuses_nothing_has_no_verdict(start: Start, tmp_path: Path) -> None:
    served = start(Policy(faults=frozenset({"never reuse"})))
    result = measured(served, tmp_path, code=2)
    assert "reused anything" in result["judgement"]["says"]


def test_the_table_is_that_of_the_pr(start: Start, tmp_path: Path) -> None:
    done = run("--url", start().url, *SMALL, "--out", tmp_path)
    assert done.exit_code == 1
    assert "off majority" in done.stdout
    assert "exceeds the floor" in done.stdout
    assert "Fisher's exact test, one-sided, Holm's correction, alpha 0.01" in done.stdout
    assert re.search(r"round 1, tail 3: [5-9] of 10 off", done.stderr), "progress"


def test_prompts_as_text(start: Start, tmp_path: Path) -> None:
    served = start(takes_ids=False)
    assert measured(served, tmp_path, "--send", "text", code=1)
    assert served.asked["/detokenize"] > 0


def test_the_server_tokenizes_the_text_of_the_pr(start: Start, tmp_path: Path) -> None:
    served = start()
    arguments = [word for word in SMALL if word not in ("--token-ids", "0:1000")]
    done = run("--url", served.url, *arguments, "--out", tmp_path)
    assert done.exit_code == 1, done.output
    assert served.asked["/tokenize"] == 1, "one call is enough for all prompts"
    filler = json.loads((tmp_path / "latest" / "run.json").read_text())["filler"]
    assert filler == served.reply("/tokenize", {"prompt": FILLER})[1]["tokens"]


def test_the_key_is_sent_and_kept_nowhere(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVPROOF_API_KEY", "very-secret")
    served = start()
    measured(served, tmp_path, code=1)
    assert set(served.headers) == {"Bearer very-secret"}
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(b"very-secret" in path.read_bytes() for path in files)


# What goes wrong


def failing(*troubles: Trouble, path: str = "/generate", first: int = 1) -> Any:
    """The first requests to a path, from the given one on, go wrong in these ways."""

    def trouble(asked: str, number: int) -> Trouble | None:
        at = number - first
        return troubles[at] if asked == path and 0 <= at < len(troubles) else None

    return trouble


def always(kind: Trouble) -> Any:
    return lambda path, _number: kind if path == "/generate" else None


def test_failures_that_another_try_mends(start: Start, tmp_path: Path) -> None:
    served = start(trouble=failing("500", "drop"))
    result = measured(served, tmp_path, "--retries", 2, code=1)
    assert {row["failed"] for row in result["judgement"]["rows"]} == {0}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("500", "answers 500: 'CUDA out of memory'"),
        ("hang", "did not answer within 0.5 s"),
        ("drop", "broke off"),
        ("nonsense", "what is no completion"),
        ("no JSON", "what is no JSON"),
        ("400", "answers 400"),
    ],
)
def test_a_server_that_fails_is_told_with_cause_and_fix(
    start: Start, tmp_path: Path, kind: Trouble, cause: str
) -> None:
    served = start(trouble=always(kind))
    # Only what hangs is waited for; the others may be slow.
    timeout = 0.5 if kind == "hang" else 10
    done = run("--url", served.url, *SMALL, "--out", tmp_path, "--timeout", timeout, "--retries", 0)
    assert done.exit_code == 2
    assert cause in done.stderr
    assert "fix:" in done.stderr
    assert "--resume" in done.stderr


def test_nothing_listens(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run("--url", url, *SMALL, "--out", tmp_path, "--retries", 0)
    assert done.exit_code == 2
    assert f"nothing can be reached at {url}" in done.stderr
    assert not list(tmp_path.iterdir()), "no run has begun"


def test_something_else_listens(start: Start, tmp_path: Path) -> None:
    served = start(trouble=lambda _path, _number: "no JSON")
    done = run("--url", served.url, *SMALL, "--out", tmp_path, "--retries", 0)
    assert done.exit_code == 2
    assert "neither /model_info (SGLang) nor /v1/models (OpenAI)" in done.stderr


def test_what_is_done_is_kept_and_the_run_goes_on(start: Start, tmp_path: Path) -> None:
    """The server dies in the third cell; the run is taken up again and asks for no cell twice."""
    per_cell = 1 + 22 + 10
    # The cold control has no warm-up.
    dies = 2 * per_cell - 1
    served = start(trouble=lambda path, n: "500" if path == "/generate" and n > dies else None)
    done = run("--url", served.url, *SMALL, "--out", tmp_path, "--retries", 0)
    assert done.exit_code == 2
    assert "(2 cells are done)" in done.stderr
    folder = tmp_path / "latest"
    assert len((folder / "cells.jsonl").read_text().splitlines()) == 2
    assert json.loads((folder / "result.json").read_text())["status"] == "unknown"
    # A line that was cut off is as good as none.
    with (folder / "cells.jsonl").open("a") as file:
        file.write('{"round":1,"tai')
    served.trouble = lambda _path, _number: None
    served.asked.clear()
    again = run("--resume", folder, "--json", "--timeout", 10)
    assert again.exit_code == 1, again.output
    assert served.asked["/generate"] == 5 * per_cell
    [result] = json.loads(again.stdout)["results"]
    assert result["judgement"]["cells"] == result["judgement"]["planned"] == 7
    assert run("--resume", folder, "--timeout", 10).exit_code == 1, "nothing is left to ask"


def test_the_time_limit_ends_a_run_and_keeps_it(start: Start, tmp_path: Path) -> None:
    served = start()
    done = run("--url", served.url, *SMALL, "--out", tmp_path, "--time-limit", 0.3)
    assert done.exit_code == 2
    assert "time limit of the run is over" in done.stderr
    assert (tmp_path / "latest" / "result.json").exists()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ((), "one of --url, --engine, --policies and --resume is needed"),
        (("--url", "no address"), "no address"),
        (("--url", "URL", "--tail", 1, "--window", 4), "there is no floor"),
        (("--url", "URL", "--tail", 8, "--window", 4), "no tail is shorter"),
        (("--url", "URL", "--prefix-len", 15), "not a whole number of pages"),
        (("--url", "URL", *SMALL, "--tail", 9), "reuse the first page of a tail of 9"),
        (("--url", "URL", *SMALL, "--churn-len", 3), "does not fill a ring"),
        (("--url", "URL", *SMALL, "--tail", 8), "a tail is given twice"),
        (("--url", "URL", *SMALL, "--token-ids", "5:6"), "no range of token ids"),
        (("--url", "URL", *SMALL, "--api", "openai"), "does not answer as a server of the openai"),
        (("--resume", "DIR"), "run.json"),
        (("--resume", "DIR", "--rounds", 2), "--resume takes no --rounds"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(
    start: Start, tmp_path: Path, arguments: tuple[object, ...], cause: str
) -> None:
    words = {"URL": start().url, "DIR": tmp_path / "none"}
    done = run(*(words.get(str(word), word) for word in arguments), "--out", tmp_path)
    assert done.exit_code == 2
    assert cause in done.stderr.replace("\n", " ")
    assert "fix:" in done.stderr
