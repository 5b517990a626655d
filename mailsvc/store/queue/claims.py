"""The queue: what waits, and who may send it now.

A claim goes by destination and visits no row that it does not lease, so the backlog of a dead destination costs nobody
anything. The life of a lease's holder is store/queue/processes; what becomes of a leased recipient is store/queue/settle; the
statements are in store/queue/claims_sql.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import attrs

from mailsvc.mail.envelope import StoredEnvelope
from mailsvc.store.events import events
from mailsvc.store.events.events import NewEvent
from mailsvc.store.postgres.pool import Pool, Transaction
from mailsvc.store.queue import claims_sql, holds
from mailsvc.store.queue.holds import FOREVER, Hold, HoldState, Slowdown
from mailsvc.store.queue.operator import PAUSES

__all__ = ["FOREVER", "Claimed", "Count", "Hold", "HoldState", "Leased", "Queue", "Ready", "Slowdown"]

WALK = 5000  # destinations that one look at the queue passes


@attrs.frozen
class Ready:
    """A destination that somebody could claim from, and when the first of its mail is due. `bulk`: it has nothing more urgent."""

    destination: str
    bulk: bool
    next_at: datetime


@attrs.frozen
class Leased:
    """A recipient that the holder of the lease may send to now. `status` is what it was before: queued, delayed or uncertain.

    `host` had it last, it was tried from our address `source`, and `faults` of its attempts failed on our side.
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
    """What a claim brought: recipients, and messages by the email's id, each with what was kept of its envelope."""

    rows: list[Leased]
    messages: Mapping[UUID, tuple[bytes, StoredEnvelope]] = attrs.field(factory=dict, repr=False)


@attrs.frozen
class Count:
    """How many recipients of a destination wait, are being sent, are scheduled; and when the first one that waits is due."""

    destination: str
    waiting: int
    leased: int
    scheduled: int
    next_at: datetime | None


