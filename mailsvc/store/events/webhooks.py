"""Endpoints of webhooks, their secrets and their health.

Due messages: outbox. Sent messages: webhook_log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events import outbox
from mailsvc.store.ids import uuid7
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

Status = Literal["enabled", "disabled"]

ADMINS = 20  # admins of an account that are notified
GRACE = timedelta(hours=24)  # during which the previous secret signs too

COLUMNS = Columns.named(
    "id", "account_id", "url", "events", "status", "disabled_why", "failing_since", "failed_at", "failed_with", "hold_until", "created_at"
)
COUNT = "SELECT count(*) FROM webhooks WHERE account_id = %s"
ADD = f"""
INSERT INTO webhooks (id, account_id, url, events, status, secret, created_at) VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING {COLUMNS}
"""
GET = f"SELECT {COLUMNS}, secret FROM webhooks WHERE account_id = %s AND id = %s"
NEWEST = f"SELECT {COLUMNS} FROM webhooks WHERE account_id = %s ORDER BY id DESC LIMIT %s"
OLDER = f"SELECT {COLUMNS} FROM webhooks WHERE account_id = %s AND id < %s ORDER BY id DESC LIMIT %s"
NEWER = f"SELECT {COLUMNS} FROM webhooks WHERE account_id = %s AND id > %s ORDER BY id LIMIT %s"
# A change resets the endpoint's health.
CHANGE = """
UPDATE webhooks
SET url = coalesce(%(url)s, url), events = coalesce(%(events)s, events), status = coalesce(%(status)s, status),
    disabled_why = NULL, failing_since = NULL, hold_until = NULL, warned_at = NULL, told_at = NULL
