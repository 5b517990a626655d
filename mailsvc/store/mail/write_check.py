"""Whether Postgres lets this process store mail: tables can be locked, for example by VACUUM FULL, while everything else works.

Or commits wait for a synchronous standby, while everything can be read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.postgres.connection import Limits
from mailsvc.store.postgres.errors import Contention
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import commits_wait

EVERY = 2.0  # seconds
PATIENCE = Limits().lock  # seconds: a request waits as long for a lock before it is refused
LASTS = 5 * EVERY  # seconds: without a connection, nothing is known after that
NOBODY = UUID(int=0)
# Changes no row, but needs the locks that storing an email needs, in the same order: of each table and, where it has partitions, of
# today's.
_LOCKS = """
WITH e AS (UPDATE emails SET size = size WHERE account_id = %(nobody)s AND email_id = %(today)s),
q AS (UPDATE queue SET status = status WHERE false),
h AS (UPDATE events SET type = type WHERE account_id = %(nobody)s AND email_id = %(today)s),
f AS (UPDATE fresh_events SET type = type WHERE false),
m AS (UPDATE messages SET piece = piece WHERE account_id = %(nobody)s AND email_id = %(today)s)
SELECT
"""


@attrs.define(eq=False)
class WriteCheck:
    """`look` has to be called every EVERY seconds."""

    pool: Pool
    clock: Any
    _since: float | None = attrs.field(default=None, init=False)  # when the first look began that has not succeeded

    async def look(self) -> None:
        if self._since is None:
            self._since = self.clock.seconds()
        waiting = await commits_wait(self.pool, PATIENCE)
        self.pool.commits_wait_until = self.clock.seconds() + (LASTS if waiting else 0.0)
        if waiting:
            return
        await _take_locks(self.pool, utc(self.clock))
        self._since = None

    @property
    def problem(self) -> str | None:
        """Why no mail can be stored, or None. It is public."""
        if self.pool.commits_wait:
            return "commits wait for a standby of Postgres"
        waited = 0.0 if self._since is None else self.clock.seconds() - self._since
        return None if waited < PATIENCE else f"for {waited:.0f} s no mail could be stored: a table is locked, or Postgres does not answer"


async def locked(pool: Pool, now: datetime) -> str | None:
    """Whether a lock keeps mail from being stored, after waiting for it as long as a request does."""
    try:
        await _take_locks(pool, now)
    except Contention:
        return "a table that mail is stored in is locked"
    return None


async def _take_locks(pool: Pool, now: datetime) -> None:
    await pool.rows(_LOCKS, {"nobody": NOBODY, "today": uuid7_floor(now)})
