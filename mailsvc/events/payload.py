"""The JSON of an event, the same in webhooks, in the event log and in the log of an endpoint. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from mailsvc.clock import iso_time
from mailsvc.store.events import event_data
from mailsvc.store.events.event_data import Bounce, Click, EventData, Failure, Open, Suppressed
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
    kind for kind in TYPES if kind.partition(".")[0] in ("email", "domain", "suppression", "contact", "topic") and kind != "email.received"
)


def render(fact: Fact) -> dict[str, object]:
    """The event as JSON. The outer `created_at` is the time of the event, the inner one that of its email."""
    data = dict(fact.data) if fact.mail is None else _email(fact, fact.mail)
    return {"type": fact.type, "created_at": iso_time(fact.at), "data": data}


def sample(kind: str, now: datetime) -> dict[str, object]:
    """A made-up event for testing an endpoint."""
    data: dict[str, object] = {"id": _TEST_ID, "created_at": iso_time(now)}
    if kind.startswith("email."):
        data = {
            "email_id": _TEST_ID,
            "created_at": iso_time(now),
            "message_id": f"<{_TEST_ID}@example.com>",
            "from": "Test <test@example.com>",
            "to": ["somebody@example.net"],
            "subject": "A test of this endpoint",
        }
        data |= _MORE[kind](_SAMPLES[kind], now) if kind in _MORE else {}
    elif kind.startswith("suppression."):
        data |= {"email": "somebody@example.net", "origin": "manual", "source_id": None}
    elif kind.startswith("domain."):
        data |= {"name": "example.com", "status": "verified", "region": "us-east-1", "records": []}
        data |= {"open_tracking": False, "click_tracking": False, "capabilities": {"sending": "enabled", "receiving": "disabled"}}
        data |= {"tls": "opportunistic", "custom_return_path": "send", "tracking_subdomain": None, "tracking_host": None, "advice": []}
    elif kind == "contact.topics.updated":
        data = {"email": "ada@example.net", "topics": [{"id": _TEST_ID, "subscription": "opt_out"}]}
    elif kind.startswith("contact."):
        data |= {"updated_at": iso_time(now), "email": "ada@example.net", "first_name": "Ada", "last_name": None, "unsubscribed": False}
        data |= {"audience_id": _TEST_ID, "segment_ids": [_TEST_ID]}
    elif kind.startswith("topic."):
        data |= {"updated_at": iso_time(now), "name": "Product news", "description": None, "default_subscription": "opt_in"}
        data |= {"deleted": kind == "topic.deleted"}
    return {"type": kind, "created_at": iso_time(now), "data": data}


def _email(fact: Fact, mail: Mail) -> dict[str, object]:
    data: dict[str, object] = {
        "email_id": str(mail.email_id),
        "created_at": iso_time(mail.created_at),
        "message_id": mail.message_id,
        "from": mail.sender,
        "to": list(mail.recipients) if fact.recipient is None else [mail.recipients[fact.recipient]],
        "subject": mail.subject,
    }
    if mail.broadcast_id is not None:
        data["broadcast_id"] = str(mail.broadcast_id)
    if mail.tags:
        data["tags"] = dict(mail.tags)
    if mail.headers:
        data["headers"] = [{"name": name, "value": value} for name, value in mail.headers.items()]
    if fact.type in _MORE:
        data |= _MORE[fact.type](event_data.read(fact.type, fact.data), fact.at)
    return data


def _bounced(data: Bounce, at: datetime) -> dict[str, object]:
    bounce = {"type": data.type, "subType": data.sub_type, "message": data.reason or data.reply}
    return {"bounce": bounce | {"diagnosticCode": [f"smtp; {data.reply}"] if data.reply[:3].isdigit() else []}}


def _suppressed(data: Suppressed, at: datetime) -> dict[str, object]:
    found: dict[str, object] = {"type": "OnAccountSuppressionList", "message": data.reason, "diagnosticCode": []}
    if data.origin in ("bounce", "complaint"):
        found["reason"] = f"previous_{data.origin}"
    return {"suppressed": found}


def _opened(data: Open, at: datetime) -> dict[str, object]:
    """Not in the documentation of client libraries. Convex's component ignores an open without it."""
    return {"open": {"ipAddress": data.address, "timestamp": iso_time(at), "userAgent": data.agent}}


def _clicked(data: Click, at: datetime) -> dict[str, object]:
    return {"click": {"ipAddress": data.address, "link": data.link, "timestamp": iso_time(at), "userAgent": data.agent}}


_MORE: Mapping[str, Callable[[Any, datetime], dict[str, object]]] = {
    "email.bounced": _bounced,
    "email.suppressed": _suppressed,
    "email.opened": _opened,
    "email.clicked": _clicked,
    "email.failed": lambda data, at: {"failed": {"reason": data.reason}},
}
_TEST_ID = "00000000-0000-7000-8000-000000000000"
_SAMPLES: Mapping[str, EventData] = {
    "email.bounced": Bounce("Permanent", "General", "550 5.1.1 no such user"),
    "email.suppressed": Suppressed("bounce", "It bounced before."),
    "email.opened": Open("192.0.2.0", "Mozilla/5.0 (X11; Linux x86_64)"),
    "email.clicked": Click("https://example.com/", "192.0.2.0", "Mozilla/5.0 (X11; Linux x86_64)"),
    "email.failed": Failure("The domain is gone."),
}
