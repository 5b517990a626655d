"""Sending domains and their DKIM keys, whose private halves are encrypted. What checks and rotations change: store/domains/checks.

Whatever changes a domain tells of it in the same transaction: an event for the account, a line in the domain's history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Literal, Protocol
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.cache import Cache
from mailsvc.store.domains import domains_sql
from mailsvc.store.domains.values import (
    Algorithm,
    DkimKey,
    Domain,
    DomainLimits,
    DomainStatus,
    LimitReached,
    RecordState,
    StoredKey,
    TlsPolicy,
    domain_of,
)
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, write
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims import Queue

__all__ = ["Algorithm", "DkimKey", "Domain", "DomainStatus", "Domains", "NewKey", "RecordState", "StoredKey", "TlsPolicy"]

HOUR = timedelta(hours=1)
BITE = 1000  # recipients that are ended in one transaction when their domain is deleted

Payload = Callable[[Domain, Sequence[DkimKey]], Mapping[str, object]]
Happening = Literal["created", "updated", "deleted"]


class NewKey(Protocol):
    """A key pair; domains/keypair makes them."""

    @property
    def selector(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def public(self) -> str: ...
    @property
    def der(self) -> bytes: ...


@attrs.frozen
class Choices:
    """What the owner of a domain decides when it is made. `delegated` is the operator's."""

    return_path: str = "send"
    tls: TlsPolicy = "opportunistic"
    sending: bool = True
    receiving: bool = False
    delegated: bool = False


def brief(domain: Domain, keys: Sequence[DkimKey]) -> Mapping[str, object]:
    """What an event tells of a domain where nobody knows its records."""
    return {"id": str(domain.id), "name": domain.name, "status": domain.status, "region": domain.region}


