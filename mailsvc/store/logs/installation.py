"""What the database tells of an installation: who runs, whether mail is held, whether there is a customer. For the doctor."""

from __future__ import annotations

from datetime import datetime

from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.holds import EVERYTHING

_COUNTS = """
SELECT (SELECT count(*) FROM accounts),
       (SELECT count(*) FROM domains WHERE status = 'verified' OR trusted_at IS NOT NULL),
       (SELECT min(reason) FROM destinations WHERE name = %s AND until > %s)
"""


async def counts(pool: Pool, now: datetime) -> tuple[int, int, str | None]:
    """Accounts, domains that may send, and why all mail is held; None: it is not."""
    [(accounts, sending, held)] = await pool.rows(_COUNTS, (EVERYTHING, now))
    return accounts, sending, held
