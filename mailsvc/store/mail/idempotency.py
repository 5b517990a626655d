"""Stored responses of idempotent requests, by account, endpoint and key. Expired ones count as absent.

Everything happens in the accepting transaction: the holder of a key's lock may read and then write its row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.store.mail.inserts import document
from mailsvc.store.mail.values import AcceptResult, Idempotency, InProgress, Mismatch, Replayed
from mailsvc.store.postgres.pool import Pool, Transaction

TRY_LOCKS = "SELECT pg_try_advisory_xact_lock(hash) FROM unnest(%s::bigint[]) WITH ORDINALITY AS k(hash, n) ORDER BY n"

FIND = """
SELECT k.n, i.fingerprint, i.answer
FROM json_to_recordset(%s) AS k(n integer, account_id uuid, endpoint text, key text)
JOIN idempotency i USING (account_id, endpoint, key)
WHERE i.expires_at > %s
"""

KEEP = """
INSERT INTO idempotency (account_id, endpoint, key, fingerprint, answer, expires_at)
SELECT account_id, endpoint, key, decode(fingerprint, 'hex'), answer, expires_at
FROM json_to_recordset(%s) AS k(account_id uuid, endpoint text, key text, fingerprint text, answer json, expires_at timestamptz)
ON CONFLICT (account_id, endpoint, key)
DO UPDATE SET fingerprint = excluded.fingerprint, answer = excluded.answer, expires_at = excluded.expires_at
"""

SWEEP = """
WITH expired AS MATERIALIZED (
    SELECT account_id, endpoint, key FROM idempotency WHERE expires_at <= %s ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency i USING expired e WHERE (i.account_id, i.endpoint, i.key) = (e.account_id, e.endpoint, e.key)
"""


@attrs.frozen
class Claim:
    """The idempotency key of a request of an account."""

    account_id: UUID
    idempotency: Idempotency

    @property
    def lock(self) -> int:
        """The advisory lock of the key. If two keys shared a lock, the later one would only have to retry."""
        named = b"\0".join(
            (self.account_id.bytes, self.idempotency.endpoint.encode(), self.idempotency.key.encode("utf-8", "surrogatepass"))
        )
        return int.from_bytes(hashlib.sha256(named).digest()[:8], "big", signed=True)

    @property
    def identity(self) -> tuple[UUID, str, str]:
        return self.account_id, self.idempotency.endpoint, self.idempotency.key


async def stored_results(tx: Transaction, claims: Sequence[Claim], now: datetime) -> list[AcceptResult | None]:
    """For each claim the result instead of accepting; None: this transaction holds the key's lock and may accept."""
    locked = [got for (got,) in await tx.rows(TRY_LOCKS, ([claim.lock for claim in claims],))]
    rows = [_named(claim) | {"n": n} for n, claim in enumerate(claims) if locked[n]]
    # A separate statement, with a snapshot taken after the locks: it sees what their former holders committed.
    stored = {n: (fingerprint, answer) for n, fingerprint, answer in await tx.rows(FIND, (document(rows), now))}
    return [_result(claim, locked[n], stored.get(n)) for n, claim in enumerate(claims)]


async def keep(tx: Transaction, claims: Sequence[Claim]) -> None:
    rows = [
        _named(claim)
        | {
            "fingerprint": claim.idempotency.fingerprint.hex(),
            "answer": claim.idempotency.answer,
            "expires_at": claim.idempotency.expires_at,
        }
        for claim in sorted(claims, key=lambda c: c.identity)
    ]
    await tx.run(KEEP, (document(rows),))


async def sweep(pool: Pool, now: datetime, limit: int = 1000) -> int:
    """Delete up to `limit` expired responses. Returns their number."""
    return await pool.run(SWEEP, (now, limit))


def _named(claim: Claim) -> dict[str, object]:
    return {"account_id": claim.account_id, "endpoint": claim.idempotency.endpoint, "key": claim.idempotency.key}


def _result(claim: Claim, locked: bool, stored: tuple[bytes, object] | None) -> AcceptResult | None:
    if not locked:
        return InProgress()
    if stored is None:
        return None
    fingerprint, answer = stored
    return Replayed(answer) if fingerprint == claim.idempotency.fingerprint else Mismatch()
