"""Operators, who sign in to the console, and their sessions. Passwords and codes are checked in mailsvc/console/signin.

Of links and sessions only the SHA-256 is stored. Each change writes lines to the audit log in its transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, changed, write
from mailsvc.store.people.sessions import digest, new_secret
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.sql import Columns

IDLE, LONGEST = timedelta(hours=1), timedelta(hours=12)  # of a session
LINK = timedelta(days=1)
_SEEN_EVERY = timedelta(minutes=1)

_OPERATOR = Columns.of(
    id="o.id",
    email="o.email",
    password="o.password",  # noqa: S106  a column
    totp="o.totp",
    created_at="o.created_at",
    signed_in_at="o.signed_in_at",
)
_GET = f"SELECT {_OPERATOR} FROM operators o WHERE"
# For one that exists: the password, the app and all sessions end.
_ADD = """
INSERT INTO operators (id, email, totp, link, link_expires_at, created_at) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (email) DO UPDATE SET password = NULL, totp = excluded.totp, totp_step = 0, link = excluded.link,
    link_expires_at = excluded.link_expires_at
RETURNING id
"""
_SET_UP = """
UPDATE operators SET password = %s, totp_step = %s, link = NULL, link_expires_at = NULL WHERE link = %s AND link_expires_at > %s
RETURNING id
"""
_TAKE = "UPDATE operators SET totp_step = %s, signed_in_at = %s WHERE id = %s AND password IS NOT NULL AND totp_step < %s"
_BEGIN = "INSERT INTO operator_sessions (hash, operator_id, address, created_at, seen_at) VALUES (%s, %s, %s, %s, %s)"
_SESSION = """
SELECT s.hash, s.operator_id, o.email, s.created_at, s.seen_at FROM operator_sessions s JOIN operators o ON o.id = s.operator_id
WHERE s.hash = %s AND s.created_at > %s AND s.seen_at > %s
"""


@attrs.frozen
class Operator:
    """`password`: its Argon2id hash; None before the set-up. `totp`: the secret of the app."""

    id: UUID
    email: str
    password: str | None = attrs.field(repr=False)
    totp: bytes = attrs.field(repr=False)
    created_at: datetime
    signed_in_at: datetime | None


@attrs.frozen
class OperatorSession:
    """A signed-in operator. It has a role and a time zone because the templates of the dashboard ask for them."""

    hash: bytes = attrs.field(repr=False)
    operator_id: UUID
    email: str
    created_at: datetime
    seen_at: datetime
    role: str = "operator"
    time_zone: str = ""


class Operators:
    def __init__(self, pool: Pool, clock: Any, encryption: Encryption) -> None:
        self._pool = pool
        self._clock = clock
        self._encryption = encryption

    async def add(self, email: str, totp: bytes, lines: Sequence[Line]) -> str:
        """Returns the secret of a link for the set-up. One who exists loses password, app and sessions."""
        now, secret = self._now(), new_secret()

        async def add(tx: Transaction) -> None:
            known = await tx.rows("SELECT id FROM operators WHERE email = %s FOR UPDATE", (email.lower(),))
            id_ = known[0][0] if known else uuid7(now.timestamp())
            row = (id_, email.lower(), self._encryption.encrypt(totp, id_), digest(secret), now + LINK, now)
            await tx.rows(_ADD, row)
            await tx.run("DELETE FROM operator_sessions WHERE operator_id = %s", (id_,))
            await write(tx, lines, now.timestamp())

        await self._pool.transact(add)
        return secret

    async def list(self) -> list[Operator]:
        rows = await self._pool.rows(f"SELECT {_OPERATOR} FROM operators o ORDER BY o.email")
        return [self._read(row) for row in rows]

    async def remove(self, email: str, lines: Sequence[Line]) -> bool:
        """Remove an operator, whose sessions end at once. Returns whether there was one."""
        return await changed(self._pool, unix(self._clock), lines, "DELETE FROM operators WHERE email = %s", (email.lower(),)) > 0

    async def named(self, email: str) -> Operator | None:
        return await self._one("o.email = %s", email.lower())

    async def of_link(self, secret: str) -> Operator | None:
        """Whom a link is for, unless it has expired."""
        return await self._one("o.link = %s AND o.link_expires_at > %s", digest(secret), self._now())

    async def set_up(self, secret: str, password: str, step: int, lines: Sequence[Line]) -> bool:
        """Store the password, and use up the link. Returns whether it was valid."""
        now = self._now()
        return await changed(self._pool, now.timestamp(), lines, _SET_UP, (password, step, digest(secret), now)) > 0

    async def record(self, lines: Sequence[Line]) -> None:
        """Write to the audit log what changes nothing."""
        await self._pool.transact(lambda tx: write(tx, lines, unix(self._clock)))

    async def take_code(self, operator_id: UUID, step: int) -> bool:
        """Record a valid code of this time step; false if this or a later one was already used."""
        return await self._pool.run(_TAKE, (step, self._now(), operator_id, step)) > 0

    # Sessions

    async def begin(self, operator_id: UUID, address: str, lines: Sequence[Line]) -> str:
        """Returns the secret of a new session."""
        now, secret = self._now(), new_secret()

        async def begin(tx: Transaction) -> None:
            await tx.run(_BEGIN, (digest(secret), operator_id, address[:100], now, now))
            await write(tx, lines, now.timestamp())

        await self._pool.transact(begin)
        return secret

    async def find(self, secret: str) -> OperatorSession | None:
        now = self._now()
        rows = await self._pool.rows(_SESSION, (digest(secret), now - LONGEST, now - IDLE))
        if not rows:
            return None
        session = OperatorSession(*rows[0])
        if now - session.seen_at >= _SEEN_EVERY:
            await self._pool.run("UPDATE operator_sessions SET seen_at = %s WHERE hash = %s", (now, session.hash))
        return session

    async def end(self, hash: bytes, lines: Sequence[Line]) -> None:
        await changed(self._pool, unix(self._clock), lines, "DELETE FROM operator_sessions WHERE hash = %s", (hash,))

    async def _one(self, condition: str, *params: object) -> Operator | None:
        rows = await self._pool.rows(f"{_GET} {condition}", params)
        return self._read(rows[0]) if rows else None

    def _read(self, row: Sequence[Any]) -> Operator:
        found = Operator(**_OPERATOR.read(row))
        return attrs.evolve(found, totp=self._encryption.decrypt(bytes(found.totp), found.id))

    def _now(self) -> datetime:
        return utc(self._clock)


async def sweep_sessions(pool: Pool, now: datetime) -> None:
    """Delete expired sessions."""
    await pool.run("DELETE FROM operator_sessions WHERE seen_at < %s OR created_at < %s", (now - IDLE, now - LONGEST))
