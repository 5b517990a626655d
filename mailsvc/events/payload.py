"""The JSON of an event, the same in webhooks, in the event log and in the log of an endpoint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from mailsvc.store.events.event_log import Fact, Mail

# The types that an endpoint can subscribe to: all that client libraries know.
TYPES: tuple[str, ...] = (
    *(f"email.{name}" for name in ("sent", "scheduled", "delivered", "delivery_delayed", "complained", "bounced", "opened", "clicked")),
    *(f"email.{name}" for name in ("received", "failed", "suppressed")),
    *(f"domain.{name}" for name in ("created", "updated", "deleted")),
    *(f"suppression.{name}" for name in ("added", "removed")),
    *(f"contact.{name}" for name in ("created", "updated", "deleted", "topics.updated")),
    *(f"topic.{name}" for name in ("created", "updated", "deleted")),
    *(f"inbox.{name}" for name in ("created", "updated", "deleted", "thread.created", "thread.folder.updated", "thread.assigned")),
    *(f"inbox.{name}" for name in ("thread.unassigned", "thread.labels.updated", "email.received", "email.sent")),
    *(f"inbox.draft.{name}" for name in ("created", "updated", "sent", "deleted")),
)
# The types that this service sends. The others are sent as test events only.
SENT = tuple(
    kind
    for kind in TYPES
    if kind.partition(".")[0] in ("email", "domain", "suppression") and kind not in ("email.received", "email.opened", "email.clicked")
)


def time(at: datetime) -> str:
    """RFC 3339 §5.6, in UTC and milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def render(fact: Fact) -> dict[str, object]:
    """The event as JSON. The outer `created_at` is the time of the event, the inner one that of its email."""
    data = dict(fact.data) if fact.mail is None else _email(fact, fact.mail)
    return {"type": fact.type, "created_at": time(fact.at), "data": data}


def sample(kind: str, now: datetime) -> dict[str, object]:
    """A made-up event for testing an endpoint."""
    data: dict[str, object] = {"id": _TEST_ID, "created_at": time(now)}
    if kind.startswith("email."):
        data = {
            "email_id": _TEST_ID,
            "created_at": time(now),
            "message_id": f"<{_TEST_ID}@example.com>",
            "from": "Test <test@example.com>",
            "to": ["somebody@example.net"],
            "subject": "A test of this endpoint",
        }
        data |= _MORE[kind](_SAMPLES.get(kind, {})) if kind in _MORE else {}
    elif kind.startswith("suppression."):
        data |= {"email": "somebody@example.net", "origin": "manual", "source_id": None}
    elif kind.startswith("domain."):
        data |= {"name": "example.com", "status": "verified", "region": "us-east-1", "records": []}
        data |= {"open_tracking": False, "click_tracking": False, "capabilities": {"sending": "enabled", "receiving": "disabled"}}
        data |= {"tls": "opportunistic", "custom_return_path": "send", "advice": []}
    return {"type": kind, "created_at": time(now), "data": data}


def _email(fact: Fact, mail: Mail) -> dict[str, object]:
    data: dict[str, object] = {
        "email_id": str(mail.email_id),
        "created_at": time(mail.created_at),
        "message_id": mail.message_id,
        "from": mail.sender,
        "to": list(mail.recipients) if fact.recipient is None else [mail.recipients[fact.recipient]],
        "subject": mail.subject,
    }
    if mail.tags:
        data["tags"] = dict(mail.tags)
    if mail.headers:
        data["headers"] = [{"name": name, "value": value} for name, value in mail.headers.items()]
    if fact.type in _MORE:
        data |= _MORE[fact.type](fact.data)
    return data


def _bounced(data: Mapping[str, Any]) -> dict[str, object]:
    reply = str(data.get("reply") or "")
    message = str(data.get("reason") or reply)
    bounce = {"type": data.get("type", "Undetermined"), "subType": data.get("sub_type", "Undetermined"), "message": message}
    return {"bounce": bounce | {"diagnosticCode": [f"smtp; {reply}"] if reply[:3].isdigit() else []}}


def _suppressed(data: Mapping[str, Any]) -> dict[str, object]:
    found: dict[str, object] = {"type": "OnAccountSuppressionList", "message": str(data.get("reason") or ""), "diagnosticCode": []}
    if data.get("origin") in ("bounce", "complaint"):
        found["reason"] = f"previous_{data['origin']}"
    return {"suppressed": found}


_MORE: Mapping[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
    "email.bounced": _bounced,
    "email.suppressed": _suppressed,
    "email.failed": lambda data: {"failed": {"reason": str(data.get("reason") or "")}},
}
_TEST_ID = "00000000-0000-7000-8000-000000000000"
_SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "email.bounced": {"type": "Permanent", "sub_type": "General", "reply": "550 5.1.1 no such user"},
    "email.suppressed": {"origin": "bounce", "reason": "It bounced before."},
    "email.failed": {"reason": "The domain is gone."},
}
