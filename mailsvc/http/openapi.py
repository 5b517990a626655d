"""`GET /openapi.json`: describes every endpoint and webhook, from the routes and from the operations, fields and views beside them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import orjson

from mailsvc.events import payload
from mailsvc.http.answer import collection
from mailsvc.http.fields import Bounds, Schema
from mailsvc.http.openapi_schemas import Schemas
from mailsvc.http.operations import Operation, Parameter, operation
from mailsvc.http.request import Request
from mailsvc.http.resources.event_views import DELIVERY_HEADERS, EVENTS
from mailsvc.http.views import View, choice, count, free, text

API_VERSION = "1"  # grows with an incompatible change; paths and headers have no version
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")

_NAMES = """
    validation_error missing_required_field invalid_parameter invalid_attachment invalid_from_address invalid_access invalid_region
    invalid_idempotency_key invalid_idempotent_request concurrent_idempotent_requests missing_api_key invalid_api_key suspended_api_key
    restricted_api_key not_found method_not_allowed rate_limit_exceeded daily_quota_exceeded monthly_quota_exceeded service_unavailable
    application_error
""".split()
ERROR = View(
    "Error",
    {
        "statusCode": count("The status of the response.", 422),
        "message": text("What is wrong, in which field, and what to do. For people.", "Missing `to` field."),
        "name": choice("The kind of error. For programs.", _NAMES, example="missing_required_field"),
    },
)
# By status: when it is answered, and an example of name and message.
ERRORS: Mapping[int, tuple[str, str, str]] = {
    400: (
        "The request is not valid HTTP or JSON, or the idempotency key is not usable.",
        "validation_error",
        "The request body is empty; it must be JSON.",
    ),
    401: (
        "The API key is missing, can only send emails, or cannot be used from this network.",
        "missing_api_key",
        "Missing API key in the authorization header.",
    ),
    403: ("The API key or the link is not valid, or the domain is not verified.", "invalid_api_key", "API key is invalid"),
    404: ("It does not exist, or belongs to another account.", "not_found", "Email not found"),
    408: ("The request did not arrive in time.", "validation_error", "The request did not arrive in time."),
    409: (
        "The idempotency key was used for a different request, or its request is still in progress.",
        "concurrent_idempotent_requests",
        "A request with the same idempotency key is still in progress.",
    ),
    413: ("The request or the email is too large.", "validation_error", "The request body can have at most 1048576 bytes."),
    415: (
        "The body is not sent as JSON, or is compressed.",
        "validation_error",
        "The request body must be sent with `Content-Type: application/json`.",
    ),
    421: (
        "The account has moved to another cell of this installation. Proxies of the installation pass the request on.",
        "invalid_api_key",
        "The account of this API key has moved to the cell eu_1. Send the request there.",
    ),
    422: ("A field or parameter is wrong or missing. The message names it.", "missing_required_field", "Missing `to` field."),
    429: (
        "Too many requests this second, or the sending quota is used up. See `retry-after`.",
        "rate_limit_exceeded",
        "Too many requests. Please limit the number of requests per second.",
    ),
    431: (
        "The headers are too large.",
        "validation_error",
        "The request line and the headers have more than 16384 bytes.",
    ),
    500: (
        "An unexpected error. The message has an ID that the operator can look up.",
        "application_error",
        "An unexpected error occurred. Error ID: 5f0c9d1e7a2b",
    ),
    503: ("Temporarily unavailable. See `retry-after`.", "service_unavailable", "API is temporarily unavailable"),
}
ALWAYS = (400, 408, 413, 415, 429, 431, 500, 503)  # a body is checked even if the operation ignores it
WITH_KEY = (401, 403, 421)

_INTEGER: Schema = {"type": "integer", "minimum": 0}
HEADERS: Mapping[str, tuple[str, Schema, Any]] = {
    "ratelimit-limit": ("The number of requests that the account can make per second.", _INTEGER, 10),
    "ratelimit-remaining": ("How many of them are left.", _INTEGER, 9),
    "ratelimit-reset": ("The number of seconds until the limit resets.", _INTEGER, 1),
    "mailsvc-cell": ("The cell that has the account.", {"type": "string"}, "eu_1"),
    "retry-after": ("The number of seconds to wait before trying again.", _INTEGER, 1),
    "www-authenticate": ("How to authenticate, if the request had no API key.", {"type": "string"}, "Bearer"),
    "x-resend-daily-quota": ("How many recipients the account has used today, if its plan has a daily limit.", _INTEGER, 42),
    "x-resend-monthly-quota": ("How many recipients the account has used this month, if its plan has a limit.", _INTEGER, 420),
}
_RATE = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")
_ALSO = {401: ("www-authenticate",), 421: ("mailsvc-cell",), 429: ("retry-after",), 503: ("retry-after",)}
_QUOTA = ("x-resend-daily-quota", "x-resend-monthly-quota")

TAGS = {
    "emails": "Send emails, read them back, reschedule or cancel them.",
    "email": "Other paths of `POST /emails`, which some client libraries use.",
    "shared": "Emails shared by a link.",
    "usage": "What the account has used.",
    "api-keys": "The API keys of the account.",
    "domains": "The domains that the account sends from.",
    "logs": "API requests and SMTP sessions of the account.",
    "webhooks": "Endpoints that receive events, and what was sent to them.",
    "event-log": "All events of the account, in order.",
    "suppressions": "Addresses that the account cannot email.",
    "contacts": "The people that broadcasts go to.",
    "segments": "Groups of contacts.",
    "audiences": "The former name of segments, which some client libraries use.",
    "broadcasts": "One email for every contact of a segment.",
    "preference-page": "The page that unsubscribe links open.",
    "topics": "Kinds of mail that contacts can choose.",
    "consents": "What people subscribed to and unsubscribed from.",
    "contact-properties": "Fields of contacts that the account defines.",
    "privacy": "What is stored about a person, and erasing it.",
    "sandbox": "The development inbox.",
    "cell": "Where an account is, for proxies.",
    "healthz": "Liveness.",
    "readyz": "Readiness.",
    "openapi.json": "This document.",
}


@attrs.frozen
class Endpoint:
    """One method of one path. `operation` is None if nobody described it."""

    method: str
    path: str
    collection: str
    name: str
    operation: Operation | None


def endpoints(collections: Iterable[type]) -> Iterator[Endpoint]:
    """Every route of these collections, in the order of their source code."""
    for one in collections:
        for rule in one.app.url_map.iter_rules():  # type: ignore[attr-defined]
            for method in sorted((rule.methods or set()) - {"HEAD", "OPTIONS"}):
                path = _PARAMETER.sub(r"{\1}", rule.rule)
                found: Operation | None = getattr(getattr(one, rule.endpoint), "operation", None)
                if found is None or found.served:
                    yield Endpoint(method, path, one.__name__, str(rule.endpoint), found)


def document(collections: Iterable[type], base_url: str | None = None, bounds: Bounds | None = None) -> dict[str, Any]:
    """The description as OpenAPI 3.1."""
    schemas = Schemas(bounds or Bounds())
    schemas.place(ERROR.schema)
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    for endpoint in endpoints(collections):
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
        tags[_tag(endpoint)] = None
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mailsvc",
            "version": API_VERSION,
            "description": "Send transactional email and follow what happens to it.",
        },
        "servers": [{"url": base_url or "/"}],
        "tags": [{"name": tag, "description": TAGS[tag]} for tag in tags],
        "paths": paths,
        "webhooks": {kind: {"post": _webhook(kind, event, schemas)} for kind, event in EVENTS.items()},
        "components": {
            "schemas": schemas.found,
            "responses": {str(status): _error(status) for status in ERRORS},
            "headers": {
                name: {"description": about, "schema": schema, "example": example} for name, (about, schema, example) in HEADERS.items()
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "An API key: `Authorization: Bearer ms_…`."},
            },
        },
    }


def _operation(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    one = endpoint.operation or Operation(endpoint.name.replace("_", " "), "", "*/*")
    parameters = [_in_path(name) for name in re.findall(r"{(\w+)}", endpoint.path)] + [_parameter(each) for each in one.parameters]
    described: dict[str, Any] = {
        "operationId": _operation_id(endpoint),
        "tags": [_tag(endpoint)],
        "summary": one.summary,
        "description": one.about,
        "security": [] if one.key == "none" else [{"key": []}],
        "x-key": one.key,
        "responses": {
            **{str(status): _success(one, schemas) for status in (one.status, *one.also)},
            **{str(status): _refusal(one, status) for status in _errors(endpoint, one)},
        },
    }
    if parameters:
        described["parameters"] = parameters
    if one.body is not None:
        described["requestBody"] = {"required": one.body_required, "content": {one.media: schemas.media(one.body.schema)}}
    return described


def _webhook(kind: str, event: View, schemas: Schemas) -> dict[str, Any]:
    note = "" if kind in payload.SENT else " mailsvc never sends this type, except as a test event; client libraries know it."
    return {
        "operationId": f"on_{kind.replace('.', '_')}",
        "tags": ["webhooks"],
        "summary": kind,
        "description": f"Sent to the endpoints that subscribe to `{kind}`.{note} Signed as described by Standard Webhooks.",
        "security": [],
        "parameters": [_parameter(header) for header in DELIVERY_HEADERS],
        "requestBody": {"required": True, "content": {"application/json": schemas.media(event.schema)}},
        "responses": {"2XX": {"description": "Received. Any other status, or none within 15 seconds, is a failure and is retried."}},
    }


def _tag(endpoint: Endpoint) -> str:
    return endpoint.path.split("/")[1]


def _operation_id(endpoint: Endpoint) -> str:
    words = [endpoint.method.lower(), *re.findall(r"[a-z0-9]+", endpoint.path)]
    return "_".join(words)


def _errors(endpoint: Endpoint, one: Operation) -> list[int]:
    found = {*ALWAYS, *one.errors}
    if one.key != "none":
        found.update(WITH_KEY)
    if one.body is not None or one.parameters:
        found.add(422)
    if "{" in endpoint.path:
        found.update((404, 422))
    return sorted(found)


_IN_PATH = {
    "id": ("The ID.", "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"),
    "contact": ("The contact's ID or its address.", "ada@example.net"),
    "segment_id": ("The segment's ID.", "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"),
    "attachment_id": ("The attachment's ID.", "0190a8e6-5c3f-7b21-9d4e-3f2a1b0c9d8e"),
    "event": ("The ID of the webhook event.", "msg_0190a8e65c3f7b219d4e3f2a1b0c9d8e"),
}


def _in_path(name: str) -> dict[str, Any]:
    about, example = _IN_PATH[name]
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": about, "schema": schema, "example": example}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "description": parameter.about,
        "schema": parameter.schema,
        "example": parameter.example,
    }


def _success(one: Operation, schemas: Schemas) -> dict[str, Any]:
    headers = _headers(*(_QUOTA if one.key == "sending" else ()))
    if isinstance(one.answer, str):
        pages = {} if one.pages is None else {"application/json": schemas.media(one.pages.schema)}
        return {"description": "Success.", "headers": headers, "content": {one.answer: {"schema": {"type": "string"}}, **pages}}
    return {"description": "Success.", "headers": headers, "content": {"application/json": schemas.media(one.answer.schema)}}


def _headers(*more: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*_RATE, *more)}


def _refusal(one: Operation, status: int) -> dict[str, Any]:
    """An error of an endpoint. Those of a page are a page, too, if the client accepts one."""
    if one.answer != "text/html" or status not in one.errors:
        return {"$ref": f"#/components/responses/{status}"}
    error = _error(status)
    return {**error, "content": {**error["content"], "text/html": {"schema": {"type": "string"}}}}


def _error(status: int) -> dict[str, Any]:
    about, name, message = ERRORS[status]
    example = {"statusCode": status, "message": message, "name": name}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}, "example": example}}
    return {"description": about, "headers": _headers(*_ALSO.get(status, ())), "content": content}


_DOCUMENT = free("The description.", {"openapi": "3.1.0"}, type="object")


@attrs.define(eq=False)
class Description:
    """Serves the document, without an API key."""

    app = collection()
    document: Mapping[str, Any]
    _text: bytes = b""

    @app.route("/openapi.json", methods=["GET"])
    @operation("Get this document", "The description of the API as OpenAPI 3.1.", _DOCUMENT, key="none")
    def read(self, request: Request) -> bytes:
        self._text = self._text or orjson.dumps(self.document)
        return request.sized(200, self._text)
