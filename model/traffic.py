"""A busy server's log as a recorder writes it, of any length, for tests and benchmarks.

No engine is behind it: slots are lent first in, first out, prompts share prefixes, and the cap is
as large as asked for. With ``reprefill_tail`` of a window or more every decode is fresh.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from kvproof.model.facts import Admitted, Advanced, Ended, Fact, Ran, Released, Started, Step
from kvproof.model.scenario import (
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Submit,
    prompt_len,
)
from kvproof.spec.cap import capped_match


@dataclass(kw_only=True, slots=True)
class _Live:
    slot: int
    computed: int
    left: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """What the server is asked for.

    Attributes:
        conversations: texts that prompts share prefixes of; each request has one more of its own.
        answer: tokens that a request decodes, at most; at least half of that.
        reprefill_tail: what the cap holds back; None for the window.
        chunk: tokens of the longest prefill chunk.
    """

    geometry: Geometry
    requests: int
    conversations: int = 50
    answer: int = 200
    reprefill_tail: int | None = None
    chunk: int = 2048
    seed: int = 0

    @property
    def tail(self) -> int:
        """Tokens that the cap holds back."""
        return self.geometry.window if self.reprefill_tail is None else self.reprefill_tail

    def log(self) -> Iterator[Fact]:
        """The facts, ended properly."""
        yield Started(
            target="traffic",
            backend="rules",
            geometry=self.geometry,
            ring_stride=self.geometry.ring_stride,
            reprefill_tail=self.tail,
        )
        draw = random.Random(self.seed)
        free = deque(range(1, self.geometry.slots + 1))
        live: dict[str, _Live] = {}
        steps = 0

        def step(operation: Operation) -> Step:
            nonlocal steps
            steps += 1
            return Step(index=steps - 1, operation=operation)

        for number in range(self.requests):
            name = f"request-{number}"
            cached = draw.randrange(64, 4 * self.geometry.window + 64)
            prompt = (
                Piece(f"conversation-{draw.randrange(self.conversations)}", cached),
                Piece(name, cached + draw.randrange(1, self.geometry.window)),
            )
            yield step(Submit(request=name, prompt=prompt))
            yield step(Prefill(request=name))
            length = prompt_len(prompt)
            matched = capped_match(cached, length, self.tail, self.geometry.page_size)
            slot = free.popleft()
            yield Admitted(request=name, slot=slot, prompt_len=length, matched_len=matched)
            for start in range(matched, length, self.chunk):
                end = min(start + self.chunk, length)
                if start > matched:
                    yield step(Prefill(request=name))
                yield Ran(request=name, mode="prefill", slot=slot, start=start, end=end)
                yield Advanced(request=name, computed_len=end, prefilling=end < length)
            answer = draw.randint(self.answer // 2, self.answer)
            live[name] = _Live(slot=slot, computed=length, left=answer)
            # While there are free slots they fill up; then someone has to finish.
            while live and (not free or number == self.requests - 1):
                yield step(Decode())
                for other, state in live.items():
                    yield Ran(
                        request=other, mode="decode", slot=state.slot, start=state.computed,
                        end=state.computed + 1,
                    )  # fmt: skip
                    state.computed += 1
                    state.left -= 1
                    yield Advanced(request=other, computed_len=state.computed)
                for other in [other for other, state in live.items() if not state.left]:
                    yield step(Finish(request=other))
                    yield Released(request=other, slot=live[other].slot)
                    free.append(live.pop(other).slot)
        yield Ended(steps=steps)
