"""``kvproof policy``: what an engine may do about a reused prefix, and what each choice costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from kvproof.cli.output import JsonOption, plain_table, show
from kvproof.cli.stack import parse_ratios
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.policies import POLICIES, CachePolicy, Hit, Sizes
from kvproof.proofs.policies import ASKED, Asked, Small, Verdict, judged, small_of
from kvproof.spec.exact import exact_decode_tail, exact_logits_tail
from kvproof.spec.ring import ring_stride

PROMPTS = (2112, 8256, 32832, 131136)
"""Prompts without --prompt-len: a question of 64 tokens behind 2k, 8k, 32k and 128k cached ones."""

QUESTION = 64
"""Tokens of a prompt that are not cached, without --shared."""


class HitCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one request computes under a policy, in tokens; ``kept`` is a share of its match."""

    prompt_len: int
    shared: int
    uncapped: int
    matched: int
    recomputed: int
    kept: float


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True):
    """One policy.

    Attributes:
        held_back: tokens of a prompt that are always computed.
        replayed: tokens of the match that are computed again.
        least, most: tokens that a hit computes whose prompt is cached to its end.
    """

    name: str
    in_words: str
    held_back: int
    replayed: int
    least: int
    most: int
    verdicts: dict[Asked, Verdict]
    hits: tuple[HitCost, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the command.

    Attributes:
        ring_rows: rows per slot.
        exact_tail: shortest tail that makes the logits of a stack without compressed rows exact.
        judged_on: the small model on whose runs the verdicts stand.
    """

    sizes: Sizes
    draft_tokens: int
    ratios: tuple[int, ...]
    ring_rows: int
    exact_tail: int
    decode_tail: int
    judged_on: Small
    policies: tuple[PolicyRow, ...]


def policy(
    window: Annotated[
        int, typer.Option(min=1, help="Positions that a query sees, itself included.")
    ] = 128,
    page: Annotated[int, typer.Option(min=1, help="Tokens per page of the radix tree.")] = 256,
    layers: Annotated[int, typer.Option(min=1, help="Layers with a sliding window.")] = 61,
    draft: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens that one verify step writes.")
    ] = 1,
    bigram: Annotated[
        bool, typer.Option("--bigram", help="The tree's keys are pairs of tokens (EAGLE).")
    ] = False,
    ratios: Annotated[
        str,
        typer.Option(metavar="R,R,...", help="Tokens per compressed row of layers; 0 for none."),
    ] = "0,4,128",
    prompt_len: Annotated[
        list[int] | None, typer.Option(min=1, help="Tokens of a prompt; repeatable.")
    ] = None,
    shared: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Cached tokens of it; once a --prompt-len. Default: all but 64."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the cache policies for a model: what each keeps, and what a hit costs.

    The verdicts come from runs of a small model, and name the theorems that hold for all sizes.
    """
    compressed = tuple(sorted({ratio for ratio in parse_ratios(ratios) if ratio}))
    sizes = Sizes(window=window, page_size=page, layers=layers, bigram=bigram)
    prompts = _prompts(prompt_len, shared)
    small = small_of(sizes, ratios=compressed, draft_tokens=draft)
    result = Comparison(
        sizes=sizes,
        draft_tokens=draft,
        ratios=compressed,
        ring_rows=ring_stride(window, draft),
        exact_tail=exact_logits_tail(layers, window),
        decode_tail=exact_decode_tail(layers, window),
        judged_on=small,
        policies=tuple(_row(each, sizes, small, prompts) for each in POLICIES),
    )
    show(_report(result), result, as_json=as_json)


def _prompts(lengths: list[int] | None, shared: list[int] | None) -> list[tuple[int, int]]:
    prompts = list(lengths or PROMPTS)
    cached = shared or [max(0, length - QUESTION) for length in prompts]
    if len(cached) != len(prompts):
        raise EngineError(
            f"{len(prompts)} prompt lengths and {len(cached)} shared ones",
            fix="give --shared once for each --prompt-len",
        )
    for length, part in zip(prompts, cached, strict=True):
        if part > length:
            raise EngineError(
                f"a prompt of {length} tokens cannot share {part}", fix="give a smaller --shared"
            )
    return list(zip(prompts, cached, strict=True))


def _row(
    each: CachePolicy, sizes: Sizes, small: Small, prompts: Sequence[tuple[int, int]]
) -> PolicyRow:
    least, most = each.range(sizes)
    hits = [each.hit(sizes, prompt_len=length, cached_len=part) for length, part in prompts]
    return PolicyRow(
        name=each.name,
        in_words=each.in_words,
        held_back=each.held_back(sizes.layers, sizes.window),
        replayed=each.replayed(sizes.layers, sizes.window),
        least=least,
        most=most,
        verdicts=dict(judged(each, small)),
        hits=tuple(_cost(hit) for hit in hits),
    )


def _cost(hit: Hit) -> HitCost:
    return HitCost(
        prompt_len=hit.prompt_len, shared=hit.cached_len, uncapped=hit.uncapped,
        matched=hit.matched, recomputed=hit.recomputed, kept=round(hit.kept, 4),
    )  # fmt: skip


_STYLES = {"holds": "green", "violated": "red", "unknown": "yellow"}


def _report(result: Comparison) -> RenderableType:
    sizes, small = result.sizes, result.judged_on
    rows = f"compressed rows of {_listed(result.ratios)} tokens" if result.ratios else "no others"
    title = Text(
        f"W = {sizes.window}, pages of {sizes.page_size}, {sizes.layers} sliding-window layers, "
        f"{rows}{', bigram keys' if sizes.bigram else ''}; {result.ring_rows} ring rows a slot\n"
    )
    verdicts = plain_table("policy", *(name.replace("-", "-\n") for name in ASKED))
    for row in result.policies:
        cells = []
        for name in ASKED:
            verdict = row.verdicts[name]
            cell = Text(verdict.status, style=_STYLES[verdict.status])
            cells.append(cell.append("\n" + ", ".join(verdict.theorems), style="dim"))
        verdicts.add_row(Text(row.name), *cells)
    most = plain_table("policy", "computed by a hit", "what an engine does")
    for row in result.policies:
        most.add_row(Text(row.name), f"{row.least} to {row.most}", Text(row.in_words))
    prompts = result.policies[0].hits
    costs = plain_table("policy", *(f"{hit.shared} of {hit.prompt_len}" for hit in prompts))
    for row in result.policies:
        costs.add_row(
            Text(row.name), *(f"{hit.recomputed} ({100 * hit.kept:.0f}%)" for hit in row.hits)
        )
    ratio = f"rows of {small.ratio} tokens" if small.ratio else "no compressed rows"
    runs = min(v.runs for row in result.policies for v in row.verdicts.values())
    notes = Text(
        f"\nVerdicts: every short hit of a model with W = {small.sizes.window}, pages of "
        f"{small.sizes.page_size}, {small.sizes.layers} layers, {ratio}: {runs} or more runs a "
        "policy. Below them the theorems for all sizes (docs/theorems.md). Where EXACT holds and "
        "FRESH-PREFILL does not, stale rows are read, and reach no output.\n"
        f"Exact logits need a tail of {result.exact_tail} tokens, exact decodes "
        f"{result.decode_tail}; compressed rows of the tail undo that (X4).",
        style="dim",
    )
    parts: list[RenderableType] = [
        title, verdicts,
        Text("\nTokens that a hit computes whose prompt is cached to its end\n"), most,
        Text("\nTokens computed, and share of the match that is kept, by cached tokens of a "
             "prompt\n"), costs, notes,
    ]  # fmt: skip
    return Group(*parts)


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
