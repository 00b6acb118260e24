"""Exports: a failing scenario as a regression test for its engine, or for kvproof's own suite."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import count
from pathlib import Path

import jinja2
from msgspec.structs import replace

from kvproof.fuzz.story import chain
from kvproof.fuzz.targets import Target
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import Fact, Started
from kvproof.model.monitor import check
from kvproof.model.scenario import (
    Abort,
    Complete,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Retract,
    Scenario,
    Submit,
    Verify,
    names_of,
)
from kvproof.model.text import spell_operation
from kvproof.model.verdict import Violation

SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
"""Names that stand in source code, file names and comments as they are."""

EXAMPLES = Path("fuzz/tests/test_examples.py")
"""Where a patch adds its example, from the root of kvproof's repository."""

_ANCHOR = "def test_an_example_"
_WIDTH = 86


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A scenario as one target played it."""

    target: Target
    log: Sequence[Fact]

    @property
    def started(self) -> Started:
        """What was run."""
        assert isinstance(self.log[0], Started)
        return self.log[0]

    def shows(self, invariant: str | None) -> Violation | None:
        """The worst violation here, or the worst of one invariant."""
        found = check(self.log).by_severity()
        return next((v for v in found if invariant in (None, v.invariant)), None)

    def breaks(self, violation: Violation) -> bool:
        """Whether the same invariant breaks here for the same cause."""
        return (violation.invariant, violation.cause) in check(self.log).violations


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A failure to export.

    Attributes:
        scenario: ends with the step that breaks; its names are safe ones.
        violation: what breaks on ``seen_on``, a target's name.
    """

    scenario: Scenario
    violation: Violation
    seen_on: str

    @property
    def name(self) -> str:
        """Name in files and functions, e.g. ``fresh_decode_other_request``."""
        return f"{self.violation.invariant}-{self.violation.cause}".lower().replace("-", "_")

    @property
    def story(self) -> list[str]:
        """What breaks and how it came to that, in lines."""
        violation = self.violation
        sentence = f"On {self.seen_on}, in step {violation.step + 1}, {violation.sentence}."
        texts = (sentence, *chain(violation, self.scenario.geometry.window))
        return [line for text in texts for line in textwrap.wrap(text, _WIDTH)]


def case_of(scenario: Scenario, runs: Sequence[Run], invariant: str | None) -> Case:
    """The first run that breaks, as a case.

    Args:
        scenario: what was played; its names are safe ones.
        runs: on each target.
        invariant: what the case is about; None for the worst that breaks.

    Raises:
        EngineError: it breaks in none of the runs.
    """
    for run in runs:
        violation = run.shows(invariant)
        if violation is not None:
            operations = scenario.operations[: violation.step + 1]
            return Case(
                scenario=replace(scenario, operations=operations),
                violation=violation,
                seen_on=run.target.name,
            )
    raise EngineError(
        f"{invariant or 'no invariant'} breaks on {', '.join(run.target.name for run in runs)}"
        if invariant is None
        else f"{invariant} does not break on {', '.join(run.target.name for run in runs)}",
        fix="give a scenario that breaks there, or install the engine on which it does",
    )


# Names


def with_safe_names(scenario: Scenario) -> Scenario:
    """The scenario with each name that source code could not hold replaced by one that it can.

    Equal names stay equal, different ones different; the play is the same but for the names.
    """
    operations = scenario.operations
    requests = _renamed(name for operation in operations for name in names_of(operation))
    texts = _renamed(
        piece.text for op in operations if isinstance(op, Submit) for piece in op.prompt
    )

    def renamed(operation: Operation) -> Operation:
        match operation:
            case Submit(request=request, prompt=prompt):
                pieces = tuple(Piece(texts[piece.text], piece.until) for piece in prompt)
                return Submit(request=requests[request], prompt=pieces)
            case Prefill() | Finish() | Abort() | Retract():
                return replace(operation, request=requests[operation.request])
            case _:
                return operation

    return replace(scenario, operations=tuple(map(renamed, operations)))


def _renamed(names: Iterable[str]) -> Mapping[str, str]:
    given = dict.fromkeys(names)
    fresh = (name for name in (f"R{number}" for number in count(1)) if name not in given)
    return {name: name if SAFE_NAME.fullmatch(name) else next(fresh) for name in given}


# Tests of kvproof


def kvproof_test(case: Case, runs: Sequence[Run]) -> str:
    """A pytest file for ``fuzz/tests``, where its fixtures are.

    Args:
        case: what it looks for.
        runs: of the same scenario on every target whose verdict the test shall know.
    """
    operations = case.scenario.operations
    names = {type(operation).__name__ for operation in operations}
    if "Submit" in names:
        names.add("Piece")
    return template("kvproof_test.py.j2").render(
        case=case,
        story=case.story,
        names=sorted({*names, "Geometry", "Scenario"}),
        scenario=spell_scenario(case.scenario),
        verdicts={run.target.name: run.breaks(case.violation) for run in runs},
        operations=[spell_operation(operation) for operation in operations],
    )


