"""The file formats described from the structs themselves: JSON Schema, and tables for the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from kvproof.model.facts import Fact, Holding, Node, Share, SwaPool
from kvproof.model.scenario import SCHEMA, Geometry, Operation, Piece, Scenario

Kind: TypeAlias = Literal["scenario", "log"]

PARTS: dict[Kind, tuple[type[msgspec.Struct], ...]] = {
    "scenario": (Scenario, Geometry, *get_args(Operation), Piece),
    "log": (*get_args(Fact), Node, Holding, SwaPool, Share),
}
"""Structs of each kind of file, in the order in which they are described."""

_NONE = (msgspec.NODEFAULT, msgspec.NODEFAULT)

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)


def json_schema(kind: Kind) -> dict[str, Any]:
    """JSON Schema of a scenario, or of one line of a log."""
    part: Any = Scenario if kind == "scenario" else Fact
    schema = msgspec.json.schema(part)
    title = "scenario" if kind == "scenario" else "line of a log"
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvproof {title}, schema version {SCHEMA}",
        **schema,
    }


def markdown(kind: Kind) -> str:
    """A table a struct: its fields, their types, their defaults, what they mean."""
    return "\n".join(line for struct in PARTS[kind] for line in _table(struct))


def _table(struct: type[msgspec.Struct]) -> Iterator[str]:
    info: Any = msgspec.inspect.type_info(struct)
    summary, meanings = _documented(struct)
    tag = f' `"{info.tag_field}": "{info.tag}"`' if info.tag_field else ""
    yield f"#### {struct.__name__}{tag}"
    yield ""
    yield summary
    yield ""
    if info.fields:
        names = "field" if not info.array_like else "field, in this order"
        yield f"| {names} | type | default | |"
        yield "|---|---|---|---|"
    for field in info.fields:
        # A field that may be unset has neither a default nor a factory.
        has_default = not field.required and (field.default, field.default_factory) != _NONE
        default = f"`{_default(field)}`" if has_default else ""
        yield (
            f"| `{field.encode_name}` | {_type(field.type)} | {default} | "
            f"{meanings.get(field.name, '')} |"
        )
    if info.fields:
        yield ""


def _documented(struct: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    text = inspect.getdoc(struct) or ""
    head, _, attributes = text.partition("\n\nAttributes:\n")
    meanings = {
        name: " ".join(words.split()).replace("``", "`")
        for name, words in _ATTRIBUTE.findall(attributes)
    }
    return " ".join(head.split()).replace("``", "`"), meanings


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.json.encode(field.default).decode()
    return msgspec.json.encode(field.default_factory()).decode()


def _type(info: Any) -> str:
    match type(info).__name__:
        case "IntType":
            if info.ge is None and info.le is None:
                return "integer"
            return f"integer, {info.ge} to {info.le}" if info.le else f"integer from {info.ge}"
        case "FloatType":
            return "number"
        case "StrType":
            return "text"
        case "BoolType":
            return "true, false"
        case "NoneType":
            return "null"
        case "LiteralType":
            return ", ".join(f"`{value}`" for value in info.values)
        case "UnionType":
            structs = [part for part in info.types if type(part).__name__ == "StructType"]
            if len(structs) > 1:
                return "one of those below"
            return " or ".join(_type(part) for part in info.types)
        case "StructType":
            return str(info.cls.__name__)
        case "VarTupleType":
            inner = _type(info.item_type)
            return f"list of {inner}" if " " not in inner else f"list of ({inner})"
        case "TupleType":
            return f"[{', '.join(_type(part) for part in info.item_types)}]"
        case "DictType":
            return f"object of {_type(info.value_type)}"
    return type(info).__name__
