"""What the client libraries of typed languages need of an answer, for those whose package registries the tests do without.

Each is a JSON schema of what its deserialiser accepts: Rust's wants keys that are there and not null and knows closed lists of words,
.NET's parses ids as GUIDs and has closed lists of its own, Go's wants the right kinds. Unknown keys are ignored by all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator

from mailsvc.events import payload
from tests.http import strict_audience
from tests.http.kinds import DATE, FLAG, GUID, INT, TEXT, TEXTS, U16_NOT_0, U32, Schema, go, go_list, has, listed, null_or, rows, words

EVENTS = "queued scheduled sent delivered delivery_delayed bounced complained opened clicked failed canceled"
REGIONS = "us-east-1 eu-west-1 sa-east-1 ap-northeast-1"
METRICS = (
    "received delivered complained suppressed bounced bounced_transient bounced_permanent bounced_undetermined opened clicked "
    "unsubscribed delivery_delayed failed sent "
    "unique_opened unique_clicked delivery_rate open_rate click_rate bounce_rate complaint_rate unsubscribe_rate"
)
WEBHOOK_EVENTS = (
    "email.sent email.scheduled email.delivered email.delivery_delayed email.complained email.bounced email.opened email.clicked "
    "email.received email.failed email.suppressed "
    "contact.created contact.updated contact.deleted domain.created domain.updated domain.deleted"
)


# What webhooks tell: the keys that the libraries' documentation has, as the strictest of them reads them.

_TOLD_EMAIL = {
    "email_id": GUID, "created_at": DATE, "message_id": TEXT, "from": TEXT, "to": {"type": "array", "items": TEXT, "minItems": 1},
    "subject": TEXT,
}  # fmt: skip
_ABOUT = {
    "email.bounced": {"bounce": has(message=TEXT, type=words("Permanent Transient Undetermined"), subType=TEXT, diagnosticCode=TEXTS)},
    "email.opened": {"open": has(ipAddress=TEXT, timestamp=DATE, userAgent=TEXT)},  # as @convex-dev/resend reads it
    "email.clicked": {"click": has(ipAddress=TEXT, link=TEXT, timestamp=DATE, userAgent=TEXT)},
    "email.failed": {"failed": has(reason=TEXT)},
    "email.suppressed": {
        "suppressed": has({"reason": words("previous_bounce previous_complaint")}, message=TEXT, type=TEXT, diagnosticCode=TEXTS)
    },
}
_EVERY_EMAIL: Mapping[str, Schema] = {
    "tags": {"type": "object", "additionalProperties": TEXT, "minProperties": 1},
    "headers": {"type": "array", "items": has(name=TEXT, value=TEXT), "minItems": 1},
}


def event_schema(kind: str) -> Schema:
    """What a webhook of this type has to be."""
    if kind.startswith("email."):
        data = has(_EVERY_EMAIL, **_TOLD_EMAIL, **_ABOUT.get(kind, {}))
    else:
        groups = {"domain": _R_DOMAIN, "contact": strict_audience.TOLD_CONTACT, "topic": strict_audience.TOLD_TOPIC}
        data = groups.get(kind.partition(".")[0], _R_SUPPRESSION)
        data = strict_audience.TOLD_CHOICES if kind == "contact.topics.updated" else data
    return has(type={"const": kind}, created_at={**DATE, "pattern": r"T\d\d:\d\d:\d\d\.\d{3}Z$"}, data=data)


# Rust: `Option` may be missing or null, everything else has to be there. Its list of an email's events lacks `suppressed`.

_R_EMAIL = has(
    {"html": null_or(TEXT), "text": null_or(TEXT), "scheduled_at": null_or(TEXT), "reply_to": null_or(TEXTS)},
    id=TEXT, subject=TEXT, created_at=TEXT, to=TEXTS, bcc=null_or(TEXTS), cc=null_or(TEXTS), last_event=words(EVENTS), **{"from": TEXT},
)  # fmt: skip
_R_FILE = has(
    {"filename": null_or(TEXT), "content_id": null_or(TEXT)},
    id=TEXT, size=U32, content_type=TEXT, content_disposition=words("inline attachment"), download_url=TEXT, expires_at=TEXT,
)  # fmt: skip
_R_RECORD: Schema = {
    "type": "object",
    "properties": {"ttl": TEXT, "name": TEXT, "value": TEXT, "status": words("not_started pending verified failed temporary_failure")},
    "required": ["record", "name", "value", "type", "ttl", "status"],
    "oneOf": [
        {"properties": {"record": {"const": "SPF"}, "type": words("MX TXT")}},
        {"properties": {"record": {"const": "DKIM"}, "type": words("CNAME TXT")}},
        {"properties": {"record": {"const": "Receiving MX"}}, "required": ["priority"]},
        {"properties": {"record": words("Tracking TrackingCAA")}},
    ],
}
_R_DOMAIN = has(
    {"records": rows(_R_RECORD)},
    id=TEXT, name=TEXT, created_at=TEXT, region=words(REGIONS), capabilities=has(sending=TEXT, receiving=TEXT),
    status=words("not_started pending verified failed partially_verified partially_failed"),
)  # fmt: skip
_R_WEBHOOK = has({"events": rows(words(WEBHOOK_EVENTS))}, id=TEXT, created_at=TEXT, status=words("enabled disabled"), endpoint=TEXT)
_R_METRICS = has(
    {
        "data": rows(
            {
                "type": "object",
                "properties": dict.fromkeys("period domain_id domain_name email_id broadcast_id broadcast_name".split(), null_or(TEXT)),
                "additionalProperties": {"type": "number"},
            }
        )
    },
    start_date=TEXT, end_date=TEXT, metrics=rows(words(METRICS)), dimensions=rows(words("period domain email broadcast")),
    granularity=words("hourly daily weekly monthly"), totals={"type": "object", "additionalProperties": {"type": "number"}},
)  # fmt: skip
_R_LOG = has({"user_agent": null_or(TEXT)}, id=TEXT, created_at=TEXT, endpoint=TEXT, method=TEXT, response_status=U16_NOT_0)
_R_SUPPRESSION = has({"source_id": null_or(TEXT)}, id=TEXT, email=TEXT, created_at=TEXT, origin=words("bounce complaint manual"))
RUST: dict[str, Schema] = {
    "POST /emails": has(id=TEXT),
    "POST /emails/batch": has({"errors": rows(has(index=U32, message=TEXT))}, data=rows(has(id=TEXT))),
    "GET /emails": listed(_R_EMAIL),
    "GET /emails/{id}": _R_EMAIL,
    "PATCH /emails/{id}": has(id=TEXT),
    "POST /emails/{id}/cancel": has(id=TEXT),
    "POST /emails/{id}/share": has(id=TEXT, url=TEXT),
    "GET /emails/metrics": _R_METRICS,
    "GET /emails/{id}/attachments": listed(_R_FILE),
    "GET /emails/{id}/attachments/{attachment_id}": _R_FILE,
    "POST /domains": _R_DOMAIN,
    "GET /domains": listed(_R_DOMAIN),
    "GET /domains/{id}": _R_DOMAIN,
    "PATCH /domains/{id}": has(id=TEXT),
    "POST /domains/{id}/verify": has(id=TEXT),
    "DELETE /domains/{id}": has(id=TEXT, deleted=FLAG),
    "POST /api-keys": has(id=TEXT, token=TEXT),
    "GET /api-keys": listed(has({"last_used_at": null_or(TEXT)}, id=TEXT, name=TEXT, created_at=TEXT)),
    "GET /logs": listed(_R_LOG),
    "GET /logs/{id}": _R_LOG,
    "POST /webhooks": has(id=TEXT, signing_secret=TEXT),
    "GET /webhooks": listed(_R_WEBHOOK),
    "GET /webhooks/{id}": _R_WEBHOOK,
    "GET /suppressions": listed(_R_SUPPRESSION),
    "GET /suppressions/{id}": _R_SUPPRESSION,
    "error": has(statusCode=U16_NOT_0, message=TEXT, name=TEXT),
}

# .NET: ids are GUIDs, times are parsed, words come from closed lists; `has_more` and `data` are required members.

_N_EMAIL = has(id=GUID, to=TEXTS, created_at=DATE, last_event=words(f"{EVENTS} suppressed"), subject=TEXT, **{"from": TEXT})
_N_RECORD = has(
    record=TEXT, name=TEXT, type=TEXT, ttl=TEXT, value=TEXT, status=words("not_started pending failed temporary_failure verified")
)
_N_DOMAIN = has(
    {"records": rows(_N_RECORD)},
    id=GUID, name=TEXT, created_at=DATE, region=words(REGIONS),
    status=words("not_started pending failed verified partially_verified partially_failed"),
)  # fmt: skip
_N_WEBHOOK = has({"events": null_or(TEXTS)}, id=GUID, created_at=DATE, status=words("enabled disabled"), endpoint=TEXT)
_N_FILE = has({"expires_at": DATE, "size": {"type": "integer"}}, id=GUID, content_type=TEXT, download_url=TEXT)
_N_LOG = has(id=GUID, created_at=DATE, endpoint=TEXT, method=TEXT, response_status={"type": "integer"})
_N_ID = has(id=GUID)
DOTNET: dict[str, Schema] = {
    "POST /emails": _N_ID,
    "POST /emails/batch": has(data=rows(_N_ID)),
    "GET /emails": listed(_N_EMAIL),
    "GET /emails/{id}": _N_EMAIL,
    "PATCH /emails/{id}": _N_ID,
    "POST /emails/{id}/cancel": _N_ID,
    "POST /emails/{id}/share": _N_ID,
    "GET /emails/{id}/attachments": listed(_N_FILE),
    "GET /emails/{id}/attachments/{attachment_id}": _N_FILE,
    "POST /domains": _N_DOMAIN,
    "GET /domains": listed(_N_DOMAIN),
    "GET /domains/{id}": _N_DOMAIN,
    "POST /api-keys": has(id=GUID, token=TEXT),
    "GET /api-keys": listed(has(id=GUID, name=TEXT, created_at=DATE)),
    "GET /logs": listed(_N_LOG),
    "GET /logs/{id}": _N_LOG,
    "GET /webhooks": listed(_N_WEBHOOK),
    "GET /webhooks/{id}": _N_WEBHOOK,
    "POST /webhooks": _N_ID,
    # Names that it does not know fail; the two last are what an operator's suspension and overload are called, and fail there too.
    "error": has(
        statusCode={"type": "integer"},
        message=TEXT,
        name=words(
            "validation_error missing_api_key restricted_api_key invalid_api_key not_found method_not_allowed invalid_attachment "
            "invalid_from_address invalid_access invalid_parameter invalid_region missing_required_field monthly_quota_exceeded "
            "daily_quota_exceeded rate_limit_exceeded security_error application_error internal_server_error invalid_idempotency_key "
            "invalid_idempotent_request concurrent_idempotent_requests suspended_api_key service_unavailable"
        ),
    ),
}

# Go: anything may be missing or null, but what is there is of the right kind.


_G_EMAIL = go(
    id=TEXT, object=TEXT, to=TEXTS, created_at=TEXT, subject=TEXT, html=TEXT, text=TEXT, bcc=TEXTS, cc=TEXTS, reply_to=TEXTS,
    last_event=TEXT, scheduled_at=TEXT, message_id=TEXT, tags=rows(go(name=TEXT, value=TEXT)), **{"from": TEXT},
)  # fmt: skip
_G_RECORD = go(record=TEXT, name=TEXT, type=TEXT, ttl=TEXT, status=TEXT, value=TEXT, priority=INT)
_G_DOMAIN = go(
    id=TEXT, name=TEXT, created_at=TEXT, status=TEXT, region=TEXT, records=rows(_G_RECORD), open_tracking=FLAG, click_tracking=FLAG,
    capabilities=go(sending=TEXT, receiving=TEXT),
)  # fmt: skip
_G_FILE = go(
    id=TEXT, filename=TEXT, content_type=TEXT, content_disposition=TEXT, content_id=TEXT, download_url=TEXT, expires_at=TEXT, size=INT
)
_G_LOG = go(id=TEXT, created_at=TEXT, endpoint=TEXT, method=TEXT, response_status=INT, user_agent=TEXT)
_G_WEBHOOK = go(id=TEXT, object=TEXT, created_at=TEXT, status=TEXT, endpoint=TEXT, events=TEXTS, signing_secret=TEXT)


GO: dict[str, Schema] = {
    "POST /emails": go(id=TEXT),
    "POST /emails/batch": go(data=rows(go(id=TEXT)), errors=rows(go(index=INT, message=TEXT))),
    "GET /emails": go_list(_G_EMAIL),
    "GET /emails/{id}": _G_EMAIL,
    "GET /emails/{id}/attachments": go_list(_G_FILE),
    "GET /emails/{id}/attachments/{attachment_id}": _G_FILE,
    "POST /domains": _G_DOMAIN,
    "GET /domains": go_list(_G_DOMAIN),
    "GET /domains/{id}": _G_DOMAIN,
    "POST /api-keys": go(id=TEXT, token=TEXT),
    "GET /api-keys": go_list(go(id=TEXT, name=TEXT, created_at=TEXT, last_used_at=TEXT)),
    "GET /logs": go_list(_G_LOG),
    "GET /logs/{id}": _G_LOG,
    "GET /webhooks": go_list(_G_WEBHOOK),
    "GET /webhooks/{id}": _G_WEBHOOK,
    "error": go(statusCode=INT, message=TEXT, name=TEXT),
}

CLIENTS = {
    "Rust": {**RUST, **strict_audience.RUST},
    ".NET": {**DOTNET, **strict_audience.DOTNET},
    "Go": {**GO, **strict_audience.GO},
}
_VALIDATORS = {(client, name): Draft202012Validator(schema) for client, schemas in CLIENTS.items() for name, schema in schemas.items()}


def complaints(method: str, path: str, status: int, body: Any) -> Iterator[str]:
    """What each client would not understand of an answer to `method` of `path` (as it is described)."""
    name = "error" if status >= 400 else f"{method} {path}"
    if status < 400 and isinstance(body, dict) and "statusCode" in body:
        yield "Ruby and Python take a success with statusCode for an error"
    for client in CLIENTS:
        validator = _VALIDATORS.get((client, name))
        for error in [] if validator is None else validator.iter_errors(body):
            if not _is_known(client, error):
                yield f"{client}: {name} {error.json_path}: {error.message}"


def _is_known(client: str, error: Any) -> bool:
    """A limit of a client that docs/clients.md names."""
    if client == "Rust" and error.instance == "suppressed" and error.json_path.endswith("last_event"):
        return True
    if client in ("Rust", ".NET") and error.json_path.endswith("region"):
        return True
    if client == ".NET" and error.instance == "canceled" and error.json_path.endswith("status"):
        return True
    if error.instance is None and error.json_path.endswith(("audience_id", "segment_id")):  # the segment of a draft was deleted
        return True
    return re.search(r"\.events\[\d+\]$", error.json_path) is not None and error.instance in payload.TYPES
