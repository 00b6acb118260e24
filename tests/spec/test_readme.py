"""The specification stays small, free of engines and provers, and its page complete."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"
SOURCES = sorted(SPEC.glob("*.py"))
FAMILIES = "RING|WINDOW|PAGE|RADIX|CAP|EXACT|CURSOR|TRANSLATE|CHUNK|VERIFY|PUBLISH|SLOT|STREAM"
RULE = rf"\b(?:{FAMILIES})-\d+\b"
MAX_LINES = 600
ALLOWED_IMPORTS = {"__future__", "collections", "typing", "kvproof"}


def numbered_rules() -> list[str]:
    """Numbers with which a docstring begins."""
    return [
        number for source in SOURCES for number in re.findall(rf'"""({RULE})\.', source.read_text())
    ]


def test_every_rule_is_numbered_once() -> None:
    rules = numbered_rules()
    assert len(set(rules)) == len(rules) >= 30


def test_readme_and_code_name_the_same_rules() -> None:
    readme = (SPEC / "README.md").read_text()
    explained = re.findall(rf"^\| ({RULE}) \|", readme, re.MULTILINE)
    assert sorted(explained) == sorted(numbered_rules())
    assert set(re.findall(RULE, readme)) == set(explained), "mentioned, but not explained"


def test_every_rule_has_a_test_named_after_it() -> None:
    tested = set()
    for source in Path(__file__).parent.glob("test_*.py"):
        for family, numbers in re.findall(
            r"def test_([a-z]+)_(\d+(?:_and_\d+)*)_", source.read_text()
        ):
            tested |= {f"{family.upper()}-{number}" for number in numbers.split("_and_")}
    assert set(numbered_rules()) - tested == set()


def code_lines(source: str) -> int:
    """Lines of a module that hold code: no docstring, no comment, no blank line."""
    lines: set[int] = set()
    noise = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in noise:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that stands alone documents what comes before it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            assert node.end_lineno is not None
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_code_lines_counts_code_only() -> None:
    assert (
        code_lines('"""Doc\nstring."""\n\n# why\nx = 1  # one\n"""About x."""\ny = (\n 2)\n') == 3
    )


def test_the_specification_stays_small() -> None:
    assert sum(code_lines(source.read_text()) for source in SOURCES) < MAX_LINES


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_the_specification_imports_nothing_but_itself(source: Path) -> None:
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            assert name.split(".")[0] in ALLOWED_IMPORTS, name
            assert not name.startswith("kvproof") or name.startswith("kvproof.spec."), name
