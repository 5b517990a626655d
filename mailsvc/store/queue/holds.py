"""Holds and slowdowns of destinations: one row each, however many recipients are waiting and whichever process sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import attrs

from mailsvc.store.people.audit import Line, changed
from mailsvc.store.postgres.pool import Pool, Transaction

HoldState = Literal["backoff", "paused", "source"]  # by failure; by the operator or a rule; no source address may send there

EVERYTHING = "*"  # the name for all destinations of a region
FOREVER = datetime.max.replace(tzinfo=UTC)  # until it is lifted; infinity in the table, which no datetime can represent

# The longer hold wins: a backoff does not end a longer pause, nor a provider's rule one of the operator's.
HOLD = """
INSERT INTO destinations AS d (region, name, state, reason, until, failures) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (region, name) DO UPDATE
SET state = excluded.state, reason = excluded.reason, until = excluded.until, failures = excluded.failures, changed_at = now()
WHERE %s OR d.state = 'backoff' OR d.until < excluded.until
"""
END_WAIT = "DELETE FROM destinations WHERE region = %s AND name = %s AND state = 'source'"

HOLD_ALL = """
INSERT INTO destinations (region, name, state, reason, until, failures)
SELECT region, %s, 'paused', %s, %s, 0
FROM (SELECT region FROM domains UNION SELECT region FROM queue UNION SELECT region FROM processes UNION SELECT %s) AS every
ON CONFLICT (region, name) DO UPDATE SET state = excluded.state, reason = excluded.reason, until = excluded.until, changed_at = now()
"""
RELEASE_ALL = "DELETE FROM destinations WHERE name = %s"

LIFT = "DELETE FROM destinations WHERE region = %s AND name = %s AND (state = 'backoff' OR %s)"

# Of two rules at once: the lower rate, until the later time.
SLOW = """
INSERT INTO slowdowns AS s (region, name, per_minute, reason, until) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (region, name) DO UPDATE
SET per_minute = CASE WHEN s.until > %s THEN least(s.per_minute, excluded.per_minute) ELSE excluded.per_minute END,
    reason = excluded.reason, until = greatest(s.until, excluded.until)
"""
SLOWED = "SELECT name, per_minute, reason, until FROM slowdowns WHERE region = %s AND until > %s"
FASTER = "DELETE FROM slowdowns WHERE region = %s AND name = %s"

# Holds that ended a day ago no longer say anything about the destination.
FORGET = """
WITH slow AS (DELETE FROM slowdowns WHERE region = %(region)s AND until < %(before)s)
DELETE FROM destinations WHERE region = %(region)s AND until < %(before)s
"""

HOLDS = "SELECT name, state, reason, least(until, '9999-12-31 23:59:59.999999+00'), failures FROM destinations WHERE region = %s"


@attrs.frozen
class Hold:
    """Why no mail is sent to a destination until `until`, and how many connections in a row have failed."""

    state: HoldState
    reason: str
    until: datetime
    failures: int


@attrs.frozen
class Slowdown:
    """How many emails per minute a region sends to a destination, or to all of a provider's, until `until`, and why."""

    per_minute: float
    reason: str
    until: datetime


async def hold(pool: Pool, region: str, destination: str, held: Hold, ordered: bool) -> None:
    """`ordered` by the operator: replaces any other hold."""
    await pool.run(HOLD, (region, destination, held.state, held.reason, held.until, held.failures, ordered))


async def lift(pool: Pool, region: str, destination: str, paused: bool) -> None:
    await pool.run(LIFT, (region, destination, paused))


async def end_wait(pool: Pool, region: str, destination: str) -> None:
    await pool.run(END_WAIT, (region, destination))


async def hold_everything(tx: Transaction, reason: str, region: str) -> None:
    """Hold all mail of this region and of every other one that has mail, domains or processes."""
    await tx.run(HOLD_ALL, (EVERYTHING, reason, FOREVER, region))


async def release_everything(pool: Pool, now: float, lines: Sequence[Line] = ()) -> int:
    """End the holds of all regions. Returns their number."""
    return await changed(pool, now, lines, RELEASE_ALL, (EVERYTHING,))


async def read(pool: Pool, region: str) -> Mapping[str, Hold]:
    return {name: Hold(*rest) for name, *rest in await pool.rows(HOLDS, (region,))}


async def slow(pool: Pool, region: str, name: str, found: Slowdown, now: datetime) -> None:
    await pool.run(SLOW, (region, name, found.per_minute, found.reason, found.until, now))


async def slowed(pool: Pool, region: str, now: datetime) -> Mapping[str, Slowdown]:
    return {name: Slowdown(*rest) for name, *rest in await pool.rows(SLOWED, (region, now))}


async def faster(pool: Pool, region: str, name: str) -> None:
    await pool.run(FASTER, (region, name))


async def forget(pool: Pool, region: str, before: datetime) -> int:
    return await pool.run(FORGET, {"region": region, "before": before})
