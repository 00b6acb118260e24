"""``kvproof determinism``: the harness of PR #30339, against a server or in process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import ExitCode, JsonOption, Reporter, plain_table, progress, show
from kvproof.cli.stack import stack_of
from kvproof.determinism import in_process
from kvproof.determinism.harness import check_settings, run_cell
from kvproof.determinism.judge import Floor, Judgement, Row, judge
from kvproof.determinism.plan import COLD, Cell, Settings
from kvproof.determinism.prompts import FILLER, Prompts, random_filler
from kvproof.determinism.record import DEFAULT_ROOT, Record
from kvproof.determinism.server import Api, Described, Server
from kvproof.determinism.tokenizer import LocalTokenizer
from kvproof.fuzz.drivers.wire import Backend, Layering
from kvproof.fuzz.targets import Target, find_targets
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Fact
from kvproof.model.layers import Stack
from kvproof.model.policies import POLICIES, CachePolicy, Sizes
from kvproof.model.reference import reference_player
from kvproof.model.scenario import Scenario

Through: TypeAlias = Literal["kernels", "digests", "rules"]

KEY_VARIABLE = "KVPROOF_API_KEY"
"""Environment variable with the server's key; it is written nowhere."""

CELL_TIMEOUT_S = 300.0
"""Seconds for one cell on one release."""

TOKEN_IDS = (1000, 20000)
"""Ids that every large model's tokenizer has, for servers that do not tokenize."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run against a server, or of one target in process.

    Attributes:
        folder: where its files lie; None in process.
        policy: what the model, or a release by its driver, was made to keep.
    """

    target: str
    settings: Settings
    judgement: Judgement
    layers: int | None = None
    through: Through | None = None
    policy: str | None = None
    server: Described | None = None
    folder: str | None = None


def determinism(
    url: Annotated[
        str | None, typer.Option(help="A running server, e.g. http://127.0.0.1:30001.")
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="In process: a release, e.g. 0.5.15 or 0.5.16:registry; repeatable."),
    ] = None,
    policies: Annotated[
        bool,
        typer.Option(
            "--policies",
            help="In process: under each cache policy, the model or the releases of --engine.",
        ),
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with a run that was cut off.")
    ] = None,
    api: Annotated[
        Api | None, typer.Option(help="Interface of the server. Default: found out.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model's name, where it serves several.")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Local tokenizer.json, or its folder. Default: the server's."),
    ] = None,
    token_ids: Annotated[
        str | None,
        typer.Option(metavar="LOW:HIGH", help="Random token ids instead of text."),
    ] = None,
    send: Annotated[Literal["ids", "text"], typer.Option(help="How prompts are sent.")] = "ids",
    window: Annotated[int | None, typer.Option(min=1, help="The model's sliding window.")] = None,
    tail: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens behind the reused prefix; repeatable.")
    ] = None,
    floor_from: Annotated[
        int | None, typer.Option(min=1, help="Shortest tail of the floor. Default: the window.")
    ] = None,
    floor: Annotated[
        Floor | None,
        typer.Option(help="The floor: long tails (server), or the cold control (in process)."),
    ] = None,
    cold: Annotated[bool, typer.Option(help="Have a cold control.")] = True,
    requests: Annotated[int | None, typer.Option(min=2, help="Identical requests a tail.")] = None,
    churn: Annotated[int | None, typer.Option(min=0, help="Other requests in between.")] = None,
    churn_len: Annotated[int | None, typer.Option(min=1, help="Tokens of each of them.")] = None,
    prefix_len: Annotated[int | None, typer.Option(min=1, help="Tokens that are reused.")] = None,
    output_len: Annotated[int | None, typer.Option(min=1, help="Tokens that are decoded.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Tries of each tail.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the prompts.")] = None,
    page: Annotated[
        int | None, typer.Option(min=1, help="Tokens a page. Default: what the server says.")
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, help="In process: layers. Default: one a ratio."),
    ] = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,...",
            help="In process: tokens of a compressed row in each layer, 0 for none. Default: 0.",
        ),
    ] = None,
    through: Annotated[
        Through,
        typer.Option(
            help="In process: layers on the release's kernels (minutes), or digests along the rows "
            "that its kernels (digests) or the rules (rules) name."
        ),
    ] = "digests",
    concurrency: Annotated[int, typer.Option(min=1, help="Churn requests at once.")] = 32,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 300.0,
    retries: Annotated[int, typer.Option(min=0, help="Further tries of a request.")] = 2,
    time_limit: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds for the whole run.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = DEFAULT_ROOT,
    as_json: JsonOption = False,
) -> None:
    """Ask whether reusing a prefix makes identical requests diverge.

    For each tail: a prompt is sent once, other requests recycle the slots, then the prompt is sent
    many times at temperature 0, and the answers outside the majority are counted. Exit code 0 if no
    tail exceeds the run's own floor, 1 if one does, 2 for a set-up error or no verdict.
    """
    if sum([url is not None, bool(engine) or policies, resume is not None]) != 1:
        raise EngineError(
            "one of --url, --engine, --policies and --resume is needed",
            fix="give --url http://127.0.0.1:30001 for a server, --engine 0.5.15 for a release",
        )
    given = {
        "window": window, "tails": tuple(tail) if tail else None, "floor_from": floor_from,
        "prefix_len": prefix_len, "requests": requests, "churn": churn, "churn_len": churn_len,
        "rounds": rounds, "output_len": output_len, "seed": seed,
    }  # fmt: skip
    changes = {name: value for name, value in given.items() if value is not None}
    if engine or policies:
        settings = _settings(in_process.SMALL, changes, cold=cold)
        results = _in_process(
            settings, engine=engine, policies=policies, page=page or in_process.PAGE_SIZE,
            stack=stack_of(layers, ratios) or Stack(ratios=(0,)), through=through,
            floor=floor or ("cold" if cold else "long"),
        )  # fmt: skip
    else:
        if resume is not None and changes:
            raise EngineError(
                f"a run that goes on keeps its settings; --resume takes no --{min(changes)}",
                fix="leave it out, or begin a new run with --url",
            )
        settings = _settings(Settings(), changes, cold=cold)
        deadline = None if time_limit is None else time.monotonic() + time_limit
        with progress("determinism") as report:
            record = None if resume is None else Record.open(resume)
            local = None if tokenizer is None else LocalTokenizer(tokenizer)
            with Server(
                record.run.target.url if record else url or "",
                api=record.run.target.api if record else api,
                model=record.run.target.model if record else model,
                timeout=timeout, retries=retries, deadline=deadline,
                api_key=os.environ.get(KEY_VARIABLE), as_text=send == "text",
                detokenizer=local.decode if local else None, report=report,
            ) as server:  # fmt: skip
                if record is None:
                    described = server.describe()
                    check_settings(settings, page or described.page_size)
                    filler = _filler(server, local, token_ids, settings.seed, report)
                    record = Record.create(out, settings=settings, filler=filler, target=described)
                report(f"run folder {record.path}")
                results = [_against(server, record, concurrency, floor or "long", report)]
    good = all(result.judgement.status == "holds" for result in results)
    show(_report(results), {"ok": good, "results": results}, as_json=as_json)
    if any(result.judgement.status == "violated" for result in results):
        raise typer.Exit(ExitCode.VIOLATION)
    if not good:
        raise typer.Exit(ExitCode.SETUP)


