"""Domains whose admins have to be told that sending stops or has stopped. The mails: accounts/domain_notices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from mailsvc.store.domains.domains_sql import DOMAIN
from mailsvc.store.domains.values import Domain, domain_of
from mailsvc.store.people.accounts import ADMINS
from mailsvc.store.postgres.pool import Pool

LIMIT = 50
_UNTOLD = f"SELECT {DOMAIN} FROM domains WHERE sending AND trusted_at IS NULL AND"
# A domain whose records are missing; one that has failed, if its admins were told before; one that another account has taken over.
DUE = f"""
{_UNTOLD} status = 'verified' AND since <= %(missing)s AND notified IS DISTINCT FROM since
UNION ALL {_UNTOLD} status = 'failed' AND notified = since
UNION ALL {_UNTOLD} status = 'failed' AND lost_at > %(lost)s AND notified IS DISTINCT FROM lost_at
LIMIT {LIMIT}
"""
_NOTIFIED = """
UPDATE domains SET notified = CASE status WHEN 'verified' THEN since ELSE lost_at END
WHERE id = %s AND status = %s AND since IS NOT DISTINCT FROM %s AND lost_at IS NOT DISTINCT FROM %s
"""
_ACCOUNT = f"SELECT a.name, {ADMINS} FROM accounts a WHERE a.id = %s"


class DomainNoticeStore:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def due(self, missing: datetime, lost: datetime) -> Sequence[Domain]:
        """`missing`: records that are missing since then, or longer; `lost`: names that were taken over after that."""
        return [domain_of(row) for row in await self._pool.rows(DUE, {"missing": missing, "lost": lost})]

    async def account(self, domain: Domain) -> tuple[str, Sequence[str]]:
        """The name of the domain's account, and its admins; without any, its notification address."""
        [(name, admins)] = await self._pool.rows(_ACCOUNT, (domain.account_id,))
        return name, admins

    async def notified(self, domain: Domain) -> None:
        """Nothing happens if the domain has changed since it was read."""
        await self._pool.run(_NOTIFIED, (domain.id, domain.status, domain.since, domain.lost_at))
