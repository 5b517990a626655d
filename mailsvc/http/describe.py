"""What an endpoint says of itself: said beside the code that answers, and read by openapi.py. `told` goes under `app.route`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from mailsvc.http.fields import Schema

F = TypeVar("F", bound=Callable[..., Any])


@attrs.frozen
class Parameter:
    """A query parameter or a header."""

    name: str
    schema: Schema
    about: str
    where: str = "query"
    required: bool = False


@attrs.frozen
class Told:
    """`answer` is the schema of a success, or a media type when that is no JSON. `also` are other statuses of a success. `errors` are
    statuses besides those of every endpoint.

    `key`: which key it wants: "full", "sending" (also a key that may only send), "any", or "none".
    """

    summary: str
    answer: Schema | str
    status: int = 200
    also: Sequence[int] = ()
    body: Schema | None = None
    body_required: bool = True
    parameters: Sequence[Parameter] = ()
    errors: Sequence[int] = ()
    key: str = "full"
    about: str = ""
    served: bool = True


def told(summary: str, answer: Schema | str, **more: Any) -> Callable[[F], F]:
    def say(function: F) -> F:
        function.told = Told(summary, answer, **more)  # type: ignore[attr-defined]
        return function

    return say


def not_served(function: F) -> F:
    """A path that client libraries know and that is answered 404 here: no endpoint."""
    return told("Not served.", {}, served=False)(function)


# Shapes that many answers share

ID: Schema = {"type": "string", "format": "uuid"}
TIME: Schema = {
    "type": "string",
    "pattern": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?\+00$",
    "description": "As Postgres writes it: `2026-01-02 03:04:05.678+00`.",
}
ISO_TIME: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
TEXTS: Schema = {"type": "array", "items": TEXT}


def const(value: object) -> Schema:
    return {"const": value}


def maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def obj(fields: Mapping[str, Schema], optional: Sequence[str] = ()) -> Schema:
    """An object of an answer: exactly these keys, all of them there but the `optional` ones."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def listed(item: Schema) -> Schema:
    """A list of rows, as each of them is answered."""
    return obj({"object": const("list"), "has_more": FLAG, "data": array(item)})


def acknowledged(name: str, **more: Schema) -> Schema:
    """`{"object": …, "id": …}`"""
    return obj({"object": const(name), "id": ID, **more})


EMPTY: Schema = {"const": ""}  # a parameter without a value counts as left out
LIMIT = Parameter("limit", {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 100}, EMPTY]}, "Rows of a page.")
AFTER = Parameter("after", {"anyOf": [ID, EMPTY]}, "The rows older than this one. Not with `before`.")
BEFORE = Parameter("before", {"anyOf": [ID, EMPTY]}, "The rows newer than this one. Not with `after`.")
PAGING = (LIMIT, AFTER, BEFORE)
