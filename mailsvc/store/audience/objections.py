"""Who objected to open and click tracking: contacts, and addresses of contacts that were deleted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

import attrs

from mailsvc.store.audience.keys import AudienceKeys
from mailsvc.store.audience.values import TRACKING

ANY = f"""
SELECT EXISTS (SELECT FROM contacts WHERE account_id = %(account_id)s AND hash = ANY (%(hashes)s) AND untracked)
    OR EXISTS (SELECT FROM unsubscribes WHERE account_id = %(account_id)s AND hash = ANY (%(hashes)s) AND topic_id = '{TRACKING}')
"""

AMONG = f"""
SELECT k.account_id, k.address FROM unnest(%s::uuid[], %s::text[], %s::bytea[]) AS k(account_id, address, hash)
WHERE EXISTS (SELECT FROM contacts c WHERE c.account_id = k.account_id AND c.hash = k.hash AND c.untracked)
OR EXISTS (SELECT FROM unsubscribes u WHERE u.account_id = k.account_id AND u.hash = k.hash AND u.topic_id = '{TRACKING}')
"""
Person = tuple[UUID, str]  # an account, and an address that it wrote to


@attrs.define(eq=False)
class Objections:
    keys: AudienceKeys

    async def any(self, account_id: UUID, addresses: Sequence[str]) -> bool:
        """Whether one of these people objected."""
        key = await self.keys.existing(account_id)
        if key is None:  # the account never had a contact
            return False
        hashes = [key.hash(address) for address in addresses]
        [(found,)] = await self.keys.pool.rows(ANY, {"account_id": account_id, "hashes": hashes})
        return bool(found)

    async def among(self, people: Collection[Person]) -> frozenset[Person]:
        """Those of the people who objected."""
        keys = await self.keys.several({account_id for account_id, _ in people})
        known = [(account_id, address, keys[account_id].hash(address)) for account_id, address in people if account_id in keys]
        if not known:
            return frozenset()
        rows = await self.keys.pool.rows(AMONG, [list(column) for column in zip(*known, strict=True)])
        return frozenset((account_id, address) for account_id, address in rows)
