"""What events, webhooks and suppressions look like in requests and answers, for openapi.py. What reads and makes them: webhooks.py and
its neighbours, and payload.py.
"""

from __future__ import annotations

from mailsvc.events import payload
from mailsvc.http.describe import (
    COUNT,
    ID,
    LIMIT,
    TEXT,
    TIME,
    Parameter,
    array,
    const,
    maybe,
    obj,
)
from mailsvc.http.fields import Schema

_EMPTY: Schema = {"const": ""}
_TYPE: Schema = {"enum": list(payload.TYPES)}
_STATUS: Schema = {"enum": ["enabled", "disabled"]}
_MESSAGE_ID: Schema = {"type": "string", "pattern": "^msg_[0-9a-f]{32}$"}
_ATTEMPT_ID: Schema = {"type": "string", "pattern": "^atmpt_[0-9a-f]{32}$"}
_TYPES: Schema = {"anyOf": [_TYPE, {"type": "array", "items": _TYPE, "minItems": 1}]}
_MAYBE_TYPES: Schema = {"anyOf": [_TYPE, {"type": "array", "items": _TYPE, "minItems": 1}, {"type": "null"}]}

# Requests

_URL: Schema = {"type": "string", "minLength": 1, "description": "Where events are sent: https."}
NEW_WEBHOOK: Schema = {
    "type": "object",
    "properties": {"endpoint": _URL, "events": _TYPES, "status": {"enum": ["enabled", "disabled", "", None]}},
    "required": ["endpoint", "events"],
}
CHANGE_WEBHOOK: Schema = {
    "type": "object",
    "properties": {"endpoint": maybe(TEXT), "events": _MAYBE_TYPES, "status": {"enum": ["enabled", "disabled", "", None]}},
}
REPLAY: Schema = {
    "type": "object",
    "properties": {
        "since": {"type": "string", "minLength": 1, "description": "ISO 8601 with its offset."},
        "until": {**maybe(TEXT), "description": "Likewise; now when left out."},
        "status": {"enum": ["failed", "all", "", None], "description": "`failed` when left out."},
    },
    "required": ["since"],
}
TEST: Schema = {"type": "object", "properties": {"type": {"enum": [*payload.TYPES, "", None]}}}
_ADDRESSES: Schema = {"anyOf": [{"type": "string", "minLength": 3}, {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 100}]}
SUPPRESS: Schema = {"type": "object", "properties": {"email": {"type": "string", "minLength": 3}}, "required": ["email"]}
SUPPRESS_MANY: Schema = {"type": "object", "properties": {"emails": _ADDRESSES}, "required": ["emails"]}
RELEASE_MANY: Schema = {
    "type": "object",
    "properties": {"emails": {"description": "Either these"}, "ids": {"description": "or these; at most 100."}},
}

AFTER_MESSAGE = Parameter("after", {"anyOf": [_MESSAGE_ID, _EMPTY]}, "The rows older than this one.")
AFTER_ATTEMPT = Parameter("after", {"anyOf": [_ATTEMPT_ID, _EMPTY]}, "The rows older than this one.")
AFTER_SEQUENCE = Parameter("after", {"anyOf": [{"type": "integer", "minimum": 0}, _EMPTY]}, "The number of the last event that is known.")
MESSAGES = (LIMIT, AFTER_MESSAGE)
ATTEMPTS = (LIMIT, AFTER_ATTEMPT)
SEQUENCES = (LIMIT, AFTER_SEQUENCE)
ORIGIN = Parameter("origin", {"enum": ["bounce", "complaint", "manual", ""]}, "Those that are there for this reason.")

# Answers

_PAYLOAD: dict[str, Schema] = {"type": TEXT, "created_at": TEXT, "data": {"type": "object"}}
FACT = obj({"sequence": COUNT, "id": _MESSAGE_ID, **_PAYLOAD})
_WEBHOOK: dict[str, Schema] = {"id": ID, "created_at": TIME, "status": _STATUS, "endpoint": TEXT, "events": array(_TYPE)}
WEBHOOK_ROW = obj(_WEBHOOK)
WITH_SECRET = obj({"object": const("webhook"), "id": ID, "signing_secret": TEXT})
WEBHOOK = obj(
    {
        "object": const("webhook"),
        **_WEBHOOK,
        "signing_secret": TEXT,
        "disabled_reason": maybe(TEXT),
        "failing_since": maybe(TIME),
        "last_failure": maybe(obj({"at": TIME, "status": maybe(COUNT)})),
    }
)
_MESSAGE: dict[str, Schema] = {
    "id": _MESSAGE_ID,
    "type": TEXT,
    "created_at": TIME,
    "status": {"enum": ["success", "failed", "attempting", "pending"]},
}
MESSAGE_ROW = obj(_MESSAGE)
MESSAGE = obj({"object": const("webhook_event"), **_MESSAGE, "next_attempt_at": maybe(TIME), "payload": maybe(obj(_PAYLOAD))})
ATTEMPT_ROW = obj(
    {
        "id": _ATTEMPT_ID,
        "http_status_code": maybe(COUNT),
        "response": maybe(TEXT),
        "sent_at": TIME,
        "duration_ms": COUNT,
        "next_attempt_at": maybe(TIME),
    }
)
REPLAYED = obj({"object": const("webhook_event"), "id": _MESSAGE_ID})
REPLAYED_RANGE = obj({"object": const("webhook_replay"), "id": ID, "replayed": COUNT})
TESTED = obj({"object": const("webhook_event"), "id": _MESSAGE_ID, "type": _TYPE})
_SUPPRESSION: dict[str, Schema] = {
    "id": ID,
    "email": TEXT,
    "origin": {"enum": ["bounce", "complaint", "manual"]},
    "source_id": maybe(ID),
    "reason": maybe(TEXT),
    "created_at": TIME,
}
SUPPRESSION_ROW = obj(_SUPPRESSION)
SUPPRESSION = obj({"object": const("suppression"), **_SUPPRESSION})
SUPPRESSED = obj({"object": const("suppression"), "id": ID})
SUPPRESSED_MANY = obj({"data": array(SUPPRESSED)})
RELEASED = obj({"object": const("suppression"), **_SUPPRESSION, "deleted": const(True)})
RELEASED_MANY = obj({"data": array(RELEASED)})
