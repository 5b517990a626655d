"""The answers that repeated requests get, by account, endpoint and key; an expired one counts as absent.

All of it happens inside the transaction that accepts: whoever holds the lock of a key may read, and then write, its row.
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
    """A request's key, within its account."""

    account_id: UUID
    wanted: Idempotency

    @property
    def lock(self) -> int:
        """The advisory lock that stands for the key. Two keys with one lock would only make the later one wait for a retry."""
        named = b"\0".join((self.account_id.bytes, self.wanted.endpoint.encode(), self.wanted.key.encode("utf-8", "surrogatepass")))
        return int.from_bytes(hashlib.sha256(named).digest()[:8], "big", signed=True)

    @property
    def place(self) -> tuple[UUID, str, str]:
        return self.account_id, self.wanted.endpoint, self.wanted.key


async def settled_already(tx: Transaction, claims: Sequence[Claim], now: datetime) -> list[AcceptResult | None]:
    """For each claim what to answer instead of accepting; None: nothing, its key is ours until the transaction ends."""
    got = [locked for (locked,) in await tx.rows(TRY_LOCKS, ([claim.lock for claim in claims],))]
    rows = [_named(claim) | {"n": n} for n, claim in enumerate(claims) if got[n]]
    # A statement of its own: its snapshot is younger than the locks, so it sees what their former holders committed.
    stored = {n: (fingerprint, answer) for n, fingerprint, answer in await tx.rows(FIND, (document(rows), now))}
    return [_verdict(claim, got[n], stored.get(n)) for n, claim in enumerate(claims)]


async def keep(tx: Transaction, claims: Sequence[Claim]) -> None:
    rows = [
        _named(claim)
        | {"fingerprint": claim.wanted.fingerprint.hex(), "answer": claim.wanted.answer, "expires_at": claim.wanted.expires_at}
        for claim in sorted(claims, key=lambda c: c.place)
    ]
    await tx.run(KEEP, (document(rows),))


async def sweep(pool: Pool, now: datetime, limit: int = 1000) -> int:
    """Remove at most `limit` expired answers; how many there were."""
    return await pool.run(SWEEP, (now, limit))


def _named(claim: Claim) -> dict[str, object]:
    return {"account_id": claim.account_id, "endpoint": claim.wanted.endpoint, "key": claim.wanted.key}


def _verdict(claim: Claim, locked: bool, stored: tuple[bytes, object] | None) -> AcceptResult | None:
    if not locked:
        return InProgress()
    if stored is None:
        return None
    fingerprint, answer = stored
    return Replayed(answer) if fingerprint == claim.wanted.fingerprint else Mismatch()
