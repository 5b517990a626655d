"""Checks responses against `GET /openapi.json` (a described status, a body of exactly that shape) and against what clients need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import attrs
from jsonschema import Draft202012Validator, FormatChecker

from tests.http.strictclients import complaints


@attrs.define(eq=False)
class Contract:
    """A description, and the responses checked against it."""

    document: Mapping[str, Any]
    _known: dict[str, Any] = attrs.field(factory=dict)

    def operation(self, method: str, target: str) -> Mapping[str, Any] | None:
        """The operation of a request; a path without parameters goes first."""
        path = self.path(target)
        return None if path is None else self.document["paths"][path].get(method.lower())

    def path(self, target: str) -> str | None:
        """The described path of a request."""
        path = (target.partition("?")[0].rstrip("/")) or "/"
        return min((p for p in self.document["paths"] if _pattern(p).fullmatch(path)), key=lambda p: p.count("{"), default=None)

    def check(self, method: str, target: str, status: int, kind: str, body: Any) -> None:
        """Raise an AssertionError if the response is not as described. Unknown paths and methods get 404 and 405."""
        operation = self.operation(method, target) if method.isupper() else None
        if operation is None:
            assert status in (204, 400, 401, 403, 404, 405, 415, 422, 429, 501, 503), (method, target, status)
            return
        answer = operation["responses"].get(str(status))
        if answer and "$ref" in answer:
            answer = self.document["components"]["responses"][str(status)]
        assert answer is not None, f"{method} {target} answered {status}, which its description does not have"
        media = kind.partition(";")[0]
        content = answer["content"].get(media) or answer["content"].get("*/*")
        assert content is not None, (method, target, status, kind)
        if media == "application/json":
            errors = [f"{error.json_path}: {error.message}" for error in self.validator(content["schema"]).iter_errors(body)]
            errors += complaints(method, self.path(target) or target, status, body)
            errors += [error for event in _events(self.path(target), status, body) for error in self._event_errors(event)]
            assert not errors, f"{method} {target} {status}: {errors}"

    def validator(self, schema: Mapping[str, Any]) -> Draft202012Validator:
        """Of a schema in the document, which may refer to components."""
        key = str(id(schema))
        if key not in self._known:
            whole = {**schema, "components": self.document["components"]}
            self._known[key] = Draft202012Validator(whole, format_checker=FormatChecker())
        return self._known[key]

    def check_event(self, event: Any) -> None:
        """Raise an AssertionError if an event is not what `webhooks` describes for its type."""
        errors = self._event_errors(event)
        assert not errors, errors

    def _event_errors(self, event: Any) -> list[str]:
        schema = self.document["webhooks"][event["type"]]["post"]["requestBody"]["content"]["application/json"]["schema"]
        return [f"{event['type']} {error.json_path}: {error.message}" for error in self.validator(schema).iter_errors(event)]


def _events(path: str | None, status: int, body: Any) -> Iterator[Any]:
    """The events in a response."""
    if path == "/event-log" and status == 200:
        for row in body["data"]:
            yield {name: row[name] for name in ("type", "created_at", "data")}
    if path == "/webhooks/{id}/events/{event}" and status == 200 and body["payload"] is not None:
        yield body["payload"]


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)))
