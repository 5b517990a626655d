"""The fields of request bodies. Each is declared once: the same object validates a value and describes it in `GET /openapi.json`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
import orjson

from mailsvc import policy
from mailsvc.http.problem import Problem, invalid, missing
from mailsvc.http.strict_json import shortened
from mailsvc.settings.audience import Audience, Broadcasts

Schema = Mapping[str, Any]

SOME_ID = "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)


@attrs.frozen
class Bounds:
    """What the operator allows. `ahead`: how far in the future an email can be scheduled."""

    email: policy.Limits = attrs.field(factory=policy.Limits)
    batch: int = 100
    ahead: timedelta = timedelta(days=30)
    audience: Audience = attrs.field(factory=Audience)
    broadcasts: Broadcasts = attrs.field(factory=Broadcasts)


@attrs.frozen
class Rules:
    """What reading a body depends on. `natural`: times in English can be parsed now, because this is not the reactor thread."""

    now: datetime
    bounds: Bounds
    natural: bool


Bound = int | Callable[[Bounds], int]  # a limit, or how to get it from the operator's settings


class Wrong(ValueError):
    """What is wrong with a value, as the end of a sentence that begins with the field: "must be …"."""


@attrs.frozen
class Field(ABC):
    """One field. `about` and `example` appear in the description. `blank`: "" and [] mean that the field was not set."""

    about: str = ""
    example: Any = None
    required: bool = attrs.field(default=False, kw_only=True)
    blank: bool = attrs.field(default=False, kw_only=True)

    @abstractmethod
    def form(self) -> dict[str, Any]:
        """The schema of a value that is set, without description and example. A callable in it gets its number from the `Bounds`."""

    @abstractmethod
    def read(self, value: Any, place: str, rules: Rules) -> Any:
        """Convert a value that is set, or raise a Problem. `place` names the field in errors."""

    def absent(self, value: Any) -> bool:
        return value is None or (self.blank and (value == "" or value == []))

    @property
    def schema(self) -> Schema:
        return {**self.form(), **described(self.about, self.example)}


def described(about: str, example: Any) -> dict[str, Any]:
    return {**({"description": about} if about else {}), **({} if example is None else {"examples": [example]})}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    outer = {key: schema[key] for key in ("description", "examples") if key in schema}
    inner = {key: value for key, value in schema.items() if key not in outer}
    choices = inner["anyOf"] if set(inner) == {"anyOf"} else [inner]
    return {"anyOf": [*choices, {"type": "null"}], **outer}


def _from_to(least: int, most: int | None) -> str:
    return f"must have {least} to {most}" if least else f"can have at most {most}"


@attrs.frozen
class Text(Field):
    """A string without NUL. `pattern` has to match all of it, otherwise the error says `says`. `parse` converts it, or raises Wrong."""

    blank: bool = attrs.field(default=True, kw_only=True)
    least: int = attrs.field(default=0, kw_only=True)
    most: Bound | None = attrs.field(default=None, kw_only=True)
    pattern: re.Pattern[str] | None = attrs.field(default=None, kw_only=True)
    says: str = attrs.field(default="", kw_only=True)
    error: str = attrs.field(default="validation_error", kw_only=True)
    parse: Callable[[str], Any] | None = attrs.field(default=None, kw_only=True)
    more: Schema = attrs.field(factory=dict, kw_only=True)  # of the schema

    def form(self) -> dict[str, Any]:
        optional = self.blank and not self.required
        least = 0 if optional else max(self.least, int(self.blank))
        form = {"type": "string", **({"minLength": least} if least else {}), **self.more}
        if self.most is not None:
            form["maxLength"] = self.most
        if self.pattern is not None and not self.pattern.flags & re.IGNORECASE:
            form["pattern"] = f"^(?:{self.pattern.pattern})$"
        return {"anyOf": [form, {"const": ""}]} if optional and form.keys() & {"pattern", "format"} else form

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        if not isinstance(value, str):
            raise invalid(f"The `{place}` field must be a string.")
        most = self.most(rules.bounds) if callable(self.most) else self.most
        if not self.least <= len(value) or (most is not None and len(value) > most):
            raise invalid(f"The `{place}` field {_from_to(self.least, most)} characters.")
        if "\0" in value:
            raise invalid(f"The `{place}` field must not have a NUL character.")
        if self.pattern is not None and not self.pattern.fullmatch(value):
            raise invalid(f"The `{place}` field {self.says}.")
        if self.parse is None:
            return value
        try:
            return self.parse(value)
        except Wrong as wrong:
            raise Problem(422, self.error, f"The `{place}` field {wrong}.") from None


@attrs.frozen
class Choice(Field):
    """One of some words; `error` is the name of the error for any other value."""

    blank: bool = attrs.field(default=True, kw_only=True)
    words: tuple[str, ...] = attrs.field(kw_only=True)
    error: str = attrs.field(default="validation_error", kw_only=True)

    def form(self) -> dict[str, Any]:
        return {"type": "string", "enum": [*self.words, *([""] if self.blank and not self.required else [])]}

    def read(self, value: Any, place: str, rules: Rules) -> str:
        if not isinstance(value, str) or value not in self.words:
            words = [f"`{word}`" for word in self.words]
            listed = " or ".join(words) if len(words) < 3 else f"one of {', '.join(words)}"
            raise Problem(422, self.error, f"The `{place}` field must be {listed}.")
        return value


@attrs.frozen
class Id(Field):
    """An ID in the form that all IDs have here: a UUID."""

    example: Any = SOME_ID

    def form(self) -> dict[str, Any]:
        return {"type": "string", "format": "uuid"}

    def read(self, value: Any, place: str, rules: Rules) -> UUID:
        if not isinstance(value, str) or not _UUID.match(value):
            raise Problem(422, "invalid_parameter", f"The `{place}` must be a valid UUID.")
        return UUID(value)


def _moment(text: str) -> datetime:
    """In UTC: Postgres does not store all offsets that ISO 8601 allows."""
    try:
        found = datetime.fromisoformat(text)
        if found.tzinfo is not None:
            return found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise Wrong("must be an ISO 8601 time with a UTC offset, such as 2026-01-02T03:04:05Z")


@attrs.frozen
class Moment(Text):
    """A point in time: ISO 8601 with its offset."""

    example: Any = "2026-01-02T03:04:05Z"
    more: Schema = attrs.field(factory=lambda: {"format": "date-time"}, kw_only=True)
    parse: Callable[[str], Any] | None = attrs.field(default=_moment, kw_only=True)


@attrs.frozen
class Flag(Field):
    """True or false."""

    def form(self) -> dict[str, Any]:
        return {"type": "boolean"}

    def read(self, value: Any, place: str, rules: Rules) -> bool:
        if not isinstance(value, bool):
            raise invalid(f"The `{place}` field must be true or false.")
        return value


@attrs.frozen
class Unsupported(Field):
    """A field that client libraries know and this service doesn't accept. The description leaves it out; `about` says what to do."""

    blank: bool = attrs.field(default=True, kw_only=True)

    def form(self) -> dict[str, Any]:
        return {}

    def read(self, value: Any, place: str, rules: Rules) -> None:
        raise invalid(f"The `{place}` field is not supported. {self.about}")


