"""What a server's processes do of what the recorder looks at: load plugins, schedule, end.

The main process starts a scheduler process by spawning, which loads the engine's plugins and then
plays a scenario on the real objects. Run as a script, in an engine's environment:
``server.py SCENARIO [killed]``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

from kvproof.fuzz.drivers.wire import Options, Play
from kvproof.fuzz.drivers.worker import load
from kvproof.model.scenario import Scenario, load_scenario


def scheduler(scenario: Scenario, *, killed: bool) -> None:
    _, build = load(Options())
    import sglang.srt.managers.scheduler  # noqa: F401  # as in a scheduler's process
    from sglang.srt.plugins import load_plugins

    load_plugins()
    player = build(Play(scenario=scenario, backend="rules"))
    for _ in player.play(scenario):
        pass
    if killed:
        time.sleep(1.0)  # the recorder writes meanwhile
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    scenario = load_scenario(Path(sys.argv[1]))
    process = multiprocessing.get_context("spawn").Process(
        target=scheduler, args=(scenario,), kwargs={"killed": "killed" in sys.argv}
    )
    process.start()
    process.join()
    sys.exit(0 if process.exitcode == 0 or "killed" in sys.argv else 1)


if __name__ == "__main__":
    main()
