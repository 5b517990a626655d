"""Sending domains and their encrypted DKIM keys. Checks and rotations: store/domains/checks.

Each change writes an event and a line of the domain's history in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any, Literal, Protocol
from uuid import UUID

import attrs

from mailsvc.clock import utc
from mailsvc.store.cache import MAX_AGE, Cache
from mailsvc.store.domains import domains_sql, reports
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
    key_of,
)
from mailsvc.store.encryption.secrets import Encryption
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.ids import uuid7
from mailsvc.store.people.audit import Line, write
from mailsvc.store.people.residence import Residences, check_region
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.errors import Contention
from mailsvc.store.postgres.notifications import Notifier
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue.claims import Queue

__all__ = ["Algorithm", "DkimKey", "Domain", "DomainStatus", "Domains", "NewKey", "RecordState", "StoredKey", "TlsPolicy"]

HOUR = timedelta(hours=1)
MOVED = 10_000  # recipients that move to another region in one transaction
BATCH = 1000  # recipients that fail in one transaction after their domain was deleted

Payload = Callable[[Domain, Sequence[DkimKey]], Mapping[str, object]]
Change = Literal["created", "updated", "deleted"]


class NewKey(Protocol):
    """A key pair (domains/keypair)."""

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
    """The owner's choices for a new domain. `delegated` is the operator's choice."""

    return_path: str = "send"
    tls: TlsPolicy = "opportunistic"
    sending: bool = True
    receiving: bool = False
    delegated: bool = False
    open_tracking: bool = False
    click_tracking: bool = False
    tracking_subdomain: str | None = None


# What `Domains.update` can change.
SETTINGS = ("tls", "sending", "receiving", "open_tracking", "click_tracking", "tracking_subdomain")


def brief(domain: Domain, keys: Sequence[DkimKey]) -> Mapping[str, object]:
    """The data of an event without the domain's records."""
    return {"id": str(domain.id), "name": domain.name, "status": domain.status, "region": domain.region}


