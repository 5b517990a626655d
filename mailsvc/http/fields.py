"""The fields of a request body, each said once: what reads it and what `GET /openapi.json` tells of it are the same object."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID

import attrs

from mailsvc.http.problem import Problem, invalid, missing
from mailsvc.http.strict_json import shown

Schema = Mapping[str, Any]

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)


class Field(Protocol):
    """Reads a value that is there (not null); `name` is how an error calls it."""

    @property
    def schema(self) -> Schema: ...

    def read(self, value: Any, name: str) -> Any: ...


@attrs.frozen
class Text:
    """A string without NUL, of `least` to `most` characters."""

    least: int = 0
    most: int = 1000
    about: str = ""

    @property
    def schema(self) -> Schema:
        # Printed so that every reader of patterns understands it: no character U+0000.
        return _about({"type": "string", "minLength": self.least, "maxLength": self.most, "pattern": "^[^\\x00]*$"}, self.about)

    def read(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise invalid(f"The `{name}` field must be a string.")
        if not self.least <= len(value) <= self.most:
            raise invalid(f"The `{name}` field must have {self.least} to {self.most} characters.")
        if "\0" in value:
            raise invalid(f"The `{name}` field must not have a NUL character.")
        return value


@attrs.frozen
class Choice:
    """One of some words; `wrong` is the name of the error for another one."""

    words: tuple[str, ...]
    wrong: str = "validation_error"
    about: str = ""

    @property
    def schema(self) -> Schema:
        return _about({"type": "string", "enum": list(self.words)}, self.about)

    def read(self, value: Any, name: str) -> str:
        if value not in self.words or not isinstance(value, str):
            listed = " or ".join(f"`{word}`" for word in self.words)
            raise Problem(422, self.wrong, f"The `{name}` field must be {listed}.")
        return value


@attrs.frozen
class Id:
    """An id in the form that all of ours have."""

    about: str = ""

    @property
    def schema(self) -> Schema:
        return _about({"type": "string", "format": "uuid"}, self.about)

    def read(self, value: Any, name: str) -> UUID:
        if not isinstance(value, str) or not _UUID.match(value):
            raise Problem(422, "invalid_parameter", f"The `{name}` must be a valid UUID.")
        return UUID(value)


@attrs.frozen
class Record:
    """A JSON object. Keys that are not known are ignored: the libraries repeat ids and add their own."""

    fields: Mapping[str, Field]
    required: Sequence[str] = ()

    @property
    def schema(self) -> Schema:
        known = {
            name: field.schema if name in self.required else {"anyOf": [field.schema, {"type": "null"}]}
            for name, field in self.fields.items()
        }
        return {"type": "object", "properties": known, **({"required": list(self.required)} if self.required else {})}

    def read(self, value: Any, name: str = "") -> dict[str, Any]:
        """All fields; None for what is absent or null."""
        if not isinstance(value, dict):
            raise invalid("The request body must be a JSON object." if not name else f"The `{shown(name)}` field must be an object.")
        found = {}
        for key, field in self.fields.items():
            given = value.get(key)
            if given is None and key in self.required:
                raise missing(key)
            found[key] = None if given is None else field.read(given, key)
        return found


def _about(schema: dict[str, Any], about: str) -> Schema:
    return {**schema, "description": about} if about else schema
