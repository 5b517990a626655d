"""What sending domains look like in requests and answers, for openapi.py. What reads and makes them: domains.py and domains/views.py."""

from __future__ import annotations

from mailsvc.http.describe import FLAG, ID, TEXT, TEXTS, TIME, array, const, maybe, obj
from mailsvc.http.fields import Schema

_SWITCH: Schema = {"enum": ["enabled", "disabled"]}
_SWITCHES: Schema = {"type": "object", "properties": {"sending": maybe(_SWITCH), "receiving": maybe(_SWITCH)}}
_TLS: Schema = {"enum": ["opportunistic", "enforced", "", None]}
_OFF: Schema = {"enum": [False, None], "description": "Nothing is tracked here."}
_CHANGES: dict[str, Schema] = {
    "tls": _TLS,
    "capabilities": maybe(_SWITCHES),
    "open_tracking": _OFF,
    "click_tracking": _OFF,
    "tracking_subdomain": {"enum": ["", None]},
}
CREATE: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "region": {**maybe(TEXT), "description": "Where its mail is sent from; the operator's own region when left out."},
        "custom_return_path": {**maybe(TEXT), "description": "The label that bounces come back to; `send` when left out."},
        **_CHANGES,
    },
    "required": ["name"],
}
CLAIM: Schema = {
    "type": "object",
    "properties": {name: schema for name, schema in CREATE["properties"].items() if name not in ("tls", "capabilities")},
    "required": ["name"],
}
CHANGE: Schema = {"type": "object", "properties": _CHANGES}

RECORD = obj(
    {
        "record": TEXT,
        "name": TEXT,
        "type": {"enum": ["TXT", "MX", "CNAME", "CAA"]},
        "ttl": TEXT,
        "status": {"enum": ["not_started", "pending", "verified", "failed", "temporary_failure"]},
        "value": TEXT,
        "priority": {"type": "integer"},
        "check": obj({"found": TEXTS, "where": maybe(TEXT), "problem": maybe(TEXT), "message": maybe(TEXT)}),
    },
    optional=["priority", "check"],
)
_BRIEF: dict[str, Schema] = {
    "id": ID,
    "name": TEXT,
    "status": {"enum": ["not_started", "pending", "verified", "failed", "partially_verified", "partially_failed", "temporary_failure"]},
    "created_at": TIME,
    "region": TEXT,
    "open_tracking": FLAG,
    "click_tracking": FLAG,
    "capabilities": obj({"sending": _SWITCH, "receiving": _SWITCH}),
    "tls": {"enum": ["opportunistic", "enforced"]},
    "custom_return_path": TEXT,
    "name_ascii": TEXT,
    "warning": TEXT,
    "failure_reason": TEXT,
}
_OPTIONAL = ["name_ascii", "warning", "failure_reason"]
_FULL = {**_BRIEF, "records": array(RECORD), "advice": array(RECORD)}
BRIEF = obj(_BRIEF, _OPTIONAL)
NEW_DOMAIN = obj(_FULL, _OPTIONAL)
DOMAIN = obj(
    {
        "object": const("domain"),
        **_FULL,
        "checked_at": maybe(TIME),
        "next_check_at": maybe(TIME),
        "history": array(obj({"created_at": TIME, "message": TEXT})),
    },
    _OPTIONAL,
)
DOMAIN_CLAIM = obj(
    {
        "object": const("domain_claim"),
        "id": ID,
        "name": TEXT,
        "status": {"enum": ["pending", "verified", "completed", "blocked", "expired", "superseded", "canceled", "failed"]},
        "domain_id": ID,
        "region": TEXT,
        "record": obj({"type": const("TXT"), "name": TEXT, "value": TEXT, "ttl": TEXT}),
        "blocked_reason": maybe({"enum": ["grace_period", "recent_owner_activity", "pending_scheduled_emails"]}),
        "failure_reason": maybe(TEXT),
        "created_at": TIME,
        "expires_at": TIME,
    }
)