def example_patch(case: Case, repository: Path) -> str:
    """A diff for ``git apply`` that adds the case as an example of kvproof's Hypothesis test.

    Args:
        case: what it adds.
        repository: root of a checkout of kvproof.

    Raises:
        EngineError: that is no such checkout.
    """
    try:
        before = (repository / EXAMPLES).read_text()
    except OSError as error:
        raise EngineError(
            f"{repository / EXAMPLES} cannot be read: {error.strerror}",
            fix="run it in the root of a checkout of kvproof, or name that with --repository",
        ) from error
    if _ANCHOR not in before:
        raise EngineError(
            f"{EXAMPLES} has no test {_ANCHOR}...", fix="use the checkout of this kvproof"
        )
    lines = before.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if line.startswith(_ANCHOR))
    text = (
        "@example(\n"
        f"    # {case.violation.invariant} ({case.violation.cause}) on {case.seen_on}\n"
        f"    scenario={spell_scenario(case.scenario, indent='    ')}\n"
        ")\n"
    )
    after = [*lines[:at], *text.splitlines(keepends=True), *lines[at:]]
    return "".join(
        unified_diff(lines, after, f"a/{EXAMPLES.as_posix()}", f"b/{EXAMPLES.as_posix()}")
    )


# Scenarios as Python


def spell_scenario(scenario: Scenario, *, indent: str = "") -> str:
    """A scenario as a Python expression, formatted as this repository's formatter does it."""
    lines = [
        "Scenario(",
        f"    geometry={_spell_geometry(scenario.geometry)},",
        "    operations=(",
        *(
            f"        {line}"
            for operation in scenario.operations
            for line in _spell_operation(operation, room=88 - len(indent))
        ),
        "    ),",
        ")",
    ]
    return "\n".join([lines[0], *(indent + line for line in lines[1:])])


def _spell_geometry(geometry: Geometry) -> str:
    default = Geometry(window=1, page_size=1, slots=1, pool_tokens=1)
    required = {"window", "page_size", "slots", "pool_tokens"}
    return f"Geometry({_fields(geometry, default, required)})"


def _fields(thing: object, default: object, required: set[str]) -> str:
    names: tuple[str, ...] = type(thing).__struct_fields__  # type: ignore[attr-defined]
    return ", ".join(
        f"{name}={getattr(thing, name)}"
        for name in names
        if name in required or getattr(thing, name) != getattr(default, name)
    )


def _spell_operation(operation: Operation, *, room: int) -> list[str]:
    match operation:
        case Submit(request=request, prompt=prompt):
            line = f'Submit(request="{request}", prompt={_spell_prompt(prompt)}),'
            if len(line) <= room:
                return [line]
            pieces = [f"        {_spell_piece(piece)}," for piece in prompt]
            return [
                "Submit(", f'    request="{request}",', "    prompt=(", *pieces, "    ),", "),"
            ]  # fmt: skip
        case Prefill(request=request, tokens=tokens):
            chunk = "" if tokens is None else f", tokens={tokens}"
            return [f'Prefill(request="{request}"{chunk}),']
        case Decode(pad=pad):
            return [f"Decode(pad={pad})," if pad else "Decode(),"]
        case Verify(accepted=accepted, others=others, pad=pad):
            unlike = ", ".join(f"Accepted({o.request!r}, {o.tokens})" for o in others)
            fields = [f"accepted={accepted}", f"others=({unlike},)" if others else "",
                      f"pad={pad}" if pad else ""]  # fmt: skip
            return [f"Verify({', '.join(filter(None, fields))}),"]
        case Evict(tokens=tokens, swa_tokens=swa_tokens):
            share = f", swa_tokens={swa_tokens}" if swa_tokens else ""
            return [f"Evict(tokens={tokens}{share}),"]
        case Flush() | Complete():
            return [f"{type(operation).__name__}(),"]
        case Finish() | Abort() | Retract():
            return [f'{type(operation).__name__}(request="{operation.request}"),']
        case _:
            raise AssertionError(f"{spell_operation(operation)} is of no cache")


def _spell_prompt(prompt: Prompt) -> str:
    return f"({', '.join(map(_spell_piece, prompt))}{',' if len(prompt) == 1 else ''})"


def _spell_piece(piece: Piece) -> str:
    return f'Piece("{piece.text}", {piece.until})'


def template(name: str) -> jinja2.Template:
    """A template of source code."""
    # What is rendered here is source code: names in it are safe ones, and nothing is escaped.
    return jinja2.Environment(
        loader=jinja2.PackageLoader("kvproof.triage", "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    ).get_template(name)
