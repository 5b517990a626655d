"""Leases domains that are due for a check, and records results: states, keys, events and history in one transaction.

Decisions are made in mailsvc/domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.store.domains import domains_sql
from mailsvc.store.domains.domains import Domains, NewKey
from mailsvc.store.domains.values import ClaimStatus, DkimKey, Domain, KeyState, domain_of, key_of
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.errors import Conflict
from mailsvc.store.postgres.pool import Pool, Transaction


@attrs.define(eq=False, auto_exc=True)
class KeysChanging(Exception):
    """The domain's keys are already being rotated."""

    domain_id: UUID


class _Superseded(Exception):
    """A newer change was written; the transaction is rolled back."""


OTHER_OWNER = "The sending domain {name} now belongs to another account."
LEASE = timedelta(minutes=5)  # for one check; afterwards another process can run it


@attrs.frozen
class KeyChange:
    """A key and its new state."""

    key: DkimKey
    state: KeyState


@attrs.frozen
class Result:
    """The result of a check: the updated domain, changes of its keys, and lines for its history."""

    domain: Domain
    key_changes: Sequence[KeyChange] = ()
    history: Sequence[str] = ()
    notify: bool = True  # whether to write an event
    loser: Domain | None = None  # another account's domain that loses the name to this one, with its records updated
    claim: ClaimStatus | None = None  # the new status of the open claim
    claim_reason: str | None = None


class DomainChecks:
    def __init__(self, pool: Pool, domains: Domains) -> None:
        self._pool = pool
        self._domains = domains

    async def due(self, limit: int, share: int | None = None, busy: Mapping[UUID, int] | None = None) -> Sequence[Domain]:
        """Lease at most `limit` domains that are due, until their `next_check_at`.

        Each account gets at most `share`, including its running checks (`busy`).
        """
        now, busy, share = self._domains.now(), busy or {}, limit if share is None else share
        named = {"now": now, "until": now + LEASE, "limit": limit, "share": share, "accounts": [*busy], "checks": [*busy.values()]}
        named["full"] = [account_id for account_id, count in busy.items() if count >= share]
        return [domain_of(row) for row in await self._pool.rows(domains_sql.TAKE_DUE, named)]

    async def take(self, domain: Domain) -> Domain | None:
        """Lease this domain now, even if it is not due."""
        rows = await self._pool.rows(domains_sql.RESCHEDULE, (self._domains.now() + LEASE, domain.id))
        return domain_of(rows[0]) if rows else None

    async def request(
        self, domain_id: UUID, decide: Callable[[Domain], tuple[Domain, str | None]], lines: Sequence[Line] = ()
    ) -> Domain | None:
        """Request a check. `decide` returns the domain with its new status and time, and a line for its history.

        None if the domain no longer exists.
        """

        async def request(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.GET + " FOR UPDATE", (domain_id,))
            if not rows:
                return None
            after, sentence = decide(domain_of(rows[0]))
            life = (after.status, after.since, after.checks, after.next_check_at)
            [row] = await tx.rows(domains_sql.REQUEST_VERIFICATION, (*life, domain_id))
            if sentence is not None:
                await self._domains.record_change(tx, "updated", domain_of(row), sentence)
            await write(tx, lines, self._domains.now().timestamp())
            return domain_of(row)

        domain = await self._pool.transact(request)
        self._domains.changed()
        return domain

    async def record(self, before: Domain, result: Result) -> Domain | None:
        """Record the result of a check of `before`. None if it was superseded; then nothing is written.

        A check is superseded if the domain was deleted, a new check was requested, or another account got the name.
        """
        now = self._domains.now()
        after = result.domain

        async def record(tx: Transaction) -> Domain | None:
            if (after.status == "verified" or result.loser is not None) and not await self._take_over(tx, after, result.loser, now):
                return None
            found = [json([state.to_json() for state in states]) for states in (after.records, after.advice)]
            life = (after.since, after.checks, after.checked_at, after.next_check_at)
            rows = await tx.rows(domains_sql.RECORD, (after.status, *found, *life, after.status, after.id, before.next_check_at))
            if not rows:
                raise _Superseded
            if result.claim is not None:
                await tx.run(domains_sql.SETTLE_CLAIM, (result.claim, result.claim_reason, after.id))
            if result.claim == "completed":
                await tx.run(domains_sql.SUPERSEDE_CLAIMS, (after.name, after.id))
            for change in result.key_changes:
                await tx.run(domains_sql.MOVE_KEY, (change.state, now, change.state == "retired", after.id, change.key.id))
            if result.notify:
                await self._domains.record_change(tx, "updated", domain_of(rows[0]), *result.history)
            return domain_of(rows[0])

        try:
            domain = await self._pool.transact(record)
        except (_Superseded, Conflict):  # Conflict: another account was verified in the meantime
            domain = None
        self._domains.changed()
        if domain is not None and result.loser is not None:
            await self._domains.fail_queued(result.loser.id, result.loser.name, OTHER_OWNER)
        return domain

    async def holder(self, domain: Domain) -> Domain | None:
        """The domain of another account that has this name verified or trusted. Not cached."""
        rows = await self._pool.rows(domains_sql.HOLDER, (domain.name, domain.id))
        return self._domains.of(rows[0]) if rows else None

    async def _take_over(self, tx: Transaction, domain: Domain, loser: Domain | None, now: datetime) -> bool:
        """Free the name for a verified domain; whether no other account has it now. `loser`: the domain that may lose it."""
        rows = await tx.rows(domains_sql.HOLDER + " FOR UPDATE", (domain.name, domain.id))
        if not rows:
            return True
        if loser is None or domain_of(rows[0]).id != loser.id:
            return False
        [row] = await tx.rows(domains_sql.LOSE, (now, json([state.to_json() for state in loser.records]), loser.id))
        await self._domains.record_change(tx, "updated", domain_of(row), str(domain_of(row).lost))
        return True

    async def add_keys(
        self, domain: Domain, keys: Sequence[NewKey], sentence: str, next_check_at: datetime | None, lines: Sequence[Line] = ()
    ) -> Domain | None:
        """Add keys that sign once they are in DNS. The next check is at `next_check_at`. Raises KeysChanging."""
        algorithms = {key.algorithm for key in keys}

        async def add(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.RESCHEDULE, (next_check_at, domain.id))  # also locks the row
            if rows:
                present = [key_of(row) for row in await tx.rows(domains_sql.PUBLISHED, (domain.id,))]
                if any(key.algorithm in algorithms and key.state != "signing" for key in present):
                    raise KeysChanging(domain.id)
                await self._domains.add_keys(tx, domain.id, keys, "published")
                await self._domains.record_change(tx, "updated", domain_of(rows[0]), sentence)
                await write(tx, lines, self._domains.now().timestamp())
            return domain_of(rows[0]) if rows else None

        changed = await self._pool.transact(add)
        self._domains.changed()
        return changed
