"""docs/files.md and the JSON Schemas say what the structs say."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from kvproof.model.describe import PARTS, Kind, json_schema, markdown
from kvproof.model.facts import Fact

from .samples import SCENARIO, played, recorded

DOCS = Path(__file__).parents[2] / "docs" / "files.md"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_the_docs_hold_the_tables_as_they_are_made(kind: Kind) -> None:
    text = DOCS.read_text()
    start = f"<!-- made by `kvproof schema {kind} --markdown`, do not edit -->\n"
    end = f"<!-- end of {kind} -->"
    assert start in text
    found = text.partition(start)[2].partition(end)[0]
    assert found.strip() == markdown(kind).strip(), f"run: kvproof schema {kind} --markdown"


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_field_of_every_struct_is_described(kind: Kind) -> None:
    tables = markdown(kind)
    for struct in PARTS[kind]:
        assert f"#### {struct.__name__}" in tables
        for name in struct.__struct_encode_fields__:
            assert f"| `{name}` |" in tables
    if kind == "log":
        assert set(get_args(Fact)) <= set(PARTS["log"])


def accepts(schema: object, value: object, definitions: dict[str, object]) -> bool:
    """A small part of JSON Schema: what is used here."""
    assert isinstance(schema, dict)
    if "$ref" in schema:
        return accepts(definitions[schema["$ref"].rpartition("/")[2]], value, definitions)
    if "anyOf" in schema:
        return any(accepts(part, value, definitions) for part in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    match schema.get("type"):
        case "object":
            assert isinstance(value, dict) or not isinstance(value, dict)
            known = schema.get("properties", {})
            return (
                isinstance(value, dict)
                and set(schema.get("required", ())) <= value.keys()
                and all(
                    name in known and accepts(known[name], part, definitions)
                    for name, part in value.items()
                )
            ) or (isinstance(value, dict) and "additionalProperties" in schema and not known)
        case "array":
            items = schema.get("items")
            return isinstance(value, list) and (
                not isinstance(items, dict) or all(accepts(items, v, definitions) for v in value)
            )
        case "integer":
            return (
                isinstance(value, int)
                and value >= schema.get("minimum", value)
                and value <= schema.get("maximum", value)
            )
    return True


def test_what_is_written_is_of_the_schema_and_other_things_are_not() -> None:
    schema = json_schema("log")
    for fact in [*played(), *recorded()]:
        line = msgspec.json.decode(msgspec.json.encode(fact))
        assert accepts(schema, line, schema["$defs"]), line
        assert not accepts(schema, {**line, "colour": "red"}, schema["$defs"])
    schema = json_schema("scenario")
    whole = msgspec.json.decode(msgspec.json.encode(SCENARIO))
    assert accepts(schema, whole, schema["$defs"])
    assert not accepts(schema, {"geometry": whole["geometry"]}, schema["$defs"])