@attrs.frozen
class Fixed(Field):
    """A field that cannot be changed, and how the creation reads it. The description leaves it out. `unchanged` compares its value."""

    of: Field = attrs.field(kw_only=True)

    def form(self) -> dict[str, Any]:
        return {}

    def absent(self, value: Any) -> bool:
        return self.of.absent(value)

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        return self.of.read(value, place, rules)


def fixed(creation: Record, *names: str) -> dict[str, Field]:
    return {name: Fixed(of=creation.fields[name]) for name in names}


def unchanged(given: Mapping[str, Any], advice: str, **present: Any) -> None:
    """Refuse other values of fields that cannot be changed: ignored, they would seem to apply."""
    for name, value in present.items():
        if given.get(name) is not None and given[name] != value:
            raise invalid(f"The `{name}` field cannot be changed. {advice}")


@attrs.frozen
class OneOrMany(Field):
    """One string, or an array of them. Always read as a tuple."""

    blank: bool = attrs.field(default=True, kw_only=True)
    item: Field = attrs.field(kw_only=True)
    most: Bound = attrs.field(kw_only=True)
    noun: str = attrs.field(default="items", kw_only=True)

    def form(self) -> dict[str, Any]:
        item = attrs.evolve(self.item, required=True).form()
        array = {"type": "array", "items": item, "maxItems": self.most}
        if self.required or not self.blank:
            return {"anyOf": [item, {**array, "minItems": 1}]}
        alone = attrs.evolve(self.item, required=False).form()
        return {"anyOf": [alone, array, *([] if self.item.blank else [{"const": ""}])]}

    def read(self, value: Any, place: str, rules: Rules) -> tuple[Any, ...]:
        if isinstance(value, str):
            return (self.item.read(value, place, rules),)
        if not isinstance(value, list):
            raise invalid(f"The `{place}` field must be a string or an array of strings.")
        if not value:
            raise invalid(f"The `{place}` field must have at least one item.")
        most = self.most(rules.bounds) if callable(self.most) else self.most
        if len(value) > most:
            raise invalid(f"The `{place}` field can have at most {most} {self.noun}.")
        return tuple([self.item.read(item, f"{place}[{index}]", rules) for index, item in enumerate(value)])


