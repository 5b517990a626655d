"""Claiming from the queue: which destinations have due mail, leasing recipients, and giving leases back.

A claim is made per destination and reads only rows that it leases, so the backlog of an unreachable destination costs nothing. The
processes that hold leases: store/queue/processes; results of attempts: store/queue/settle; the statements: store/queue/claims_sql.

Claims are a hot path: `Leased` is read by position, from the columns at the end of claim.sql, which are in the order of its fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import attrs

from mailsvc.store.broadcasts.personal import PersonalEmail, read_personal
from mailsvc.store.encryption.body_key_files import BodyKeyError
from mailsvc.store.encryption.body_keys import BodyKeys
from mailsvc.store.events import events
from mailsvc.store.events.event_data import Bounce, Failure
from mailsvc.store.events.events import NewEvent
from mailsvc.store.mail.compression import original
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.postgres.connection import Row
from mailsvc.store.postgres.errors import Damaged, StoreError
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue import claims_sql, holds
from mailsvc.store.queue.holds import FOREVER, Hold, HoldState, Slowdown
from mailsvc.store.queue.operator import PAUSES

__all__ = ["FOREVER", "Claimed", "Count", "Hold", "HoldState", "Leased", "Queue", "Ready", "Slowdown"]

SCAN = 5000  # destinations that one scan of the queue passes


@attrs.frozen
class Ready:
    """A destination to claim from, and when its first mail is due. `bulk`: it has no transactional mail."""

    destination: str
    bulk: bool
    next_at: datetime


@attrs.frozen
class Leased:
    """A recipient that the holder of the lease may send to. `status` is what it was before: queued, delayed or uncertain.

    `host` and `source` are the server and the own address of its last attempt. `faults`: attempts that failed for local reasons.
    """

    account_id: UUID
    email_id: UUID
    recipient: int
    domain_id: UUID
    region: str
    address: str
    destination: str
    attempts: int
    status: str
    expires_at: datetime
    bulk: bool
    host: str | None = None
    source: str | None = None
    faults: int = 0


@attrs.frozen
class Claimed:
    """The result of a claim: recipients, and messages with their stored envelopes by email ID.

    `personal`: what emails of broadcasts are composed from.
    """

    rows: list[Leased]
    messages: Mapping[UUID, tuple[bytes, StoredEnvelope]] = attrs.field(factory=dict, repr=False)
    personal: Mapping[UUID, PersonalEmail] = attrs.field(factory=dict, repr=False)


@attrs.frozen
class Count:
    """How many recipients of a destination are waiting, being sent and scheduled; and when the first waiting one is due."""

    destination: str
    waiting: int
    leased: int
    scheduled: int
    next_at: datetime | None


class Queue:
    """One per process: it remembers how far it has scanned."""

    def __init__(self, pool: Pool, scan: int = SCAN, bodies: BodyKeys | None = None) -> None:
        self._pool, self._bodies = pool, bodies
        self._scan = scan
        self._stopped: dict[str, str] = {}  # by region: where the last scan stopped before the end

    async def ready(self, region: str, now: datetime, skip: Collection[str] = (), limit: int = 1000) -> list[Ready]:
        """Destinations with mail to claim, soonest first, except those in `skip` and those on hold.

        If more than `scan` destinations have mail, each call continues where the previous one stopped.
        """
        start = self._stopped.pop(region, "")
        *found, (last, _, _) = await self._pool.rows(claims_sql.LOOK, (region, now, list(skip), limit, self._scan, start))
        if last is not None:
            self._stopped[region] = last
        return [Ready(*row) for row in found]

    async def claim(self, region: str, wanted: Mapping[str, int], now: datetime, lease: int, message_bytes: int = 0) -> Claimed:
        """Lease due recipients, transactional mail first: up to `wanted` per destination, and other due recipients of the same emails.

        Messages of emails without an attempt are returned too, if all of them have at most `message_bytes`. What is composed instead of
        being stored is read at once for all: as each is sent, one after the other, it would take a statement each.
        """
        rows = await self._pool.rows(claims_sql.TAKE, (region, list(wanted), list(wanted.values()), now, lease, message_bytes))
        rows.sort(key=lambda row: (row[10], row[14], row[1], row[2]))  # bulk, next_at, email_id, recipient
        messages = {row[1]: (row[16], StoredEnvelope.read(row[15])) for row in rows if row[16] is not None and not row[18] and not row[19]}
        messages |= self._decoded([row for row in rows if row[16] is not None and (row[18] or row[19])])
        personal = await self._personal([(row[0], row[1]) for row in rows if row[17] is not None])
        return Claimed([Leased(*row[:14]) for row in rows], messages, personal)

    def _decoded(self, rows: Sequence[Row]) -> Mapping[UUID, tuple[bytes, StoredEnvelope]]:
        """Compressed messages, and encrypted ones whose key is in memory. Others are read when they are sent, or deferred with a reason."""
        found: dict[UUID, tuple[bytes, StoredEnvelope]] = {}
        for row in rows:
            with suppress(BodyKeyError, Damaged):
                message = self._decrypted(row) if row[18] else original(row[16], row[19])
                if message is not None:
                    found[row[1]] = (message, StoredEnvelope.read(row[15]))
        return found

    def _decrypted(self, row: Row) -> bytes | None:
        cipher = None if self._bodies is None else self._bodies.known(row[0])
        return None if cipher is None else cipher.decrypt(row[1], 0, row[16])

    async def _personal(self, keys: Sequence[tuple[UUID, UUID]]) -> Mapping[UUID, PersonalEmail]:
        """Without it, each is read when it is sent."""
        try:
            return {email.email_id: email for email in await read_personal(self._pool, keys)} if keys else {}
        except StoreError:
            return {}

    async def release(
        self,
        keys: Sequence[tuple[UUID, int]],
        lease: int,
        *,
        destination: str | None = None,
        next_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Give leases back unsent, and replace the values that are given. Keys not held by `lease` are ignored."""
        if keys:
            ordered = sorted(keys)
            held = [email_id for email_id, _ in ordered], [recipient for _, recipient in ordered]
            await self._pool.run(claims_sql.BY_INDEX + claims_sql.RELEASE, (destination, next_at, reason, *held, lease))

    async def release_paused(self, keys: Sequence[tuple[UUID, int]], lease: int, account_id: UUID, now: datetime) -> None:
        """Give leases back unsent; if the account is paused, they are due when the pause ends."""
        ordered = sorted(keys)
        held = [email_id for email_id, _ in ordered], [recipient for _, recipient in ordered]
        await self._pool.run(claims_sql.BY_INDEX + claims_sql.RELEASE_PAUSED, (*held, account_id, now, lease))

    async def leased(self, lease: int) -> dict[tuple[UUID, int], str]:
        """All recipients leased by `lease`, so that its holder can find leases it has lost track of.

        With the position of each row, which changes when it is freed and leased again.
        """
        rows = await self._pool.rows(claims_sql.LEASED, (lease,))
        return {(email_id, recipient): place for email_id, recipient, place in rows}

    async def release_scheduled(self, now: datetime, limit: int = 500) -> int:
        """Queue up to `limit` due scheduled emails, with an event `email.sent` each. Returns their number.

        Recipients that have been suppressed in the meantime get `email.suppressed` instead, and `email.failed` if the domain can no longer
        send.
        """

        async def release(tx: Transaction) -> int:
            rows = await tx.rows(claims_sql.BY_INDEX + claims_sql.DUE_SCHEDULES, (now, limit))
            await events.write(tx, [_released(now, *row) for row in rows])
            return len({email_id for _, email_id, *_ in rows})

        return await self._pool.transact(release)

    async def expire(self, now: datetime, limit: int = 500) -> int:
        """Fail up to `limit` expired recipients that are not leased. Returns their number. Those of paused broadcasts are passed over."""

        async def expire(tx: Transaction) -> tuple[int, int]:
            rows = await tx.rows(claims_sql.BY_INDEX + claims_sql.TAKE_EXPIRED, (now, limit))
            gone = [row[1:] for row in rows if row[1] is not None]
            await events.write(tx, [_expired(now, *row) for row in gone])
            return rows[0][0], len(gone)

        while True:
            looked_at, gone = await self._pool.transact(expire)
            if gone or looked_at < limit:
                return gone

    async def fail_domain(self, domain_id: UUID, reason: str, now: datetime, limit: int) -> None:
        """Fail all waiting recipients of mail from a domain, for this reason, up to `limit` in a transaction."""

        async def fail(tx: Transaction, after: tuple[UUID, int]) -> list[Row]:
            rows = await tx.rows(claims_sql.IN_ORDER + claims_sql.TAKE_OF_DOMAIN, (domain_id, *after, limit))
            await events.write(tx, [stopped(now, reason, *row) for row in rows])
            return rows

        rows = await self._pool.transact(partial(fail, after=(UUID(int=0), -1)))
        while len(rows) == limit:
            rows = await self._pool.transact(partial(fail, after=max((row[1], row[2]) for row in rows)))

    async def move_domain(self, domain_id: UUID, region: str, next_at: datetime, limit: int) -> int:
        """Move up to `limit` waiting recipients of mail from a domain to another region, due at `next_at` or later. Returns their number.

        Leased ones follow when their lease ends.
        """
        return await self._pool.run(claims_sql.MOVE_DOMAIN, (domain_id, region, limit, region, next_at))

    async def hold(
        self, region: str, destination: str, state: HoldState, reason: str, until: datetime, failures: int = 0, *, ordered: bool = False
    ) -> None:
        """Hold a destination, or all of a provider's, until then (FOREVER: until it is lifted).

        A longer hold stays as it is, unless this one is `ordered` by the operator.
        """
        await holds.hold(self._pool, region, destination, Hold(state, reason, until, failures), ordered)

    async def lift(self, region: str, destination: str, *, paused: bool = False) -> None:
        """End a backoff; with `paused` also the operator's pauses and slowdowns by rules."""
        await holds.lift(self._pool, region, destination, paused)
        if paused:
            await holds.faster(self._pool, region, destination)

    async def end_wait(self, region: str, destination: str) -> None:
        """A source address may send there again."""
        await holds.end_wait(self._pool, region, destination)

    async def slow(self, region: str, name: str, slowdown: Slowdown, now: datetime) -> None:
        """Slow down sending to a destination, or to all of a provider's."""
        await holds.slow(self._pool, region, name, slowdown, now)

    async def slowed(self, region: str, now: datetime) -> Mapping[str, Slowdown]:
        """Current slowdowns by destination or provider."""
        return await holds.slowed(self._pool, region, now)

    async def holds(self, region: str) -> Mapping[str, Hold]:
        """Current and past holds by destination."""
        return await holds.read(self._pool, region)

    async def forget_holds(self, region: str, before: datetime) -> int:
        """Delete holds that ended before then. Returns their number."""
        return await holds.forget(self._pool, region, before)

    async def paused_accounts(self, now: datetime) -> Mapping[UUID, datetime]:
        """Paused accounts, and until when they are paused."""
        return {account: until for account, _, until in await self._pool.rows(PAUSES, (now,))}

    async def counts(self, region: str) -> list[Count]:
        """All destinations with their mail, the longest queue first. Reads the whole queue: not for use in loops."""
        return [Count(*row) for row in await self._pool.rows(claims_sql.COUNTS, (region,))]

    async def unexplained(self, now: datetime) -> int:
        """How many recipients wait without a reason or a time of the next attempt. There should be none."""
        [(count,)] = await self._pool.rows(claims_sql.UNEXPLAINED, (now,))
        return int(count)


