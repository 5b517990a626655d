"""Every answer against `GET /openapi.json`: a known status, and a body of exactly that shape; and against what the clients need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import attrs
from jsonschema import Draft202012Validator, FormatChecker

from tests.http.strictclients import complaints


@attrs.define(eq=False)
class Contract:
    """A description, and the answers checked against it."""

    document: Mapping[str, Any]
    _known: dict[str, Any] = attrs.field(factory=dict)

    def operation(self, method: str, target: str) -> Mapping[str, Any] | None:
        """What it says of this method of this path; a path without parameters goes first."""
        path = self.path(target)
        return None if path is None else self.document["paths"][path].get(method.lower())

    def path(self, target: str) -> str | None:
        """How it writes the path of a request."""
        path = (target.partition("?")[0].rstrip("/")) or "/"
        return min((p for p in self.document["paths"] if _pattern(p).fullmatch(path)), key=lambda p: p.count("{"), default=None)

    def check(self, method: str, target: str, status: int, kind: str, body: Any) -> None:
        """An AssertionError when the answer is not what the description says. Paths and methods that it does not have: 404, 405."""
        operation = self.operation(method, target) if method.isupper() else None
        if operation is None:
            assert status in (204, 400, 401, 403, 404, 405, 415, 422, 429, 501, 503), (method, target, status)
            return
        answer = operation["responses"].get(str(status))
        assert answer is not None, f"{method} {target} answered {status}, which its description does not have"
        [(media, content)] = answer["content"].items()
        assert kind.partition(";")[0] == media or media == "*/*", (method, target, status, kind)
        if media == "application/json":
            errors = [f"{error.json_path}: {error.message}" for error in self._validator(method, target, status, content).iter_errors(body)]
            errors += complaints(method, self.path(target) or target, status, body)
            assert not errors, f"{method} {target} {status}: {errors}"

    def _validator(self, method: str, target: str, status: int, content: Mapping[str, Any]) -> Draft202012Validator:
        key = str(id(content))
        if key not in self._known:
            schema = content["schema"]
            if "$ref" in schema:
                schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            self._known[key] = Draft202012Validator(schema, format_checker=FormatChecker())
        return self._known[key]


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
