"""Errors as clients see them: one flat JSON object, the same for every endpoint and for invalid HTTP.

The names are those that client libraries know. Some libraries take an error with an unknown name for a success.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

import attrs
import orjson
from twisted.web.http import RESPONSES

from mailsvc.policy import Refusal
from mailsvc.settings.plans import WORDS, Exhausted

JSON = b"application/json; charset=utf-8"
# Reason phrases that Twisted doesn't have, or has in an older wording (9110 §15, 6585).
_REASONS = {413: b"Content Too Large", 422: b"Unprocessable Content", 429: b"Too Many Requests", 431: b"Request Header Fields Too Large"}
DELETED = "The content of this email has been deleted."
UNREADABLE = "The content of this email is encrypted, and its key is not available at the moment."


@attrs.frozen
class Problem(Exception):
    """An error response. `headers` are added to it."""

    status: int
    name: str
    message: str
    headers: Mapping[str, str] = attrs.field(factory=dict)

    def json(self) -> dict[str, object]:
        return {"statusCode": self.status, "message": self.message.encode("utf-8", "replace").decode(), "name": self.name}

    def body(self) -> bytes:
        return orjson.dumps(self.json())

    def at(self, index: int) -> Problem:
        """The same problem, for an item of a batch."""
        return attrs.evolve(self, message=f"Item {index}: {self.message}")


def reason(status: int) -> bytes:
    """The reason phrase for a status line."""
    return _REASONS.get(status) or RESPONSES.get(status, b"Unknown Status")


def invalid(message: str, status: int = 422) -> Problem:
    """A field is wrong; the message names it."""
    return Problem(status, "validation_error", message)


def missing(field: str) -> Problem:
    return Problem(422, "missing_required_field", f"Missing `{field}` field.")


def not_found(what: str) -> Problem:
    return Problem(404, "not_found", f"{what} not found")


def content_deleted() -> Problem:
    """The email exists, its message has been deleted."""
    return Problem(404, "not_found", DELETED)


def no_endpoint() -> Problem:
    return Problem(404, "not_found", "The requested endpoint does not exist.")


def method_not_allowed(allowed: str) -> Problem:
    return Problem(405, "method_not_allowed", "Method is not allowed for the requested path.", {"Allow": allowed})


def not_implemented() -> Problem:
    """Method names are case-sensitive (9110 §9.1); an unknown one is a 501 (9110 §15.6.2)."""
    return Problem(501, "method_not_allowed", "Unknown request method. Method names are upper case.")


def missing_key() -> Problem:
    # 6750 §3: no error attribute when the request had no credentials
    return Problem(401, "missing_api_key", "Missing API key in the authorization header.", {"WWW-Authenticate": "Bearer"})


def invalid_key() -> Problem:
    return Problem(403, "invalid_api_key", "API key is invalid")


def moved_key(cell: str) -> Problem:
    """The account of the key has moved to another cell (9110 §15.5.20)."""
    message = f"The account of this API key has moved to the cell {cell}. Send the request there."
    return Problem(421, "invalid_api_key", message, {"Mailsvc-Cell": cell})


def suspended_key() -> Problem:
    return Problem(403, "suspended_api_key", "This API key is suspended")


def restricted_key() -> Problem:
    return Problem(401, "restricted_api_key", "This API key is restricted to only send emails.")


def foreign_network() -> Problem:
    return Problem(401, "restricted_api_key", "This API key cannot be used from your network.")


def too_many_requests(reset: int) -> Problem:
    message = "Too many requests. Please limit the number of requests per second."
    return Problem(429, "rate_limit_exceeded", message, {"Retry-After": str(reset)})


def over_quota(found: Exhausted, now: datetime) -> Problem:
    """The account's plan doesn't have enough recipients left, or never has as many."""
    if found.too_large:
        return invalid(found.message)
    seconds = math.ceil((found.resets_at - now).total_seconds())
    return Problem(429, f"{WORDS[found.period]}_quota_exceeded", found.message, {"Retry-After": str(max(1, seconds))})


def unavailable(seconds: int = 1) -> Problem:
    return Problem(503, "service_unavailable", "API is temporarily unavailable", {"Retry-After": str(seconds)})


def unreadable() -> Problem:
    """The message is encrypted, and its key is missing or wrong. The email itself can be sent and listed."""
    return Problem(503, "service_unavailable", UNREADABLE, {"Retry-After": "60"})


def unexpected(error_id: str) -> Problem:
    """A bug. `error_id` is in the log, with the traceback."""
    return Problem(500, "application_error", f"An unexpected error occurred. Error ID: {error_id}")


# The status and name for each kind of refusal (policy.Kind).
_REFUSALS: Mapping[str, tuple[int, str]] = {
    "domain": (403, "validation_error"),
    "key": (403, "restricted_api_key"),
    "size": (413, "validation_error"),
    "attachment": (422, "invalid_attachment"),
    "later": (503, "service_unavailable"),
}
_LATER = {"Retry-After": "60"}


def refused(refusal: Refusal) -> Problem:
    status, name = _REFUSALS.get(refusal.kind, (422, "validation_error"))
    field = refusal.field
    message = refusal.message if field is None or field in refusal.message else f"The `{field}` field: {refusal.message}"
    return Problem(status, name, message, _LATER if refusal.kind == "later" else {})
