"""Shared by the store's tests: emails to insert, and access to all tables of one database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import Clock

from mailsvc.outcome import Outcome
from mailsvc.store.events.ledger import EventLedger
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.accept import Acceptance, AcceptResult, Idempotency, NewEmail, NewRecipient, Submission
from mailsvc.store.mail.emails import Emails
from mailsvc.store.mail.envelope import EMPTY
from mailsvc.store.mail.messages import Messages
from mailsvc.store.postgres.connection import Params
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims import Leased, Queue
from mailsvc.store.queue.claims_sql import BY_INDEX
from mailsvc.store.queue.settle import AttemptRecord, RecipientOutcome, Settlement, Settling

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
ACCOUNT, OTHER = UUID(int=0xA1), UUID(int=0xA2)
DOMAIN = UUID(int=0xD1)
REGION = "r1"


def email(*recipients: str, account: UUID = ACCOUNT, **changes: Any) -> NewEmail:
    """An email to `recipients` (one at example.org if none are named), each waiting at its own domain."""
    addresses = recipients or ("rcpt@example.org",)
    lease = changes.get("lease")
    new = NewEmail(
        email_id=uuid7(NOW.timestamp()),
        account_id=account,
        domain_id=DOMAIN,
        key_id=None,
        region=REGION,
        source="api",
        created_at=NOW,
        message_id="<1@example.com>",
        sender="Sender <sender@example.com>",
        to=addresses,
        cc=(),
        bcc=(),
        reply_to=(),
        recipients=tuple(NewRecipient(address, address.partition("@")[2], lease is not None) for address in addresses),
        subject="Hello",
        tags=(),
        headers={},
        envelope=EMPTY,
        message=b"Subject: Hello\r\n\r\nHello.\r\n",
        scheduled_at=None,
        expires_at=NOW + 2 * DAY,
    )
    return attrs.evolve(new, **changes)


def keyed(*emails: NewEmail, key: str = "key/1", fingerprint: bytes = b"f" * 32, expires_at: datetime = NOW + DAY) -> Submission:
    answer = {"ids": [str(e.email_id) for e in emails], "also": 1}
    return Submission(emails[0].account_id, emails, Idempotency("POST /emails", key, fingerprint, answer, expires_at))


def attempt(**changes: Any) -> AttemptRecord:
    record = AttemptRecord(uuid7(NOW.timestamp()), "mx.example.org", "192.0.2.1:25", None, NOW, 0.5, "S: 220 mx.example.org\n")
    return attrs.evolve(record, **changes)


class StoreRig:
    """Access to all tables of one database, and the ID of a delivery process."""

    def __init__(self, pool: Pool, clock: Any) -> None:
        self.pool = pool
        self.clock = clock
        self.lease = 0
        self.acceptance = Acceptance(self.pool, self.clock)
        self.settling = Settling(self.pool, self.clock)
        self.queue = Queue(self.pool)
        present = Clock()
        present.advance(NOW.timestamp())
        self.emails = Emails(self.pool, present)  # however long the run has taken by now
        self.messages = Messages(self.pool, self.clock)
        self.ledger = EventLedger(self.pool)

    async def process(self) -> int:
        """The number of one more process."""
        sql = "INSERT INTO processes (host, pid, region, roles) VALUES ('here', 1, %s, '{delivery}') RETURNING id"
        return int((await self.pool.rows(sql, (REGION,)))[0][0])

    async def accept(self, *emails: NewEmail) -> list[AcceptResult]:
        """Each as a submission of its own, all at once."""
        return await together(*(self.acceptance.accept(Submission(e.account_id, (e,))) for e in emails))

    async def claim(self, destination: str = "example.org", now: datetime = NOW, limit: int = 50, lease: int | None = None) -> list[Leased]:
        return (await self.queue.claim(REGION, {destination: limit}, now, lease or self.lease)).rows

    async def settle(self, mail: NewEmail, *outcomes: Outcome | None, lease: int | None = None, **changes: Any) -> frozenset[int]:
        """The outcomes of recipients 0, 1, …; None: that one has no outcome."""
        results = tuple(RecipientOutcome(n, outcome) for n, outcome in enumerate(outcomes) if outcome is not None)
        settlement = Settlement(mail.account_id, mail.email_id, mail.domain_id, lease or self.lease, NOW, results, attempt())
        return await self.settling.settle(attrs.evolve(settlement, **changes))

    async def statuses(self, mail: NewEmail) -> list[str]:
        return [r.status for r in await self.emails.recipients(mail.account_id, mail.email_id)]

    async def events(self, mail: NewEmail) -> list[tuple[str, int | None]]:
        sql = "SELECT type, recipient FROM events WHERE account_id = %s AND email_id = %s ORDER BY event_id"
        return await self.pool.rows(sql, (mail.account_id, mail.email_id))

    async def count(self, table: str) -> int:
        return int((await self.pool.rows(f"SELECT count(*) FROM {table}"))[0][0])


async def together(*coroutines: Any) -> list[Any]:
    return list(await gatherResults([Deferred.fromCoroutine(c) for c in coroutines], consumeErrors=True))


async def explain(store: StoreRig, sql: str, params: Params, settings: str = BY_INDEX) -> dict[str, Any]:
    async def explained(tx: Transaction) -> dict[str, Any]:
        await tx.run(settings)
        [(plans,)] = await tx.rows("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql, params)
        plan: dict[str, Any] = (json.loads(plans) if isinstance(plans, str) else plans)[0]["Plan"]
        return plan

    return await store.pool.transact(explained)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def visited(plan: dict[str, Any]) -> list[float]:
    """Rows or index entries of the queue that each scan read, including those it filtered out."""
    gone = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return [
        (node["Actual Rows"] + sum(node.get(key, 0) for key in gone)) * node["Actual Loops"]
        for node in nodes(plan)
        if "Scan" in node["Node Type"] and (node.get("Relation Name") == "queue" or node.get("Index Name", "").startswith("queue_"))
    ]
