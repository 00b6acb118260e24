"""One cell of the harness against anything that completes prompts: warm, churn, repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from kvproof.determinism.plan import COLD, Cell, Settings, cell_of
from kvproof.determinism.prompts import Prompts
from kvproof.kernels.engines.errors import EngineError

MOST_FAILED = 0.25
"""Share of a batch that may fail before the run stops."""

Reporter = Callable[[str], None]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One completion.

    Attributes:
        output: text or token ids; two answers are equal if it is.
        prompt_tokens: tokens of the prompt as the server counts them, if it says.
        cached_tokens: tokens of it that the server reused, if it says.
    """

    output: str
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A request that got no answer, after all retries."""

    cause: str
    fix: str


class Completer(Protocol):
    """What the harness talks to."""

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        output_len: int,
        *,
        at_once: int,
        salts: Sequence[str] | None = None,
    ) -> list[Answer | Failure]:
        """Complete all prompts at temperature 0, so many at once, in their order.

        Requests of different ``salts`` share no cached prefix.
        """


def run_cell(
    completer: Completer,
    prompts: Prompts,
    *,
    round_number: int,
    tail: int,
    at_once: int,
    report: Reporter,
) -> Cell:
    """Warm the prefix, churn the slots, send the identical requests.

    The cold control warms nothing, and gives each request a salt of its own.

    Raises:
        EngineError: the warm-up or more than a quarter of a batch has no answer.
    """
    settings = prompts.settings
    began = time.perf_counter()
    prompt = prompts.repeated(round_number=round_number, tail=tail)
    where = f"round {round_number} of {settings.rounds}, "
    where += "cold control" if tail == COLD else f"tail {tail}"
    salts = None
    if tail == COLD:
        salts = [f"kvproof {settings.seed} {round_number} {k}" for k in range(settings.requests)]
    else:
        report(f"{where}: warming")
        _answers(completer.complete([prompt], settings.output_len, at_once=1))
    if settings.churn:
        report(f"{where}: churning with {settings.churn} requests")
        churned = prompts.churned(round_number=round_number, tail=tail)
        _answers(completer.complete(churned, 1, at_once=at_once))
    report(f"{where}: {settings.requests} identical requests")
    results = completer.complete(
        [prompt] * settings.requests, settings.output_len, at_once=settings.requests, salts=salts
    )
    answers = _answers(results)
    counted = {answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None}
    for length in counted:
        if tail != COLD and settings.is_exposed(tail) != settings.is_exposed(
            max(1, length - settings.prefix_len)
        ):
            raise EngineError(
                f"a prompt of {len(prompt)} tokens counts {length} at the server, so that its tail "
                "is on the other side of the window",
                fix="send token ids, not text; or move the tail away from the window",
            )
    return cell_of(
        round_number=round_number,
        tail=tail,
        prompt_len=max(counted, default=len(prompt)),
        outputs=[answer.output for answer in answers],
        cached=[answer.cached_tokens for answer in answers],
        failed=len(results) - len(answers),
        seconds=time.perf_counter() - began,
    )


def check_settings(settings: Settings, page_size: int | None) -> None:
    """Refuse settings under which a run cannot say anything.

    Args:
        settings: the run's.
        page_size: tokens per page of the server's cache, if known.

    Raises:
        EngineError: names the setting, and what to give instead.
    """
    if not any(map(settings.is_exposed, settings.tails)):
        raise EngineError(
            f"no tail is shorter than the window of {settings.window} tokens",
            fix="give a shorter --tail",
        )
    if all(map(settings.is_exposed, settings.tails)):
        raise EngineError(
            f"no tail has a window of {settings.window} tokens, so there is no floor to compare "
            "with",
            fix="give a --tail as long as the window",
        )
    if settings.churn_len < settings.window:
        raise EngineError(
            f"churn of {settings.churn_len} tokens does not fill a ring of {settings.window}",
            fix="give a --churn-len as long as the window",
        )
    if page_size is None:
        return
    if settings.prefix_len % page_size:
        raise EngineError(
            f"a prefix of {settings.prefix_len} tokens is not a whole number of pages of "
            f"{page_size}",
            fix=f"give a --prefix-len that {page_size} divides",
        )
    # A repeated prompt is cached up to its last whole page: a longer tail would be reused itself.
    longest = max(settings.tails)
    if longest > page_size:
        raise EngineError(
            f"with pages of {page_size} tokens, repeated prompts reuse the first page of a tail of "
            f"{longest} tokens too",
            fix=f"give tails of at most {page_size} tokens; a window of {settings.window} needs "
            "pages at least as long",
        )


def _answers(results: Sequence[Answer | Failure]) -> list[Answer]:
    answers = [result for result in results if isinstance(result, Answer)]
    failures = [result for result in results if isinstance(result, Failure)]
    if len(failures) > MOST_FAILED * len(results):
        first = failures[0]
        raise EngineError(
            f"{len(failures)} of {len(results)} requests have no answer; the first: {first.cause}",
            fix=first.fix,
        )
    return answers
