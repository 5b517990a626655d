"""Stored MTA-STS policies, the TLS counts for reports (TLS-RPT), and which of these reports were sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta

import attrs

from mailsvc.mail.reports.tls_report import TlsRow
from mailsvc.store import by_day
from mailsvc.store.postgres.pool import Pool

POLICY = "SELECT policy_id, policy, fetched_at, expires_at FROM mta_sts WHERE domain = %s"
KEEP = """
INSERT INTO mta_sts AS m (domain, policy_id, policy, fetched_at, expires_at) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (domain) DO UPDATE
SET policy_id = excluded.policy_id, policy = excluded.policy, fetched_at = excluded.fetched_at, expires_at = excluded.expires_at
WHERE m.fetched_at < excluded.fetched_at
"""
ADD = """
INSERT INTO tls_results AS t (day, domain, policy, host, result, sessions)
SELECT * FROM unnest(%s::date[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
ON CONFLICT (day, domain, policy, host, result) DO UPDATE SET sessions = t.sessions + excluded.sessions
"""
# Domains with counts whose report was not tried yet, or has to be tried again. Of several processes, one gets each. After the last try,
# next_at is null.
DUE = """
INSERT INTO tls_reports AS t (day, domain, tries, next_at)
SELECT r.day, r.domain, 1, (%(again)s::timestamptz[])[1] FROM (SELECT DISTINCT day, domain FROM tls_results WHERE day = ANY (%(days)s)) r
LEFT JOIN tls_reports s ON s.day = r.day AND s.domain = r.domain
WHERE s.domain IS NULL OR s.next_at <= %(now)s ORDER BY r.day, r.domain LIMIT %(limit)s
ON CONFLICT (day, domain) DO UPDATE SET tries = t.tries + 1, next_at = (%(again)s::timestamptz[])[t.tries + 1] WHERE t.next_at <= %(now)s
RETURNING day, domain
"""
FINISH = "UPDATE tls_reports SET next_at = NULL WHERE day = %s AND domain = %s"
GIVE_BACK = """
UPDATE tls_reports SET tries = tries - 1, next_at = %s WHERE (day, domain) IN (SELECT * FROM unnest(%s::date[], %s::text[]))
"""
RESULTS = """
SELECT policy, host, result, sessions FROM tls_results WHERE day = %s AND domain = %s
ORDER BY sessions DESC, policy, host, result LIMIT 1000
"""
SWEEP = "DELETE FROM mta_sts WHERE expires_at < %s"


@attrs.frozen
class Due:
    """A report that has to be sent now."""

    day: date
    domain: str


class TlsRecords:
    """The tables mta_sts, tls_results and tls_reports."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def policy(self, domain: str) -> tuple[str, str, datetime, datetime] | None:
        """Its ID, text, time of fetching and time of expiry."""
        rows = await self._pool.rows(POLICY, (domain,))
        return rows[0] if rows else None

    async def keep_policy(self, domain: str, policy_id: str, policy: str, fetched_at: datetime, expires_at: datetime) -> None:
        await self._pool.run(KEEP, (domain, policy_id, policy, fetched_at, expires_at))

    async def add(self, counts: Mapping[tuple[date, str, str, str, str], int]) -> None:
        """Add to the counts. Rows are sorted, so that two processes do not deadlock."""
        rows = sorted((*key, count) for key, count in counts.items())
        if rows:
            await self._pool.run(ADD, tuple(list(column) for column in zip(*rows, strict=True)))

    async def due_reports(self, days: Sequence[date], now: datetime, again: Sequence[datetime], limit: int) -> Sequence[Due]:
        """Reports about these days that are due. `again`: when they are due again, after the first try, the second one, and so on."""
        named = {"days": list(days), "now": now, "again": list(again), "limit": limit}
        return [Due(*row) for row in await self._pool.rows(DUE, named)]

    async def finish_report(self, day: date, domain: str) -> None:
        """It is not tried again."""
        await self._pool.run(FINISH, (day, domain))

    async def give_back(self, reports: Sequence[Due], now: datetime) -> None:
        """They were not tried, and are due at once."""
        await self._pool.run(GIVE_BACK, (now, [each.day for each in reports], [each.domain for each in reports]))

    async def results(self, day: date, domain: str) -> dict[TlsRow, int]:
        """The counts of a day."""
        rows = await self._pool.rows(RESULTS, (day, domain))
        return {TlsRow(domain, policy, host, result): sessions for policy, host, result, sessions in rows}

    async def sweep(self, now: datetime, keep: timedelta) -> int:
        """Delete expired policies and old counts. Returns the number of policies."""
        for table in ("tls_results", "tls_reports"):
            await by_day.sweep(self._pool, table, "day", (now - keep).date())
        return await self._pool.run(SWEEP, (now,))