class Domains:
    """`payload` makes what the account is told of a domain after each change. Without `trusting` the operator's word counts no more."""

    def __init__(
        self,
        pool: Pool,
        clock: Any,
        encryption: Encryption,
        notifications: Notifier | None = None,
        payload: Payload = brief,
        *,
        trusting: bool = True,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._encryption = encryption
        self._notifications = notifications
        self._payload = payload
        self._trusting = trusting
        self._named: Cache[tuple[UUID, str], Domain | None] = Cache(clock, notifications)
        self._by_id: Cache[UUID, Domain | None] = Cache(clock, notifications)
        self._keys: Cache[UUID, tuple[StoredKey, ...]] = Cache(clock, notifications)

    # Reading

    async def find(self, account_id: UUID, name: str) -> Domain | None:
        """An account's domain by its name in A-labels, as of two seconds ago at most."""
        return await self._named.get((account_id, name), lambda: self._one(domains_sql.FIND, (account_id, name)))

    async def get(self, domain_id: UUID) -> Domain | None:
        """Whosever it is: for mail that was accepted. As of two seconds ago at most."""
        return await self._by_id.get(domain_id, lambda: self._one(domains_sql.GET, (domain_id,)))

    async def own(self, account_id: UUID, domain_id: UUID) -> Domain | None:
        """An account's domain as it is now."""
        return await self._one(domains_sql.OWN, (account_id, domain_id))

    async def called(self, name: str) -> Domain | None:
        """Regardless of account, as it is now: for the operator. The one that is verified, else the oldest."""
        return await self._one(domains_sql.CALLED, (name,))

    async def claimants(self, name: str) -> Sequence[Domain]:
        """All domains of this name, the one that is verified first."""
        return [self.of(row) for row in await self._pool.rows(domains_sql.CALLED, (name,))]

    async def check_limits(self, account_id: UUID, limits: DomainLimits) -> None:
        """Raises LimitReached when the account may not add a domain now."""
        now = self.now()
        rows = await self._pool.rows(domains_sql.USED, {"account": account_id, "before": now - HOUR})
        _within(rows[0], limits, now, counted=0)

    async def list(
        self, account_id: UUID, limit: int | None = None, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[Domain], bool]:
        """Newest first; all of them without a `limit`. Whether there are more."""
        if before is not None:
            rows = await self._pool.rows(domains_sql.NEWER, (account_id, before, limit and limit + 1))
        else:
            rows = await self._pool.rows(domains_sql.OLDER, (account_id, after, after, limit and limit + 1))
        page = [self.of(row) for row in rows[:limit]]
        return (page[::-1] if before is not None else page), limit is not None and len(rows) > limit

    async def signing_keys(self, domain_id: UUID) -> tuple[StoredKey, ...]:
        """What its mail is signed with, in the order of `signs_with`; as of two seconds ago at most."""
        return await self._keys.get(domain_id, lambda: self._signing_keys(domain_id))

    async def published_keys(self, domain_id: UUID) -> Sequence[DkimKey]:
        """What its DNS should have."""
        return [DkimKey(*row) for row in await self._pool.rows(domains_sql.PUBLISHED, (domain_id,))]

    async def delegated_keys(self) -> Sequence[tuple[UUID, DkimKey]]:
        """Every key that the operator's DNS serves, by its domain; of a selector the newest."""
        return [(row[0], DkimKey(*row[1:])) for row in await self._pool.rows(domains_sql.DELEGATED)]

    async def history(self, domain_id: UUID, limit: int = 50) -> Sequence[tuple[datetime, str]]:
        """What happened to it, the newest first."""
        return [(at, what) for at, what in await self._pool.rows(domains_sql.HISTORY, (domain_id, limit))]

    # Changing

    async def add(
        self,
        account_id: UUID,
        name: str,
        region: str,
        keys: Sequence[NewKey],
        choices: Choices | None = None,
        lines: Sequence[Line] = (),
        limits: DomainLimits | None = None,
    ) -> Domain:
        """A new domain and its DKIM keys. Raises errors.Conflict when the account has the name, LimitReached at one of `limits`."""
        chosen = choices or Choices()
        now = self.now()

        async def add(tx: Transaction) -> Domain:
            if limits is not None:
                window = {"account": account_id, "before": now - HOUR, "now": now}
                await tx.run(domains_sql.COUNT_ADD, window)
                _within((await tx.rows(domains_sql.USED, window))[0], limits, now, counted=1)
            values = (chosen.return_path, chosen.tls, chosen.sending, chosen.receiving, chosen.delegated)
            [row] = await tx.rows(domains_sql.ADD, (uuid7(now.timestamp()), account_id, name, region, now, *values))
            await self.add_keys(tx, row[0], keys, "signing")
            await self.tell(tx, "created", domain_of(row), "Added.")
            await write(tx, lines, now.timestamp())
            return domain_of(row)

        domain = await self._pool.transact(add)
        self.changed()
        return domain

    async def update(self, account_id: UUID, domain_id: UUID, changes: Mapping[str, object], lines: Sequence[Line] = ()) -> Domain | None:
        """Change `tls`, `sending` or `receiving`; None when the account has no such domain."""
        values = [changes.get(name) for name in ("tls", "sending", "receiving")]

        async def update(tx: Transaction) -> Domain | None:
            before = await tx.rows(domains_sql.OWN + " FOR UPDATE", (account_id, domain_id))
            if not before:
                return None
            [row] = await tx.rows(domains_sql.UPDATE, (*values, domain_id))
            if row != before[0]:
                words = ", ".join(f"{name} {_word(value)}" for name, value in changes.items())
                await self.tell(tx, "updated", domain_of(row), f"Changed by its owner: {words}.")
                await write(tx, lines, self.now().timestamp())
            return domain_of(row)

        domain = await self._pool.transact(update)
        self.changed()
        return domain

    async def delete(self, account_id: UUID, domain_id: UUID, lines: Sequence[Line] = ()) -> Domain | None:
        """Remove a domain with its keys, and end what waits to be sent from it; None when the account has no such domain."""

        async def delete(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.OWN + " FOR UPDATE", (account_id, domain_id))
            if not rows:
                return None
            await self.tell(tx, "deleted", domain_of(rows[0]), "Deleted.")
            await tx.run(domains_sql.DELETE, (domain_id,))
            await tx.run(domains_sql.SETTLE_CLAIM, ("canceled", None, domain_id))
            await write(tx, lines, self.now().timestamp())
            return domain_of(rows[0])

        domain = await self._pool.transact(delete)
        self.changed()
        if domain is not None:
            await self.end_mail(domain_id, domain.name, "The sending domain {name} was deleted.")
        return domain

    async def trust(self, account_id: UUID, name: str, trusted: bool = True) -> bool:
        """Take the operator's word for it, or no longer; whether the account has such a domain.

        Raises errors.Conflict when another account has the name verified or trusted.
        """

        async def trust(tx: Transaction) -> bool:
            rows = await tx.rows(domains_sql.TRUST, (trusted, self.now(), account_id, name))
            for row in rows:
                await self.tell(tx, "updated", domain_of(row), f"The operator {'trusts it' if trusted else 'trusts it no longer'}.")
            return bool(rows)

        found = await self._pool.transact(trust)
        self.changed()
        return found

    async def sign_with(self, domain_id: UUID, algorithms: Sequence[Algorithm]) -> Domain | None:
        """Which of its keys sign; None when it is not there any more."""

        async def choose(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.SIGNS, (list(algorithms), self.now(), domain_id))
            for row in rows:
                await self.tell(tx, "updated", domain_of(row), f"The operator has its mail signed with {' and '.join(algorithms)}.")
            return domain_of(rows[0]) if rows else None

        domain = await self._pool.transact(choose)
        self.changed()
        return domain

    # For what else changes domains, within its transactions

    async def add_keys(self, tx: Transaction, domain_id: UUID, keys: Sequence[NewKey], state: str) -> None:
        now = self.now()
        for key in keys:
            key_id = uuid7(now.timestamp())
            encrypted = self._encryption.encrypt(key.der, key_id)
            await tx.run(domains_sql.ADD_KEY, (key_id, domain_id, key.selector, key.algorithm, key.public, encrypted, state, now))

    async def tell(self, tx: Transaction, happening: Happening, domain: Domain, *sentences: str) -> None:
        """An event with the domain as it is now, and lines for its history."""
        now = self.now()
        keys = [DkimKey(*row) for row in await tx.rows(domains_sql.PUBLISHED, (domain.id,))]
        data = dict(self._payload(domain, keys))
        await events.write(tx, [NewEvent(domain.account_id, None, domain.id, None, f"domain.{happening}", now, data)])
        for sentence in sentences:
            await tx.run(domains_sql.ADD_HISTORY, (uuid7(now.timestamp()), domain.id, now, sentence))

    async def end_mail(self, domain_id: UUID, name: str, reason: str) -> None:
        """End what waits to be sent from a domain that is gone or lost.

        What a crash leaves here, and what is being sent now, ends with the same reason when it is its turn to be sent.
        """
        told = reason.format(name=name)
        while await Queue(self._pool).fail_domain(domain_id, told, self.now(), BITE) == BITE:
            pass
        if self._notifications is not None:
            self._notifications.notify("events")

    def changed(self) -> None:
        for cache in (self._named, self._by_id, self._keys):
            cache.changed()
        if self._notifications is not None:
            self._notifications.notify("events")

    def now(self) -> datetime:
        return utc(self._clock)

    async def _one(self, sql: str, params: Sequence[object]) -> Domain | None:
        rows: Sequence[Row] = await self._pool.rows(sql, params)
        return self.of(rows[0]) if rows else None

    def of(self, row: Row) -> Domain:
        """A domain from a row of the store."""
        domain = domain_of(row)
        return domain if self._trusting else attrs.evolve(domain, trusted=False)

    async def _signing_keys(self, domain_id: UUID) -> tuple[StoredKey, ...]:
        rows = await self._pool.rows(domains_sql.SIGNING, (domain_id,))
        return tuple(
            StoredKey(selector, algorithm, self._encryption.decrypt(encrypted, key_id)) for key_id, selector, algorithm, encrypted in rows
        )


def _within(used: Row, limits: DomainLimits, now: datetime, counted: int) -> None:
    """Raises LimitReached. `used` is a row of domains_sql.USED, in which `counted` adds of this one are counted already."""
    total, unverified, adds, since = used
    if total >= limits.per_account:
        raise LimitReached(f"An account may have at most {limits.per_account} domains. Delete one that is no longer needed.")
    if unverified >= limits.unverified:
        raise LimitReached(f"An account may have at most {limits.unverified} domains that are not verified. Verify or delete one.")
    if adds - counted >= limits.adds_per_hour:
        seconds = max(1, ceil((since + HOUR - now).total_seconds()))
        raise LimitReached(f"An account may add at most {limits.adds_per_hour} domains an hour. Try again in {seconds} seconds.", seconds)


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