def _settings(base: Settings, changes: Mapping[str, object], *, cold: bool) -> Settings:
    settings = msgspec.structs.replace(base, **changes, cold=cold)
    if len(set(settings.tails)) < len(settings.tails):
        raise EngineError("a tail is given twice", fix="give each --tail once")
    return settings


def _filler(
    server: Server, local: LocalTokenizer | None, ids: str | None, seed: int, report: Reporter
) -> tuple[int, ...]:
    if ids is not None:
        return tuple(random_filler(*_id_range(ids), seed))
    tokens = local.encode(FILLER) if local else server.tokenize(FILLER)
    if tokens:
        return tuple(tokens)
    report(f"the server does not tokenize: prompts are random ids of {TOKEN_IDS}")
    return tuple(random_filler(*TOKEN_IDS, seed))


def _id_range(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    if not (colon and low.isdecimal() and high.isdecimal() and int(high) - int(low) >= 16):
        raise EngineError(
            f"{text!r} is no range of token ids", fix="give one of 16 ids or more, like 1000:20000"
        )
    return int(low), int(high)


def _against(
    server: Server, record: Record, concurrency: int, floor: Floor, report: Reporter
) -> Result:
    settings = record.run.settings
    prompts = Prompts(settings=settings, filler=record.run.filler)
    cells = record.cells()
    done = {(cell.round, cell.tail) for cell in cells}
    try:
        for number, tail in settings.cells():
            if (number, tail) in done:
                continue
            cell = run_cell(
                server, prompts, round_number=number, tail=tail, at_once=concurrency, report=report
            )
            record.done(cell)
            cells.append(cell)
            report(f"round {number}, {_name(tail)}: {cell.off_majority} of {cell.answered} off")
    except EngineError as error:
        raise EngineError(
            f"{error.cause} ({len(cells)} cells are done)",
            fix=f"{error.fix}; go on with: kvproof determinism --resume {record.path}",
        ) from error
    finally:
        judgement = judge(settings, cells, floor=floor)
        record.judged(judgement)
    return Result(
        target=record.run.target.url, settings=settings, judgement=judgement,
        server=record.run.target, folder=str(record.path),
    )  # fmt: skip


def _in_process(
    settings: Settings, *, engine: list[str] | None, policies: bool, page: int, stack: Stack,
    through: Through, floor: Floor,
) -> list[Result]:  # fmt: skip
    check_settings(settings, page)
    if (ratio := stack.misfit(page)) is not None:
        raise EngineError(
            f"pages of {page} tokens do not hold whole rows of {ratio}",
            fix="give --ratios that divide --page",
        )
    if engine and policies and through == "digests":
        raise EngineError(
            "a policy changes what a prefill reads, which digests of a release's log do not see",
            fix="give --through kernels, or --through rules for the rules behind its caches",
        )
    with progress("determinism") as report:
        if engine:
            return [
                _of_release(target, policy, settings, stack, page, through, floor, report)
                for target in find_targets(engine, EngineStore())
                if target.has_ring or not policies
                for policy in (POLICIES if policies else [None])
            ]
        return [_of_policy(policy, settings, stack, page, floor, report) for policy in POLICIES]


def _of_release(
    target: Target, policy: CachePolicy | None, settings: Settings, stack: Stack, page: int,
    through: Through, floor: Floor, report: Reporter,
) -> Result:  # fmt: skip
    """A release as it is, or with its match and its prefill as a policy has them."""
    layering = None
    if policy or through == "kernels":
        layering = Layering(
            ratios=stack.ratios,
            reading=policy.reading if policy else "cap",
            compared=in_process.IDENTICAL,
        )
    held_back = policy.held_back(stack.layers, settings.window) if policy else None
    backend: Backend = "rules" if through == "rules" else "interpreter"
    name = f"{target.name}, {policy.name}: " if policy else f"{target.name} "
    with target.process(layering=layering, held_back=held_back) as process:

        def play(scenario: Scenario) -> Iterable[Fact]:
            return process.play(scenario, timeout=CELL_TIMEOUT_S, backend=backend)

        judgement = _played(play, settings, stack, page, floor, name, report)
    return Result(
        target=target.name, policy=policy.name if policy else None, settings=settings,
        judgement=judgement, layers=stack.layers, through=through,
    )  # fmt: skip


def _of_policy(
    policy: CachePolicy, settings: Settings, stack: Stack, page: int, floor: Floor,
    report: Reporter,
) -> Result:  # fmt: skip
    sizes = Sizes(window=settings.window, page_size=page, layers=stack.layers)
    kept, stack = policy.reference(sizes), replace(stack, reading=policy.reading)

    def play(scenario: Scenario) -> Iterable[Fact]:
        return reference_player(scenario.geometry, kept).play(scenario)

    judgement = _played(play, settings, stack, page, floor, f"model, {policy.name}: ", report)
    return Result(
        target="model", policy=policy.name, settings=settings, judgement=judgement,
        layers=stack.layers, through="rules",
    )  # fmt: skip


def _played(
    play: in_process.Play, settings: Settings, stack: Stack, page: int, floor: Floor, name: str,
    report: Reporter,
) -> Judgement:  # fmt: skip
    cells: list[Cell] = []
    for number, tail in settings.cells():
        report(f"{name}round {number}, {_name(tail)}")
        cells.append(
            in_process.run_cell(
                play, settings, stack, round_number=number, tail=tail, page_size=page
            )
        )
    return judge(settings, cells, floor=floor)


def _name(tail: int) -> str:
    return "cold control" if tail == COLD else f"tail {tail}"


_STYLES = {"holds": "green", "violated": "bold red", "unknown": "yellow"}


def _report(results: Sequence[Result]) -> RenderableType:
    parts: list[RenderableType] = []
    for result in results:
        judgement, settings = result.judgement, result.settings
        title = result.target + (f", {result.policy}" if result.policy else "")
        if result.layers:
            title += f", {result.layers} layer{'s' if result.layers > 1 else ''}"
        parts.append(
            Text(f"{title}: window {settings.window}, {settings.requests} requests a cell")
        )
        table = plain_table("tail", "", "off majority", "distinct", "reused", "p", "")
        for row in judgement.rows:
            table.add_row(*_cells(row, settings))
        parts.append(table)
        parts.append(Text(f"{judgement.status}: {judgement.says}", style=_STYLES[judgement.status]))
        parts.append(Text(_statistics(judgement) + "\n", style="dim"))
        if result.folder:
            parts.append(Text(f"files: {result.folder}"))
    return Group(*parts)


def _cells(row: Row, settings: Settings) -> tuple[str, ...]:
    zone = {"cold": "nothing reused", "short": "< window", "long": ">= window"}[row.kind]
    if settings.floor_from is not None and row.kind != "cold":
        zone = "short" if row.kind == "short" else "long"
    reused = "?" if row.cached is None else "-".join(map(str, dict.fromkeys(row.cached)))
    return (
        "cold" if row.kind == "cold" else str(row.tail),
        zone,
        " / ".join(map(str, row.off_by_round)) or "-",
        str(row.distinct),
        reused,
        "" if row.p_adjusted is None else f"{row.p_adjusted:.2g}",
        row.verdict + (f": {row.why}" if row.why else ""),
    )


def _statistics(judgement: Judgement) -> str:
    rows = "cold control" if judgement.floor == "cold" else "tails of a window or more"
    text = (
        f"Floor ({rows}): {judgement.floor_off} of {judgement.floor_answered} off. Fisher's exact "
        f"test, one-sided, Holm's correction, alpha {judgement.alpha:g}."
    )
    if judgement.least_excess is not None:
        text += f" A row needs {judgement.least_excess} off to be told from the floor for certain."
    return text
