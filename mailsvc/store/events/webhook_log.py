"""The messages of an endpoint with their attempts, replays and tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, cast
from uuid import UUID

import attrs

from mailsvc.store.events.event_log import FACT, Fact, fact
from mailsvc.store.events.ledger import LOCKS
from mailsvc.store.events.webhooks import CHANGE, Webhook
from mailsvc.store.ids import uuid7, uuid7_floor, uuid7_seconds
from mailsvc.store.mail.inserts import shard
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims_sql import BY_INDEX
from mailsvc.store.sql import Columns, statement

Status = Literal["success", "failed", "attempting", "pending"]

# A message in its first attempt is still pending: only finished attempts count.
_LISTED = Columns.of(
    event_id="x.event_id",
    type="x.type",
    created_at="x.created_at",
    status="CASE WHEN o.event_id IS NULL THEN coalesce(x.status, 'failed') WHEN o.tries > 0 THEN 'attempting' ELSE 'pending' END",
    next_at="o.next_at",
)
_WHOLE = Columns.of(**_LISTED.expressions, payload="x.payload")
_FROM = "FROM webhook_messages x LEFT JOIN webhook_outbox o ON o.webhook_id = x.webhook_id AND o.event_id = x.event_id"
_OF = "WHERE x.account_id = %(account_id)s AND x.webhook_id = %(webhook_id)s"

LIST = f"""
SELECT {_LISTED} {_FROM} {_OF} AND (%(after)s IS NULL OR x.event_id < %(after)s) ORDER BY x.event_id DESC LIMIT %(limit)s
"""
GET = f"SELECT {_WHOLE}, x.email_id {_FROM} {_OF} AND x.event_id = %(event_id)s"
# The event is read in a second step: with the ID of its email, Postgres plans for one day instead of all that are kept.
EVENT = f"""
SELECT {FACT} FROM events e LEFT JOIN emails m ON m.account_id = %(account_id)s AND m.email_id = %(email_id)s
WHERE e.account_id = %(account_id)s AND e.email_id = %(email_id)s AND e.event_id = %(event_id)s
"""
ATTEMPTS = """
SELECT attempt_id, status, response, seconds, started_at, next_at FROM webhook_attempts
WHERE account_id = %(account_id)s AND webhook_id = %(webhook_id)s AND event_id = %(event_id)s
AND (%(after)s IS NULL OR attempt_id < %(after)s)
ORDER BY attempt_id DESC LIMIT %(limit)s
"""

# Start all attempts over; a message that is still waiting is due immediately. Rows of the outbox are locked first, as when an
# attempt is recorded (outbox_settle.sql).
REPLAY = """
WITH waiting AS MATERIALIZED (
    SELECT FROM webhook_outbox WHERE webhook_id = %(webhook_id)s AND event_id = ANY (%(event_ids)s::uuid[]) ORDER BY event_id FOR UPDATE
), again AS (
    UPDATE webhook_messages x SET status = NULL
    WHERE x.account_id = %(account_id)s AND x.webhook_id = %(webhook_id)s AND x.event_id = ANY (%(event_ids)s::uuid[])
    AND (SELECT count(*) FROM waiting) >= 0
    RETURNING x.webhook_id, x.event_id, x.account_id, x.email_id
)
INSERT INTO webhook_outbox AS o (webhook_id, event_id, account_id, email_id, next_at)
SELECT webhook_id, event_id, account_id, email_id, %(now)s FROM again ORDER BY event_id
ON CONFLICT (webhook_id, event_id) DO UPDATE SET tries = 0, next_at = least(o.next_at, excluded.next_at)
"""
RANGE = f"""
SELECT x.event_id {_FROM} {_OF} AND x.created_at >= %(since)s AND x.created_at < %(until)s
AND (NOT %(failed)s OR (o.event_id IS NULL AND x.status IS DISTINCT FROM 'success')) AND x.event_id > %(start)s AND x.event_id < %(end)s
ORDER BY x.event_id LIMIT %(limit)s
"""
# An ID has about the time of its event. Older and newer messages of the endpoint, which can be millions, are not read.
NEAR = timedelta(hours=1)
_OLDEST, _NEWEST = datetime(1970, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
TEST = """
WITH made AS (
    INSERT INTO webhook_messages (account_id, webhook_id, event_id, email_id, type, created_at, payload) VALUES (%s, %s, %s, %s, %s, %s, %s)
    RETURNING webhook_id, event_id, account_id, email_id, created_at
)
INSERT INTO webhook_outbox (webhook_id, event_id, account_id, email_id, next_at)
SELECT webhook_id, event_id, account_id, email_id, created_at FROM made
"""
LAST = """
SELECT event_id FROM webhook_messages WHERE account_id = %s AND webhook_id = %s AND payload IS NULL ORDER BY event_id DESC LIMIT 1
"""
# Of the newest attempts only, so that it takes the same time for every endpoint.
FIGURES = """
SELECT count(*), count(*) FILTER (WHERE status BETWEEN 200 AND 299),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE status > 0),
       percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE status > 0)
