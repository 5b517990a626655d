"""Creates the daily partitions of the large tables in advance.

A partition holds the rows of one UTC day, by the time in their UUIDv7. `ensure` runs at start and once a day; store/logs/retention
drops old partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import attrs
from twisted.logger import Logger

from mailsvc.clock import utc
from mailsvc.store.cells.coordinator import changing_schema
from mailsvc.store.ids import uuid7_floor
from mailsvc.store.postgres.errors import Unavailable
from mailsvc.store.postgres.pool import Pool, Transaction

log = Logger()

TABLES = (
    "emails", "messages", "events", "attempts", "event_log", "receipts", "webhook_messages", "webhook_attempts", "request_log",
    "hits",
)  # fmt: skip
DAYS_AHEAD = 16
SOON = 2  # days ahead without which mail could soon not be stored
LOCK = 0x7061727473  # "parts"
_EXISTING = "SELECT relname FROM pg_class WHERE relname = ANY (%s) AND relispartition AND pg_table_is_visible(oid)"


@attrs.define(eq=False)
class PartitionMaker:
    """Creates them once a day, and again when the date has been corrected. Calling `make` more often costs nothing."""

    pool: Pool
    clock: Any
    _made_at: datetime | None = attrs.field(default=None, init=False)

    async def make(self) -> None:
        now = utc(self.clock)
        if self._made_at is None or abs(now - self._made_at) >= timedelta(days=1):
            await ensure(self.pool, now)
            self._made_at = now


async def ensure(pool: Pool, now: datetime, days_ahead: int = DAYS_AHEAD) -> list[str]:
    """Create missing partitions from yesterday on. Returns their names. Several processes may do so at the same time.

    A cell needs the coordinator for it. While that cannot be reached, only partitions that are needed soon are missed.
    """
    created = await _ensure(pool, days(now, min(SOON, days_ahead)))
    try:
        return created + await _ensure(pool, days(now, days_ahead))
    except Unavailable as error:
        log.warn("partitions of later days could not be created: {error}", error=str(error))
        return created


async def ensure_day(pool: Pool, day: datetime) -> None:
    """Create missing partitions of one day."""
    await _ensure(pool, [_statements(day)])


def create_day(connection: Any, day: datetime) -> None:
    """The same for a command, with a connection of psycopg2 to the coordinator. It blocks."""
    wanted = _statements(day)
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        cursor.execute(_EXISTING, (list(wanted),))
        existing = {name for (name,) in cursor.fetchall()}
        for name in wanted.keys() - existing:
            for statement in wanted[name]:
                cursor.execute(statement)


async def _ensure(pool: Pool, each_day: Sequence[Mapping[str, Sequence[str]]]) -> list[str]:
    rows = {name for (name,) in await pool.rows(_EXISTING, ([name for wanted in each_day for name in wanted],))}
    missing = [wanted for wanted in each_day if not wanted.keys() <= rows]
    created: list[str] = []
    if missing:
        async with changing_schema(pool) as changing:
            for wanted in missing:
                created += await changing.transact(partial(_make, wanted=wanted))
    return created


async def _make(transaction: Transaction, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    await transaction.rows("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
    rows = await transaction.rows(_EXISTING, (list(wanted),))
    missing = [name for name in wanted if (name,) not in rows]
    for name in missing:
        for statement in wanted[name]:
            await transaction.run(statement)
    return missing


def days(now: datetime, days_ahead: int = DAYS_AHEAD) -> list[dict[str, tuple[str, str]]]:
    """For each day, the statements that create each partition, by the partition's name."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return [_statements(today + timedelta(days=n)) for n in range(-1, days_ahead + 1)]


def _statements(moment: datetime) -> dict[str, tuple[str, str]]:
    """Those for the day that has this moment."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return {name_of(table, day): _of_table(table, day) for table in TABLES}


def name_of(table: str, day: datetime) -> str:
    return f"{table}_{day:%Y%m%d}"


def _of_table(table: str, day: datetime) -> tuple[str, str]:
    first, beyond = uuid7_floor(day), uuid7_floor(day + timedelta(days=1))
    name = name_of(table, day)
    # Created separately and then attached: unlike PARTITION OF, that needs no lock that conflicts with reads or writes of the parent.
    return (
        f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)",
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{first}') TO ('{beyond}')",
    )
