"""The fields of responses. Each is declared once: the same object makes the JSON and describes it in `GET /openapi.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import iso_time
from mailsvc.http.fields import SOME_ID, Schema, described, nullable

Show = Callable[[Any], Any]


@attrs.frozen
class Value:
    """One field: its schema, and how a Python value becomes JSON. `source` is the attribute that has the value, if its name differs
    from the field's, or a function that gets the whole object. An `optional` field is left out when its value is None.
    """

    schema: Schema
    show: Show | None = None
    source: str | Callable[[Any], Any] | None = None
    optional: bool = False


@attrs.frozen
class View:
    """A JSON object with exactly these fields. `title` names it in the description."""

    title: str
    values: Mapping[str, Value]
    _parts: Sequence[tuple[str, Callable[[Any], Any], Show | None, bool]] = attrs.field(init=False, repr=False)

    @_parts.default
    def _of_values(self) -> Sequence[tuple[str, Callable[[Any], Any], Show | None, bool]]:
        return [(name, _getter(name, value.source), value.show, value.optional) for name, value in self.values.items()]

    @property
    def schema(self) -> Schema:
        return {
            "title": self.title,
            "type": "object",
            "properties": {name: value.schema for name, value in self.values.items()},
            "required": [name for name, value in self.values.items() if not value.optional],
            "additionalProperties": False,
        }

    def show(self, source: Any = None, /, **given: Any) -> dict[str, Any]:
        """`source` as JSON. `given` has the fields that are not attributes of it."""
        shown = {}
        for name, get, convert, optional in self._parts:
            value = given[name] if name in given else get(source)
            if value is None and optional:
                continue
            shown[name] = value if convert is None or value is None else convert(value)
        return shown


@attrs.frozen
class Listing:
    """A page of a list of `row`s. `answer.page` makes it. `more`: further fields of the page, and `title` its own title then."""

    row: View
    more: Mapping[str, Value] = attrs.field(factory=dict)
    title: str | None = None

    @property
    def schema(self) -> Schema:
        return View(
            self.title or f"{self.row.title}List",
            {
                "object": const("list", "Always `list`."),
                "has_more": flag("Whether there are more rows in the direction of this page.", False),
                "data": many(self.row, "The rows."),
                **self.more,
            },
        ).schema


def _getter(name: str, source: str | Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return source if callable(source) else attrgetter(source or name)


# Times


def postgres_time(at: datetime) -> str:
    """As Postgres writes a timestamptz in UTC: without the trailing zeros of the fraction."""
    at = at.astimezone(UTC)
    text = f"{at:%Y-%m-%d %H:%M:%S}"
    return f"{text}.{at.microsecond:06}".rstrip("0") + "+00" if at.microsecond else f"{text}+00"


# Fields by type


def text(about: str, example: Any, source: str | Callable[[Any], Any] | None = None, **more: Any) -> Value:
    return Value({"type": "string", **more, **described(about, example)}, None, source)


def uuid(about: str, source: str | Callable[[Any], Any] | None = None) -> Value:
    return Value({"type": "string", "format": "uuid", **described(about, SOME_ID)}, _text_of, source)


def _text_of(value: UUID | str) -> str:
    return str(value)


def time(about: str, source: str | Callable[[Any], Any] | None = None) -> Value:
    """A time as Postgres writes it, which is what the client libraries get from the service they were written for."""
    schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?\+00$"}
    return Value({**schema, **described(f"{about} As Postgres writes it, in UTC.", "2026-01-02 03:04:05.678+00")}, postgres_time, source)


def iso(about: str, source: str | Callable[[Any], Any] | None = None) -> Value:
    schema = {"type": "string", "format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
    return Value({**schema, **described(about, "2026-01-02T03:04:05.678Z")}, iso_time, source)


def choice(about: str, words: Sequence[str], source: str | Callable[[Any], Any] | None = None, example: str | None = None) -> Value:
    return Value({"type": "string", "enum": list(words), **described(about, example or words[0])}, None, source)


def const(value: object, about: str) -> Value:
    kind = "boolean" if isinstance(value, bool) else "string"
    return Value({"type": kind, "const": value, **described(about, value)}, None, lambda _: value)


def flag(about: str, example: bool, source: str | Callable[[Any], Any] | None = None) -> Value:
    return Value({"type": "boolean", **described(about, example)}, None, source)


def count(about: str, example: int, source: str | Callable[[Any], Any] | None = None) -> Value:
    return Value({"type": "integer", "minimum": 0, **described(about, example)}, None, source)


def number(about: str, example: float, source: str | Callable[[Any], Any] | None = None) -> Value:
    return Value({"type": "number", "minimum": 0, **described(about, example)}, None, source)


def texts(about: str, example: Sequence[str], source: str | Callable[[Any], Any] | None = None) -> Value:
    return Value({"type": "array", "items": {"type": "string"}, **described(about, list(example))}, list, source)


def free(about: str, example: Any, source: str | Callable[[Any], Any] | None = None, **schema: Any) -> Value:
    """JSON whose fields are not known here."""
    return Value({**schema, **described(about, example)}, None, source)


def one(view: View, about: str, source: str | Callable[[Any], Any] | None = None) -> Value:
    """An object within an object."""
    return Value({**view.schema, "description": about}, view.show, source)


def many(view: View, about: str, source: str | Callable[[Any], Any] | None = None) -> Value:
    return Value({"type": "array", "items": view.schema, "description": about}, lambda rows: [view.show(row) for row in rows], source)


def maybe(value: Value) -> Value:
    """The same, or null."""
    return attrs.evolve(value, schema=nullable(value.schema))


def optional(value: Value) -> Value:
    """The same, or left out."""
    return attrs.evolve(value, optional=True)


def acknowledged(name: str, title: str, about: str, **more: Value) -> View:
    """`{"object": …, "id": …}`, the answer to many requests that change something."""
    return View(title, {"object": const(name, f"Always `{name}`."), "id": uuid(about), **more})
