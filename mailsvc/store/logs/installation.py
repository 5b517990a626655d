"""Facts about the installation for the doctor: accounts, domains, and whether mail is on hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.holds import EVERYTHING

_COUNTS = """
SELECT (SELECT count(*) FROM accounts),
       (SELECT count(*) FROM domains WHERE status = 'verified' OR trusted_at IS NOT NULL),
       (SELECT min(reason) FROM destinations WHERE name = %s AND until > %s)
"""


async def regions(pool: Pool) -> Mapping[str, int]:
    """How many domains each region has."""
    return dict(await pool.rows("SELECT region, count(*) FROM domains GROUP BY region"))


async def counts(pool: Pool, now: datetime) -> tuple[int, int, str | None]:
    """The numbers of accounts and of domains that can send, and why all mail is on hold, if it is."""
    [(accounts, sending, held)] = await pool.rows(_COUNTS, (EVERYTHING, now))
    return accounts, sending, held
