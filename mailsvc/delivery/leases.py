"""The lease book: every recipient that this process has leased and holds in memory, and how leases go back to the queue.

What happens to a recipient that was attempted: attempt. Leases that nobody remembers: chores. Those of a process that died:
store/queue/processes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from twisted.logger import Logger

from mailsvc.delivery import pace
from mailsvc.delivery.admission.memory import MemoryBudget, RecentMessages
from mailsvc.delivery.tasks import Tasks
from mailsvc.delivery.transaction import Key, Transaction, domain_of
from mailsvc.store.broadcasts.personal import PersonalEmail
from mailsvc.store.mail.accept import NewEmail
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.mail.values import in_memory
from mailsvc.store.postgres.errors import DataRejected, StatementFailed, Unavailable
from mailsvc.store.queue.claims import Claimed, Queue

# Seconds after which a leased row does not come into memory any more: the response to the statement that leased it arrives within 35 s, or
# the connection is closed (store/postgres/connection).
LOST = 38.0
_WITH_CLAIM = 1 << 20  # bytes of messages that one claim may bring
_REJECTED = timedelta(minutes=1)  # before mail is claimed again whose destination the database rejected
_MOST = 0.75  # of the new emails of a claim: reading the others one by one then costs less than bringing all of them


class LeaseBook:
    """`memory` is charged for the messages of leased mail, `recent` keeps messages of mail that is in the queue.

    `wake` causes a look at the queue.
    """

    log = Logger()

    def __init__(
        self, clock: Any, queue: Queue, tasks: Tasks, wake: Callable[[], None], memory: MemoryBudget, recent: RecentMessages
    ) -> None:
        self._clock, self._queue, self._tasks, self._wake = clock, queue, tasks, wake
        self.memory, self._recent = memory, recent
        self._in_memory = False  # most messages of the last claim were in memory: the next one need not bring any
        self.held: dict[Key, Transaction] = {}  # every leased row that is in memory, with its latest claim
        self._personal: dict[UUID, PersonalEmail] = {}  # of claimed recipients that are not added yet

    def add(self, transaction: Transaction) -> None:
        for key in transaction.keys:
            other = self.held.get(key)
            if other is None or other.lease <= transaction.lease:  # numbers of processes only grow
                self.held[key] = transaction

    def has(self, transaction: Transaction) -> bool:
        """Whether it is not settled and no row of it was claimed again."""
        return all((held := self.held.get(key)) is not None and held.claim is transaction.claim for key in transaction.keys)

    def keys(self, lease: int) -> set[Key]:
        """The rows in memory under this lease."""
        return {key for key, transaction in self.held.items() if transaction.lease == lease}

    def add_claimed(self, transaction: Transaction) -> None:
        """The message is in memory if this process accepted it a moment ago, or if the claim brought it."""
        self.add(transaction)
        transaction.personal = self._personal.pop(transaction.email_id, None)
        kept = self._recent.pop(transaction.email_id)
        if kept is not None and self.memory.has_room(in_memory(kept[0])):
            transaction.body, transaction.envelope = kept
            transaction.charged = in_memory(kept[0])
            self.memory.charge(transaction.charged)

    def remove(self, transaction: Transaction) -> None:
        """Its outcome is settled, or its lease is gone."""
        for key in transaction.keys:
            other = self.held.get(key)
            if other is not None and other.claim is transaction.claim:  # otherwise it was claimed again meanwhile
                del self.held[key]
        self.memory.release(transaction.charged)
        transaction.charged, transaction.body = 0, None

    # Messages

    def keep(self, email: NewEmail) -> None:
        """Remember the message of an email that went to the queue, if it is in memory, in case this process claims it."""
        if isinstance(email.message, bytes):
            self._recent.keep(email.email_id, email.message, email.envelope)

    def keep_passed(self, email_id: UUID, message: bytes | Spooled, envelope: StoredEnvelope) -> None:
        """The same for one that another process is about to put there."""
        self._recent.keep(email_id, message, envelope)

    def forget_passed(self, email_id: UUID) -> None:
        """It may not be put there."""
        self._recent.pop(email_id)

    async def forget_files(self) -> int:
        """Those that nobody has claimed here between two calls."""
        self._recent.forget_files()
        return 0

    @property
    def claim_bytes(self) -> int:
        """How many bytes of messages the next claim may bring."""
        return 0 if self._in_memory else min(_WITH_CLAIM, self.memory.left)

    def keep_claimed(self, claimed: Claimed) -> None:
        """Remember the messages that a claim brought until its recipients are added."""
        self._personal.update(claimed.personal)
        new = {row.email_id for row in claimed.rows if not row.attempts} - claimed.personal.keys()
        if new:
            self._in_memory = sum(email_id in self._recent for email_id in new) >= _MOST * len(new)
        for email_id, (body, envelope) in claimed.messages.items():
            self._recent.keep(email_id, body, envelope)

    # Back to the queue

    async def give_back(
        self,
        transactions: Sequence[Transaction],
        destination: str | None = None,
        next_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Give up leases. The rows move to `destination` if one is given."""
        leases: dict[int, list[Transaction]] = {}
        for transaction in transactions:
            leases.setdefault(transaction.lease, []).append(transaction)
        for lease, found in leases.items():
            await self._release(found, lease, destination, next_at, reason)
            for transaction in found:
                if isinstance(transaction.body, bytes):
                    self._recent.keep(transaction.email_id, transaction.body, transaction.envelope)
                self.remove(transaction)
        if transactions and destination is not None:
            self._wake()

    async def _release(
        self, transactions: Sequence[Transaction], lease: int, destination: str | None, next_at: datetime | None, reason: str | None
    ) -> None:
        """If the database rejects the destination, the rows wait under their bare domains. Otherwise, they would be leased for ever."""
        keys = [key for transaction in transactions for key in transaction.keys]

        async def release() -> None:
            await self._queue.release(keys, lease, destination=destination, next_at=next_at, reason=reason)

        try:
            await self._released(release, pace.rejected)
        except (DataRejected, StatementFailed) as error:
            self.log.error("{count} recipients are queued by domain, not by destination: {error}", count=len(keys), error=str(error))
            soonest = pace.now(self._clock) + _REJECTED
            later = soonest if next_at is None else max(soonest, next_at)
            await self._release_by_domain(transactions, lease, later)

    async def _release_by_domain(self, transactions: Sequence[Transaction], lease: int, next_at: datetime) -> None:
        keys_by_domain: dict[str, list[Key]] = {}
        for transaction in transactions:
            for row in transaction.recipients:
                keys_by_domain.setdefault(domain_of(row.address), []).append((row.email_id, row.recipient))
        for domain, keys in keys_by_domain.items():

            async def release(domain: str = domain, keys: list[Key] = keys) -> None:
                await self._queue.release(keys, lease, destination=domain, next_at=next_at)

            await self._released(release)

    def return_unsent(self, transaction: Transaction, pause: float = 0.0, reason: str | None = None) -> None:
        """Give back one mail in the background; it is not claimed again for `pause` seconds."""
        next_at = pace.now(self._clock) + timedelta(seconds=pause) if pause else None
        self._tasks.spawn(self.give_back([transaction], next_at=next_at, reason=reason))

    def return_paused(self, transaction: Transaction) -> None:
        """Give back, in the background, a mail whose account is paused, until the pause ends."""
        self._tasks.spawn(self._give_back_paused(transaction))

    async def _give_back_paused(self, transaction: Transaction) -> None:
        async def release() -> None:
            await self._queue.release_paused(transaction.keys, transaction.lease, transaction.account_id, pace.now(self._clock))

        await self._released(release)
        self.remove(transaction)

    async def _released(self, release: Callable[[], Awaitable[None]], final: Callable[[Exception], bool] = lambda error: False) -> None:
        """Retry until the database has done it, but not if it may have: that could free a later claim. Chores find what is left.

        Errors that are `final` are raised.
        """
        try:
            await pace.keep_trying(self._clock, "giving leases back", release, lambda error: _unknown(error) or final(error))
        except Unavailable as error:
            self.log.info("it is not known whether leases were given back: {reason}", reason=str(error))


def _unknown(error: Exception) -> bool:
    return isinstance(error, Unavailable) and error.unknown
