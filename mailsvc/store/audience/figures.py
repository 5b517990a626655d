"""Counts the contacts, segments and broadcasts of an account."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.cache import Cache
from mailsvc.store.postgres.pool import Pool

KEPT = 10.0  # seconds

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
    _known: Cache[UUID, AudienceSize] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._known = Cache(self.clock, max_age=KEPT)

    async def size(self, account_id: UUID) -> AudienceSize:
        """Up to KEPT seconds old."""

        async def count() -> AudienceSize:
            return AudienceSize(*(await self.pool.rows(ALL, {"account_id": account_id}))[0])

        return await self._known.get(account_id, count)

    async def exceeds(self, account_id: UUID, contacts: int) -> bool:
        """Whether there are more contacts than that."""
        return bool((await self.pool.rows(MORE, (account_id, contacts)))[0][0])
