"""What an engine may do about a reused prefix: five policies, and what each costs a request.

The window's keys live in the slot's ring, the compressed rows in the tree. A hit finds the second
and not the first. The policies differ in how much of the match they give up, in what a prefill
reads, and in whether the tree's rows are written again. Every length here comes from the rules of
`kvproof.spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvproof.model.layers import Reading
from kvproof.model.reference import Policy
from kvproof.spec.cap import capped_bigram_match, capped_match, rebuild_tail
from kvproof.spec.exact import exact_decode_tail, exact_logits_tail
from kvproof.spec.pages import page_floor


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Sizes of a model and its cache that a policy depends on.

    Attributes:
        window: positions that a query sees, itself included.
        page_size: tokens per page of the tree.
        layers: layers with a sliding window.
        bigram: the tree's keys are pairs of tokens, as with EAGLE.
    """

    window: int
    page_size: int
    layers: int
    bigram: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """What a request with a cached prefix reuses under a policy, in tokens.

    Attributes:
        uncapped: what it would reuse if nothing were held back.
        matched: what it reuses; the rest is computed.
        recomputed: tokens that it computes: ``prompt_len - matched``.
        kept: share of the uncapped match that is reused; 1 where nothing could be.
    """

    prompt_len: int
    cached_len: int
    uncapped: int
    matched: int

    @property
    def recomputed(self) -> int:
        """Tokens that the request computes."""
        return self.prompt_len - self.matched

    @property
    def again(self) -> int:
        """Tokens that it computes though the tree had them."""
        return self.uncapped - self.matched

    @property
    def kept(self) -> float:
        """Share of the uncapped match that is reused."""
        return self.matched / self.uncapped if self.uncapped else 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePolicy:
    """One policy.

    Attributes:
        name: what tables call it.
        in_words: what an engine does.
        held_back: tokens of the prompt that are always computed, for so many layers and a window.
        replayed: tokens of the match that are computed again, their compressed rows left alone.
        reading: how `kvproof.model.layers` judges it.
    """

    name: str
    in_words: str
    held_back: Callable[[int, int], int]
    replayed: Callable[[int, int], int] = lambda layers, window: 0  # noqa: ARG005
    reading: Reading = "cap"

    def hit(self, sizes: Sizes, *, prompt_len: int, cached_len: int) -> Hit:
        """What a request of ``prompt_len`` tokens reuses of ``cached_len`` cached ones."""
        match = capped_bigram_match if sizes.bigram else capped_match
        held_back = self.held_back(sizes.layers, sizes.window)
        matched = match(cached_len, prompt_len, held_back, sizes.page_size)
        replayed = self.replayed(sizes.layers, sizes.window)
        if replayed:
            tail = rebuild_tail(matched, prompt_len, replayed)
            matched = capped_match(matched, prompt_len, tail, sizes.page_size)
        return Hit(
            prompt_len=prompt_len,
            cached_len=cached_len,
            uncapped=match(cached_len, prompt_len, 0, sizes.page_size),
            matched=matched,
        )

    def range(self, sizes: Sizes) -> tuple[int, int]:
        """Fewest and most tokens that a hit computes whose prompt may be cached to its end.

        A page of prompt lengths stands for all: what is computed repeats with the page. The prompts
        are long enough for a match to be left.
        """
        computed = [hit.recomputed for hit in self._long_hits(sizes)]
        return min(computed), max(computed)

    def _long_hits(self, sizes: Sizes) -> Iterator[Hit]:
        page_size = sizes.page_size
        most = self.held_back(sizes.layers, sizes.window)
        most += self.replayed(sizes.layers, sizes.window)
        first = page_floor(most, page_size) + 4 * page_size
        for prompt_len in range(first, first + page_size):
            yield self.hit(sizes, prompt_len=prompt_len, cached_len=prompt_len)

    def reference(self, sizes: Sizes) -> Policy:
        """The policy as the reference engine keeps it."""
        return Policy(
            reprefill_tail=self.held_back(sizes.layers, sizes.window),
            replayed=self.replayed(sizes.layers, sizes.window),
            floored_reads=self.reading == "floored reads",
        )


NO_CAP = CachePolicy(
    name="no cap",
    in_words="all that is cached is reused (0.5.15, and 0.5.16 as it wires itself)",
    held_back=lambda layers, window: 0,  # noqa: ARG005
)
RELEASE_CAP = CachePolicy(
    name="cap of W",
    in_words="the last window is prefilled again (PR #30339; 0.5.20 on)",
    held_back=lambda layers, window: window,  # noqa: ARG005
)
FLOORED_READS = CachePolicy(
    name="floored reads",
    in_words="the cap of W, and a prefill reads no ring row below the match",
    held_back=lambda layers, window: window,  # noqa: ARG005
    reading="floored reads",
)
LAYERED_CAP = CachePolicy(
    name="cap of L(W-1)+1",
    in_words="so much is prefilled again that staleness dies out before the last token",
    held_back=exact_logits_tail,
)
REBUILD = CachePolicy(
    name="rebuild",
    in_words="the tree's compressed rows are kept; L(W-1) tokens are replayed for the rings",
    held_back=lambda layers, window: 0,  # noqa: ARG005
    replayed=exact_decode_tail,
    reading="rebuild",
)

POLICIES = (NO_CAP, RELEASE_CAP, FLOORED_READS, LAYERED_CAP, REBUILD)
