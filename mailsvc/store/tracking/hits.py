"""Writes opens and clicks, a batch in one statement. tracking/hits collects them.

What the counts in `rollups` and `broadcast_counts` mean: `email.opened` are opens by people, `email.opened.machine` those by programs,
`email.opened.unique` emails that were opened at all, and `email.opened.unique.people` emails that a person opened. The same for clicks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.events.event_data import Click, Open
from mailsvc.store.mail.inserts import document, shard
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.prepared import Prepared
from mailsvc.store.queue.claims_sql import PLAN_ONCE_BY_INDEX
from mailsvc.store.sql import statement

Kind = Literal["opened", "clicked"]
Email = tuple[UUID, UUID]  # the IDs of an account and of one of its emails

NONE = UUID(int=0)
INSERT = Prepared("hits", ("json",), statement("mailsvc.store.tracking", "insert_hits", none=NONE))
# Of emails that still exist. An account that has moved to another cell has left its emails here for a while. The times are in the
# history, which is read in its partition only: see recipients.sql.
FACTS = Prepared(
    "hit_facts",
    ("uuid[]", "uuid[]"),
    """
    SELECT account_id, email_id, e.domain_id, e.broadcast_id, v.at, coalesce(h.count, 0), to_jsonb(e.recipients),
        (SELECT to_jsonb(a.minimize) FROM accounts a WHERE a.id = k.account_id)
    FROM unnest($1, $2) AS k(account_id, email_id) CROSS JOIN LATERAL (
        SELECT domain_id, broadcast_id, recipients FROM emails m WHERE m.account_id = k.account_id AND m.email_id = k.email_id OFFSET 0
    ) e
    CROSS JOIN LATERAL (
        SELECT min(at) AS at FROM events n WHERE n.account_id = k.account_id AND n.email_id = k.email_id AND n.type = 'email.delivered'
    ) v
    CROSS JOIN LATERAL (
        SELECT sum(count)::bigint AS count FROM hits g
        WHERE g.account_id = k.account_id AND g.email_id = k.email_id AND g.kind IN ('opened', 'clicked')
    ) h
    WHERE NOT EXISTS (SELECT FROM account_moves l WHERE l.account_id = k.account_id AND l.phase = 'left')
    """,
    PLAN_ONCE_BY_INDEX,
)


@attrs.frozen
class Facts:
    """What is known about an email: when it was first delivered, and how often it was opened or a link followed."""

    domain_id: UUID
    broadcast_id: UUID | None
    delivered_at: datetime | None
    hits: int
    recipients: Sequence[str]
    minimized: Sequence[str] = ()  # what the account does not want to be stored (store/people/minimization)


@attrs.frozen
class NewHit:
    """`url`: the link that was followed. `address`: of the client. `machine`: why it was a program; None: it may have been a person."""

    account_id: UUID
    email_id: UUID
    event_id: UUID
    at: datetime
    url: str | None
    method: str
    address: str
    agent: str
    machine: str | None = None

    @property
    def kind(self) -> Kind:
        return "opened" if self.url is None else "clicked"


@attrs.define(eq=False)
class Hits:
    pool: Pool

    async def facts(self, emails: Collection[Email]) -> Mapping[Email, Facts]:
        """Those of the emails that still exist."""
        rows = await self.pool.rows(FACTS, ([account_id for account_id, _ in emails], [email_id for _, email_id in emails]))
        return {(row[0], row[1]): Facts(*row[2:]) for row in rows}

    async def write(self, hits: Sequence[NewHit], facts: Mapping[Email, Facts]) -> None:
        """Store opens and clicks of emails that `facts` has."""
        await self.pool.run(INSERT, (document([_row(hit, facts[hit.account_id, hit.email_id]) for hit in hits]),))


def target_of(url: str) -> UUID:
    """Identifies a URL in tables."""
    return UUID(bytes=hashlib.sha256(url.encode()).digest()[:16])


def _row(hit: NewHit, facts: Facts) -> dict[str, object]:
    seen = Open(hit.address, hit.agent, hit.method, hit.machine)
    data = seen if hit.url is None else Click(hit.url, *attrs.astuple(seen))
    return {
        "shard": shard(hit.account_id),
        "account_id": hit.account_id,
        "email_id": hit.email_id,
        "event_id": hit.event_id,
        "domain_id": facts.domain_id,
        "broadcast_id": facts.broadcast_id,
        "kind": hit.kind,
        "target": NONE if hit.url is None else target_of(hit.url),
        "url": hit.url,
        "machine": hit.machine is not None,
        "at": hit.at,
        "data": data.stored(),
    }
