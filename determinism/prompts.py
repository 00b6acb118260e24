"""Prompts of an exact number of tokens, made of token ids.

As in PR #30339 a prompt is filler text, repeated, behind a tag of its own. The tag is drawn from
the filler's own tokens, so that one call of a tokenizer is enough for thousands of prompts, and no
prompt changes its length by being encoded again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import chain, cycle, islice

from kvproof.determinism.plan import Settings

FILLER = (
    "The history of mathematics spans thousands of years and many cultures. "
    "Ancient civilizations developed counting, geometry, and astronomy. "
)
"""The text of PR #30339."""

TAG_TOKENS = 16
"""Tokens that tell prompts apart. With some twenty different tokens in the filler, chance repeats
none."""


def random_filler(low: int, high: int, seed: int) -> list[int]:
    """Token ids in ``[low, high)`` that stand in for text where nothing can tokenize."""
    return random.Random(seed).sample(range(low, high), min(256, high - low))


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """The prompts of a run, the same for the same seed."""

    settings: Settings
    filler: tuple[int, ...]

    def repeated(self, *, round_number: int, tail: int) -> list[int]:
        """The prompt that a cell sends again and again."""
        return self._prompt(f"cell {round_number} {tail}", self.settings.prompt_len(tail))

    def churned(self, *, round_number: int, tail: int) -> list[list[int]]:
        """The prompts that recycle the slots in between; all differ, from their first tokens on."""
        return [
            self._prompt(f"churn {round_number} {tail} {number}", self.settings.churn_len)
            for number in range(self.settings.churn)
        ]

    def _prompt(self, name: str, length: int) -> list[int]:
        draw = random.Random(f"{self.settings.seed} {name}")
        tag = draw.choices(sorted(set(self.filler)), k=TAG_TOKENS)
        return list(islice(chain(tag, cycle(self.filler)), length))
