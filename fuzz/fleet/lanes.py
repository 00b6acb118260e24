"""Lanes: where units are worked on, one at a time each. Here, a process of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from typing import Protocol, TypeAlias

from kvproof.fuzz.fleet.units import Plan, Told, Unit, Worker


class Lane(Protocol):
    """A worker in a process of its own, with the engine that it keeps."""

    def submit(self, unit: Unit, plan: Plan) -> Future[Told]:
        """Begin a unit; the future raises whatever became of the worker."""

    def kill(self) -> None:
        """End it at once, whatever it does; a unit that it works on ends with an error."""

    def is_death(self, error: Exception) -> bool:
        """Whether a unit that ended with this ended because its worker did."""


Lanes: TypeAlias = Callable[[], Lane]
"""Makes another lane."""


class ProcessLane:
    """A worker process of this machine.

    An executor of one process each: where one dies, the others go on, and it is known which unit
    it worked on.
    """

    def __init__(self) -> None:
        self._executor = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
        )
        self._pid = self._executor.submit(os.getpid)

    def submit(self, unit: Unit, plan: Plan) -> Future[Told]:
        """Begin a unit."""
        return self._executor.submit(_work, unit, plan)

    def kill(self) -> None:
        """Kill the process; its engine ends when it sees that nobody listens."""
        if self._pid.done() and self._pid.exception() is None:
            for child in multiprocessing.active_children():
                if child.pid == self._pid.result():
                    child.kill()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def is_death(self, error: Exception) -> bool:
        """Whether the process is gone."""
        return isinstance(error, BrokenExecutor)


# In the worker's process


def _begin() -> None:
    """End with the parent, even if that was killed; leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


_worker = Worker()


def _work(unit: Unit, plan: Plan) -> Told:
    return _worker.work(unit, plan)
