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
