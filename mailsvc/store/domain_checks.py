"""What is due to be looked at in DNS, and what was found: results, moves of keys, events and history in one transaction each.

What follows from a result is decided in mailsvc/domains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import attrs

from mailsvc.store import domains_sql
from mailsvc.store.adapt import json
from mailsvc.store.audit import Line, write
from mailsvc.store.domain_values import DkimKey, Domain, KeyState, domain_of
from mailsvc.store.domains import Domains, NewKey
from mailsvc.store.pool import Pool, Transaction


@attrs.define(eq=False, auto_exc=True)
class KeysMoving(Exception):
    """The keys of this domain are being replaced already."""

    domain_id: UUID


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


class DomainChecks:
    def __init__(self, pool: Pool, domains: Domains) -> None:
        self._pool = pool
        self._domains = domains

    async def due(self, limit: int) -> Sequence[Domain]:
        """Take at most `limit` domains whose time has come. They are ours until `next_check_at`."""
        now = self._domains.now()
        return [domain_of(row) for row in await self._pool.rows(domains_sql.TAKE_DUE, (now + LEASE, now, limit))]

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
        """Write down what a check of `before` found; None when it was deleted or asked for anew in between, and nothing is written."""
        now = self._domains.now()
        after = result.domain

        async def record(tx: Transaction) -> Domain | None:
            found = [json([attrs.asdict(state) for state in states]) for states in (after.records, after.advice)]
            life = (after.since, after.checks, after.checked_at, after.next_check_at)
            rows = await tx.rows(domains_sql.RECORD, (after.status, *found, *life, after.id, before.next_check_at))
            if not rows:
                return None
            for move in result.moves:
                await tx.run(domains_sql.MOVE_KEY, (move.state, now, move.state == "retired", after.id, move.key.id))
            if result.told:
                await self._domains.tell(tx, "updated", domain_of(rows[0]), *result.sentences)
            return domain_of(rows[0])

        domain = await self._pool.transact(record)
        self._domains.changed()
        return domain

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
