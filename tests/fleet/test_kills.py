"""A campaign that is killed loses nothing that it had shown.

The same twenty times: `python benchmarks/kills.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KILLS = Path(__file__).parents[2] / "benchmarks" / "kills.py"


def test_three_kills_lose_no_failure() -> None:
    completed = subprocess.run(
        [sys.executable, KILLS, "--kills", "3", "--longest", "2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    result = json.loads(completed.stdout)
    assert result["sessions"] == 3
    assert result["failures_lost"] == 0
    assert result["searches_twice"] == 0
    assert result["failures_kept"] >= result["failures_printed"] > 0
