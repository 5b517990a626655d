"""The operator's accesses to the content of an account: opening and ending one, reading with one, and which ones there were.

The database does not enforce them: whoever can run SQL reads without one. What commands read: cli/access. The mail to admins:
accounts/operator_access.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.ids import uuid7, uuid7_floor
from mailsvc.store.people.accounts import ADMINS
from mailsvc.store.people.audit import ERASED, Line, by_operator, write
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

T = TypeVar("T")

REASON_MAX = 500  # characters
LONGEST = timedelta(hours=24)
READS = ("email read", "account exported", "address exported")  # the actions that need an access
READS_SHOWN = 500

_CLOSE = "UPDATE operator_access SET ended_at = ends_at WHERE account_id = %s AND ended_at IS NULL AND ends_at <= %s"
_OPEN = """
INSERT INTO operator_access (account_id, id, operator, reason, opened_at, ends_at) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (account_id) WHERE ended_at IS NULL DO NOTHING
"""
_END = "UPDATE operator_access SET ended_at = %s WHERE account_id = %s AND ended_at IS NULL AND ends_at > %s"
# Locked, so that whoever ends it waits for what is being read.
_USE = "SELECT id FROM operator_access WHERE account_id = %s AND ended_at IS NULL AND ends_at > %s FOR SHARE"
_COLUMNS = Columns.named("account_id", "id", "operator", "reason", "opened_at", "ends_at", "ended_at")
_LIST = f"SELECT {_COLUMNS} FROM operator_access WHERE account_id = %s ORDER BY id DESC LIMIT %s"
_SINCE = f"SELECT {_COLUMNS} FROM operator_access WHERE opened_at >= %s ORDER BY account_id, id"
_READS = """
SELECT at, action, coalesce(subject, %s) FROM audit_entries
WHERE account_id = %s AND id >= %s AND kind = 'operator' AND action = ANY (%s) ORDER BY id DESC LIMIT %s
"""
_NEW = Columns.of(
    account_id="o.account_id", id="o.id", account="a.name", reason="o.reason", opened_at="o.opened_at", ends_at="o.ends_at",
    admins=ADMINS,
)  # fmt: skip
_UNANNOUNCED = f"""
SELECT {_NEW} FROM operator_access o JOIN accounts a ON a.id = o.account_id WHERE NOT o.announced ORDER BY o.id LIMIT 50
"""
_ANNOUNCED = "UPDATE operator_access SET announced = true WHERE account_id = %s AND id = %s"


class NoAccess(Exception):
    """Content of the account was not read, because the operator has no access to it."""


@attrs.frozen
class Read:
    """What was read during an access, as the audit log has it."""

    at: datetime
    action: str
    subject: str


@attrs.frozen
class OperatorAccess:
    account_id: UUID
    id: UUID
    operator: str
    reason: str
    opened_at: datetime
    ends_at: datetime
    ended_at: datetime | None
    reads: Sequence[Read] = ()

    @property
    def end(self) -> datetime:
        """When it ended, or will end."""
        return self.ended_at or self.ends_at

    def open(self, now: datetime) -> bool:
        return self.end > now


@attrs.frozen
class NewAccess:
    """An access whose `admins` have not been mailed yet. `account`: the name."""

    account_id: UUID
    id: UUID
    account: str
    reason: str
    opened_at: datetime
    ends_at: datetime
    admins: Sequence[str]


@attrs.frozen
class OperatorAccesses:
    pool: Pool
    clock: Any

    async def open(self, account_id: UUID, operator: str, reason: str, lasts: timedelta) -> datetime | None:
        """Open an access. Returns when it ends; None: there is one already, and nothing was changed."""
        now = utc(self.clock)
        ends_at = now + min(lasts, LONGEST)
        line = by_operator(account_id, "access to content opened", f"{operator}, until {ends_at:%Y-%m-%d %H:%M} UTC: {reason}")

        async def open_(tx: Transaction) -> datetime | None:
            await tx.run(_CLOSE, (account_id, now))
            if not await tx.run(_OPEN, (account_id, uuid7(now.timestamp()), operator, reason, now, ends_at)):
                return None
            await write(tx, [line], now.timestamp())
            return ends_at

        return await self.pool.transact(open_)

    async def end(self, account_id: UUID, operator: str) -> bool:
        """End the open access. False if there is none."""
        now = utc(self.clock)

        async def end(tx: Transaction) -> bool:
            ended = await tx.run(_END, (now, account_id, now)) > 0
            await write(tx, [by_operator(account_id, "access to content ended", operator)] if ended else [], now.timestamp())
            return ended

        return await self.pool.transact(end)

    async def is_open(self, account_id: UUID) -> bool:
        return bool(await self.pool.transact(lambda tx: tx.rows(_USE, (account_id, utc(self.clock)))))

    async def read(self, line: Line, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Read content of the line's account with `work`. The line is written in the same transaction. Raises NoAccess."""

        async def read(tx: Transaction) -> T:
            now = utc(self.clock)
            if not await tx.rows(_USE, (line.account_id, now)):
                raise NoAccess
            content = await work(tx)
            await write(tx, [line], now.timestamp())
            return content

        return await self.pool.transact(read)

    async def list(self, account_id: UUID, limit: int) -> Sequence[OperatorAccess]:
        """The newest ones, with the newest of what was read."""
        found = [OperatorAccess(**_COLUMNS.read(row)) for row in await self.pool.rows(_LIST, (account_id, limit))]
        if not found:
            return found
        rows = await self.pool.rows(_READS, (ERASED, account_id, uuid7_floor(found[-1].opened_at), [*READS], READS_SHOWN))
        reads = [Read(*row) for row in rows]
        return [attrs.evolve(each, reads=[one for one in reads if each.opened_at <= one.at <= each.end]) for each in found]

    async def since(self, at: datetime) -> Sequence[OperatorAccess]:
        """Those of all accounts."""
        return [OperatorAccess(**_COLUMNS.read(row)) for row in await self.pool.rows(_SINCE, (at,))]

    async def unannounced(self) -> Sequence[NewAccess]:
        """The first ones whose admins have to be mailed."""
        return [NewAccess(**_NEW.read(row)) for row in await self.pool.rows(_UNANNOUNCED)]

    async def announced(self, access: NewAccess) -> None:
        await self.pool.run(_ANNOUNCED, (access.account_id, access.id))
