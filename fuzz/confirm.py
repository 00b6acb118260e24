"""A finding counts once the real kernels have shown it twice, with the same bytes."""

from __future__ import annotations

from typing import Protocol

from kvproof.fuzz.drivers.wire import Backend
from kvproof.model.facts import Fact, encode_fact
from kvproof.model.scenario import Scenario

KERNELS: Backend = "interpreter"


class Plays(Protocol):
    """An engine's process, as far as it is needed here."""

    def play(self, scenario: Scenario, *, timeout: float, backend: Backend) -> list[Fact]:
        """The log of a scenario."""

    def close(self) -> None:
        """End the process; the next play starts another."""


def play_twice(
    process: Plays, scenario: Scenario, *, timeout: float, backend: Backend = KERNELS
) -> tuple[list[Fact], bool]:
    """Play on the real kernels twice: the log, and whether both gave the same bytes."""
    log = process.play(scenario, timeout=timeout, backend=backend)
    process.close()  # the second play must not depend on the first's process
    again = process.play(scenario, timeout=timeout, backend=backend)
    same = b"".join(map(encode_fact, log)) == b"".join(map(encode_fact, again))
    return log, same
