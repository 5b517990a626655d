"""How stored emails look in responses: the libraries' keys, all of them always there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from mailsvc.bounces import diagnosis
from mailsvc.store.mail.emails import EmailView, RecipientView


def time(at: datetime) -> str:
    """As Postgres writes a timestamptz in UTC: trailing zeros of the fraction are left out."""
    at = at.astimezone(UTC)
    text = f"{at:%Y-%m-%d %H:%M:%S}"
    return f"{text}.{at.microsecond:06}".rstrip("0") + "+00" if at.microsecond else f"{text}+00"


def iso(at: datetime) -> str:
    """As ECMAScript writes a time: milliseconds, and Z."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"


def time_or_none(at: datetime | None) -> str | None:
    return None if at is None else time(at)


def listed(email: EmailView) -> dict[str, object]:
    """An item of `GET /emails`."""
    return {
        "id": str(email.email_id),
        "message_id": email.message_id,
        "to": email.to,
        "from": email.sender,
        "created_at": time(email.created_at),
        "subject": email.subject,
        "bcc": email.bcc,
        "cc": email.cc,
        "reply_to": email.reply_to,
        "last_event": email.last_event.removeprefix("email."),
        "scheduled_at": time_or_none(email.scheduled_at),
    }


def single(
    email: EmailView, html: str | None, text: str | None, recipients: Sequence[RecipientView], note: str | None = None
) -> dict[str, object]:
    """The answer of `GET /emails/{id}`. `recipients` is ours: where each one is, why, and what happens next; so is `note`."""
    return {
        "object": "email",
        **listed(email),
        "html": html,
        "text": text,
        "tags": [{"name": name, "value": value} for name, value in email.tags],
        "recipients": [_recipient(recipient) for recipient in recipients],
        "note": note,
    }


def _recipient(recipient: RecipientView) -> dict[str, object]:
    retried = recipient.status in ("delayed", "uncertain", "sending")
    meaning = None if recipient.kind is None else diagnosis.known(recipient.kind, retried=retried)
    return {
        "address": recipient.address,
        "status": recipient.status,
        "reason": recipient.reason,
        "next_attempt_at": time_or_none(recipient.next_at),
        "attempts": recipient.attempts,
        "last_reply": recipient.last_reply,
        "class": recipient.kind,
        "rule": recipient.rule,
        "must_act": None if meaning is None else meaning.party,
        "advice": None if meaning is None else meaning.advice,
    }
