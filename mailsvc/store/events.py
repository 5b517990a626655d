"""Writing events: each in its email's history, and for the ledger to number.

Accepting and settling write theirs within their own statements (store/inserts, store/settle).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.ids import uuid7
from mailsvc.store.inserts import document, shard
from mailsvc.store.pool import Transaction

INSERT_EVENTS = """
WITH new AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s) AS x(
        shard smallint, account_id uuid, email_id uuid, event_id uuid, domain_id uuid, recipient smallint, type text,
        at timestamptz, data jsonb, weight smallint
    )
), told AS (
    INSERT INTO events (account_id, email_id, event_id, recipient, type, at, data)
    SELECT account_id, email_id, event_id, recipient, type, at, data FROM new
)
INSERT INTO fresh_events (shard, account_id, email_id, event_id, domain_id, type, at, weight, kind)
SELECT shard, account_id, email_id, event_id, domain_id, type, at, weight,
       CASE WHEN type = 'email.bounced' THEN type || '.' || lower(data ->> 'type') END
FROM new
"""


@attrs.frozen
class NewEvent:
    """A fact about an email, or about one of its recipients. `weight`: of how many recipients it tells."""

    account_id: UUID
    email_id: UUID
    domain_id: UUID
    recipient: int | None
    type: str
    at: datetime
    data: dict[str, object] | None = None
    weight: int = 1


async def write(tx: Transaction, events: Sequence[NewEvent]) -> None:
    if events:
        await tx.run(INSERT_EVENTS, (document([_row(event) for event in events]),))


def _row(event: NewEvent) -> dict[str, object]:
    return {
        "shard": shard(event.account_id),
        "account_id": event.account_id,
        "email_id": event.email_id,
        "event_id": uuid7(event.at.timestamp()),
        "domain_id": event.domain_id,
        "recipient": event.recipient,
        "type": event.type,
        "at": event.at,
        "data": event.data,
        "weight": event.weight,
    }
