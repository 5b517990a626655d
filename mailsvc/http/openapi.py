"""`GET /openapi.json`: the description of every endpoint, made from the routes themselves and from what stands beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import orjson

from mailsvc.http.answer import collection
from mailsvc.http.describe import Parameter, Told, told
from mailsvc.http.fields import Schema
from mailsvc.http.request import Request

API_VERSION = "1"  # grows when something that is answered today will not be; paths and headers have no version
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")

# What every endpoint may answer, whatever it is for.
ERRORS = {
    400: "The request is not HTTP or not JSON, or an idempotency key is not usable.",
    401: "There is no API key, or it is restricted to sending.",
    403: "The API key is not valid, is suspended, or may not do this.",
    404: "There is no such thing, for this account.",
    408: "The request did not arrive in time.",
    409: "Another request is in the way.",
    410: "The link is over.",
    413: "The request or the email is too large.",
    415: "The body is not sent as JSON, or it is compressed.",
    422: "A field or a parameter is wrong or missing; the message names it.",
    429: "Too many requests in this second.",
    431: "The headers are too large.",
    500: "A defect of this service; the message has an id for its operator.",
    503: "Not just now; `retry-after` says when to try again.",
}
ALWAYS = (400, 408, 413, 429, 431, 500, 503)
WITH_KEY = (401, 403)
WITH_BODY = (415, 422)

ERROR: Schema = {
    "type": "object",
    "properties": {
        "statusCode": {"type": "integer", "description": "The status of the response."},
        "message": {"type": "string", "description": "A sentence for people."},
        "name": {"type": "string", "description": "The kind of the error, for programs."},
    },
    "required": ["statusCode", "message", "name"],
    "additionalProperties": False,
}
_HEADERS = {
    "ratelimit-limit": ("Requests that the account may make in a second.", {"type": "integer"}),
    "ratelimit-remaining": ("Those that are left of them.", {"type": "integer"}),
    "ratelimit-reset": ("Seconds until they are renewed.", {"type": "integer"}),
}
_SCOPES: dict[str, list[dict[str, list[str]]]] = {
    "full": [{"key": []}],
    "sending": [{"key": []}],
    "any": [{"key": []}],
    "none": [],
}


@attrs.frozen
class Endpoint:
    """One method of one path. `told` is None when nobody described it."""

    method: str
    path: str
    collection: str
    name: str
    told: Told | None


def endpoints(collections: Iterable[type]) -> Iterator[Endpoint]:
    """Every route of these collections, in the order in which they stand there."""
    for one in collections:
        for rule in one.app.url_map.iter_rules():  # type: ignore[attr-defined]
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                path = _PARAMETER.sub(r"{\1}", rule.rule)
                said: Told | None = getattr(getattr(one, rule.endpoint), "told", None)
                if said is None or said.served:
                    yield Endpoint(method, path, one.__name__, str(rule.endpoint), said)


def document(collections: Iterable[type], base_url: str | None = None) -> dict[str, Any]:
    """The description as OpenAPI 3.1."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints(collections):
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mailsvc",
            "version": API_VERSION,
            "description": "Transactional email: send it, and learn what became of it.",
        },
        "servers": [{"url": base_url or "/"}],
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key."}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    one = endpoint.told or Told(endpoint.name.replace("_", " "), {})
    parameters = [_in_path(name) for name in re.findall(r"{(\w+)}", endpoint.path)] + [_parameter(p) for p in one.parameters]
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "tags": [endpoint.path.split("/")[1]],
        "summary": one.summary,
        "security": _SCOPES[one.key],
        "x-key": one.key,
        "responses": {
            **{str(status): _success(one) for status in (one.status, *one.also)},
            **{str(status): _error(status) for status in _errors(endpoint, one)},
        },
    }
    if one.about:
        operation["description"] = one.about
    if parameters:
        operation["parameters"] = parameters
    if one.body is not None:
        operation["requestBody"] = {"required": one.body_required, "content": {"application/json": {"schema": one.body}}}
    return operation


def _operation_id(endpoint: Endpoint) -> str:
    words = [endpoint.method.lower(), *re.findall(r"[a-z0-9]+", endpoint.path.replace("{text}", "by_id"))]
    return "_".join(words)


def _errors(endpoint: Endpoint, one: Told) -> list[int]:
    found = {*ALWAYS, *one.errors}
    if one.key != "none":
        found.update(WITH_KEY)
    if one.body is not None:
        found.update(WITH_BODY)
    if one.parameters:
        found.add(422)
    if "{" in endpoint.path:
        found.update((404, 422))
    return sorted(found)


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.about,
        "schema": parameter.schema,
    }


def _success(one: Told) -> dict[str, Any]:
    if isinstance(one.answer, str):
        return {"description": "Done.", "content": {one.answer: {"schema": {"type": "string"}}}}
    return {"description": "Done.", "headers": _headers(), "content": {"application/json": {"schema": one.answer}}}


def _headers() -> dict[str, Any]:
    return {name: {"description": about, "schema": schema} for name, (about, schema) in _HEADERS.items()}


def _error(status: int) -> dict[str, Any]:
    return {"description": ERRORS[status], "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}


@attrs.define(eq=False)
class Description:
    """Serves it; anybody may read it."""

    app = collection()
    document: Mapping[str, Any]
    _text: bytes = b""

    @app.route("/openapi.json", methods=["GET"])
    @told("This description.", {"type": "object"}, key="none")
    def read(self, request: Request) -> bytes:
        self._text = self._text or orjson.dumps(self.document)
        return request.sized(200, self._text)
