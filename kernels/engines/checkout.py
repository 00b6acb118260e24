"""What a checkout says about its own version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_ASSIGNED = re.compile(r"^__version__\s*=(?:\s*version\s*=)?\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def checkout_version(root: Path) -> str:
    """Version of the engine in ``root``: of git, else of its version file, else ``unknown``.

    Git comes first, since the version file is written by a build and outlives it.
    """
    # A folder that merely lies inside somebody's repository is not described by it.
    if _git(root, "ls-files", "--error-unmatch", "sglang/__init__.py") is not None:
        described = _git(root, "describe", "--tags", "--always", "--dirty")
        if described is not None:
            return described.removeprefix("v")
    for name in ("_version.py", "version.py"):
        path = root / "sglang" / name
        if path.is_file() and (match := _ASSIGNED.search(path.read_text(errors="replace"))):
            return match[1]
    return "unknown"


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where there is no git, no repository or no answer."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
