"""Writing events: each in its email's history, and for the ledger to number.

What happens to an account and not to one of its emails (domain.*, suppression.*) is an event without an email. It takes the
same way: in place of an email's id it is filed under its own, which no email has, so that it gets its partition, its number
and its count like all others. Its `data` is the whole of what readers are told, since what it tells of may be gone by then.

Accepting and settling write theirs within their own statements (store/mail/inserts, store/queue/settle).
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

INSERT_EVENTS = f"""
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s) AS x(
        shard smallint, account_id uuid, email_id uuid, event_id uuid, domain_id uuid, recipient smallint, type text,
        at timestamptz, data jsonb, weight smallint, notify smallint
    )
), told AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, at, data FROM new
), noticed AS (
    {dsn_requests.insertion("new")}
)
INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight, kind)
SELECT shard, account_id, email_id, event_id, domain_id, type, at, weight,
       CASE WHEN type = 'email.bounced' THEN type || '.' || lower(data ->> 'type') END
FROM new
"""

NO_DOMAIN = UUID(int=0)  # in place of a domain's id in the counts of what concerns none


@attrs.frozen
class NewEvent:
    """A fact about an email, about one of its recipients, or without an email about the account. `weight`: recipients that it tells of."""

    account_id: UUID
    email_id: UUID | None
    domain_id: UUID | None
    recipient: int | None
    type: str
    at: datetime
    data: dict[str, object] | None = None
    notify: int | None = None  # what the submitter wants to be told of (store/mail/dsn_requests)
    weight: int = 1


async def write(tx: Transaction, events: Sequence[NewEvent]) -> None:
    if events:
        await tx.run(INSERT_EVENTS, (document([_row(event) for event in events]),))


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
