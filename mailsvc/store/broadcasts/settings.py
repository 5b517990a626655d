"""The appearance of an account's preference page, and the rate at which it sends broadcasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction

GET = "SELECT title, message, logo, colors, hourly_rate FROM broadcast_settings WHERE account_id = %s"
PUT = """
INSERT INTO broadcast_settings (account_id, title, message, logo, colors, hourly_rate) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (account_id) DO UPDATE
SET title = excluded.title, message = excluded.message, logo = excluded.logo, colors = excluded.colors, hourly_rate = excluded.hourly_rate
"""
NAME = "SELECT name FROM accounts WHERE id = %s"


@attrs.frozen
class BroadcastSettings:
    """None: the default. `colors` has `background`, `text` and `accent`, as far as they are set."""

    title: str | None = None
    message: str | None = None
    logo: str | None = None
    colors: Mapping[str, str] = attrs.field(factory=dict)
    hourly_rate: int | None = None


@attrs.define(eq=False)
class StoredSettings:
    pool: Pool
    clock: Any

    async def get(self, account_id: UUID) -> BroadcastSettings:
        rows = await self.pool.rows(GET, (account_id,))
        return BroadcastSettings(*rows[0]) if rows else BroadcastSettings()

    async def put(self, account_id: UUID, settings: BroadcastSettings, lines: Sequence[Line] = ()) -> None:
        values = settings.title, settings.message, settings.logo, dict(settings.colors), settings.hourly_rate

        async def put(tx: Transaction) -> None:
            await tx.run(PUT, (account_id, *values))
            await write(tx, lines, utc(self.clock).timestamp())

        await self.pool.transact(put)

    async def sender(self, account_id: UUID) -> str:
        """The account's name, for the page."""
        rows = await self.pool.rows(NAME, (account_id,))
        return rows[0][0] if rows else ""
