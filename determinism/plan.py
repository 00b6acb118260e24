"""What a run of the harness does: settings, cells, and what came back for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

PUBLISHED_TAILS = (16, 32, 64, 96, 127, 160, 220)
"""Tails of PR #30339's own run; those of 128 tokens and more are its floor."""

COLD = 0
"""Stands for a tail in the cells of the cold control, whose requests reuse nothing."""

Positive = Annotated[int, msgspec.Meta(ge=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run's settings; the defaults are those of PR #30339.

    Attributes:
        window: positions that a query sees.
        floor_from: tails of so many tokens are the floor, shorter ones are exposed; None for the
            window. In a stack of L layers the window reaches L times as far (theorem X3).
        tails: tokens of a prompt behind the prefix that its repetition reuses.
        prefix_len: tokens of that prefix, a whole number of pages.
        requests: identical requests a cell.
        churn: other requests between the warm-up and the identical ones, to recycle all slots.
        churn_len: tokens of each; a window at least, else their keys do not fill a ring.
        rounds: how often each tail is tried, each time with a prompt of its own.
        output_len: tokens that each request decodes.
        cold: have a cold control: a cell a round whose identical requests reuse nothing.
        seed: of the prompts.
    """

    window: Positive = 128
    floor_from: Positive | None = None
    tails: tuple[Positive, ...] = PUBLISHED_TAILS
    prefix_len: Positive = 512
    requests: Annotated[int, msgspec.Meta(ge=2)] = 64
    churn: Annotated[int, msgspec.Meta(ge=0)] = 500
    churn_len: Positive = 256
    rounds: Positive = 3
    output_len: Positive = 60
    cold: bool = True
    seed: Annotated[int, msgspec.Meta(ge=0)] = 0

    def cells(self) -> Iterator[tuple[int, int]]:
        """Round and tail of every cell, in order."""
        for number in range(1, self.rounds + 1):
            for tail in self.all_tails:
                yield number, tail

    @property
    def all_tails(self) -> tuple[int, ...]:
        """The tails, and `COLD` in front of them if there is a cold control."""
        return (COLD, *self.tails) if self.cold else self.tails

    def prompt_len(self, tail: int) -> int:
        """Tokens of a cell's prompt; a cold one is as long as the longest."""
        return self.prefix_len + (max(self.tails) if tail == COLD else tail)

    def is_exposed(self, tail: int) -> bool:
        """Whether the window of the first decode reaches in front of so long a tail."""
        return COLD < tail < (self.window if self.floor_from is None else self.floor_from)


class Output(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the different outputs of a cell, and how many requests gave it."""

    output: str
    count: int


class Cell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What came back for one tail in one round.

    Attributes:
        prompt_len: tokens of the prompt, as the server counts them where it says so.
        outputs: the commonest first.
        cached: how many requests reused how many tokens, by tokens; empty if the server is silent.
        failed: requests without an answer.
    """

    round: int
    tail: int
    prompt_len: int
    outputs: tuple[Output, ...]
    cached: dict[int, int]
    failed: int = 0
    seconds: float = 0.0

    @property
    def answered(self) -> int:
        """Requests with an answer."""
        return sum(output.count for output in self.outputs)

    @property
    def off_majority(self) -> int:
        """Answers outside the largest cluster of equal ones."""
        return self.answered - max((output.count for output in self.outputs), default=0)

    @property
    def hits(self) -> int | None:
        """Requests that reused something; None if the server does not say."""
        if not self.cached:
            return None
        return sum(count for tokens, count in self.cached.items() if tokens)


def cell_of(
    *,
    round_number: int,
    tail: int,
    prompt_len: int,
    outputs: Sequence[str],
    cached: Sequence[int | None],
    failed: int = 0,
    seconds: float = 0.0,
) -> Cell:
    """A cell from its answers."""
    reused = Counter(tokens for tokens in cached if tokens is not None)
    return Cell(
        round=round_number,
        tail=tail,
        prompt_len=prompt_len,
        outputs=tuple(
            Output(output=output, count=count) for output, count in Counter(outputs).most_common()
        ),
        cached=dict(sorted(reused.items())),
        failed=failed,
        seconds=round(seconds, 3),
    )
