"""The browser that the page is tested in. `make browser` gets one where there is none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Playwright

COMMANDS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""What `make browser` looks for, in its order."""


def executable(playwright: Playwright) -> str:
    """Path of a Chromium; without one the test fails in CI, and is skipped elsewhere."""
    found = [path for path in map(shutil.which, COMMANDS) if path]
    found += [path for path in [playwright.chromium.executable_path] if Path(path).exists()]
    if found:
        return found[0]
    message = "no Chromium is here, so the page was not looked at: run `make browser`"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def arguments() -> list[str]:
    """Chromium refuses its sandbox to root."""
    return ["--no-sandbox"] if os.geteuid() == 0 else []
