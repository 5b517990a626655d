"""The events about contacts and topics, written in the transaction of the change. What they look like: docs/webhooks.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from uuid import UUID

from mailsvc.clock import iso_time
from mailsvc.store.audience.values import Choice, Contact, Topic
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.postgres.pool import Transaction

SEGMENTS = "SELECT segment_id FROM contact_segments WHERE account_id = %s AND contact_id = %s ORDER BY added_at, segment_id"


async def contact(tx: Transaction, account_id: UUID, kind: str, changed: Contact, now: datetime) -> None:
    """`contact.created`, `contact.updated` or `contact.deleted`. One library requires `audience_id` to be a string."""
    segments = [str(id_) for (id_,) in await tx.rows(SEGMENTS, (account_id, changed.id))]
    data = {
        "id": str(changed.id),
        "audience_id": segments[0] if segments else "",
        "segment_ids": segments,
        "created_at": iso_time(changed.created_at),
        "updated_at": iso_time(changed.updated_at),
        "email": changed.email,
        "first_name": changed.first_name,
        "last_name": changed.last_name,
        "unsubscribed": changed.unsubscribed,
    }
    await _write(tx, account_id, f"contact.{kind}", data, now)


async def choices(tx: Transaction, account_id: UUID, email: str, changed: Sequence[Choice], now: datetime) -> None:
    """`contact.topics.updated`, with only those topics that changed."""
    if changed:
        topics = [{"id": str(each.topic_id), "subscription": "opt_in" if each.subscribed else "opt_out"} for each in changed]
        await _write(tx, account_id, "contact.topics.updated", {"email": email, "topics": topics}, now)


async def topic(tx: Transaction, account_id: UUID, kind: str, changed: Topic, now: datetime) -> None:
    data = {
        "id": str(changed.id),
        "name": changed.name,
        "description": changed.description,
        "default_subscription": "opt_in" if changed.subscribed else "opt_out",
        "deleted": kind == "deleted",
        "created_at": iso_time(changed.created_at),
        "updated_at": iso_time(changed.updated_at),
    }
    await _write(tx, account_id, f"topic.{kind}", data, now)


async def _write(tx: Transaction, account_id: UUID, kind: str, data: Mapping[str, object], now: datetime) -> None:
    await events.write(tx, [NewEvent(account_id, None, None, None, kind, now, dict(data))])
