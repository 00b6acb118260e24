"""The user's story at full size: a busy server's recording becomes a failing test, each step timed.

Run it with ``python benchmarks/story.py``. 2,000 requests are recorded on the real objects of
0.5.15, with one stale decode hidden among them (`kvproof.fuzz.busy`); then each step is the command
that a user would type, in a process of its own and with an empty cache of results. The log, the
pages and the exported tests stay in ``--out``. It ends with exit code 1 if a step does not end as
the story says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvproof.fuzz.busy import busy_scenario
from kvproof.fuzz.drivers.recorded import record_play
from kvproof.fuzz.manifest import processor
from kvproof.kernels.engines.store import EngineStore, cache_root, platform_tag

KVPROOF = [sys.executable, "-c", "from kvproof.cli import main; main()"]


class UntoldError(Exception):
    """A step did not end as the story says."""


@dataclass(slots=True)
class Story:
    """Runs commands, and keeps how long each took."""

    env: dict[str, str]
    seconds: dict[str, float] = field(default_factory=dict)

    def tell(self, *arguments: object, exit_code: int, name: str | None = None) -> Any:
        """The JSON that a command of kvproof prints."""
        command = [str(argument) for argument in arguments]
        began = time.monotonic()
        done = subprocess.run(
            [*KVPROOF, *command, "--json"], env=self.env, stdout=subprocess.PIPE, check=False
        )
        self.seconds[name or command[0]] = round(time.monotonic() - began, 1)
        if done.returncode != exit_code:
            raise UntoldError(f"{command[0]} ended with exit code {done.returncode}")
        return json.loads(done.stdout)


def exported_test_passes(folder: Path, release: str) -> bool:
    """Run a release's exported test where the release is, and kvproof is not."""
    [test] = folder.glob("test_*.py")
    engine = EngineStore().find(release)
    done = subprocess.run(
        [sys.executable, "-P", "import_stubs.py", test.name],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (engine.root, engine.deps)))},
        capture_output=True,
        text=True,
        check=False,
    )
    if "Ran 1 test" not in done.stderr:
        raise UntoldError(f"the test for {release} did not run: {done.stderr}")
    return done.returncode == 0


def tell_story(*, requests: int, releases: str, out: Path, cache: Path) -> dict[str, Any]:
    """All steps; what each came to."""
    scenario = busy_scenario(requests=requests)
    began = time.monotonic()
    log = record_play(EngineStore().find("0.5.15"), scenario, out / "recording")
    (cache / platform_tag()).symlink_to(cache_root() / platform_tag())
    story = Story(env=os.environ | {"KVPROOF_CACHE": str(cache)})
    story.seconds["record"] = round(time.monotonic() - began, 1)

    checked = story.tell("check", log, exit_code=1)
    small = story.tell("minimise", log, "--out", out / "runs", exit_code=0)
    result = small["result"]
    found = story.tell("bisect", small["file"], "--engines", releases, exit_code=0)
    story.tell("explain", log, "--html", out / "log.html", exit_code=1, name="explain the log")
    played = Path(small["file"]).with_name("minimised.log.jsonl")
    story.tell("explain", played, "--html", out / "minimised.html", exit_code=1)
    passes = {}
    for release in ("0.5.15", "0.5.23"):
        folder = out / f"test-{release}"
        story.tell(
            "export", small["file"], "--as", "sglang-test", "--engine", release, "--out", folder,
            exit_code=0, name=f"export for {release}",
        )  # fmt: skip
        passes[release] = exported_test_passes(folder, release)
    worst = checked["violations"][0]
    return {
        "requests": requests,
        "operations_played": len(scenario.operations),
        "log_bytes": log.stat().st_size,
        "facts": checked["facts"],
        "found": f"{worst['invariant']}/{worst['cause']}",
        "in_step": worst["step"] + 1,
        "symptom": result["symptom"],
        "operations_before": result["operations_before"],
        "operations": result["operations"],
        "tokens_before": result["tokens_before"],
        "tokens": result["tokens"],
        "tries": result["tries"],
        "confirmed": result["confirmed"] and result["deterministic"],
        "verdicts": {each["version"]: each["verdict"] for each in found["versions"]},
        "exported_test_passes": passes,
        "seconds": story.seconds,
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--engines", default="0.5.15,0.5.16,0.5.23", help="as `bisect` takes them")
    parser.add_argument("--out", type=Path, help="new folder for what is made; else it is removed")
    arguments = parser.parse_args()
    if arguments.out is not None:
        arguments.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch) / "cache"
        cache.mkdir()
        out = arguments.out or Path(scratch)
        try:
            told = tell_story(
                requests=arguments.requests, releases=arguments.engines, out=out, cache=cache
            )
        except UntoldError as error:
            sys.exit(str(error))
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": processor(),
    }
    sys.stdout.write(json.dumps({"machine": machine, **told}, indent=1) + "\n")
    as_told = told["operations"] <= 8 and told["exported_test_passes"] == {
        "0.5.15": False, "0.5.23": True,
    }  # fmt: skip
    sys.exit(not as_told)


if __name__ == "__main__":
    main()
