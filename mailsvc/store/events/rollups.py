"""Counts of events: hourly counts for accounts and domains, and counts of single emails computed from their events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.postgres.pool import Pool

Unit = Literal["hour", "day", "week", "month"]

# Hours are in UTC. Longer periods begin at midnight of the zone; an hour belongs to the period in which it begins.
_GROUPED = """
SELECT CASE WHEN %(by_period)s AND %(unit)s = 'hour' THEN hour END,
       CASE WHEN %(by_period)s AND %(unit)s <> 'hour' THEN date_trunc(%(unit)s, hour AT TIME ZONE %(zone)s)::date END,
       CASE WHEN %(by_domain)s THEN domain_id END, {email}, type, sum(count)::bigint
FROM {counted}
WHERE hour >= date_trunc('hour', %(start)s::timestamptz, 'UTC') AND hour < %(end)s
AND (%(domains)s::uuid[] IS NULL OR domain_id = ANY (%(domains)s))
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5
"""
_HOURLY = "(SELECT hour, domain_id, type, count FROM rollups WHERE account_id = %(account_id)s AND type = ANY (%(types)s)) AS c"
_BY_EVENT = """(
    SELECT date_trunc('hour', v.at, 'UTC') AS hour, e.domain_id, e.email_id,
           CASE WHEN v.type = 'email.bounced' THEN v.type || '.' || lower(v.data ->> 'type') ELSE v.type END AS type,
           CASE WHEN v.recipient IS NULL THEN cardinality(e.recipients) ELSE 1 END AS count
    FROM emails e JOIN events v USING (account_id, email_id)
    WHERE e.account_id = %(account_id)s AND e.email_id = ANY (%(emails)s)
) AS c"""
COUNTS = _GROUPED.format(email="NULL::uuid", counted=_HOURLY)
COUNTS_OF_EMAILS = _GROUPED.format(email="CASE WHEN %(by_email)s THEN email_id END", counted=_BY_EVENT)
USED = """
SELECT coalesce(sum(count) FILTER (WHERE hour >= %(day)s), 0)::bigint, coalesce(sum(count), 0)::bigint
FROM rollups WHERE account_id = %(account_id)s AND hour >= %(month)s AND type = 'email.sent'
"""
DOMAINS = "SELECT id, name FROM domains WHERE account_id = %s"


@attrs.frozen
class Wanted:
    """Which counts, and apart by what. `emails` None: all of the account."""

    start: datetime
    end: datetime
    unit: Unit
    zone: str
    types: Sequence[str]
    by_period: bool = False
    by_domain: bool = False
    by_email: bool = False
    domains: Sequence[UUID] | None = None
    emails: Sequence[UUID] | None = None


@attrs.frozen
class Count:
    """`hour` or `day` is the beginning of the period: an hour for hours, the first day of it for longer ones."""

    hour: datetime | None
    day: datetime | None
    domain_id: UUID | None
    email_id: UUID | None
    type: str
    count: int


class Rollups:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def counts(self, account_id: UUID, wanted: Wanted) -> list[Count]:
        """Raises errors.DataRejected when the database does not know the zone."""
        named = {name: list(value) if isinstance(value, (list, tuple)) else value for name, value in attrs.asdict(wanted).items()}
        sql = COUNTS if wanted.emails is None else COUNTS_OF_EMAILS
        return [Count(*row) for row in await self._pool.rows(sql, {**named, "account_id": account_id})]

    async def domains(self, account_id: UUID) -> dict[UUID, str]:
        """The names of the account's domains."""
        return dict(await self._pool.rows(DOMAINS, (account_id,)))

    async def sent(self, account_id: UUID, day: datetime, month: datetime) -> tuple[int, int]:
        """Recipients sent to since `day`, and since `month`."""
        [(today, this_month)] = await self._pool.rows(USED, {"account_id": account_id, "day": day, "month": month})
        return today, this_month
