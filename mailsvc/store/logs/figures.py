"""Figures about the installation: the queue, its age, the clock, and the event ledger.

`Vitals` is cheap and runs continuously. `Figures` reads the whole queue, for monitoring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import attrs

from mailsvc.clock import held, measure, unix, utc
from mailsvc.store.events.ledger import EventLedger, Lag
from mailsvc.store.postgres.errors import StoreError
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.postgres.server_settings import Standbys, standbys
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.processes import LIVE, SILENT, delivering
from mailsvc.store.queue.restore_guard import REASON as RESTORED

# IDs begin with the time in milliseconds (RFC 9562 §5.7). Who put the mail of an account on hold knows that it waits.
WAITING = """
    SELECT CASE WHEN lease IS NULL THEN status ELSE 'sending' END, bulk, region, count(*),
        min(left(email_id::text, 13) COLLATE "C") FILTER (
            WHERE account_id <> ALL (ARRAY (SELECT account_id FROM account_pauses WHERE until > %s))
        )
    FROM queue GROUP BY 1, 2, 3
"""
LEASES = "SELECT count(*) FROM queue WHERE lease = %s"
# Due, not leased, and the destination neither on hold nor slowed down.
OVERDUE = """
    SELECT min(q.next_at) FROM queue q
    WHERE q.lease IS NULL AND q.next_at <= %s AND NOT EXISTS (
        SELECT FROM destinations d
        WHERE d.region = q.region AND d.name IN (q.destination, split_part(q.destination, '/', 1), '*') AND d.until > %s
    ) AND NOT EXISTS (
        SELECT FROM slowdowns s WHERE s.region = q.region AND s.name = split_part(q.destination, '/', 1) AND s.until > %s
    )
"""
WEBHOOKS = 'SELECT count(*), min(left(event_id::text, 13) COLLATE "C") FROM webhook_outbox'
DATABASE = "SELECT pg_database_size(current_database())"
HELD = "SELECT count(*) FROM destinations WHERE reason = %s AND until > %s"
RESTING = "SELECT state, count(*) FROM destinations WHERE until > %s GROUP BY state"


@attrs.frozen
class Waiting:
    """Queued recipients of one state, class and region. `oldest`: seconds since the oldest was accepted whose account is not on hold."""

    state: str
    bulk: bool
    count: int
    oldest: float
    region: str


@attrs.frozen
class Reading:
    """All figures at one time. `overdue`: seconds by which the longest due recipient is late. `webhooks`: pending messages.

    `delivering`: regions with a process that delivers mail.
    """

    waiting: tuple[Waiting, ...]
    unexplained: int
    overdue: float
    leases: int
    resting: dict[str, int]
    processes: dict[str, int]
    ledger: Lag
    webhooks: int
    webhooks_oldest: float
    database_bytes: int
    standbys: Standbys
    restored: bool  # mail is on hold because of it
    delivering: Collection[str]


@attrs.define(eq=False)
class Figures:
    """`lease` returns the number of this process."""

    pool: Pool
    clock: Any
    lease: Callable[[], int]

    async def read(self) -> Reading:
        seconds, pool = unix(self.clock), self.pool
        now = datetime.fromtimestamp(seconds, UTC)
        waiting = tuple(
            Waiting(state, bulk, count, 0.0 if oldest is None else max(0.0, seconds - _accepted(oldest)), region)
            for state, bulk, region, count, oldest in await pool.rows(WAITING, (now,))
        )
        [(due,)] = await pool.rows(OVERDUE, (now, now, now))
        [(leases,)] = await pool.rows(LEASES, (self.lease(),))
        [(messages, first)] = await pool.rows(WEBHOOKS)
        [(size,)] = await pool.rows(DATABASE)
        [(held_back,)] = await pool.rows(HELD, (RESTORED, now))
        return Reading(
            waiting=waiting,
            unexplained=await Queue(pool).unexplained(now),
            overdue=0.0 if due is None else (now - due).total_seconds(),
            leases=leases,
            resting=dict(await pool.rows(RESTING, (now,))),
            processes={role: everywhere for role, everywhere, _ in await pool.rows(LIVE, ("", SILENT))},
            ledger=await EventLedger(pool).lag(now),
            webhooks=messages,
            webhooks_oldest=0.0 if first is None else max(0.0, seconds - _accepted(first)),
            database_bytes=size,
            standbys=await standbys(pool),
            restored=held_back > 0,
            delivering=await delivering(pool),
        )


@attrs.define(eq=False)
class Vitals:
    """Measures the database's clock, and the lag of the event ledger."""

    pool: Pool
    clock: Any
    ledger: Lag = attrs.field(default=Lag(0, 0.0), init=False)

    async def look(self) -> None:
        await measure(self.clock, lambda: database_seconds(self.pool))
        self.ledger = await EventLedger(self.pool).lag(utc(self.clock))

    async def look_again(self) -> None:
        """Measure again while the clocks disagree, so that mail continues as soon as they agree."""
        if held(self.clock) is not None:
            with suppress(StoreError):  # `look` reports it
                await measure(self.clock, lambda: database_seconds(self.pool))


async def database_seconds(pool: Pool) -> float:
    """The database's clock in Unix time."""
    [(seconds,)] = await pool.rows("SELECT extract(epoch FROM clock_timestamp())::float8")
    return float(seconds)


def _accepted(beginning: str) -> float:
    """When an ID was created, in Unix time."""
    return int(beginning.replace("-", ""), 16) / 1000