@attrs.frozen
class Record(Field):
    """A JSON object. Unknown keys are ignored, because client libraries repeat IDs and add keys of their own.

    Reading gives all fields, None for those that are not set; or what `make` makes of them and of the record's place.
    `noun` names the record when it is not a field but the whole body.
    """

    title: str = attrs.field(kw_only=True)
    fields: Mapping[str, Field] = attrs.field(kw_only=True)
    make: Callable[[dict[str, Any], str], Any] | None = attrs.field(default=None, kw_only=True)
    noun: str = attrs.field(default="request body", kw_only=True)

    def form(self) -> dict[str, Any]:
        shown = {name: field for name, field in self.fields.items() if field.form()}
        properties = {name: field.schema if field.required else nullable(field.schema) for name, field in shown.items()}
        required = [name for name, field in shown.items() if field.required]
        return {"title": self.title, "type": "object", "properties": properties, **({"required": required} if required else {})}

    def read(self, value: Any, place: str, rules: Rules) -> Any:
        if not isinstance(value, dict):
            raise invalid(f"The `{place}` field must be an object." if place else f"The {self.noun} must be a JSON object.")
        found: dict[str, Any] = {}
        for name, field in self.fields.items():
            given = value.get(name)
            if given is not None and not field.absent(given):
                found[name] = field.read(given, f"{place}.{name}" if place else name, rules)
            elif field.required:
                raise missing(f"{place}.{name}" if place else name)
            else:
                found[name] = None
        return found if self.make is None else self.make(found, place)

    def present(self, value: Any, rules: Rules) -> dict[str, Any]:
        """Only the fields that a body has. None for those that are null, which clears them."""
        found = self.read(value, "", rules)
        return {name: each for name, each in found.items() if name in value}


@attrs.frozen
class Records(Field):
    """An array of objects. Read as a tuple."""

    item: Record = attrs.field(kw_only=True)
    least: int = attrs.field(default=0, kw_only=True)
    most: Bound | None = attrs.field(default=None, kw_only=True)

    def form(self) -> dict[str, Any]:
        limits = {**({"minItems": self.least} if self.least else {}), **({} if self.most is None else {"maxItems": self.most})}
        return {"type": "array", "items": self.item.schema, **limits}

    def read(self, value: Any, place: str, rules: Rules) -> tuple[Any, ...]:
        self.count(value, place, rules)
        return tuple([self.item.read(item, f"{place}[{index}]", rules) for index, item in enumerate(value)])

    def count(self, value: Any, place: str, rules: Rules) -> None:
        """Raise a Problem unless `value` is an array of a permitted length."""
        name = f"`{place}` field" if place else self.item.noun
        if not isinstance(value, list):
            raise invalid(f"The {name} must be an array of objects.")
        most = self.most(rules.bounds) if callable(self.most) else self.most
        if len(value) < self.least or (most is not None and len(value) > most):
            raise invalid(f"The {name} {_from_to(self.least, most)} items.")


NO_ENTRIES: Schema = {"const": []}


def no_entries(value: Any) -> bool:
    """Whether it is an object without entries. PHP, and so Laravel, writes an empty one as `[]`."""
    return value in ({}, [])


@attrs.frozen
class TextMap(Field):
    """An object whose values are strings. Numbers and booleans become one as JSON writes them; an entry that is null is left out.

    Also read as an array of objects with `name` and `value`, as Swoosh (Elixir) sends it.
    """

    def form(self) -> dict[str, Any]:
        value = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}]}
        return {"anyOf": [{"type": "object", "additionalProperties": value}, NO_ENTRIES]}

    def read(self, value: Any, place: str, rules: Rules) -> Mapping[str, str]:
        if no_entries(value):
            return {}
        value = _as_object(value)
        if not isinstance(value, dict):
            raise invalid(f"The `{place}` field must be an object of strings.")
        texts = {}
        for name, content in value.items():
            if isinstance(content, int | float):
                content = orjson.dumps(content).decode()
            if content is not None and not isinstance(content, str):
                raise invalid(f"The `{place}.{shortened(name)}` field must be a string.")
            if content is not None:
                texts[name] = content
        return texts


def _as_object(value: Any) -> Any:
    """Returns an array of entries as an object. If it has other items, or two entries of one name, it stays as it is."""
    if not isinstance(value, list) or not all(isinstance(item, dict) and item.keys() == {"name", "value"} for item in value):
        return value
    found = {item["name"]: item["value"] for item in value if isinstance(item["name"], str)}
    return found if len(found) == len(value) else value
