"""The kvproof console command."""

from __future__ import annotations

from kvproof.cli.app import app


def main() -> None:
    """Run the command named by ``sys.argv``; exits with its code."""
    app(prog_name="kvproof")


__all__ = ["app", "main"]