class Queue:
    """One for a process: it remembers how far it has looked."""

    def __init__(self, pool: Pool, walk: int = WALK) -> None:
        self._pool = pool
        self._walk = walk
        self._stopped: dict[str, str] = {}  # by region: where the last look ended, when there was more

    async def ready(self, region: str, now: datetime, skip: Collection[str] = (), limit: int = 1000) -> list[Ready]:
        """Destinations with something to claim, soonest first, without those in `skip` or held back.

        With more than `walk` destinations waiting, each call goes on where the one before stopped.
        """
        start = self._stopped.pop(region, "")
        *found, (last, _, _) = await self._pool.rows(claims_sql.LOOK, (region, now, list(skip), limit, self._walk, start))
        if last is not None:
            self._stopped[region] = last
        return [Ready(*row) for row in found]

    async def claim(self, region: str, wanted: Mapping[str, int], now: datetime, lease: int, octets: int = 0) -> Claimed:
        """Lease due recipients, of each destination at most so many, transactional mail first; with them the due others of the same emails.

        Emails that nobody has tried yet bring their messages along, as long as all of them have at most so many `octets`.
        """
        rows = await self._pool.rows(claims_sql.TAKE, (region, list(wanted), list(wanted.values()), now, lease, octets))
        rows.sort(key=lambda row: (row[10], row[14], row[1], row[2]))  # bulk, next_at, email_id, recipient
        messages = {row[1]: (row[16], StoredEnvelope.read(row[15])) for row in rows if row[16] is not None}
        return Claimed([Leased(*row[:14]) for row in rows], messages)

    async def release(
        self,
        keys: Sequence[tuple[UUID, int]],
        lease: int,
        *,
        destination: str | None = None,
        next_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Give leases back unsent; what is given besides replaces what is stored. Keys that `lease` does not hold stay as they are."""
        if keys:
            ordered = sorted(keys)
            held = [email_id for email_id, _ in ordered], [recipient for _, recipient in ordered]
            await self._pool.run(claims_sql.BY_INDEX + claims_sql.RELEASE, (destination, next_at, reason, *held, lease))

    async def release_paused(self, keys: Sequence[tuple[UUID, int]], lease: int, account_id: UUID, now: datetime) -> None:
        """Give leases back unsent, until the account's pause is over, if it is paused."""
        ordered = sorted(keys)
        held = [email_id for email_id, _ in ordered], [recipient for _, recipient in ordered]
        await self._pool.run(claims_sql.BY_INDEX + claims_sql.RELEASE_PAUSED, (*held, account_id, now, lease))

    async def leased(self, lease: int) -> list[tuple[UUID, int]]:
        """Everything that `lease` holds, so that its holder can find what it has lost track of."""
        return [(email_id, recipient) for email_id, recipient in await self._pool.rows(claims_sql.LEASED, (lease,))]

    async def release_scheduled(self, now: datetime, limit: int = 500) -> int:
        """Queue at most `limit` scheduled emails that are due, and tell of each that it was sent; how many there were.

        Recipients that their account must not write to by now are suppressed instead.
        """

        async def release(tx: Transaction) -> int:
            rows = await tx.rows(claims_sql.BY_INDEX + claims_sql.DUE_SCHEDULES, (now, limit))
            await events.write(tx, [_released(now, *row) for row in rows])
            return len({email_id for _, email_id, *_ in rows})

        return await self._pool.transact(release)

    async def expire(self, now: datetime, limit: int = 500) -> int:
        """End at most `limit` recipients whose time is over and that nobody is sending; how many there were."""

        async def expire(tx: Transaction) -> int:
            rows = await tx.rows(claims_sql.BY_INDEX + claims_sql.TAKE_EXPIRED, (now, limit))
            await events.write(tx, [_expired(now, *row) for row in rows])
            return len(rows)

        return await self._pool.transact(expire)

    async def fail_domain(self, domain_id: UUID, reason: str, now: datetime, limit: int) -> int:
        """End at most `limit` recipients that wait to be sent from a domain, for this reason; how many there were."""

        async def fail(tx: Transaction) -> int:
            rows = await tx.rows(claims_sql.TAKE_OF_DOMAIN, (domain_id, limit))
            await events.write(tx, [_stopped(now, reason, *row) for row in rows])
            return len(rows)

        return await self._pool.transact(fail)

    async def hold(
        self, region: str, destination: str, state: HoldState, reason: str, until: datetime, failures: int = 0, *, ordered: bool = False
    ) -> None:
        """Send nothing to a destination, or to any of a provider's, until then (FOREVER: until somebody lifts it).

        What lasts longer already stays, unless this is `ordered` by the operator.
        """
        await holds.hold(self._pool, region, destination, Hold(state, reason, until, failures), ordered)

    async def lift(self, region: str, destination: str, *, paused: bool = False) -> None:
        """End a backoff; with `paused` also what the operator paused, and what a rule slowed down."""
        await holds.lift(self._pool, region, destination, paused)
        if paused:
            await holds.faster(self._pool, region, destination)

    async def slow(self, region: str, name: str, slowdown: Slowdown, now: datetime) -> None:
        """Send slowly to a destination, or to all of a provider's."""
        await holds.slow(self._pool, region, name, slowdown, now)

    async def slowed(self, region: str, now: datetime) -> Mapping[str, Slowdown]:
        """What is sent to slowly, by destination or provider."""
        return await holds.slowed(self._pool, region, now)

    async def holds(self, region: str) -> Mapping[str, Hold]:
        """What is held, and what was held and is over, by destination."""
        return await holds.read(self._pool, region)

    async def forget_holds(self, region: str, before: datetime) -> int:
        """Drop what ended before then; how many destinations."""
        return await holds.forget(self._pool, region, before)

    async def paused_accounts(self, now: datetime) -> Mapping[UUID, datetime]:
        """Accounts of which nothing is sent, and until when."""
        return {account: until for account, _, until in await self._pool.rows(PAUSES, (now,))}

    async def counts(self, region: str) -> list[Count]:
        """Every destination with what waits for it, the longest queue first. Reads the whole queue: for people, not for loops."""
        return [Count(*row) for row in await self._pool.rows(claims_sql.COUNTS, (region,))]

    async def unexplained(self, now: datetime) -> int:
        """How many recipients wait for no reason that we could tell, or until no time that we know. There should be none."""
        [(count,)] = await self._pool.rows(claims_sql.UNEXPLAINED, (now,))
        return int(count)


def _released(now: datetime, account_id: UUID, email_id: UUID, domain_id: UUID, suppressed: int | None, told: Any, weight: int) -> NewEvent:
    kind = "email.sent" if suppressed is None else "email.suppressed"
    return NewEvent(account_id, email_id, domain_id, suppressed, kind, now, told, weight=weight)


def _expired(
    now: datetime, account_id: UUID, email_id: UUID, recipient: int, domain_id: UUID, status: str, reason: str | None, notify: int | None
) -> NewEvent:
    if status in ("queued", "scheduled"):  # never attempted
        told: dict[str, object] = {"reason": "It could not be sent before it expired."}
        return NewEvent(account_id, email_id, domain_id, recipient, "email.failed", now, told, notify)
    told = {"type": "Transient", "sub_type": "General", "reply": f"It could not be delivered before it expired. {reason or ''}".strip()}
    return NewEvent(account_id, email_id, domain_id, recipient, "email.bounced", now, told, notify)


def _stopped(now: datetime, reason: str, account_id: UUID, email_id: UUID, recipient: int, domain_id: UUID, status: str) -> NewEvent:
    if status in ("queued", "scheduled"):  # never attempted
        return NewEvent(account_id, email_id, domain_id, recipient, "email.failed", now, {"reason": reason})
    told: dict[str, object] = {"type": "Transient", "sub_type": "General", "reply": reason}
    return NewEvent(account_id, email_id, domain_id, recipient, "email.bounced", now, told)
