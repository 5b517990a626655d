"""JSON schemas of the kinds of values that client libraries read. What each library needs of an answer: strictclients, strict_audience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
GUID: Schema = {"type": "string", "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"}
DATE: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d(:?\d\d)?|Z)$"}
U32: Schema = {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
U16_NOT_0: Schema = {"type": "integer", "minimum": 1, "maximum": 2**16 - 1}
FLAG: Schema = {"type": "boolean"}
TEXTS: Schema = {"type": "array", "items": TEXT}


def has(optional: Mapping[str, Schema] | None = None, **needed: Schema) -> Schema:
    """`needed` must be there; `optional` must be of that kind when it is."""
    return {"type": "object", "properties": {**(optional or {}), **needed}, "required": list(needed)}


def null_or(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def rows(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def words(text: str) -> Schema:
    return {"enum": text.split()}


def listed(item: Schema) -> Schema:
    return has(has_more=FLAG, data=rows(item))


# Go: anything may be missing or null, but what is there is of the right kind.


def go(**kinds: Schema) -> Schema:
    return {"type": "object", "properties": {name: null_or(kind) for name, kind in kinds.items()}}


INT: Schema = {"type": "integer"}


def go_list(item: Schema) -> Schema:
    return go(object=TEXT, has_more=FLAG, data=rows(item))