class Domains:
    """`payload`: makes the data of events. If `trusting` is false, domains that the operator trusts must be verified by DNS.

    `reserved`: the name of the domain of the service's test emails, which nothing else can use; empty: none.
    """

    def __init__(
        self,
        pool: Pool,
        clock: Any,
        encryption: Encryption,
        notifications: Notifier | None = None,
        payload: Payload = brief,
        *,
        trusting: bool = True,
        reserved: str = "",
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._encryption = encryption
        self._notifications = notifications
        self._payload = payload
        self._trusting = trusting
        self._reserved = reserved
        self.residences = Residences(pool, clock)
        self._named: Cache[tuple[UUID, str], Domain | None] = Cache(clock, notifications)
        self._by_id: Cache[UUID, Domain | None] = Cache(clock, notifications)
        self._keys: Cache[UUID, tuple[StoredKey, ...]] = Cache(clock, notifications)

    # Reading

    async def find(self, account_id: UUID, name: str) -> Domain | None:
        """An account's domain by its name in A-labels. Cached for at most two seconds.

        Raises Contention if it is not here because the account has left this cell, or is about to arrive: the mail can be sent again.
        """
        return await self._named.get((account_id, name), lambda: self._find(account_id, name))

    async def get(self, domain_id: UUID) -> Domain | None:
        """A domain regardless of account, for accepted mail. Cached for at most two seconds."""
        return await self._by_id.get(domain_id, lambda: self._one(domains_sql.GET, (domain_id,)))

    async def own(self, account_id: UUID, domain_id: UUID) -> Domain | None:
        """An account's domain. Not cached."""
        return await self._one(domains_sql.OWN, (account_id, domain_id))

    async def called(self, name: str) -> Domain | None:
        """A domain by name, regardless of account: the verified one, otherwise the oldest. Not cached."""
        return await self._one(domains_sql.BY_NAME, (name,))

    async def all_named(self, name: str) -> Sequence[Domain]:
        """All domains with this name, the verified one first."""
        return [self.of(row) for row in await self._pool.rows(domains_sql.BY_NAME, (name,))]

    async def has_return_path(self, host: str) -> bool:
        """Whether a domain, regardless of account, has its return paths at this host. Not cached."""
        label, _, name = host.partition(".")
        return any(domain.return_path == label for domain in await self.all_named(name))

    async def check_limits(self, account_id: UUID, limits: DomainLimits) -> None:
        """Raises LimitReached if the account cannot add a domain now."""
        now = self.now()
        rows = await self._pool.rows(domains_sql.USED, {"account": account_id, "before": now - HOUR})
        _check_limits(rows[0], limits, now, counted=0)

    async def list(
        self, account_id: UUID, limit: int | None = None, after: UUID | None = None, before: UUID | None = None
    ) -> tuple[Sequence[Domain], bool]:
        """Newest first, and whether there are more. All domains if there is no `limit`."""
        if before is not None:
            rows = await self._pool.rows(domains_sql.NEWER, (account_id, before, limit and limit + 1))
        else:
            rows = await self._pool.rows(domains_sql.OLDER, (account_id, after, after, limit and limit + 1))
        page = [self.of(row) for row in rows[:limit]]
        return (page[::-1] if before is not None else page), limit is not None and len(rows) > limit

    async def every(self) -> Sequence[Domain]:
        """Those of all accounts, by the accounts' numbers, the newest of an account first."""
        return [self.of(row) for row in await self._pool.rows(domains_sql.EVERY)]

    async def signing_keys(self, domain_id: UUID) -> tuple[StoredKey, ...]:
        """The keys that sign its mail, in the order of `signs_with`. Cached for at most two seconds."""
        return await self._keys.get(domain_id, lambda: self._signing_keys(domain_id))

    async def published_keys(self, domain_id: UUID) -> Sequence[DkimKey]:
        """The keys that should be in DNS."""
        return [key_of(row) for row in await self._pool.rows(domains_sql.PUBLISHED, (domain_id,))]

    async def delegated_keys(self) -> Sequence[tuple[UUID, DkimKey]]:
        """All keys in the operator's zone with their domains, the newest of each selector."""
        return [(row[0], key_of(row[1:])) for row in await self._pool.rows(domains_sql.DELEGATED)]

    async def history(self, domain_id: UUID, limit: int = 50) -> Sequence[tuple[datetime, str]]:
        """The domain's history, newest first."""
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
        """Add a domain and its DKIM keys.

        Raises errors.Conflict if the account has the name, LimitReached if a limit is reached, residence.RegionRefused if its data has
        to stay in another region.
        """
        chosen = choices or Choices()
        now = self.now()

        async def add(tx: Transaction) -> Domain:
            await check_region(tx, account_id, region)
            if limits is not None:
                window = {"account": account_id, "before": now - HOUR, "now": now}
                await tx.run(domains_sql.COUNT_ADD, window)
                _check_limits((await tx.rows(domains_sql.USED, window))[0], limits, now, counted=1)
            labels = [] if chosen.tracking_subdomain is None else [chosen.tracking_subdomain]
            tracking = (chosen.open_tracking, chosen.click_tracking, labels)
            values = (chosen.return_path, chosen.tls, chosen.sending, chosen.receiving, chosen.delegated, *tracking)
            [row] = await tx.rows(domains_sql.ADD, (uuid7(now.timestamp()), account_id, name, region, now, *values))
            domain = domain_of(row)
            await self.add_keys(tx, domain.id, keys, "signing")
            await self.record_change(tx, "created", domain, "Domain added.")
            await write(tx, lines, now.timestamp())
            return domain

        domain = await self._pool.transact(add)
        self.changed()
        return domain

    async def update(self, account_id: UUID, domain_id: UUID, changes: Mapping[str, object], lines: Sequence[Line] = ()) -> Domain | None:
        """Change some of SETTINGS. None if the account has no such domain."""
        values = {**dict.fromkeys(SETTINGS), **changes, "id": domain_id, "now": self.now()}

        async def update(tx: Transaction) -> Domain | None:
            before = await tx.rows(domains_sql.OWN + " FOR UPDATE", (account_id, domain_id))
            if not before:
                return None
            [row] = await tx.rows(domains_sql.UPDATE, values)
            if row != before[0]:
                words = ", ".join(f"{name} {_display(value)}" for name, value in changes.items())
                await self.record_change(tx, "updated", domain_of(row), f"Settings changed: {words}.")
                await write(tx, lines, self.now().timestamp())
            return domain_of(row)

        domain = await self._pool.transact(update)
        self.changed()
        return domain

    async def delete(self, account_id: UUID, domain_id: UUID, lines: Sequence[Line] = ()) -> Domain | None:
        """Delete a domain with its keys, and end its queued mail. None if the account has no such domain."""

        async def delete(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.OWN + " FOR UPDATE", (account_id, domain_id))
            if not rows:
                return None
            await self.record_change(tx, "deleted", domain_of(rows[0]), "Domain deleted.")
            await tx.run(domains_sql.DELETE, (domain_id,))
            for statement in reports.DELETE:
                await tx.run(statement, (account_id, domain_id))
            await tx.run(domains_sql.SETTLE_CLAIM, ("canceled", None, domain_id))
            await write(tx, lines, self.now().timestamp())
            return domain_of(rows[0])

        domain = await self._pool.transact(delete)
        self.changed()
        if domain is not None:
            await self.fail_queued(domain_id, domain.name, "The sending domain {name} was deleted.")
        return domain

    async def move(self, account_id: UUID, domain_id: UUID, region: str, lines: Sequence[Line] = ()) -> Domain | None:
        """Move a domain with its queued mail to another region. None if the account has no such domain. Raises residence.RegionRefused.

        Repeating it moves mail that was left behind, and records nothing.
        """

        async def move(tx: Transaction) -> Domain | None:
            await check_region(tx, account_id, region)
            found = [domain_of(row) for row in await tx.rows(domains_sql.OWN + " FOR UPDATE", (account_id, domain_id))]
            if not found or found[0].region == region:
                return found[0] if found else None
            moved = domain_of((await tx.rows(domains_sql.MOVE, (region, self.now(), domain_id)))[0])
            await self.record_change(tx, "updated", moved, f"Moved from the region {found[0].region} to {region}.")
            await write(tx, lines, self.now().timestamp())
            return moved

        domain = await self._pool.transact(move)
        self.changed()
        if domain is not None:
            known = self.now() + timedelta(seconds=MAX_AGE)  # by then, every process knows the domain's new region
            while await Queue(self._pool).move_domain(domain_id, region, known, MOVED) == MOVED:
                pass
            if self._notifications is not None:
                self._notifications.notify("queue")
        return domain

    async def trust(self, account_id: UUID, name: str, trusted: bool = True, lines: Sequence[Line] = ()) -> bool:
        """Trust a domain without DNS, or stop trusting it; whether the account has it.

        Raises errors.Conflict if another account has the name verified or trusted.
        """

        async def trust(tx: Transaction) -> bool:
            rows = await tx.rows(domains_sql.TRUST, (trusted, self.now(), account_id, name))
            for row in rows:
                await self.record_change(
                    tx, "updated", domain_of(row), "Trusted by the operator." if trusted else "No longer trusted by the operator."
                )
            await write(tx, lines if rows else (), self.now().timestamp())
            return bool(rows)

        found = await self._pool.transact(trust)
        self.changed()
        return found

    async def sign_with(self, domain_id: UUID, algorithms: Sequence[Algorithm], lines: Sequence[Line] = ()) -> Domain | None:
        """Choose which keys sign. None if the domain no longer exists."""

        async def choose(tx: Transaction) -> Domain | None:
            rows = await tx.rows(domains_sql.SIGNS, (list(algorithms), self.now(), domain_id))
            for row in rows:
                await self.record_change(tx, "updated", domain_of(row), f"Email is now signed with {' and '.join(algorithms)}.")
            await write(tx, lines if rows else (), self.now().timestamp())
            return domain_of(rows[0]) if rows else None

        domain = await self._pool.transact(choose)
        self.changed()
        return domain

    # For other modules that change domains, within their transactions

    async def add_keys(self, tx: Transaction, domain_id: UUID, keys: Sequence[NewKey], state: str) -> None:
        now = self.now()
        for key in keys:
            key_id = uuid7(now.timestamp())
            encrypted = self._encryption.encrypt(key.der, key_id)
            await tx.run(domains_sql.ADD_KEY, (key_id, domain_id, key.selector, key.algorithm, key.public, encrypted, state, now))

    async def record_change(self, tx: Transaction, change: Change, domain: Domain, *sentences: str) -> None:
        """Write an event with the domain, and lines of its history."""
        now = self.now()
        keys = [key_of(row) for row in await tx.rows(domains_sql.PUBLISHED, (domain.id,))]
        data = dict(self._payload(domain, keys))
        await events.write(tx, [NewEvent(domain.account_id, None, domain.id, None, f"domain.{change}", now, data)])
        for sentence in sentences:
            await tx.run(domains_sql.ADD_HISTORY, (uuid7(now.timestamp()), domain.id, now, sentence))

    async def fail_queued(self, domain_id: UUID, name: str, reason: str) -> None:
        """End queued mail of a domain that was deleted or lost.

        Mail that is being sent now, or that remains after a crash, ends with the same reason before its next attempt.
        """
        text = reason.format(name=name)
        await Queue(self._pool).fail_domain(domain_id, text, self.now(), BATCH)
        if self._notifications is not None:
            self._notifications.notify("events")

    def changed(self) -> None:
        for cache in (self._named, self._by_id, self._keys):
            cache.changed()
        if self._notifications is not None:
            self._notifications.notify("events")

    def now(self) -> datetime:
        return utc(self._clock)

    async def _find(self, account_id: UUID, name: str) -> Domain | None:
        found = await self._one(domains_sql.FIND, (account_id, name))
        if found is None and await self._pool.rows(domains_sql.MOVED, (account_id,)):
            raise Contention("40001", "The account is in another cell.")
        return found

    async def _one(self, sql: str, params: Sequence[object]) -> Domain | None:
        rows: Sequence[Row] = await self._pool.rows(sql, params)
        return self.of(rows[0]) if rows else None

    def of(self, row: Row) -> Domain:
        """A domain from a row."""
        domain = domain_of(row)
        if domain.name == self._reserved:
            domain = attrs.evolve(domain, reserved=True)
        return domain if self._trusting else attrs.evolve(domain, trusted=False)

    async def _signing_keys(self, domain_id: UUID) -> tuple[StoredKey, ...]:
        rows = await self._pool.rows(domains_sql.SIGNING, (domain_id,))
        return tuple(
            StoredKey(selector, algorithm, self._encryption.decrypt(encrypted, key_id)) for key_id, selector, algorithm, encrypted in rows
        )


def _check_limits(used: Row, limits: DomainLimits, now: datetime, counted: int) -> None:
    """Raises LimitReached. `used`: a row of domains_sql.USED, which already includes `counted` adds of this request."""
    total, unverified, adds, since = used
    if total >= limits.per_account:
        raise LimitReached(f"An account can have at most {limits.per_account} domains. Delete one that you no longer need.")
    if unverified >= limits.unverified:
        raise LimitReached(f"An account can have at most {limits.unverified} unverified domains. Verify or delete one.")
    if adds - counted >= limits.adds_per_hour:
        seconds = max(1, ceil((since + HOUR - now).total_seconds()))
        raise LimitReached(f"An account can add at most {limits.adds_per_hour} domains per hour. Try again in {seconds} seconds.", seconds)


def _display(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
