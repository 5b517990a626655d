"""The home region of accounts, and whether their data has to stay there. Moving a domain: store/domains/domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import attrs

from mailsvc.clock import unix
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.pool import Pool, Transaction

_GET = "SELECT home_region, pinned FROM accounts WHERE id = %s"
_SET = "UPDATE accounts SET home_region = %s, pinned = %s WHERE id = %s"
_ELSEWHERE = "SELECT name FROM domains WHERE account_id = %s AND region <> %s ORDER BY name"


class RegionRefused(Exception):
    """The text continues a sentence that begins with the field: "must be eu-west-1: …"."""


@attrs.frozen
class Residence:
    """An account's home region, the default of new domains; None: it has none. `pinned`: all its domains have to be there."""

    region: str | None = None
    pinned: bool = False

    def check(self, region: str) -> None:
        """Raises RegionRefused if the account cannot have domains in this region."""
        if self.pinned and region != self.region:
            raise RegionRefused(f"must be {self.region}: the data of this account stays in that region.")


@attrs.frozen
class Residences:
    pool: Pool
    clock: Any

    async def of(self, account_id: UUID) -> Residence:
        rows = await self.pool.rows(_GET, (account_id,))
        return Residence(*rows[0]) if rows else Residence()

    async def set(self, account_id: UUID, residence: Residence, lines: Sequence[Line]) -> None:
        """Raises RegionRefused if the account is to be pinned and has domains elsewhere."""

        async def change(tx: Transaction) -> None:
            await tx.run(_SET, (residence.region, residence.pinned, account_id))  # first: it waits for domains that are being added
            elsewhere = await tx.rows(_ELSEWHERE, (account_id, residence.region)) if residence.pinned else []
            if elsewhere:
                names = ", ".join(name for (name,) in elsewhere)
                raise RegionRefused(f"cannot be pinned: these domains are in another region: {names}.")
            await write(tx, lines, unix(self.clock))

        await self.pool.transact(change)


async def check_region(tx: Transaction, account_id: UUID, region: str) -> None:
    """Raises RegionRefused. Until the end of the transaction, nobody can pin the account elsewhere."""
    for row in await tx.rows(_GET + " FOR SHARE", (account_id,)):
        Residence(*row).check(region)
