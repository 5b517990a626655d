"""Accounts: the customers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.cache import CHANNEL
from mailsvc.store.ids import uuid7
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool

COLUMNS = "id, number, name, rate_limit, suspended_at, created_at, plan"
CREATE = f"INSERT INTO accounts (id, name, rate_limit, created_at, notify) VALUES (%s, %s, %s, %s, %s) RETURNING {COLUMNS}"
NOTIFY = "UPDATE accounts SET notify = %s WHERE id = %s"
GET = f"SELECT {COLUMNS} FROM accounts WHERE id = %s"
NUMBERED = f"SELECT {COLUMNS} FROM accounts WHERE number = %s"
LIST = f"SELECT {COLUMNS} FROM accounts ORDER BY number"
SUSPEND = "UPDATE accounts SET suspended_at = CASE WHEN %s THEN coalesce(suspended_at, %s) END WHERE id = %s"


@attrs.frozen
class Account:
    """`number`: a short ID for addresses. `rate_limit`: requests per second. None for `rate_limit` and `plan`: the default."""

    id: UUID
    number: int
    name: str
    rate_limit: int | None
    suspended_at: datetime | None
    created_at: datetime
    plan: str | None = None


class Accounts:
    def __init__(self, pool: Pool, clock: Any, notifications: Notifier | None = None) -> None:
        self._pool = pool
        self._clock = clock
        self._notifications = notifications

    async def create(self, name: str, rate_limit: int | None = None, notify: str | None = None) -> Account:
        """`notify`: the address for notifications by this service."""
        now = unix(self._clock)
        [row] = await self._pool.rows(CREATE, (uuid7(now), name, rate_limit, datetime.fromtimestamp(now, UTC), notify))
        return Account(*row)

    async def notify(self, account_id: UUID, address: str | None) -> bool:
        """Change the address for notifications; whether the account exists."""
        return await self._pool.run(NOTIFY, (address, account_id)) > 0

    async def get(self, account_id: UUID) -> Account | None:
        rows = await self._pool.rows(GET, (account_id,))
        return Account(*rows[0]) if rows else None

    async def numbered(self, number: int) -> Account | None:
        rows = await self._pool.rows(NUMBERED, (number,))
        return Account(*rows[0]) if rows else None

    async def suspend(self, account_id: UUID, suspended: bool = True) -> bool:
        """Suspend an account or resume it; whether it exists."""
        now = utc(self._clock)
        found = await self._pool.run(SUSPEND, (suspended, now, account_id)) > 0
        if self._notifications is not None:
            self._notifications.notify(CHANNEL)
        return found

    async def list(self) -> list[Account]:
        return [Account(*row) for row in await self._pool.rows(LIST)]
