"""Test emails from the shared test sender: how many an account sent lately, and which ones. The emails are in the sender's account."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.people.account_lock import LOCK
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction

Taken = Literal["new", "known", "limit"]
DAY = timedelta(days=1)
PER_DAY = 20  # for each account

_FORGET = "DELETE FROM shared_tests WHERE account_id = %s AND created_at <= %s"
_COUNT = "SELECT count(*) FROM shared_tests WHERE account_id = %s"
_KNOWN = "SELECT FROM shared_tests WHERE account_id = %s AND id = %s"
_TAKE = "INSERT INTO shared_tests (account_id, id, created_at) VALUES (%s, %s, %s)"
_GIVE_BACK = "DELETE FROM shared_tests WHERE account_id = %s AND id = %s AND email_id IS NULL"
_SENT = "UPDATE shared_tests SET email_id = %s WHERE account_id = %s AND id = %s"
_EMAIL = "SELECT email_id FROM shared_tests WHERE account_id = %s AND id = %s AND email_id IS NOT NULL"


@attrs.define(eq=False)
class SharedTests:
    pool: Pool
    clock: Any

    async def take(self, account_id: UUID, id_: UUID, lines: Sequence[Line] = ()) -> Taken:
        """Count a test email before it is sent. `limit`: the account sent PER_DAY within the last 24 hours. `known`: it is counted."""
        now = utc(self.clock)

        async def take(tx: Transaction) -> Taken:
            await tx.rows(LOCK, (account_id,))
            await tx.run(_FORGET, (account_id, now - DAY))
            if await tx.rows(_KNOWN, (account_id, id_)):
                return "known"
            [(count,)] = await tx.rows(_COUNT, (account_id,))
            if count >= PER_DAY:
                return "limit"
            await tx.run(_TAKE, (account_id, id_, now))
            await write(tx, lines, now.timestamp())
            return "new"

        return await self.pool.transact(take)

    async def give_back(self, account_id: UUID, id_: UUID) -> None:
        """It was not accepted."""
        await self.pool.run(_GIVE_BACK, (account_id, id_))

    async def sent(self, account_id: UUID, id_: UUID, email_id: UUID) -> None:
        """It was accepted as this email."""
        await self.pool.run(_SENT, (email_id, account_id, id_))

    async def sweep(self) -> None:
        """Delete what no longer counts."""
        await self.pool.run("DELETE FROM shared_tests WHERE created_at <= %s", (utc(self.clock) - DAY,))

    async def email(self, account_id: UUID, id_: UUID) -> UUID | None:
        """The email of one of the account's tests of the last day."""
        rows = await self.pool.rows(_EMAIL, (account_id, id_))
        return rows[0][0] if rows else None
