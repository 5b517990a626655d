"""Writes events, in the history of their email and for the event ledger.

Events of an account rather than an email (domain.*, suppression.*) are stored under their own ID in place of an email's, so that they get
a partition, a number and a count like all others. Their `data` is complete, because what they describe may be deleted later.

Accepting and settling write events in their own statements (store/mail/inserts, store/queue/settle).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7
from mailsvc.store.mail import dsn_requests
from mailsvc.store.mail.inserts import document, shard
from mailsvc.store.postgres.pool import Transaction
from mailsvc.store.sql import statement

INSERT_EVENTS = statement("mailsvc.store.events", "insert_events", insert_notices=dsn_requests.insertion("new"))

# A row of an internal type, so that the ledger counts it and does nothing else.
UNCOUNT = """
INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight, kind)
SELECT %s, %s, %s, %s, %s, 'email.canceled', at, -1, %s FROM unnest(%s::timestamptz[]) AS at
"""

NO_DOMAIN = UUID(int=0)  # in counts of events without a domain


@attrs.frozen
class NewEvent:
    """An event of an email, of one recipient, or of the account. `weight`: the number of recipients it counts for."""

    account_id: UUID
    email_id: UUID | None
    domain_id: UUID | None
    recipient: int | None
    type: str
    at: datetime
    data: dict[str, object] | None = None
    notify: int | None = None  # DSN options of the recipient (store/mail/dsn_requests)
    weight: int = 1


async def write(tx: Transaction, events: Sequence[NewEvent]) -> None:
    if events:
        await tx.run(INSERT_EVENTS, (document([_row(event) for event in events]),))


async def uncount(tx: Transaction, account_id: UUID, email_id: UUID, domain_id: UUID, type: str, at: Sequence[datetime]) -> None:
    """Take back what the events of an email counted, in the hours in which they happened. The events remain."""
    if at:
        await tx.run(UNCOUNT, (shard(account_id), account_id, email_id, email_id, domain_id, type, list(at)))


def _row(event: NewEvent) -> dict[str, object]:
    event_id = uuid7(event.at.timestamp())
    return {
        "shard": shard(event.account_id),
        "account_id": event.account_id,
        "email_id": event.email_id or event_id,
        "event_id": event_id,
        "domain_id": event.domain_id or NO_DOMAIN,
        "recipient": event.recipient,
        "type": event.type,
        "at": event.at,
        "data": event.data,
        "weight": event.weight,
        "notify": event.notify,
    }
