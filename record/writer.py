"""Writes a log from a thread of its own, so that the scheduler never waits for a disk.

The queue between them is bounded. What does not fit is dropped and counted, and a `Gap` with the
count takes its place in the log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO

from kvproof.model.facts import Fact, Gap, encode_fact

QUEUE_FACTS = 200_000
"""Facts that may wait for the disk: some 50 MB, several seconds of a busy server."""

INTERVAL_S = 0.1
"""How often the thread looks; also how much of a log a killed server loses."""

CLOSE_S = 10.0
"""How long the end of the process waits for the disk."""

_BATCH = 256
"""Facts encoded at a time: the scheduler gets the interpreter back in between."""


class LogWriter:
    """Appends facts to a file."""

    def __init__(
        self, path: Path, *, complain: Callable[[str], None], limit: int = QUEUE_FACTS
    ) -> None:
        """Create the file.

        Args:
            path: must not exist: a log is never overwritten.
            complain: takes one sentence if the disk fails; called once.
            limit: facts that may wait.

        Raises:
            OSError: the file cannot be created.
        """
        self.path = path
        self._complain = complain
        self._limit = limit
        self._queue: deque[Fact] = deque()
        self._dropped = 0
        self._broken = False
        self._closing = threading.Event()
        self._file: IO[bytes] = path.open("xb", buffering=0)
        self._thread = threading.Thread(target=self._run, name="kvproof-record", daemon=True)
        self._thread.start()

    def put(self, fact: Fact) -> None:
        """Queue a fact, or drop it; never waits. After the last fact it does nothing."""
        if self._closing.is_set():
            return
        waiting = len(self._queue)
        # Once full, wait until there is room for many: one gap says more than a thousand.
        if waiting >= (self._limit // 2 if self._dropped else self._limit):
            self._dropped += 1
            return
        if self._dropped:
            self._mark_gap()
        self._queue.append(fact)

    def finish(self, last: Fact) -> None:
        """End the log with ``last``, without waiting for the disk."""
        if self._dropped:
            self._mark_gap()
        self._queue.append(last)
        self._closing.set()

    def wait(self) -> None:
        """Return when a finished log is on disk, or after `CLOSE_S`."""
        self._thread.join(CLOSE_S)

    def _mark_gap(self) -> None:
        self._queue.append(Gap(reason="the disk did not keep up", dropped=self._dropped))
        self._dropped = 0

    def _run(self) -> None:
        with self._file:
            while not self._closing.wait(INTERVAL_S):
                self._drain()
            self._drain()

    def _drain(self) -> None:
        while self._queue:
            facts = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            if self._broken:
                continue
            try:
                self._file.write(b"".join(map(encode_fact, facts)))
            except OSError as error:
                # The log ends here, without a last fact, which says that it is cut off.
                self._broken = True
                self._complain(f"{self.path.name} cannot be written any more: {error.strerror}")
