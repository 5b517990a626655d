"""Stored MTA-STS policies, and the TLS counts for reports (TLS-RPT)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta

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
SWEEP = "DELETE FROM mta_sts WHERE expires_at < %s"
SWEEP_RESULTS = "DELETE FROM tls_results WHERE day < %s"


class TlsRecords:
    """The tables mta_sts and tls_results."""

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

    async def sweep(self, now: datetime, keep: timedelta) -> int:
        """Delete expired policies and old counts. Returns the number of policies."""
        await self._pool.run(SWEEP_RESULTS, ((now - keep).date(),))
        return await self._pool.run(SWEEP, (now,))
