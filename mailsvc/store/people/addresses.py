"""Changes of users' email addresses, which take effect once the link sent to the new address is followed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.people.sessions import digest, new_secret
from mailsvc.store.people.users import END_CHANGE, END_OTHERS
from mailsvc.store.postgres.errors import Conflict
from mailsvc.store.postgres.pool import Pool, Transaction

PROPOSE = """
INSERT INTO address_changes (user_id, hash, email, expires_at) VALUES (%s, %s, %s, %s)
ON CONFLICT (user_id) DO UPDATE SET hash = excluded.hash, email = excluded.email, expires_at = excluded.expires_at
"""
WANTED = "SELECT email, expires_at FROM address_changes WHERE user_id = %s AND expires_at > %s"
FIND = "SELECT email FROM address_changes WHERE user_id = %s AND hash = %s AND expires_at > %s"
# Locked before the request is read: a password that is just being changed ends it.
OLD = "SELECT email FROM users WHERE id = %s FOR UPDATE"
MOVE = """
UPDATE users u SET email = c.email, verified_at = %(now)s FROM address_changes c
WHERE u.id = %(user_id)s AND c.user_id = u.id AND c.hash = %(hash)s AND c.expires_at > %(now)s
RETURNING u.email
"""
# Links that were sent to either address could still sign somebody in.
END_LINKS = "DELETE FROM links WHERE email = ANY (%s) AND purpose IN ('sign-up', 'reset', 'sign-in')"
END_CHANGES = "DELETE FROM address_changes WHERE user_id = %s OR email = %s"


@attrs.frozen
class AddressChange:
    """A new address that is not confirmed yet, and when its link expires."""

    email: str
    expires_at: datetime


class Addresses:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def propose(self, user_id: UUID, email: str, lives: timedelta, lines: Sequence[Line] = ()) -> str:
        """Request a change. Returns the secret of the link to send; earlier requests end. The address may still belong to someone."""
        secret = new_secret()
        await self._changed(lines, PROPOSE, (user_id, digest(secret), email.lower(), self._now() + lives))
        return secret

    async def wanted(self, user_id: UUID) -> AddressChange | None:
        rows = await self._pool.rows(WANTED, (user_id, self._now()))
        return AddressChange(*rows[0]) if rows else None

    async def find(self, user_id: UUID, secret: str) -> str | None:
        """The address of a link, if it is valid and belongs to this user."""
        rows = await self._pool.rows(FIND, (user_id, digest(secret), self._now()))
        return str(rows[0][0]) if rows else None

    async def withdraw(self, user_id: UUID, lines: Sequence[Line] = ()) -> bool:
        return await self._changed(lines, END_CHANGE, (user_id,)) > 0

    async def confirm(self, user_id: UUID, secret: str, keep: bytes, lines: Sequence[Line] = ()) -> str | None:
        """Apply a change, and end all sessions except the one with the SHA-256 `keep`. Returns the previous address.

        None if the link has expired or another user has the address; then nothing changes.
        """

        async def confirm(tx: Transaction) -> str | None:
            users = await tx.rows(OLD, (user_id,))
            rows = await tx.rows(MOVE, {"user_id": user_id, "hash": digest(secret), "now": self._now()})
            if not rows:
                return None
            old, new = users[0][0], rows[0][0]
            await tx.run(END_CHANGES, (user_id, new))
            await tx.run(END_LINKS, ([old, new],))
            await tx.run(END_OTHERS, (user_id, keep))
            await write(tx, lines, unix(self._clock))
            return str(old)

        try:
            return await self._pool.transact(confirm)
        except Conflict:
            return None

    async def _changed(self, lines: Sequence[Line], sql: str, params: tuple[object, ...]) -> int:
        return await changed(self._pool, unix(self._clock), lines, sql, params)

    def _now(self) -> datetime:
        return utc(self._clock)
