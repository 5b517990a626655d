"""Accounts: the customers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.cache import CHANNEL
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

COLUMNS = Columns.named("id", "number", "name", "rate_limit", "suspended_at", "created_at", "plan", "ramp", "trusted_at")
CREATE = f"""
INSERT INTO accounts (id, name, rate_limit, created_at, notify, ramp, ramp_at, trusted_at) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
RETURNING {COLUMNS}
"""
# Whom to mail about the account `a`: its admins. If it has none, its notification address.
ADMINS = """coalesce(
    (SELECT array_agg(u.email ORDER BY u.email) FROM members m JOIN users u ON u.id = m.user_id
     WHERE m.account_id = a.id AND m.role = 'admin'),
    array_remove(ARRAY[a.notify], NULL)
)"""
NOTIFY = "UPDATE accounts SET notify = %s WHERE id = %s"
GET = f"SELECT {COLUMNS} FROM accounts WHERE id = %s"
NUMBERED = f"SELECT {COLUMNS} FROM accounts WHERE number = %s"
LIST = f"SELECT {COLUMNS} FROM accounts ORDER BY number"
# An account that was suspended only because it is being closed gets a suspension of its own, which stays if its admins reopen it.
SUSPEND = "UPDATE accounts SET suspended_at = %s WHERE id = %s AND (suspended_at IS NULL OR suspended_at = closed_at)"
# An account that is being closed stays suspended: reopening it ends that (store/account_data/closing).
RESUME = "UPDATE accounts SET suspended_at = NULL WHERE id = %s AND suspended_at IS NOT NULL AND closes_at IS NULL"
RENAME = "UPDATE accounts SET name = %s WHERE id = %s"


@attrs.frozen
class Account:
    """`number`: a short ID for addresses. `rate_limit`: requests per second. None for `rate_limit` and `plan`: the default.

    `ramp`: recipients per day while the account is new; None: not limited. `trusted_at`: since when the operator trusts it.
    """

    id: UUID
    number: int
    name: str
    rate_limit: int | None
    suspended_at: datetime | None
    created_at: datetime
    plan: str | None = None
    ramp: int | None = None
    trusted_at: datetime | None = None


class Accounts:
    def __init__(self, pool: Pool, clock: Any, notifications: Notifier | None = None) -> None:
        self._pool = pool
        self._clock = clock
        self._notifications = notifications

    async def create(
        self, name: str, rate_limit: int | None = None, notify: str | None = None, *, ramp: int | None = None, trusted: bool = False,
        line: Callable[[UUID], Line] | None = None,
    ) -> Account:  # fmt: skip
        """`notify`: the address for notifications by this service. `ramp`: recipients per day for the time being.

        `line`: for the audit log.
        """
        now = utc(self._clock)

        async def create(tx: Transaction) -> Account:
            account = await add(tx, name, now, rate_limit, notify, ramp=ramp, trusted=trusted)
            await write(tx, [] if line is None else [line(account.id)], now.timestamp())
            return account

        return await self._pool.transact(create)

    async def notify(self, account_id: UUID, address: str | None, lines: Sequence[Line] = ()) -> bool:
        """Change the address for notifications; whether the account exists."""
        return await changed(self._pool, unix(self._clock), lines, NOTIFY, (address, account_id)) > 0

    async def networks(self, account_id: UUID) -> list[str]:
        """From which members can open the account in the dashboard; empty: from any."""
        rows = await self._pool.rows("SELECT dashboard_networks FROM accounts WHERE id = %s", (account_id,))
        return list(rows[0][0]) if rows else []

    async def restrict(self, account_id: UUID, networks: Sequence[str], lines: Sequence[Line] = ()) -> None:
        """Change these networks."""
        sql = "UPDATE accounts SET dashboard_networks = %s WHERE id = %s"
        await changed(self._pool, unix(self._clock), lines, sql, (list(networks), account_id))

    async def get(self, account_id: UUID) -> Account | None:
        rows = await self._pool.rows(GET, (account_id,))
        return Account(**COLUMNS.read(rows[0])) if rows else None

    async def numbered(self, number: int) -> Account | None:
        rows = await self._pool.rows(NUMBERED, (number,))
        return Account(**COLUMNS.read(rows[0])) if rows else None

    async def rename(self, account_id: UUID, name: str, lines: Sequence[Line] = ()) -> bool:
        """Change the name; whether the account exists."""
        return await changed(self._pool, unix(self._clock), lines, RENAME, (name, account_id)) > 0

    async def suspend(self, account_id: UUID, suspended: bool = True, lines: Sequence[Line] = ()) -> bool:
        """Suspend an account, or resume one that is not being closed; whether that changed anything."""
        now = utc(self._clock)
        sql, params = (SUSPEND, (now, account_id)) if suspended else (RESUME, (account_id,))
        done = await changed(self._pool, now.timestamp(), lines, sql, params) > 0
        if done and self._notifications is not None:
            self._notifications.notify(CHANNEL)
        return done

    async def notify_address(self, account_id: UUID) -> str | None:
        """The address for notifications."""
        rows = await self._pool.rows("SELECT notify FROM accounts WHERE id = %s", (account_id,))
        return rows[0][0] if rows else None

    async def list(self) -> list[Account]:
        return [Account(**COLUMNS.read(row)) for row in await self._pool.rows(LIST)]


async def add(
    tx: Transaction, name: str, now: datetime, rate_limit: int | None = None, notify: str | None = None, *, ramp: int | None = None,
    trusted: bool = False,
) -> Account:  # fmt: skip
    """Create an account within the caller's transaction, as `Accounts.create`."""
    values = (uuid7(now.timestamp()), name, rate_limit, now, notify, None if trusted else ramp, now, now if trusted else None)
    [row] = await tx.rows(CREATE, values)
    return Account(**COLUMNS.read(row))
