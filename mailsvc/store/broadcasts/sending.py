"""The steps of sending a broadcast. Each is one transaction, which first checks and moves the broadcast's position.

Whoever works on a broadcast claims it for a while; but it is the position that makes sure that no contact is taken twice: a process that
was overtaken writes nothing. The primary key of broadcast_recipients is the second guarantee. What is decided between the steps:
broadcasts/fanout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.broadcasts.broadcasts import BODIES, COUNTS, LOCK
from mailsvc.store.broadcasts.values import COLUMNS, Broadcast, broadcast
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.mail.inserts import INSERT_EMAILS, Hashes, documents
from mailsvc.store.mail.values import NewEmail
from mailsvc.store.postgres.pool import Pool, Transaction

NIL = UUID(int=0)
DROPPED = 1000  # queue rows of a canceled broadcast that are removed in one transaction
NEVER = "9999-12-31 23:59:59+00"

CLAIM = f"""
UPDATE broadcasts SET next_at = %(until)s WHERE (account_id, id) = (
    SELECT account_id, id FROM broadcasts WHERE next_at <= %(now)s ORDER BY next_at LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING {COLUMNS}
"""
# A process whose claim has expired does not begin what another one has begun since.
SET = """
UPDATE broadcasts SET {columns} WHERE account_id = %(account_id)s AND id = %(id)s AND status = %(status)s AND paused_at IS NULL
AND started_at IS NOT DISTINCT FROM %(started_at)s
"""
TOTAL = "SELECT count(*) FROM contact_segments WHERE account_id = %s AND segment_id = %s"
SEGMENT = "SELECT EXISTS (SELECT FROM segments WHERE account_id = %s AND id = %s AND deleted_at IS NULL)"
PROPERTIES = "SELECT key, number::text, fallback #>> '{}' FROM contact_properties WHERE account_id = %s AND deleted_at IS NULL"
TOPIC = "SELECT subscribed FROM topics WHERE account_id = %s AND id = %s AND deleted_at IS NULL"
# Planned for a full table: from the members along their key, each contact by its own. Somebody who was deleted and added again has an ID
# behind the position, so contacts that were created since the start count as deleted.
CONTACTS = """
SELECT s.contact_id, CASE WHEN c.created_at <= coalesce(%(started_at)s::timestamptz, 'infinity') THEN c.email END,
       c.first_name, c.last_name, c.unsubscribed, t.subscribed, CASE WHEN %(properties)s THEN c.properties END, c.untracked
FROM (
    SELECT contact_id FROM contact_segments
    WHERE account_id = %(account_id)s AND segment_id = %(segment_id)s AND contact_id > %(after)s ORDER BY contact_id LIMIT %(limit)s
) s
LEFT JOIN contacts c ON c.account_id = %(account_id)s AND c.id = s.contact_id
LEFT JOIN contact_topics t ON t.account_id = %(account_id)s AND t.contact_id = s.contact_id AND t.topic_id = %(topic_id)s
ORDER BY s.contact_id
"""
# What was checked before it starts. The name and the rate may change.
CHECKED = ("status", "segment_id", "topic_id", "sender", "reply_to", "subject", "preview_text", "scheduled_at", "key_id")
ADVANCE = """
UPDATE broadcasts SET position = %(position)s, passed = passed + %(passed)s, queued = queued + %(queued)s, ended_at = %(ended_at)s,
                      next_at = %(next_at)s, reason = NULL
WHERE account_id = %(account_id)s AND id = %(id)s AND status = 'queued' AND paused_at IS NULL
AND position IS NOT DISTINCT FROM %(before)s AND ended_at IS NULL
"""
WAITING = "SELECT count(*) FROM (SELECT FROM queue WHERE account_id = %s AND broadcast_id = %s LIMIT %s) q"
UNTRIED = "SELECT EXISTS (SELECT FROM queue WHERE account_id = %s AND broadcast_id = %s AND attempts = 0)"
PAUSE = """
UPDATE broadcasts SET paused_at = %s, reason = %s, next_at = NULL
WHERE account_id = %s AND id = %s AND status = 'queued' AND paused_at IS NULL
"""
HOLD = f"""
UPDATE queue SET next_at = '{NEVER}', reason = %s WHERE account_id = %s AND broadcast_id = %s AND lease IS NULL AND attempts = 0
"""
DROP = """
DELETE FROM queue WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM queue WHERE account_id = %s AND broadcast_id = %s AND lease IS NULL AND status IN ('queued', 'delayed')
    LIMIT %s FOR UPDATE SKIP LOCKED
)) RETURNING email_id, recipient, domain_id
"""
LEFT = "SELECT EXISTS (SELECT FROM queue WHERE account_id = %s AND broadcast_id = %s)"
RUNNING = "SELECT count(*) FROM broadcasts WHERE account_id = %s AND status = 'queued' AND ended_at IS NULL AND paused_at IS NULL"
ACCOUNT_RATE = "SELECT hourly_rate FROM broadcast_settings WHERE account_id = %s"
ACCOUNT = "SELECT plan, ramp, suspended_at IS NOT NULL FROM accounts WHERE id = %s"


class Overtaken(Exception):
    """Another process works on this broadcast, or it was canceled or paused. Nothing was written."""


@attrs.frozen
class Member:
    """A contact of the segment. `email` None: it was deleted, or created after the start. `choice`: for the broadcast's topic."""

    contact_id: UUID
    email: str | None
    first_name: str | None
    last_name: str | None
    unsubscribed: bool | None
    choice: bool | None
    properties: Mapping[str, Any] | None
    untracked: bool | None = None


