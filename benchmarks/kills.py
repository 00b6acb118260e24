"""Kill a campaign at random moments, resume it, and look whether it lost anything it had shown.

Each time the coordinator gets a SIGKILL while two workers find failures of reference engines with
seeded faults: at a random moment after a session has kept its first search, or, every fourth time,
after it has begun. Every failure that any session printed must be in the ledger at the end, no
search may be in it twice, and no worker may outlive its coordinator. Exit code 1 if one of these is
not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from kvproof.fuzz.fleet.ledger import FILE, Begun, read_ledger
from kvproof.fuzz.fleet.subjects import FAULTY
from kvproof.fuzz.fleet.units import Searched
from kvproof.fuzz.manifest import processor

PRINTED = re.compile(r"^(\S+): ([A-Z]\S*) broke, in \d+ operations")
KVPROOF = (sys.executable, "-c", "from kvproof.cli import main; main()")
START_S = 300.0
ORPHANED_S = 120.0
"""Seconds that a worker may take to see it; one that is just being started, on a busy machine."""


class OrphanedError(Exception):
    """Workers go on without their coordinator."""


def start(folder: Path, *, is_first: bool) -> subprocess.Popen[str]:
    """Begin the campaign, or resume it."""
    where = ("--out", folder.parent) if is_first else ("--resume", folder)
    engines = [word for subject in FAULTY for word in ("--engine", subject.name)]
    options = ("--for", "1h", "--unit", "1", "--workers", "2", "--seed", "0")
    return subprocess.Popen(
        [*KVPROOF, "campaign", *map(str, where), *engines, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def has_begun(ledger: Path, *, session: int, is_at_work: bool) -> bool:
    """Whether the ledger has so many sessions, the last one with a search where that is asked."""
    entries = list(read_ledger(ledger)) if ledger.exists() else []
    begun = [at for at, entry in enumerate(entries) if isinstance(entry, Begun)]
    if len(begun) < session:
        return False
    return not is_at_work or any(isinstance(e, Searched) for e in entries[begun[-1] :])


def killed_after(process: subprocess.Popen[str], seconds: float) -> set[tuple[str, str]]:
    """Failures that a session printed until it was killed.

    Raises:
        OrphanedError: somebody still holds its stderr, two minutes later.
    """
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    try:
        _, printed = process.communicate(timeout=ORPHANED_S)
    except subprocess.TimeoutExpired as error:
        raise OrphanedError("workers outlive a coordinator that was killed") from error
    if process.returncode != -signal.SIGKILL:
        sys.exit(f"the campaign ended by itself: {printed}")
    found = (PRINTED.match(line) for line in printed.splitlines())
    return {(match[1], match[2]) for match in found if match}


def kill_and_resume(*, kills: int, seed: int, longest: float, folder: Path) -> dict[str, object]:
    """Kill a campaign so many times."""
    moments = random.Random(seed)
    printed: set[tuple[str, str]] = set()
    ledger = folder / FILE
    for number in range(kills):
        process = start(folder, is_first=number == 0)
        began = time.monotonic()
        while not has_begun(ledger, session=number + 1, is_at_work=number % 4 != 3):
            if time.monotonic() - began > START_S or process.poll() is not None:
                process.kill()
                sys.exit("the campaign does not begin")
            time.sleep(0.05)
        seconds = moments.uniform(0, longest)
        printed |= killed_after(process, seconds)
        sys.stderr.write(f"kill {number + 1} after {seconds:.1f} s: {len(printed)} printed\n")
    entries = list(read_ledger(ledger))
    searches = [entry for entry in entries if isinstance(entry, Searched)]
    kept = {(e.target, failure.violation.name) for e in searches for failure in e.failures}
    times = Counter((entry.target, entry.number) for entry in searches)
    return {
        "kills": kills,
        "sessions": sum(isinstance(entry, Begun) for entry in entries),
        "searches": len(searches),
        "failures_printed": len(printed),
        "failures_kept": len(kept),
        "failures_lost": len(printed - kept),
        "searches_twice": sum(count > 1 for count in times.values()),
    }


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--longest", type=float, default=5.0, help="seconds until a kill, at most")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        result = kill_and_resume(
            kills=arguments.kills,
            seed=arguments.seed,
            longest=arguments.longest,
            folder=Path(root) / "campaigns" / "0001",
        )
    machine = {"cores": os.cpu_count(), "load": os.getloadavg()[0], "processor": processor()}
    sys.stdout.write(json.dumps({"machine": machine, **result}, indent=1) + "\n")
    sys.exit(bool(result["failures_lost"] or result["searches_twice"]))


if __name__ == "__main__":
    main()
