"""Counts of events: hourly counts for accounts and domains, and counts of single emails computed from their events.

In both, a delivery that bounced later counts as bounced only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import attrs

from mailsvc.store.mail.history import UNSTORED
from mailsvc.store.postgres.pool import Pool

Unit = Literal["hour", "day", "week", "month"]

# Names of zones that Postgres takes for abbreviations, which have no summer time, and zones with the same times.
_SAME = {"CET": "Europe/Brussels", "EET": "Europe/Athens", "MET": "Europe/Brussels", "WET": "Europe/Lisbon"}

# Hours are in UTC. `start` is the beginning of an hour and is computed here, because Postgres would compute it again for every row.
_ASKED = "hour >= %(start)s AND hour < %(end)s AND (%(domains)s::uuid[] IS NULL OR domain_id = ANY (%(domains)s))"
# Longer periods begin at midnight of the zone; an hour belongs to the period in which it begins.
_GROUPED = f"""
SELECT CASE WHEN %(by_period)s AND %(unit)s = 'hour' THEN hour END,
       CASE WHEN %(by_period)s AND %(unit)s <> 'hour' THEN date_trunc(%(unit)s, hour AT TIME ZONE %(zone)s)::date END,
       CASE WHEN %(by_domain)s THEN domain_id END, {{email}}, type, sum(count)::bigint
