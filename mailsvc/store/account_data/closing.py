"""Accounts that are being closed: suspended now, deleted after a period of grace. Deleting: deletion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.cache import CHANNEL
from mailsvc.store.people.audit import Line, changed
from mailsvc.store.postgres.pool import Pool

NOTICED = timedelta(seconds=3)  # until all processes know that an account is suspended: they remember its keys for two seconds

_CLOSE = """
UPDATE accounts SET closes_at = %(at)s, closed_at = %(now)s, suspended_at = coalesce(suspended_at, %(now)s)
WHERE id = %(account)s AND closes_at IS NULL
"""
_END = "UPDATE accounts SET closes_at = %(now)s WHERE id = %(account)s AND closes_at > %(now)s"
# An account that the operator had suspended before stays suspended.
_REOPEN = """
UPDATE accounts SET closes_at = NULL, closed_at = NULL, suspended_at = nullif(suspended_at, closed_at)
WHERE id = %(account)s AND closes_at > %(now)s
"""
# While an account moves to another cell, its rows are in both.
_MOVING = "SELECT FROM account_moves WHERE account_id = %s AND phase = 'leaving'"
_DUE = """
SELECT id FROM accounts a WHERE closes_at <= %s AND closed_at <= %s
AND NOT EXISTS (SELECT FROM account_moves m WHERE m.account_id = a.id AND m.phase = 'leaving') ORDER BY closes_at
"""
_CLOSING = "SELECT id, closes_at FROM accounts WHERE closes_at IS NOT NULL"
_CLOSES = "SELECT closes_at FROM accounts WHERE id = %s"


@attrs.define(eq=False)
class Closing:
    pool: Pool
    clock: Any
    notify: Callable[[str], None] | None = None  # tells other processes

    async def close(self, account_id: UUID, at: datetime, lines: Sequence[Line]) -> bool:
        """Suspend the account now; at that time its data is deleted. False if this was decided before."""
        return await self._changed(lines, _CLOSE, {"account": account_id, "at": at, "now": utc(self.clock)})

    async def end(self, account_id: UUID, lines: Sequence[Line]) -> bool:
        """Delete the data of a closed account now, instead of later: it can no longer be reopened. False if that was decided before."""
        return await self._changed(lines, _END, {"account": account_id, "now": utc(self.clock)})

    async def reopen(self, account_id: UUID, lines: Sequence[Line]) -> bool:
        """The account is as it was before. False if it was not being closed, or if it is too late."""
        return await self._changed(lines, _REOPEN, {"account": account_id, "now": utc(self.clock)})

    async def closes_at(self, account_id: UUID) -> datetime | None:
        """When its data is deleted; None: it is not being closed."""
        rows = await self.pool.rows(_CLOSES, (account_id,))
        return rows[0][0] if rows else None

    async def closing(self) -> Mapping[UUID, datetime]:
        """All accounts that are being closed: when their data is deleted."""
        return dict(await self.pool.rows(_CLOSING))

    async def moving(self, account_id: UUID) -> bool:
        """Whether it moves to another cell, so that it cannot be deleted here."""
        return len(await self.pool.rows(_MOVING, (account_id,))) > 0

    async def due(self) -> Sequence[UUID]:
        """The accounts to delete now. No process accepts mail of them any more, which would stay behind."""
        now = utc(self.clock)
        return [account_id for (account_id,) in await self.pool.rows(_DUE, (now, now - NOTICED))]

    async def _changed(self, lines: Sequence[Line], sql: str, values: Mapping[str, object]) -> bool:
        done = await changed(self.pool, utc(self.clock).timestamp(), lines, sql, values) > 0
        if done and self.notify is not None:
            self.notify(CHANNEL)
        return done
