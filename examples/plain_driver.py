"""A driver without kvproof: the protocol in plain Python, to be read by whoever writes C++ or Rust.

    kvproof fuzz --engine "driver:python examples/plain_driver.py"

The engine below it is a toy: one ring a slot, nothing is reused, nothing is speculated. It reads a
JSON line for each scenario and answers with a JSON line for each fact; docs/files.md has the schema
of both. What it cannot do it skips, and what it cannot see (pools, tree) it does not tell. A run on
it ends as `vacuous`: an engine that reuses nothing shows nothing about reuse.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def say(kind: str, **fields: Any) -> None:
    print(json.dumps({"fact": kind, **fields}), flush=True)


class SkippedError(Exception):
    """The engine has no way to do this, or no room."""


class Engine:
    def __init__(self, geometry: dict[str, int]) -> None:
        self.window = geometry["window"]
        self.free = list(range(1, geometry["slots"] + 1))  # slot 0 is for padded rows
        self.waiting: dict[str, int] = {}  # tokens of each prompt
        self.running: dict[str, tuple[int, int]] = {}  # slot, tokens computed

    def row(self, slot: int, position: int) -> int:
        return slot * self.window + position % self.window

    def wrote(self, name: str | None, mode: str, slot: int, start: int, end: int) -> None:
        positions = list(range(max(start, end - self.window), end))
        rows = [self.row(slot, position) for position in positions]
        say("wrote", request=name, mode=mode, slot=slot, positions=positions, rows=rows)

    def submit(self, request: str, prompt: list[list[Any]]) -> None:
        self.waiting[request] = sum(tokens for _text, tokens in prompt)

    def prefill(self, request: str, tokens: int | None) -> None:
        if request not in self.waiting or tokens is not None or not self.free:
            raise SkippedError("no such request, a chunk, or no slot")
        prompt, slot = self.waiting.pop(request), self.free.pop(0)
        say("admitted", request=request, slot=slot, prompt_len=prompt, matched_len=0)
        self.wrote(request, "prefill", slot, 0, prompt)
        self.running[request] = slot, prompt
        say("advanced", request=request, computed_len=prompt)

    def decode(self, pad: int) -> None:
        if not self.running:
            raise SkippedError("no request is running")
        batch = [(name, *state) for name, state in self.running.items()]
        for name, slot, position in [*batch, *[(None, 0, 0)] * pad]:
            self.wrote(name, "decode", slot, position, position + 1)
        for name, slot, position in [*batch, *[(None, 0, 0)] * pad]:
            first = max(0, position + 1 - self.window)
            rows = [self.row(slot, each) for each in range(first, position + 1)]
            say(
                "read", request=name, mode="decode", slot=slot, position=position, first=first,
                rows=rows,
            )  # fmt: skip
        for name, slot, position in batch:
            self.running[name] = slot, position + 1
            say("advanced", request=name, computed_len=position + 1)

    def finish(self, request: str) -> None:
        if request not in self.running:
            raise SkippedError("no such request is running")
        slot, _ = self.running.pop(request)
        self.free.append(slot)
        say("released", request=request, slot=slot)


def play(scenario: dict[str, Any]) -> None:
    engine = Engine(scenario["geometry"])
    say(
        "started", target="plain", backend="rules", geometry=scenario["geometry"],
        ring_stride=engine.window, reprefill_tail=0, schema=3,
    )  # fmt: skip
    for index, operation in enumerate(scenario["operations"]):
        say("step", index=index, operation=operation)
        arguments = dict(operation)
        do = getattr(engine, arguments.pop("op"), None)
        try:
            if do is None:
                raise SkippedError("this engine has no such operation")
            do(**arguments)
        except SkippedError as skip:
            say("skipped", reason=str(skip))
    say("ended", steps=len(scenario["operations"]))


if __name__ == "__main__":
    print(
        json.dumps({"type": "ready", "family": "plain", "version": "1", "shims": [], "stubs": []})
    )
    sys.stdout.flush()
    for line in sys.stdin:
        play(json.loads(line)["scenario"])
