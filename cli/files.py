"""``kvproof convert``, ``redact`` and ``schema``: what is in the files, in another form."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvproof.cli.output import console, show
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.describe import Kind, json_schema, markdown
from kvproof.model.facts import LogReader, encode_fact
from kvproof.model.files import blocks, is_log, open_file, read_file, read_scenario
from kvproof.model.redact import Redactor
from kvproof.model.scenario import BadFileError, encode_scenario
from kvproof.model.text import encode_text, is_text

OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="Write here instead of standard output.")
]


def convert(
    file: Annotated[
        Path, typer.Argument(help="A scenario, as text or JSON; `-` for standard input.")
    ],
    to: Annotated[
        Literal["text", "json"] | None, typer.Option(help="Default: the form that it has not.")
    ] = None,
    out: OutOption = None,
) -> None:
    """Turn a scenario from text into JSON or back; nothing but comments is lost."""
    data = read_file(file)
    try:
        scenario = read_scenario(data)
    except BadFileError as error:
        raise BadFileError(f"{file}: {error}") from error
    form = to or ("json" if is_text(data) else "text")
    _write([encode_text(scenario) if form == "text" else encode_scenario(scenario)], out)


def redact(
    file: Annotated[Path, typer.Argument(help="A scenario or a log; `-` for standard input.")],
    key: Annotated[
        str | None,
        typer.Option(help="With the same key names stay the same over several files."),
    ] = None,
    out: OutOption = None,
) -> None:
    """Hide the names of requests and texts in a file; its verdicts stay the same."""
    redactor = Redactor(secrets.token_bytes() if key is None else key.encode())
    with open_file(file) as source:
        rest = blocks(source)
        start = next(rest, b"")
        while b"\n" not in start and (more := next(rest, b"")):
            start += more
        data = chain([start], rest)
        if is_log(start):
            _write(map(encode_fact, redactor.log(LogReader(data))), out)
            return
        whole = b"".join(data)
        scenario = redactor.scenario(read_scenario(whole))
        _write([encode_text(scenario) if is_text(whole) else encode_scenario(scenario)], out)


def schema(
    kind: Annotated[Kind, typer.Argument(help="Which file.")],
    tables: Annotated[
        bool, typer.Option("--markdown", help="Tables for people, as in docs/files.md.")
    ] = False,
) -> None:
    """Print the JSON Schema of a scenario, or of one line of a log."""
    if tables:
        console().print(markdown(kind), markup=False, soft_wrap=True)
    else:
        show("", json_schema(kind), as_json=True)


def _write(parts: Iterable[bytes], out: Path | None) -> None:
    if out is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    try:
        with out.open("wb") as file:
            file.writelines(parts)
    except OSError as error:
        raise EngineError(
            f"{out} cannot be written: {error.strerror}", fix="give another file with --out"
        ) from error
