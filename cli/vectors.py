"""``kvproof vectors``: the specification as data, for tests that cannot import kvproof."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group

from kvproof.cli.corpus import CorpusOption
from kvproof.cli.output import JsonOption, plain_table, show
from kvproof.fuzz.corpus import DEFAULT_CORPUS, load_corpus
from kvproof.kernels.engines.errors import EngineError
from kvproof.triage.vectors import make_vectors


def vectors(
    file: Annotated[Path, typer.Argument(help="Where to write them, e.g. kvproof-vectors.json.")],
    corpus: CorpusOption = DEFAULT_CORPUS,
    as_json: JsonOption = False,
) -> None:
    """Write inputs and results of every rule, and scenarios with what is expected of them.

    For an engine in another language, or a test that takes no further package.
    """
    cases = load_corpus(corpus)
    if not cases:
        raise EngineError(
            f"{corpus} holds no scenarios", fix="run this in the repository, or give --corpus"
        )
    made = make_vectors(cases)
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
    except OSError as error:
        raise EngineError(f"{file} cannot be written: {error}", fix="name another file") from error
    table = plain_table("rule", "function", "cases")
    for rule in made.rules:
        table.add_row(
            rule.rule, f"{rule.function}({', '.join(rule.arguments)})", f"{len(rule.cases)}"
        )
    summary = f"{len(made.rules)} rules and {len(made.scenarios)} scenarios written to {file}"
    result = {
        "file": file,
        "rules": {rule.rule: len(rule.cases) for rule in made.rules},
        "scenarios": [scenario.name for scenario in made.scenarios],
    }
    show(Group(table, summary), result, as_json=as_json)
