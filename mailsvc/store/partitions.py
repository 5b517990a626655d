"""Makes the daily partitions of the tables that grow without end, ahead of time.

A partition holds one UTC day of emails or of events, by the time inside their UUIDv7. `ensure` at start and once a day.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from mailsvc.store.ids import uuid7_floor
from mailsvc.store.pool import Pool, Transaction

TABLES = ("emails", "messages", "events", "attempts", "event_log", "webhook_messages", "webhook_attempts")
DAYS_AHEAD = 16
LOCK = 0x7061727473  # "parts"

Day = datetime


async def ensure(pool: Pool, now: datetime, days_ahead: int = DAYS_AHEAD) -> list[str]:
    """Make what is missing, from yesterday on; the names of what was made. Safe when several processes do so at once."""

    async def make(transaction: Transaction) -> list[str]:
        await transaction.rows("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        wanted = statements(now, days_ahead)
        rows = await transaction.rows("SELECT relname FROM pg_class WHERE relname = ANY (%s) AND relispartition", (list(wanted),))
        missing = [name for name in wanted if (name,) not in rows]
        for name in missing:
            await transaction.run(wanted[name])
        return missing

    return await pool.transact(make)


def statements(now: datetime, days_ahead: int = DAYS_AHEAD) -> dict[str, str]:
    """What makes each partition, by its name."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today + timedelta(days=n) for n in range(-1, days_ahead + 1)]
    return {name_of(table, day): _statement(table, day) for day in days for table in TABLES}


def name_of(table: str, day: datetime) -> str:
    return f"{table}_{day:%Y%m%d}"


def _statement(table: str, day: datetime) -> str:
    first, beyond = uuid7_floor(day), uuid7_floor(day + timedelta(days=1))
    # No LIKE needed: constraints, indexes and compression come from the parent.
    return f"CREATE TABLE {name_of(table, day)} PARTITION OF {table} FOR VALUES FROM ('{first}') TO ('{beyond}')"
