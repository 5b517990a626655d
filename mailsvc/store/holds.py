"""Holding a destination back: one row, however many recipients wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

import attrs

from mailsvc.store.pool import Pool

HoldState = Literal["backoff", "paused"]

FOREVER = datetime.max.replace(tzinfo=UTC)  # until somebody lifts it; infinity in the table, which has no datetime

# What reaches further wins: a backoff does not end a pause that lasts longer, nor does a provider's rule one of the operator's.
HOLD = """
INSERT INTO destinations AS d (region, name, state, reason, until, failures) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (region, name) DO UPDATE
SET state = excluded.state, reason = excluded.reason, until = excluded.until, failures = excluded.failures, changed_at = now()
WHERE %s OR d.state = 'backoff' OR d.until < excluded.until
"""

LIFT = "DELETE FROM destinations WHERE region = %s AND name = %s AND (state = 'backoff' OR %s)"

HOLDS = "SELECT name, state, reason, least(until, '9999-12-31 23:59:59.999999+00'), failures FROM destinations WHERE region = %s"


@attrs.frozen
class Hold:
    """Why a destination as a whole takes no mail until `until`, and how many connections in a row failed."""

    state: HoldState
    reason: str
    until: datetime
    failures: int


async def hold(pool: Pool, region: str, destination: str, held: Hold, ordered: bool) -> None:
    """`ordered`: by the operator, whatever is there."""
    await pool.run(HOLD, (region, destination, held.state, held.reason, held.until, held.failures, ordered))


async def lift(pool: Pool, region: str, destination: str, paused: bool) -> None:
    await pool.run(LIFT, (region, destination, paused))


async def read(pool: Pool, region: str) -> Mapping[str, Hold]:
    return {name: Hold(*rest) for name, *rest in await pool.rows(HOLDS, (region,))}
