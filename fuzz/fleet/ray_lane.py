"""Lanes in a Ray cluster: an actor each, wherever Ray puts it. Needs the extra ``ray``.

Every node needs kvproof and the engines that are asked for. Ray schedules and watches; a lane is
only what a unit is handed to.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from kvproof.fuzz.fleet.lanes import Lanes
from kvproof.fuzz.fleet.units import Plan, Told, Unit, Worker
from kvproof.kernels.engines.errors import EngineError

LOCAL = "local"
"""Stands for a cluster of this machine that ends with the campaign."""


class RayLane:
    """A worker that is a Ray actor with one CPU."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        # Not restarted by Ray: a lane that is lost is recorded, and another one is made.
        actor = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(Worker)
        self._worker = actor.remote()

    def submit(self, unit: Unit, plan: Plan) -> Future[Told]:
        """Begin a unit."""
        future: Future[Told] = self._worker.work.remote(unit, plan).future()
        return future

    def kill(self) -> None:
        """Kill the actor."""
        self._ray.kill(self._worker)

    def is_death(self, error: Exception) -> bool:
        """Whether the actor is gone, or its node."""
        return isinstance(error, self._ray.exceptions.RayActorError)


@contextmanager
def ray_lanes(address: str) -> Iterator[tuple[Lanes, int, int]]:
    """What makes lanes in a cluster, its CPUs, and its nodes.

    Args:
        address: of the cluster's head, ``auto`` for the one of this machine, or `LOCAL`.

    Raises:
        EngineError: Ray is not installed, or there is no such cluster.
    """
    try:
        ray: Any = importlib.import_module("ray")  # an extra
    except ImportError as error:
        raise EngineError("Ray is not installed", fix="pip install 'kvproof[ray]'") from error
    try:
        ray.init(
            address=None if address == LOCAL else address,
            log_to_driver=False,
            include_dashboard=False if address == LOCAL else None,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise EngineError(
            f"no Ray cluster answers at {address}: {error}",
            fix="start one with `ray start --head`, or give --ray local",
        ) from error
    try:
        nodes = sum(bool(node["Alive"]) for node in ray.nodes())
        yield lambda: RayLane(ray), int(ray.cluster_resources().get("CPU", 1)), nodes
    finally:
        ray.shutdown()
