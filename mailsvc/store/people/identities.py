"""Identities of users at other services. An identity is an issuer and a subject, not an address; it belongs to one user."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix, utc
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, changed
from mailsvc.store.postgres.pool import Pool, Transaction

ADD = """
INSERT INTO identities (issuer, subject, id, user_id, provider, label, created_at) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (issuer, subject) DO NOTHING
"""
OF = "SELECT id, user_id, provider, label, created_at, used_at FROM identities WHERE user_id = %s ORDER BY id"
USED = "UPDATE identities SET used_at = %s WHERE issuer = %s AND subject = %s RETURNING user_id"
OWNER = "SELECT user_id FROM identities WHERE issuer = %s AND subject = %s"
REMOVE = "DELETE FROM identities WHERE user_id = %s AND id = %s"


@attrs.frozen
class Identity:
    """An identity. `provider`: its name in the settings; `label`: a text that people recognise."""

    issuer: str
    subject: str
    provider: str
    label: str


@attrs.frozen
class IdentityView:
    """An identity as its owner sees it in a list."""

    id: UUID
    user_id: UUID
    provider: str
    label: str
    created_at: datetime
    used_at: datetime | None


class Identities:
    def __init__(self, pool: Pool, clock: Any) -> None:
        self._pool = pool
        self._clock = clock

    async def add(self, user_id: UUID, identity: Identity, lines: Sequence[Line] = ()) -> bool:
        """Add an identity; false if it already belongs to a user."""
        return await changed(self._pool, unix(self._clock), lines, ADD, _row(user_id, identity, self._now())) > 0

    async def owner(self, identity: Identity) -> UUID | None:
        rows = await self._pool.rows(OWNER, (identity.issuer, identity.subject))
        return rows[0][0] if rows else None

    async def use(self, identity: Identity) -> UUID | None:
        """The user of an identity, which is recorded as used."""
        rows = await self._pool.rows(USED, (self._now(), identity.issuer, identity.subject))
        return rows[0][0] if rows else None

    async def of(self, user_id: UUID) -> list[IdentityView]:
        return [IdentityView(*row) for row in await self._pool.rows(OF, (user_id,))]

    async def remove(self, user_id: UUID, identity_id: UUID, lines: Sequence[Line] = ()) -> bool:
        return await changed(self._pool, unix(self._clock), lines, REMOVE, (user_id, identity_id)) > 0

    def _now(self) -> datetime:
        return utc(self._clock)


async def connect(tx: Transaction, user_id: UUID, identity: Identity, now: datetime) -> bool:
    """`Identities.add` within the caller's transaction."""
    return await tx.run(ADD, _row(user_id, identity, now)) > 0


def _row(user_id: UUID, identity: Identity, now: datetime) -> tuple[object, ...]:
    return identity.issuer, identity.subject, uuid7(now.timestamp()), user_id, identity.provider, identity.label[:320], now
