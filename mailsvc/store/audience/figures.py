"""Counts the contacts, segments and broadcasts of an account."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.postgres.pool import Pool

KEPT = 10.0  # seconds
_CACHED = 10_000

ALL = """
SELECT (SELECT count(*) FROM contacts WHERE account_id = %(account_id)s),
       (SELECT count(*) FROM segments WHERE account_id = %(account_id)s AND deleted_at IS NULL),
       (SELECT count(*) FROM broadcasts WHERE account_id = %(account_id)s AND status <> 'draft')
"""
MORE = "SELECT EXISTS (SELECT FROM contacts WHERE account_id = %s OFFSET %s)"


@attrs.frozen
class AudienceSize:
    """`broadcasts`: without drafts."""

    contacts: int = 0
    segments: int = 0
    broadcasts: int = 0


@attrs.define(eq=False)
class AudienceFigures:
    """Counting a million contacts takes a tenth of a second, so figures are kept for a while."""

    pool: Pool
    clock: Any
    _known: dict[UUID, tuple[float, AudienceSize]] = attrs.field(factory=dict, init=False)

    async def size(self, account_id: UUID) -> AudienceSize:
        """Up to KEPT seconds old."""
        at, size = self._known.get(account_id, (-KEPT, AudienceSize()))
        if self.clock.seconds() < at + KEPT:
            return size
        if len(self._known) >= _CACHED:
            self._known.clear()
        size = AudienceSize(*(await self.pool.rows(ALL, {"account_id": account_id}))[0])
        self._known[account_id] = self.clock.seconds(), size
        return size

    async def exceeds(self, account_id: UUID, contacts: int) -> bool:
        """Whether there are more contacts than that."""
        return bool((await self.pool.rows(MORE, (account_id, contacts)))[0][0])
