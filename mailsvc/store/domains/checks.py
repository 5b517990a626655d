"""What is due to be looked at in DNS, and what was found: results, moves of keys, events and history in one transaction each.

What follows from a result is decided in mailsvc/domains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.store.domains import domains_sql
from mailsvc.store.domains.domains import Domains, NewKey
from mailsvc.store.domains.values import ClaimStatus, DkimKey, Domain, KeyState, domain_of
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.adapters import json
from mailsvc.store.postgres.errors import Conflict
from mailsvc.store.postgres.pool import Pool, Transaction


@attrs.define(eq=False, auto_exc=True)
class KeysMoving(Exception):
    """The keys of this domain are being replaced already."""

    domain_id: UUID


class _Overtaken(Exception):
    """Something newer was written; this is rolled back."""


OTHER_OWNER = "The sending domain {name} belongs to another account now."
LEASE = timedelta(minutes=5)  # for one check; after it another process may do it


@attrs.frozen
class Move:
    """A key that comes into another state."""

    key: DkimKey
    state: KeyState


@attrs.frozen
class Result:
    """A check's result: the domain as it is from now on, what became of its keys, what its history says of it."""

    domain: Domain
    moves: Sequence[Move] = ()
    sentences: Sequence[str] = ()
    told: bool = True  # whether its account hears of it
    loser: Domain | None = None  # the domain of another account from which it takes the name over, with what was found of it
    claim: ClaimStatus | None = None  # what became of its open claim
    claim_reason: str | None = None


class DomainChecks:
    def __init__(self, pool: Pool, domains: Domains) -> None:
        self._pool = pool
        self._domains = domains

    async def due(self, limit: int, share: int | None = None, busy: Mapping[UUID, int] | None = None) -> Sequence[Domain]:
        """Take at most `limit` domains whose time has come. They are ours until `next_check_at`.

        No account gets more than `share` of them, what is under way for it (`busy`) included.
        """
        now, busy, share = self._domains.now(), busy or {}, limit if share is None else share
        named = {"now": now, "until": now + LEASE, "limit": limit, "share": share, "accounts": [*busy], "checks": [*busy.values()]}
        named["full"] = [account_id for account_id, count in busy.items() if count >= share]
        return [domain_of(row) for row in await self._pool.rows(domains_sql.TAKE_DUE, named)]

    async def take(self, domain: Domain) -> Domain | None:
        """Check this one now, whenever it is due."""
        rows = await self._pool.rows(domains_sql.PUT_OFF, (self._domains.now() + LEASE, domain.id))
        return domain_of(rows[0]) if rows else None

    async def ask(
        self, domain_id: UUID, decide: Callable[[Domain], tuple[Domain, str | None]], lines: Sequence[Line] = ()
    ) -> Domain | None:
        """A check is asked for: `decide` gives the domain with its new status and time, and what its history says of that.

        None when it is not there any more.
        """

        async def ask(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.GET + " FOR UPDATE", (domain_id,))
            if not rows:
                return None
            after, sentence = decide(domain_of(rows[0]))
            life = (after.status, after.since, after.checks, after.next_check_at)
            [row] = await tx.rows(domains_sql.ASK, (*life, domain_id))
            if sentence is not None:
                await self._domains.tell(tx, "updated", domain_of(row), sentence)
            await write(tx, lines, self._domains.now().timestamp())
            return domain_of(row)

        domain = await self._pool.transact(ask)
        self._domains.changed()
        return domain

    async def record(self, before: Domain, result: Result) -> Domain | None:
        """Write down what a check of `before` found; None when it was overtaken, and nothing is written.

        It is overtaken when the domain was deleted or asked for anew in between, and when another account got the name.
        """
        now = self._domains.now()
        after = result.domain

        async def record(tx: Transaction) -> Domain | None:
            if (after.status == "verified" or result.loser is not None) and not await self._take_over(tx, after, result.loser, now):
                return None
            found = [json([attrs.asdict(state) for state in states]) for states in (after.records, after.advice)]
            life = (after.since, after.checks, after.checked_at, after.next_check_at)
            rows = await tx.rows(domains_sql.RECORD, (after.status, *found, *life, after.status, after.id, before.next_check_at))
            if not rows:
                raise _Overtaken
            if result.claim is not None:
                await tx.run(domains_sql.SETTLE_CLAIM, (result.claim, result.claim_reason, after.id))
            if result.claim == "completed":
                await tx.run(domains_sql.SUPERSEDE_CLAIMS, (after.name, after.id))
            for move in result.moves:
                await tx.run(domains_sql.MOVE_KEY, (move.state, now, move.state == "retired", after.id, move.key.id))
            if result.told:
                await self._domains.tell(tx, "updated", domain_of(rows[0]), *result.sentences)
            return domain_of(rows[0])

        try:
            domain = await self._pool.transact(record)
        except (_Overtaken, Conflict):  # Conflict: another account was verified between the look and now
            domain = None
        self._domains.changed()
        if domain is not None and result.loser is not None:
            await self._domains.end_mail(result.loser.id, result.loser.name, OTHER_OWNER)
        return domain

    async def holder(self, domain: Domain) -> Domain | None:
        """The domain of another account that has this name verified or trusted, as it is now."""
        rows = await self._pool.rows(domains_sql.HOLDER, (domain.name, domain.id))
        return self._domains.of(rows[0]) if rows else None

    async def _take_over(self, tx: Transaction, domain: Domain, loser: Domain | None, now: datetime) -> bool:
        """Make way for a domain that is verified: whether nobody else has its name now. `loser` is who may lose it."""
        rows = await tx.rows(domains_sql.HOLDER + " FOR UPDATE", (domain.name, domain.id))
        if not rows:
            return True
        if loser is None or domain_of(rows[0]).id != loser.id:
            return False
        [row] = await tx.rows(domains_sql.LOSE, (now, json([attrs.asdict(state) for state in loser.records]), loser.id))
        await self._domains.tell(tx, "updated", domain_of(row), str(domain_of(row).lost))
        return True

    async def add_keys(
        self, domain: Domain, keys: Sequence[NewKey], sentence: str, next_check_at: datetime | None, lines: Sequence[Line] = ()
    ) -> Domain | None:
        """New keys that sign once they were seen; the domain is due at `next_check_at`. Raises KeysMoving."""
        algorithms = {key.algorithm for key in keys}

        async def add(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.PUT_OFF, (next_check_at, domain.id))  # which also locks it
            if rows:
                present = [DkimKey(*row) for row in await tx.rows(domains_sql.PUBLISHED, (domain.id,))]
                if any(key.algorithm in algorithms and key.state != "signing" for key in present):
                    raise KeysMoving(domain.id)
                await self._domains.add_keys(tx, domain.id, keys, "published")
                await self._domains.tell(tx, "updated", domain_of(rows[0]), sentence)
                await write(tx, lines, self._domains.now().timestamp())
            return domain_of(rows[0]) if rows else None

        changed = await self._pool.transact(add)
        self._domains.changed()
        return changed
