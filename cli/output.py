"""What every command shares: consoles, JSON, errors and exit codes.

Results go to stdout, progress and errors to stderr, so that ``kvproof ... --json | jq`` works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from kvproof.kernels.engines.errors import EngineError
from kvproof.model.files import NoMarkersError


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    """All as expected."""
    VIOLATION = 1
    """A violation that is not a known one."""
    SETUP = 2
    """A usage or set-up error."""


Reporter: TypeAlias = Callable[[str], None]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def console() -> Console:
    """Console for results. Made anew, since tests and pipes replace ``sys.stdout``."""
    return Console(file=sys.stdout, highlight=False)


def errors() -> Console:
    """Console for progress and errors."""
    return Console(file=sys.stderr, highlight=False)


def show(table: RenderableType, data: object, *, as_json: bool) -> None:
    """Print a result: ``data`` as JSON if asked for, else ``table``."""
    if as_json:
        encoded = msgspec.json.encode(data, enc_hook=_encode)
        sys.stdout.write(msgspec.json.format(encoded).decode() + "\n")
    else:
        # Soft: a path or a command stays on one line, so that it can be copied.
        console().print(table, soft_wrap=True)


def plain_table(*titles: str) -> Table:
    """Table without lines, whose cells wrap rather than lose text."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def fail(cause: str, fix: str) -> None:
    """Print an error: one line that says what is wrong, one that says what to do."""
    out = errors()
    out.print(f"[bold red]error:[/] {_line(cause)}", soft_wrap=True)
    out.print(f"[bold]fix:[/]   {_line(fix)}", soft_wrap=True)


@contextmanager
def renewing() -> Iterator[None]:
    """Say what to do where a document has no place for a table, or cannot be written.

    Raises:
        EngineError: so it is.
    """
    try:
        yield
    except (NoMarkersError, OSError) as error:
        raise EngineError(str(error), fix="name a document that has the markers") from error


@contextmanager
def progress(title: str, *, lines: bool = True) -> Iterator[Reporter]:
    """A spinner on a terminal; elsewhere a line a step, if ``lines``."""
    out = errors()
    if out.is_terminal:
        with out.status(title) as status:
            yield lambda text: status.update(_line(text))
    elif lines:
        yield lambda text: out.print(_line(text), soft_wrap=True)
    else:
        yield lambda _: None


def _line(text: str) -> str:
    """Text on one line, with nothing in it that rich would take for markup."""
    return escape(" ".join(text.split()))


def _encode(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"no JSON form for {type(value).__name__}")