def _released(
    now: datetime, account_id: UUID, email_id: UUID, domain_id: UUID, recipient: int | None, notify: int | None, kind: str, data: Any,
    weight: int,
) -> NewEvent:  # fmt: skip
    return NewEvent(account_id, email_id, domain_id, recipient, kind, now, data, notify, weight)


def _expired(
    now: datetime, account_id: UUID, email_id: UUID, recipient: int, domain_id: UUID, status: str, reason: str | None, notify: int | None
) -> NewEvent:
    if status in ("queued", "scheduled"):  # never attempted
        failure = Failure(f"It could not be sent before it expired. {reason or ''}".strip())
        return NewEvent(account_id, email_id, domain_id, recipient, "email.failed", now, failure.stored(), notify)
    why = f"It could not be delivered before it expired. {reason or ''}".strip()
    bounce = Bounce("Transient", "General", why, why)
    return NewEvent(account_id, email_id, domain_id, recipient, "email.bounced", now, bounce.stored(), notify)


def stopped(now: datetime, reason: str, account_id: UUID, email_id: UUID, recipient: int, domain_id: UUID, status: str) -> NewEvent:
    """The event of a recipient that was removed from the queue."""
    if status in ("queued", "scheduled"):  # never attempted
        return NewEvent(account_id, email_id, domain_id, recipient, "email.failed", now, Failure(reason).stored())
    bounce = Bounce("Transient", "General", reason, reason)
    return NewEvent(account_id, email_id, domain_id, recipient, "email.bounced", now, bounce.stored())