FROM {{counted}}
WHERE {_ASKED}
GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 LIMIT %(most)s
"""
_OF_ACCOUNT = "account_id = %(account_id)s AND type = ANY (%(types)s)"
_HOURLY = f"(SELECT hour, domain_id, type, count FROM rollups WHERE {_OF_ACCOUNT}) AS c"
_BY_EVENT = f"""(
    SELECT date_trunc('hour', v.at, 'UTC') AS hour, e.domain_id, e.email_id,
           CASE WHEN v.type = 'email.bounced' THEN v.type || '.' || lower(v.data ->> 'type')
                WHEN v.type IN ('email.opened', 'email.clicked') AND v.data ? 'machine' THEN v.type || '.machine' ELSE v.type END AS type,
           CASE WHEN v.recipient IS NOT NULL OR v.type IN ('email.opened', 'email.clicked') THEN 1
                ELSE cardinality(e.recipients) - (
                    SELECT count(*) FROM events s
                    WHERE s.account_id = e.account_id AND s.email_id = e.email_id AND s.type = 'email.suppressed'
                ) END AS count
    FROM emails e CROSS JOIN LATERAL (
        SELECT recipient, type, at, data FROM events v WHERE v.account_id = e.account_id AND v.email_id = e.email_id
        UNION ALL SELECT NULL, 'email.sent', e.created_at, NULL WHERE {UNSTORED}
    ) v
    WHERE e.account_id = %(account_id)s AND e.email_id = ANY (%(emails)s)
    AND NOT (v.type = 'email.delivered' AND EXISTS (
        SELECT FROM events b
        WHERE b.account_id = e.account_id AND b.email_id = e.email_id AND b.recipient = v.recipient AND b.type = 'email.bounced'
    ))
    UNION ALL
    SELECT date_trunc('hour', f.at, 'UTC'), e.domain_id, e.email_id, 'email.' || h.kind || f.suffix, 1
    FROM emails e JOIN hits h USING (account_id, email_id)
    CROSS JOIN LATERAL (VALUES (h.first_at, '.unique'), (h.people_at, '.unique.people')) AS f(at, suffix)
    WHERE e.account_id = %(account_id)s AND e.email_id = ANY (%(emails)s) AND h.kind <> 'link' AND f.at IS NOT NULL
) AS c"""
_BY_BROADCAST = """(
    SELECT c.hour, b.domain_id, c.broadcast_id, c.type, c.count
    FROM broadcast_counts c JOIN broadcasts b ON b.account_id = c.account_id AND b.id = c.broadcast_id
    WHERE c.account_id = %(account_id)s AND c.type = ANY (%(types)s)
    AND (%(broadcasts)s::uuid[] IS NULL OR c.broadcast_id = ANY (%(broadcasts)s))
) AS c"""
COUNTS = _GROUPED.format(email="NULL::uuid", counted=_HOURLY)
# The number of counts by hour and domain, which are not added up. Too many are refused before they are sorted, which takes much longer.
ROWS = f"SELECT count(*) FROM (SELECT FROM rollups WHERE {_OF_ACCOUNT} AND {_ASKED} LIMIT %(most)s) AS r"
COUNTS_OF_EMAILS = _GROUPED.format(email="CASE WHEN %(by_email)s THEN email_id END", counted=_BY_EVENT)
COUNTS_OF_BROADCASTS = _GROUPED.format(email="CASE WHEN %(by_broadcast)s THEN broadcast_id END", counted=_BY_BROADCAST)
USED = """
SELECT coalesce(sum(count) FILTER (WHERE hour >= %(day)s), 0)::bigint, coalesce(sum(count), 0)::bigint
FROM rollups WHERE account_id = %(account_id)s AND hour >= %(month)s AND type = 'email.sent'
"""
BROADCASTS = "SELECT id, name FROM broadcasts WHERE account_id = %s AND id = ANY (%s)"
DOMAINS = "SELECT id, name FROM domains WHERE account_id = %s"


@attrs.frozen
class Wanted:
    """Which counts, and apart by what. `emails` None: all of the account.

    `of_broadcasts`: only emails of broadcasts; of these ones, if `broadcasts` is set.
    """

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
    of_broadcasts: bool = False
    by_broadcast: bool = False
    broadcasts: Sequence[UUID] | None = None

    @property
    def row_by_row(self) -> bool:
        """Whether each stored count is one of the answer."""
        return self.by_period and self.unit == "hour" and self.by_domain and self.emails is None and not self.of_broadcasts


@attrs.frozen
class Count:
    """`hour` or `day` is the beginning of the period: an hour for hours, the first day of it for longer ones."""

    hour: datetime | None
    day: datetime | None
    domain_id: UUID | None
    email_id: UUID | None
    type: str
    count: int
    broadcast_id: UUID | None = None


def first_hour(midnight: datetime) -> datetime:
    """The first hour of the day that begins then. Where zones are half an hour off, the hour before it belongs to the day before."""
    hour = midnight.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return hour if hour == midnight else hour + timedelta(hours=1)


class TooManyCounts(Exception):
    """A question whose answer would need more memory than one request gets."""


class Rollups:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def counts(self, account_id: UUID, wanted: Wanted, most: int | None = None) -> list[Count]:
        """Raises errors.DataRejected when the database does not know the zone, and TooManyCounts for more than `most` counts."""
        named = {name: list(value) if isinstance(value, (list, tuple)) else value for name, value in attrs.asdict(wanted).items()}
        start = wanted.start.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        named |= {"start": start, "zone": _SAME.get(wanted.zone, wanted.zone), "account_id": account_id}
        named["most"] = None if most is None else most + 1
        if most is not None and wanted.row_by_row and (await self._pool.rows(ROWS, named))[0][0] > most:
            raise TooManyCounts
        counts = COUNTS if wanted.emails is None else COUNTS_OF_EMAILS
        rows = await self._pool.rows(COUNTS_OF_BROADCASTS if wanted.of_broadcasts else counts, named)
        if most is not None and len(rows) > most:
            raise TooManyCounts
        return [Count(*[*row[:3], None, *row[4:], row[3]]) if wanted.of_broadcasts else Count(*row) for row in rows]

    async def broadcasts(self, account_id: UUID, ids: Sequence[UUID]) -> dict[UUID, str]:
        """The names of these broadcasts."""
        return dict(await self._pool.rows(BROADCASTS, (account_id, list(ids)))) if ids else {}

    async def domains(self, account_id: UUID) -> dict[UUID, str]:
        """The names of the account's domains."""
        return dict(await self._pool.rows(DOMAINS, (account_id,)))

    async def sent(self, account_id: UUID, now: datetime) -> tuple[int, int]:
        """Recipients sent to on this day, and in this month, both in UTC."""
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        [(today, this_month)] = await self._pool.rows(USED, {"account_id": account_id, "day": day, "month": day.replace(day=1)})
        return today, this_month
