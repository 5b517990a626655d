"""The schemas of fields and views, as OpenAPI has them: objects with a title as components, and an example for each field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from mailsvc.http.fields import Bounds, Schema

_REF = "#/components/schemas/"


@attrs.define
class Schemas:
    """`found` has the components. Numbers that depend on the operator's settings come from `bounds`."""

    bounds: Bounds
    found: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def media(self, schema: Schema) -> dict[str, Any]:
        """A media type object."""
        placed = self.place(schema)
        return {"schema": placed, "example": self.example(placed)}

    def place(self, schema: Schema) -> dict[str, Any]:
        """The schema itself, or a reference to it if it has a title."""
        title = schema.get("title")
        if title is None:
            return self._walk(schema)
        built = self._walk({key: value for key, value in schema.items() if key != "description"})
        built.setdefault("examples", [self.example(built)])
        known = self.found.setdefault(title, built)
        assert known == built, f"two schemas have the title {title}"
        return {"$ref": f"{_REF}{title}", **({"description": schema["description"]} if "description" in schema else {})}

    def _walk(self, schema: Schema) -> dict[str, Any]:
        return {key: self._value(key, value) for key, value in schema.items()}

    def _value(self, key: str, value: Any) -> Any:
        if callable(value):
            return value(self.bounds)
        if key == "properties":
            return {name: self._field(field) for name, field in value.items()}
        if key in ("items", "additionalProperties") and isinstance(value, Mapping):
            return self.place(value)
        return [self.place(one) for one in value] if key == "anyOf" else value

    def _field(self, schema: Schema) -> dict[str, Any]:
        """With an example, unless a component has it."""
        placed = self.place(schema)
        return placed if "examples" in placed or _REF in str(placed) else {**placed, "examples": [self.example(placed)]}

    def example(self, schema: Schema) -> Any:
        """The one that it has, or one made of those of its parts."""
        if "$ref" in schema:
            return self.found[schema["$ref"].removeprefix(_REF)]["examples"][0]
        if "examples" in schema:
            return schema["examples"][0]
        if "anyOf" in schema:
            return self.example(schema["anyOf"][0])
        if schema.get("type") == "object":
            return {name: self.example(field) for name, field in schema.get("properties", {}).items()}
        if schema.get("type") == "array":
            return [self.example(schema["items"])]
        return schema["const"] if "const" in schema else schema["enum"][0]  # whatever else has no example, has to get one
