"""Pools of source addresses: which one an email is sent from. By the domain, else the account, else bulk or not.

Which addresses a pool has: connection/sources. Which pools accounts and domains have: store/queue/sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from mailsvc.runtime.lifecycle import Opened
from mailsvc.runtime.polling import every
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.sources import PoolTable

_EVERY = 10.0  # seconds


class Pools:
    """`bulk`: the pool for bulk mail of accounts and domains without a pool of their own. The default pool has an empty name."""

    def __init__(self, table: PoolTable, bulk: str = "") -> None:
        self._table, self._bulk = table, bulk
        self._assigned: Mapping[UUID, str] = {}  # by ID of the account or the domain

    def of(self, account_id: UUID, domain_id: UUID, bulk: bool) -> str:
        """The pool of an email."""
        assigned = self._assigned
        if assigned:
            found = assigned.get(domain_id, assigned.get(account_id))
            if found is not None:
                return found
        return self._bulk if bulk else ""

    def names(self) -> frozenset[str]:
        """All pools that mail is sent from now."""
        return frozenset({"", self._bulk, *self._assigned.values()})

    @classmethod
    async def opened(cls, pool: Pool, bulk: str, clock: Any, opened: Opened) -> Pools:
        """Those in the database, read now and again every few seconds."""
        pools = cls(PoolTable(pool), bulk)
        await pools.refresh()
        opened.add("pools", every(clock, _EVERY, "reading the pools of accounts and domains", pools.refresh))
        return pools

    async def refresh(self) -> None:
        """Read what was assigned."""
        self._assigned = await self._table.read()
