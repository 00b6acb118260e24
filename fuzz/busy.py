"""A busy server's day as a scenario: many requests, shared prefixes, recycled slots, long tails.

It is what a recorder sees: hundreds of thousands of facts, in which next to nothing is wrong. On an
engine that reuses a prefix up to the last whole page, one request has a tail too short for its
window, and so reads what another left in its slot; all other tails are longer than a window.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from kvproof.model.scenario import (
    Abort,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
)
from kvproof.spec.pages import page_floor

GEOMETRY = Geometry(window=128, page_size=256, slots=32, pool_tokens=2**17)
"""The window and the page of DeepSeek-V4."""

SYSTEM_PROMPTS = 24
SHORT_TAIL = 40
"""Tokens of the one tail that is shorter than a window."""

_CHUNK = 1024
_ANSWER = (4, 20)
_TURN = (130, 700)


@dataclass(slots=True)
class _Running:
    name: str
    prompt: Prompt
    answer: int
    answered: int = 0


@dataclass(slots=True)
class _Server:
    """Draws what comes, and does what a scheduler would."""

    random: random.Random
    operations: list[Operation] = field(default_factory=list)
    running: list[_Running] = field(default_factory=list)
    # Conversations that a later request may go on with: prompt, and its end with the answer.
    ended: list[tuple[Prompt, int]] = field(default_factory=list)

    def arrive(self, number: int, *, short_tail: bool) -> None:
        """A new conversation, or the next turn of an old one."""
        name, turn = f"q{number}", self.random.randint(*_TURN)
        prompt: Prompt
        if short_tail:
            shared = (Piece("system 0", 2 * GEOMETRY.page_size),)
            prompt = (*shared, Piece(name, shared[0].until + SHORT_TAIL))
        elif self.ended and self.random.random() < 0.3:
            before, end = self.ended.pop(self.random.randrange(len(self.ended)))
            last = before[-1]
            prompt = (*before[:-1], Piece(last.text, end), Piece(name, end + turn))
        else:
            system = self.random.randrange(SYSTEM_PROMPTS)
            until = GEOMETRY.page_size * (2 + system % 3)
            prompt = (Piece(f"system {system}", until), Piece(name, until + turn))
        self.operations.append(Submit(request=name, prompt=prompt))
        for _ in range(0, prompt[-1].until, _CHUNK):  # a chunk too many is skipped
            self.operations.append(Prefill(request=name, tokens=_CHUNK))
        answer = self.random.randint(*_ANSWER)
        self.running.append(_Running(name, prompt, answer))

    def decode(self) -> None:
        """A step of all, and the end of those that have their answer."""
        self.operations.append(Decode())
        for request in self.running:
            request.answered += 1
        for request in [one for one in self.running if one.answered >= one.answer]:
            self.running.remove(request)
            self.operations.append(Finish(request=request.name))
            end = request.prompt[-1].until + request.answered
            if end < 4 * _CHUNK:
                self.ended.append((request.prompt, end))
        self.ended = self.ended[-64:]

    def disturb(self) -> None:
        """Now and then a client hangs up, or memory runs short."""
        if not self.running or self.random.random() > 0.02:
            return
        request = self.random.choice(self.running)
        again = request.prompt[-1].until + request.answered + 1
        # Prefilled again, it may find all its whole pages: the rest must be no short tail.
        tail = again - page_floor(again - 1, GEOMETRY.page_size)
        if tail < GEOMETRY.window:
            self.running.remove(request)
            self.operations.append(Abort(request=request.name))
        else:
            self.operations.append(Retract(request=request.name))
            for _ in range(0, again, _CHUNK):
                self.operations.append(Prefill(request=request.name, tokens=_CHUNK))


def busy_scenario(*, requests: int = 2000, seed: int = 0, hidden: bool = True) -> Scenario:
    """Operations of a server with so many requests.

    Args:
        requests: how many come.
        seed: of everything that is drawn.
        hidden: whether one of them, at two thirds of the way, has a short tail.
    """
    server = _Server(random.Random(seed))
    short = requests * 2 // 3 if hidden else -1
    for number in range(requests):
        while len(server.running) >= GEOMETRY.slots - 4 or (
            server.running and server.random.random() < 0.35
        ):
            server.decode()
            server.disturb()
        server.arrive(number, short_tail=number == short)
    while server.running:
        server.decode()
    return Scenario(geometry=GEOMETRY, operations=tuple(server.operations))