FROM (
    SELECT status, seconds FROM webhook_attempts
    WHERE account_id = %s AND webhook_id = %s AND event_id >= %s AND started_at >= %s ORDER BY event_id DESC LIMIT %s
) a
"""
JUDGED = 5000  # attempts
MISSED = statement("mailsvc.store.events", "missed")
BATCH = 1000
ALONE = "SELECT pg_advisory_xact_lock(%s, %s)"  # waits for a ledger that numbers events of the account, and keeps others from it
LATE = timedelta(minutes=1)  # by which an event can be numbered after events with greater IDs


@attrs.frozen
class Message:
    """A message to an endpoint, with its `fact`, or the `payload` of a test; neither if it was deleted."""

    event_id: UUID
    type: str
    created_at: datetime
    status: Status
    next_at: datetime | None
    payload: Mapping[str, Any] | None = None
    fact: Fact | None = None


@attrs.frozen
class Attempt:
    """An attempt. `status`: the HTTP status, or 0 without a response; `response` then says why."""

    attempt_id: UUID
    status: int
    response: str
    seconds: float
    started_at: datetime
    next_at: datetime | None


@attrs.frozen
class Figures:
    """Attempts, how many of them succeeded, and in how many seconds half and 95 % of the responses came. None without responses."""

    attempts: int
    succeeded: int
    median: float | None
    slow: float | None

    @property
    def rate(self) -> float | None:
        """In percent."""
        return 100.0 * self.succeeded / self.attempts if self.attempts else None


class WebhookLog:
    """The messages of an endpoint. The caller checks that the endpoint exists."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self, account_id: UUID, webhook_id: UUID, event_id: UUID) -> Message | None:
        named = {"account_id": account_id, "webhook_id": webhook_id, "event_id": event_id}
        rows = await self._pool.rows(GET, named)
        if not rows:
            return None
        *own, email_id = rows[0]
        events = await self._pool.rows(EVENT, named | {"email_id": email_id})
        return Message(**_WHOLE.read(own), fact=fact(events[0]) if events else None)

    async def attempts(
        self, account_id: UUID, webhook_id: UUID, event_id: UUID, limit: int, after: UUID | None = None
    ) -> tuple[list[Attempt], bool]:
        """Newest first, and whether there are more."""
        named = {"account_id": account_id, "webhook_id": webhook_id, "event_id": event_id, "after": after, "limit": limit + 1}
        rows = await self._pool.rows(ATTEMPTS, named)
        return [Attempt(*row) for row in rows[:limit]], len(rows) > limit

    async def replay(self, account_id: UUID, webhook_id: UUID, event_id: UUID, now: datetime, lines: Sequence[Line] = ()) -> bool:
        """Send a message again; whether it exists."""
        named = {"account_id": account_id, "webhook_id": webhook_id, "event_ids": [event_id], "now": now}
        return await changed(self._pool, now.timestamp(), lines, REPLAY, named) > 0

    async def replay_range(
        self, account_id: UUID, webhook_id: UUID, since: datetime, until: datetime, failed: bool, now: datetime, lines: Sequence[Line] = ()
    ) -> int:
        """Send all (or only failed) messages between two times again. Returns how many.

        `lines` are written with the first batch.
        """
        named: dict[str, object] = {"account_id": account_id, "webhook_id": webhook_id, "since": since, "until": until, "now": now}
        start, end = (uuid7_floor(min(max(_OLDEST, at), _NEWEST) + near) for at, near in ((since, -NEAR), (until, NEAR)))
        named |= {"failed": failed, "limit": BATCH, "start": start, "end": end}
        count = 0
        while True:
            found = await self._pool.transact(partial(_replay_batch, named=named, lines=lines))
            count, lines = count + len(found), ()
            if len(found) < BATCH:
                return count
            named["start"] = found[-1]

    async def last(self, webhook: Webhook) -> UUID:
        """The ID of the newest event in the endpoint's log. Without one, the endpoint's own ID: it was created before all its events."""
        rows = await self._pool.rows(LAST, (webhook.account_id, webhook.id))
        return rows[0][0] if rows else webhook.id

    async def enable(self, webhook: Webhook, after: UUID, now: datetime, lines: Sequence[Line] = ()) -> None:
        """Enable an endpoint and queue the events after `after` that were not sent because it was disabled.

        All or nothing: what it missed is no longer found once it has newer messages.
        """
        own = (webhook.account_id, webhook.id)

        async def enable(tx: Transaction) -> UUID:
            change = {"url": None, "events": None, "status": "enabled", "account_id": webhook.account_id, "id": webhook.id}
            if await tx.run(CHANGE, change):
                await write(tx, lines, now.timestamp())
            await _send_missed(tx, webhook, after, now)
            last: list[UUID] = [event_id for (event_id,) in await tx.rows(LAST, own)]
            return max([after, *last])

        async def again(tx: Transaction) -> None:
            """What happened before the commit. The ledger may still be numbering it, as for an endpoint that is disabled."""
            await tx.rows(ALONE, (LOCKS, shard(webhook.account_id)))
            await _send_missed(tx, webhook, max(after, uuid7_floor(newest - LATE)), now)

        newest = datetime.fromtimestamp(uuid7_seconds(await self._pool.transact(enable)), UTC)
        await self._pool.transact(again)

    async def figures(self, account_id: UUID, webhook_id: UUID, since: datetime, oldest: datetime) -> Figures:
        """Of the newest attempts since then, at events since `oldest`."""
        [row] = await self._pool.rows(FIGURES, (account_id, webhook_id, uuid7_floor(oldest), since, JUDGED))
        return Figures(*row)

    async def test(
        self, account_id: UUID, webhook_id: UUID, kind: str, payload: dict[str, object], now: datetime, lines: Sequence[Line] = ()
    ) -> UUID:
        """Send a made-up event. Returns the message's ID."""
        event_id = uuid7(now.timestamp())
        params = (account_id, webhook_id, event_id, event_id, kind, now, payload)
        await changed(self._pool, now.timestamp(), lines, TEST, params)
        return event_id

    async def list(self, account_id: UUID, webhook_id: UUID, limit: int, after: UUID | None = None) -> tuple[list[Message], bool]:
        """Newest first, and whether there are more."""
        named = {"account_id": account_id, "webhook_id": webhook_id, "after": after, "limit": limit + 1}
        rows = await self._pool.rows(BY_INDEX + LIST, named)
        return [Message(**_LISTED.read(row)) for row in rows[:limit]], len(rows) > limit


async def _replay_batch(tx: Transaction, named: dict[str, object], lines: Sequence[Line]) -> list[UUID]:
    found = [event_id for (event_id,) in await tx.rows(BY_INDEX + RANGE, named)]
    if found:
        await tx.run(REPLAY, named | {"event_ids": found})
        await write(tx, lines, cast(datetime, named["now"]).timestamp())
    return found


async def _send_missed(tx: Transaction, webhook: Webhook, after: UUID, now: datetime) -> None:
    named: dict[str, object] = {"account_id": webhook.account_id, "webhook_id": webhook.id, "after": after, "now": now}
    named |= {"limit": BATCH, "below": None}
    more = True
    while more:
        [(_, named["below"], more)] = await tx.rows(MISSED, named)