WHERE account_id = %(account_id)s AND id = %(id)s
"""
REMOVE = "DELETE FROM webhooks WHERE account_id = %s AND id = %s"
ROTATE = """
UPDATE webhooks SET former = secret, former_until = %s, secret = %s WHERE account_id = %s AND id = %s
"""
# Once for a failing endpoint, and once when it was disabled. Recipients: the account's notification address and its admins.
TO_NOTIFY = f"""
SELECT {COLUMNS.of_table("w")}, ARRAY(
    SELECT DISTINCT ON (lower(email)) email FROM (
        SELECT a.notify WHERE a.notify IS NOT NULL
        UNION ALL SELECT u.email FROM members m JOIN users u ON u.id = m.user_id WHERE m.account_id = a.id AND m.role = 'admin'
    ) AS to_tell(email) ORDER BY lower(email), email COLLATE "C" LIMIT {ADMINS}
) FROM webhooks w JOIN accounts a ON a.id = w.account_id
WHERE w.failing_since IS NOT NULL AND (
    (w.status = 'enabled' AND w.failing_since <= %s AND w.warned_at IS NULL) OR (w.disabled_why IS NOT NULL AND w.told_at IS NULL)
)
ORDER BY w.id LIMIT %s
"""
NOTIFIED = """
UPDATE webhooks
SET warned_at = coalesce(warned_at, %(now)s), told_at = CASE WHEN disabled_why IS NOT NULL THEN %(now)s ELSE told_at END
WHERE id = %(id)s AND failing_since = %(since)s AND status = %(status)s
"""


@attrs.frozen
class Webhook:
    """An endpoint. `disabled_why`: why it was disabled, as a sentence; `failed_with`: an HTTP status, or 0 without a response."""

    id: UUID
    account_id: UUID
    url: str
    events: tuple[str, ...]
    status: Status
    disabled_why: str | None
    failing_since: datetime | None
    failed_at: datetime | None
    failed_with: int | None
    hold_until: datetime | None
    created_at: datetime


class Webhooks:
    def __init__(self, pool: Pool, clock: Any, encryption: Encryption) -> None:
        self._pool = pool
        self._clock = clock
        self._encryption = encryption

    async def add(
        self, account_id: UUID, url: str, events: Sequence[str], secret: bytes, most: int, lines: Sequence[Line] = (),
        status: Status = "enabled",
    ) -> Webhook | None:  # fmt: skip
        """Add an endpoint. None if the account already has `most`."""
        now = self._now()
        webhook_id = uuid7(now.timestamp())

        async def add(tx: Transaction) -> Webhook | None:
            await tx.rows(LOCK, (account_id,))
            [(count,)] = await tx.rows(COUNT, (account_id,))
            if count >= most:
                return None
            stored = (webhook_id, account_id, url, list(events), status, self._encryption.encrypt(secret, webhook_id), now)
            [row] = await tx.rows(ADD, stored)
            await write(tx, lines, now.timestamp())
            return _webhook(row)

        return await self._pool.transact(add)

    async def get(self, account_id: UUID, webhook_id: UUID) -> tuple[Webhook, bytes] | None:
        """An endpoint and its current secret."""
        rows = await self._pool.rows(GET, (account_id, webhook_id))
        return (_webhook(rows[0][:-1]), self._encryption.decrypt(rows[0][-1], webhook_id)) if rows else None

    async def change(
        self, account_id: UUID, webhook_id: UUID, url: str | None = None, events: Sequence[str] | None = None,
        status: Status | None = None, lines: Sequence[Line] = (),
    ) -> bool:  # fmt: skip
        """Change an endpoint; whether it exists. Pending messages of a disabled endpoint are discarded."""
        given = {"url": url, "events": None if events is None else [*events], "status": status, "account_id": account_id, "id": webhook_id}
        found = await changed(self._pool, self._now().timestamp(), lines, CHANGE, given) > 0
        if found and status == "disabled":
            await outbox.clear(self._pool, webhook_id)
        return found

    async def remove(self, account_id: UUID, webhook_id: UUID, lines: Sequence[Line] = ()) -> bool:
        """Delete an endpoint and discard its pending messages; whether it existed."""
        found = await changed(self._pool, self._now().timestamp(), lines, REMOVE, (account_id, webhook_id)) > 0
        if found:
            await outbox.clear(self._pool, webhook_id)
        return found

    async def rotate(self, account_id: UUID, webhook_id: UUID, secret: bytes, lines: Sequence[Line] = ()) -> bool:
        """Replace the secret. The previous one signs too for 24 hours."""
        encrypted = self._encryption.encrypt(secret, webhook_id)
        params = (self._now() + GRACE, encrypted, account_id, webhook_id)
        return await changed(self._pool, self._now().timestamp(), lines, ROTATE, params) > 0

    async def to_notify(self, failing_before: datetime, limit: int = 100) -> list[tuple[Webhook, Sequence[str]]]:
        """Failing and disabled endpoints whose account has not been notified, with the addresses to notify."""
        return [(_webhook(row[:-1]), row[-1]) for row in await self._pool.rows(TO_NOTIFY, (failing_before, limit))]

    async def notified(self, webhook: Webhook) -> None:
        named = {"now": self._now(), "id": webhook.id, "since": webhook.failing_since, "status": webhook.status}
        await self._pool.run(NOTIFIED, named)

    async def list(self, account_id: UUID, limit: int, after: UUID | None = None, before: UUID | None = None) -> tuple[list[Webhook], bool]:
        """Newest first, and whether there are more."""
        if before is not None:
            rows = await self._pool.rows(NEWER, (account_id, before, limit + 1))
        elif after is not None:
            rows = await self._pool.rows(OLDER, (account_id, after, limit + 1))
        else:
            rows = await self._pool.rows(NEWEST, (account_id, limit + 1))
        page = [_webhook(row) for row in rows[:limit]]
        return (page[::-1] if before is not None else page), len(rows) > limit

    def _now(self) -> datetime:
        return utc(self._clock)


def _webhook(row: Row) -> Webhook:
    values = COLUMNS.read(row)
    return Webhook(**values | {"events": tuple(values["events"])})
