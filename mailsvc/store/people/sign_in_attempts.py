"""Counts sign-in attempts across all processes, and records used tickets. The caller decides how long to wait."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.postgres.pool import Pool, Transaction

# Rows are inserted before they are locked, so that concurrent first attempts see each other. They are ordered by subject to avoid
# deadlocks.
BEGIN = """
INSERT INTO sign_in_attempts (subject, count, last_at) SELECT s, 0, %s FROM unnest(%s::bytea[]) s ORDER BY s ON CONFLICT DO NOTHING
"""
FIND = "SELECT subject, count, last_at FROM sign_in_attempts WHERE subject = ANY(%s::bytea[]) ORDER BY subject FOR UPDATE"
LOOK = "SELECT subject, count, last_at FROM sign_in_attempts WHERE subject = ANY(%s::bytea[])"
COUNT = """
UPDATE sign_in_attempts a SET count = c.count, last_at = %s FROM unnest(%s::bytea[], %s::integer[]) c(subject, count)
WHERE a.subject = c.subject
"""
FORGET = "DELETE FROM sign_in_attempts WHERE subject = ANY(%s::bytea[])"
ADD = """
INSERT INTO sign_in_attempts (subject, count, last_at) SELECT s, 1, %s FROM unnest(%s::bytea[]) s ORDER BY s
ON CONFLICT (subject) DO UPDATE SET last_at = excluded.last_at,
    count = CASE WHEN sign_in_attempts.last_at < %s THEN 1 ELSE sign_in_attempts.count + 1 END
"""
SPEND = "INSERT INTO spent (hash, expires_at) VALUES (%s, %s) ON CONFLICT DO NOTHING"
FORGET_AFTER = timedelta(hours=1)


@attrs.frozen
class Tries:
    """The number of attempts, and the time of the last one."""

    count: int
    last: float


class SignInAttempts:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def count(self, subjects: Sequence[bytes], others: Sequence[bytes], wait: Callable[[Sequence[Tries | None]], float]) -> float:
        """Count an attempt of each subject, unless `wait` returns seconds to wait, given the attempts of these and the others."""
        now, ordered = unix(self._clock), sorted(set(subjects))
        at = datetime.fromtimestamp(now, UTC)

        async def count(tx: Transaction) -> float:
            await tx.run(BEGIN, (at, ordered))
            rows = {bytes(subject): Tries(count, last.timestamp()) for subject, count, last in await tx.rows(FIND, (ordered,))}
            rows |= {bytes(subject): Tries(count, last.timestamp()) for subject, count, last in await tx.rows(LOOK, (list(others),))}
            found = {subject: tries for subject, tries in rows.items() if now - tries.last <= FORGET_AFTER.total_seconds()}
            seconds = wait([found.get(subject) for subject in (*subjects, *others)])
            if seconds <= 0:
                counts = [found[subject].count + 1 if subject in found else 1 for subject in ordered]
                await tx.run(COUNT, (at, ordered, counts))
            return seconds

        return await self._pool.transact(count)

    async def forget(self, subjects: Sequence[bytes]) -> None:
        await self._pool.run(FORGET, (list(subjects),))

    async def add(self, subjects: Sequence[bytes]) -> None:
        """Count an attempt of each unconditionally."""
        now = utc(self._clock)
        await self._pool.run(ADD, (now, list(subjects), now - FORGET_AFTER))

    async def spend(self, ticket: str, expires_at: datetime) -> bool:
        """Mark a ticket as used; false if it already was."""
        return await self._pool.transact(lambda tx: spend(tx, ticket, expires_at))

    async def sweep(self) -> None:
        now = utc(self._clock)
        await self._pool.run("DELETE FROM sign_in_attempts WHERE last_at < %s", (now - FORGET_AFTER,))
        await self._pool.run("DELETE FROM spent WHERE expires_at < %s", (now,))


async def spend(tx: Transaction, ticket: str, expires_at: datetime) -> bool:
    """The same within the caller's transaction."""
    return await tx.run(SPEND, (hashlib.sha256(ticket.encode()).digest(), expires_at)) > 0