@attrs.frozen
class Property:
    """`number` is its key in contacts.properties."""

    number: str
    fallback: str | None


@attrs.frozen
class Limits:
    """Of an account. `ramp`: recipients per day while it is new; None: no such limit."""

    plan: str | None
    ramp: int | None


@attrs.frozen
class Advance:
    """What one step does: from the broadcast's position to `position`, with an email for some of the `passed` contacts."""

    position: UUID | None
    passed: int
    emails: Sequence[NewEmail]
    ended_at: datetime | None
    next_at: datetime


@attrs.define(eq=False)
class Sending:
    """`hashes`: to recognize suppressed addresses that were erased."""

    pool: Pool
    hashes: Hashes | None = None

    async def claim(self, now: datetime, until: datetime) -> Broadcast | None:
        """A broadcast that is due. Nobody else gets it before `until`."""
        rows = await self.pool.rows(CLAIM, {"now": now, "until": until})
        return broadcast(rows[0]) if rows else None

    async def properties(self, account_id: UUID) -> dict[str, Property]:
        rows = await self.pool.rows(PROPERTIES, (account_id,))
        return {key: Property(number, fallback) for key, number, fallback in rows}

    async def total(self, account_id: UUID, segment_id: UUID) -> int | None:
        """How many contacts a segment has; None if it does not exist."""
        if not await self.has_segment(account_id, segment_id):
            return None
        return int((await self.pool.rows(TOTAL, (account_id, segment_id)))[0][0])

    async def has_segment(self, account_id: UUID, segment_id: UUID) -> bool:
        """Whether it exists and was not deleted."""
        return bool((await self.pool.rows(SEGMENT, (account_id, segment_id)))[0][0])

    async def default(self, account_id: UUID, topic_id: UUID) -> bool | None:
        """Whether contacts without a choice are subscribed to a topic; None if it was deleted."""
        rows = await self.pool.rows(TOPIC, (account_id, topic_id))
        return rows[0][0] if rows else None

    async def set(self, of: Broadcast, **columns: object) -> None:
        """Change columns, unless its status has changed, or it was paused or started. Raises Overtaken."""
        if not await self.pool.run(*_set(of, columns)):
            raise Overtaken

    async def start(self, of: Broadcast, bodies: tuple[str | None, str | None], **columns: object) -> bool:
        """Change columns, unless the content or the time is not the one that was read. Raises Overtaken as `set`."""
        key = (of.account_id, of.id)

        async def start(tx: Transaction) -> bool:
            rows = await tx.rows(LOCK, key)
            if not rows or any(getattr(broadcast(rows[0]), name) != getattr(of, name) for name in CHECKED):
                return False
            if tuple((await tx.rows(BODIES, key))[0]) != bodies:
                return False
            if not await tx.run(*_set(of, columns)):
                raise Overtaken
            return True

        return await self.pool.transact(start)

    async def members(self, of: Broadcast, limit: int) -> list[Member]:
        """The next contacts of the segment, in the order of their IDs."""
        named = {
            "account_id": of.account_id, "segment_id": of.segment_id, "after": of.position or NIL, "limit": limit,
            "topic_id": of.topic_id or NIL, "properties": bool(of.numbers), "started_at": of.started_at,
        }  # fmt: skip
        # By position, because this runs for each contact.
        return [Member(*row) for row in await self.pool.rows(CONTACTS, named)]

    async def advance(self, of: Broadcast, step: Advance) -> int:
        """Put the emails into the queue and move the position. Returns how many were suppressed. Raises Overtaken."""
        named = {
            "account_id": of.account_id, "id": of.id, "before": of.position, "position": step.position, "passed": step.passed,
            "queued": len(step.emails), "ended_at": step.ended_at, "next_at": step.next_at,
        }  # fmt: skip

        async def advance(tx: Transaction) -> int:
            if not await tx.run(ADVANCE, named):
                raise Overtaken
            suppressed = 0
            for part in documents(step.emails, self.hashes):
                suppressed += len(await tx.rows(INSERT_EMAILS, part))
            return suppressed

        return await self.pool.transact(advance)

    async def waiting(self, of: Broadcast, most: int) -> int:
        """How many of its recipients are in the queue; counts to `most`."""
        return int((await self.pool.rows(WAITING, (of.account_id, of.id, most)))[0][0])

    async def untried(self, of: Broadcast) -> bool:
        """Whether there are recipients to whom nothing was sent yet."""
        return bool((await self.pool.rows(UNTRIED, (of.account_id, of.id)))[0][0])

    async def counts(self, of: Broadcast) -> dict[str, int]:
        return dict(await self.pool.rows(COUNTS, (of.account_id, of.id)))

    async def pause(self, of: Broadcast, reason: str, now: datetime) -> None:
        """Until somebody continues it. What was sent to before is retried meanwhile."""

        async def pause(tx: Transaction) -> None:
            if await tx.run(PAUSE, (now, reason, of.account_id, of.id)):
                await tx.run(HOLD, (reason, of.account_id, of.id))

        await self.pool.transact(pause)

    async def drop(self, of: Broadcast, now: datetime) -> bool:
        """Remove emails of a canceled broadcast from the queue. Returns whether some are left."""

        async def drop(tx: Transaction) -> bool:
            rows = await tx.rows(DROP, (of.account_id, of.id, DROPPED))
            canceled = [NewEvent(of.account_id, email, domain, number, "email.canceled", now) for email, number, domain in rows]
            await events.write(tx, canceled)
            return bool((await tx.rows(LEFT, (of.account_id, of.id)))[0][0])

        return await self.pool.transact(drop)

    async def rate(self, account_id: UUID) -> tuple[int | None, int]:
        """The recipients per hour of all broadcasts of an account, None if it has no limit of its own; and how many are being sent."""
        rows = await self.pool.rows(ACCOUNT_RATE, (account_id,))
        return rows[0][0] if rows else None, int((await self.pool.rows(RUNNING, (account_id,)))[0][0])

    async def limits(self, account_id: UUID) -> Limits | None:
        """None: the account is suspended or gone."""
        rows = await self.pool.rows(ACCOUNT, (account_id,))
        return Limits(*rows[0][:2]) if rows and not rows[0][2] else None


def _set(of: Broadcast, columns: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    sql = SET.format(columns=", ".join(f"{name} = %({name}_)s" for name in columns))
    values = {f"{name}_": value for name, value in columns.items()}
    return sql, {**values, "account_id": of.account_id, "id": of.id, "status": of.status, "started_at": of.started_at}
