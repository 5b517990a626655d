"""What emails look like in requests and answers, for openapi.py. What reads the requests: shapes.py; what makes the answers: views.py."""

from __future__ import annotations

from mailsvc.http.describe import COUNT, ID, TEXT, TEXTS, TIME, Parameter, array, const, maybe, obj
from mailsvc.http.fields import Schema
from mailsvc.http.resources.send_fields import TAG_PATTERN, TAGS_MAX

ADDRESS: Schema = {"type": "string", "minLength": 3, "description": "`someone@example.com` or `Name <someone@example.com>`."}
ADDRESSES: Schema = {
    "anyOf": [ADDRESS, {"type": "array", "items": ADDRESS}],
    "description": "One address or several, as many as the operator allows: 50 unless that is set otherwise.",
}
_OPTIONAL_ADDRESSES: Schema = {"anyOf": [ADDRESS, {"type": "array", "items": ADDRESS}, {"enum": [None, ""]}]}
_OCTETS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}}
_TAG: Schema = {"type": "string", "pattern": f"^{TAG_PATTERN}$"}
_UNSUPPORTED: Schema = {"enum": [None, "", []]}

ATTACHMENT: Schema = {
    "type": "object",
    "properties": {
        "content": {
            "anyOf": [
                {"type": "string", "contentEncoding": "base64"},
                _OCTETS,
                {"type": "object", "properties": {"type": const("Buffer"), "data": _OCTETS}, "required": ["type", "data"]},
            ],
            "description": "base64, or the octets as numbers.",
        },
        "path": {**maybe(TEXT), "description": "Instead of `content`: the https address of the file, which is fetched now."},
        "filename": maybe(TEXT),
        "content_type": maybe(TEXT),
        "content_id": {**maybe(TEXT), "description": 'For a file that the html shows: `<img src="cid:…">`.'},
    },
    "anyOf": [{"required": ["content"]}, {"required": ["path"], "properties": {"path": {"type": "string", "minLength": 1}}}],
}
TAG: Schema = {"type": "object", "properties": {"name": _TAG, "value": _TAG}, "required": ["name", "value"]}
SCHEDULED_AT: Schema = {
    "type": "string",
    "maxLength": 64,
    "description": "ISO 8601, or in English: `in 1 min`, `tomorrow at 9am`.",
}
EMAIL: Schema = {
    "type": "object",
    "properties": {
        "from": ADDRESS,
        "to": ADDRESSES,
        "cc": _OPTIONAL_ADDRESSES,
        "bcc": _OPTIONAL_ADDRESSES,
        "reply_to": _OPTIONAL_ADDRESSES,
        "subject": {"type": "string", "minLength": 1},
        "html": maybe(TEXT),
        "text": {**maybe(TEXT), "description": 'Made from the html when it is left out; `""`: no text part.'},
        "headers": maybe({"type": "object", "additionalProperties": TEXT}),
        "attachments": maybe(array(ATTACHMENT)),
        "tags": maybe({"type": "array", "items": TAG, "maxItems": TAGS_MAX}),
        "scheduled_at": maybe(SCHEDULED_AT),
        "template": _UNSUPPORTED,
        "topic_id": _UNSUPPORTED,
    },
    "required": ["from", "to", "subject"],
    "anyOf": [
        {"required": ["html"], "properties": {"html": {"type": "string", "minLength": 1}}},
        {"required": ["text"], "properties": {"text": {"type": "string", "minLength": 1}}},
    ],
}
BATCH: Schema = {"type": "array", "items": EMAIL, "minItems": 1, "description": "As many as the operator allows: 100 unless set otherwise."}
RESCHEDULE: Schema = {"type": "object", "properties": {"scheduled_at": {**SCHEDULED_AT, "minLength": 1}}, "required": ["scheduled_at"]}

IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 256},
    "The same request with the same key within 24 hours is answered as the first time, and sends nothing.",
    where="header",
)
BATCH_HEADERS = (
    IDEMPOTENCY_KEY,
    Parameter(
        "x-batch-validation",
        {"enum": ["strict", "permissive"]},
        "`strict`: one wrong email refuses all. `permissive`: the others are sent.",
        where="header",
    ),
)
BATCH_ANSWER = obj({"data": array(obj({"id": ID})), "errors": array(obj({"index": COUNT, "message": TEXT}))}, optional=["errors"])

LAST_EVENT: Schema = {
    "enum": [
        "queued", "scheduled", "sent", "delivered", "delivery_delayed", "bounced", "complained", "opened", "clicked", "failed",
        "suppressed", "canceled",
    ]
}  # fmt: skip
LISTED: dict[str, Schema] = {
    "id": ID,
    "message_id": TEXT,
    "to": TEXTS,
    "from": TEXT,
    "created_at": TIME,
    "subject": TEXT,
    "bcc": TEXTS,
    "cc": TEXTS,
    "reply_to": TEXTS,
    "last_event": LAST_EVENT,
    "scheduled_at": maybe(TIME),
}
RECIPIENT = obj(
    {
        "address": TEXT,
        "status": TEXT,
        "reason": {**maybe(TEXT), "description": "Why it waits."},
        "next_attempt_at": maybe(TIME),
        "attempts": COUNT,
        "last_reply": maybe(TEXT),
        "class": {**maybe(TEXT), "description": "What kind of refusal it was."},
        "rule": {**maybe(TEXT), "description": "Which rule read the reply so."},
        "must_act": {**maybe(TEXT), "description": "Who can do something about it."},
        "advice": maybe(TEXT),
    }
)
SINGLE: dict[str, Schema] = {
    "object": const("email"),
    **LISTED,
    "html": maybe(TEXT),
    "text": maybe(TEXT),
    "tags": array(obj({"name": TEXT, "value": TEXT})),
    "recipients": array(RECIPIENT),
    "note": maybe(TEXT),
}
