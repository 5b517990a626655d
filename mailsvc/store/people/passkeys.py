"""Public keys of passkeys. Signatures are checked in dashboard/signin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

COLUMNS = Columns.named("id", "user_id", "credential", "public_key", "sign_count", "backed_up", "name", "created_at", "used_at")
ADD = f"INSERT INTO passkeys ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, NULL) ON CONFLICT (credential) DO NOTHING"
OF = f"SELECT {COLUMNS} FROM passkeys WHERE user_id = %s ORDER BY id"
FIND = f"SELECT {COLUMNS} FROM passkeys WHERE credential = %s"
# A repeated count means that the passkey was copied. Authenticators without a counter always send 0.
USED = """
UPDATE passkeys SET sign_count = %s, backed_up = %s, used_at = %s
WHERE id = %s AND (sign_count < %s OR (sign_count = 0 AND %s = 0))
"""
RENAME = "UPDATE passkeys SET name = %s WHERE user_id = %s AND id = %s"
REMOVE = "DELETE FROM passkeys WHERE user_id = %s AND id = %s"
# Recovery codes replace a second factor, so they are deleted with the last one.
END_CODES = """
DELETE FROM recovery_codes c USING users u WHERE u.id = %s AND c.user_id = u.id AND u.totp_at IS NULL
AND NOT EXISTS (SELECT FROM passkeys p WHERE p.user_id = u.id)
"""
LOCK = "SELECT FROM users WHERE id = %s FOR UPDATE"

MOST = 20  # of a user


@attrs.frozen
class Passkey:
    id: UUID
    user_id: UUID
    credential: bytes
    public_key: bytes
    sign_count: int
    backed_up: bool
    name: str
    created_at: datetime
    used_at: datetime | None


class Passkeys:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def add(
        self, user_id: UUID, credential: bytes, public_key: bytes, sign_count: int, backed_up: bool, name: str, lines: Sequence[Line] = ()
    ) -> bool:
        """Add a passkey; false if it already exists, or the user has as many as allowed."""
        now = unix(self._clock)
        row = (uuid7(now), user_id, credential, public_key, sign_count, backed_up, name, datetime.fromtimestamp(now, UTC))

        async def add(tx: Transaction) -> bool:
            await tx.run(LOCK, (user_id,))
            if len(await tx.rows(OF, (user_id,))) >= MOST or not await tx.run(ADD, row):
                return False
            await write(tx, lines, now)
            return True

        return await self._pool.transact(add)

    async def of(self, user_id: UUID) -> list[Passkey]:
        """Oldest first."""
        return [_passkey(row) for row in await self._pool.rows(OF, (user_id,))]

    async def find(self, credential: bytes) -> Passkey | None:
        rows = await self._pool.rows(FIND, (credential,))
        return _passkey(rows[0]) if rows else None

    async def used(self, passkey_id: UUID, sign_count: int, backed_up: bool) -> bool:
        """Record the use of a passkey; false if its count did not increase."""
        now = utc(self._clock)
        return await self._pool.run(USED, (sign_count, backed_up, now, passkey_id, sign_count, sign_count)) > 0

    async def rename(self, user_id: UUID, passkey_id: UUID, name: str, lines: Sequence[Line] = ()) -> bool:
        return await changed(self._pool, unix(self._clock), lines, RENAME, (name, user_id, passkey_id)) > 0

    async def remove(self, user_id: UUID, passkey_id: UUID, lines: Sequence[Line] = ()) -> bool:
        """Also deletes the recovery codes if it was the last second factor."""

        async def remove(tx: Transaction) -> bool:
            await tx.run(LOCK, (user_id,))
            if not await tx.run(REMOVE, (user_id, passkey_id)):
                return False
            await tx.run(END_CODES, (user_id,))
            await write(tx, lines, unix(self._clock))
            return True

        return await self._pool.transact(remove)


def _passkey(row: Row) -> Passkey:
    values = COLUMNS.read(row)
    for name in ("credential", "public_key"):
        values[name] = bytes(values[name])
    return Passkey(**values)
