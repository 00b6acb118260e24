"""The one error that set-up raises: what went wrong, and what to do about it."""

from __future__ import annotations


class EngineError(Exception):
    """An engine cannot be installed, found or started.

    Attributes:
        cause: what went wrong, one line.
        fix: what the user can do about it, one line.
    """

    def __init__(self, cause: str, *, fix: str) -> None:
        super().__init__(f"{cause} ({fix})")
        self.cause = cause
        self.fix = fix
