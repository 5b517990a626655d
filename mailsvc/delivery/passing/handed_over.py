"""Emails that other processes of this machine hand over: stored with a lease of this process, they go into lanes without a claim.

They are known before their commit: then places in lanes are reserved, and signing begins. What has no place is given back to the queue
after the commit, and so is what this process is not told about in time. A commit later than that is found by its lease (delivery/chores).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import attrs

from mailsvc.delivery import pace
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.handoff import LocalHandoff, Reservation
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.passing.frames import Committed, LeasedRecipients, Passed
from mailsvc.delivery.passing.replies import Refused
from mailsvc.delivery.process_queue import ProcessQueue
from mailsvc.delivery.tasks import Tasks
from mailsvc.delivery.transaction import Key, PoolOf, Transaction, domain_of, from_email
from mailsvc.store.mail.envelope import StoredEnvelope
from mailsvc.store.mail.spooled import Spooled
from mailsvc.store.mail.values import NewRecipient, in_memory

# Seconds from the hand-off in which this process must hear of the email, and of its commit. Leases that it does not know about are given
# back after 38 s (delivery/chores): an email that it hears of later may be with somebody else.
LATE = 20.0
_COMMITTING = 1.0  # seconds that the commit of a process that has ended may take


@attrs.frozen
class HandedEmail:
    """What delivery needs of an email (transaction.NewMail). `message` is None if it has to be loaded."""

    email_id: UUID
    account_id: UUID
    domain_id: UUID
    region: str
    bulk: bool
    expires_at: datetime
    recipients: tuple[NewRecipient, ...]
    envelope: StoredEnvelope
    message: bytes | Spooled | None = attrs.field(repr=False)

    @property
    def destinations(self) -> dict[str, str]:
        """Of the leased recipients, each with the domain of one of them."""
        return {each.destination: domain_of(each.address) for each in self.recipients if each.leased}

    def without(self, suppressed: Sequence[int]) -> HandedEmail:
        kept = (attrs.evolve(each, leased=False) if number in suppressed else each for number, each in enumerate(self.recipients))
        return attrs.evolve(self, recipients=tuple(kept)) if suppressed else self


@attrs.define(eq=False)
class _Waiting:
    """An email whose commit is awaited, and its places by destination. `owner`: the connection that it came over.

    `complete`: all its recipients have a place.
    """

    email: HandedEmail
    lease: int
    at: float
    owner: object
    places: dict[str, Reservation]
    complete: bool


class HandedOver:
    """`most`: recipients of one transaction. `pool_of`: the pool of an email's sources. `wake` causes a look at the queue.

    `counts`: emails that were `sent` without a claim, those `given_back` at least in part, and those `left` to the process that has their
    lease now.
    """

    def __init__(
        self,
        queue: ProcessQueue,
        handoff: LocalHandoff,
        leases: LeaseBook,
        holds: Holds,
        tasks: Tasks,
        most: int,
        pool_of: PoolOf,
        wake: Callable[[], None],
    ) -> None:
        self._queue, self._handoff, self._leases, self._holds, self._tasks = queue, handoff, leases, holds, tasks
        self._most, self._pool_of, self._wake = most, pool_of, wake
        self._waiting: dict[UUID, _Waiting] = {}
        self.counts: Counter[str] = Counter()

    def passed(self, emails: Iterable[tuple[Passed, bytes | Spooled | None]], owner: object) -> set[Refused]:
        """Emails that are about to be committed, with their messages. Returns for what there is no room now."""
        refused: set[Refused] = set()
        taken: list[HandedEmail] = []
        for frame, message in emails:
            leased = frame.leased
            waiting = None if leased is None or self._late(leased.at) else self._expect(frame, leased, message, owner)
            if waiting is not None and waiting.places:
                taken.append(waiting.email)
            if waiting is not None and waiting.complete:
                continue
            if message is not None:
                self._leases.keep_passed(frame.email_id, message, frame.envelope)
            if waiting is not None and not self._holds.account_paused(waiting.email.account_id):
                refused |= {Refused(each, waiting.email.bulk) for each in waiting.email.destinations.keys() - waiting.places.keys()}
        self._handoff.writing(taken)
        return refused

    def _expect(self, frame: Passed, leased: LeasedRecipients, message: bytes | Spooled | None, owner: object) -> _Waiting:
        email = HandedEmail(
            frame.email_id, leased.account_id, leased.domain_id, leased.region, leased.bulk, leased.expires_at, leased.recipients,
            frame.envelope, message,
        )  # fmt: skip
        destinations = email.destinations
        places = self._reserve(email, destinations) if self._queue.process.holds(leased.lease) else {}
        if not places:
            email = attrs.evolve(email, message=None)
        complete = len(places) == len(destinations) and all(each.leased for each in email.recipients)
        waiting = self._waiting[email.email_id] = _Waiting(email, leased.lease, leased.at, owner, places, complete)
        return waiting

    def _reserve(self, email: HandedEmail, destinations: Mapping[str, str]) -> dict[str, Reservation]:
        places: dict[str, Reservation] = {}
        size = 0 if email.message is None else in_memory(email.message)
        for destination, domain in destinations.items():
            place = self._handoff.reserve(domain, size, email.bulk, self._pool_of(email), email.region, email.account_id)
            if place.leased and place.destination == destination:
                places[destination] = place
            else:
                self._handoff.release(email.email_id, {domain: place})
        return places

    def committed(self, frames: Iterable[Committed]) -> None:
        """They are in the queue."""
        claim, unsent = False, []
        for frame in frames:
            waiting = self._waiting.pop(frame.email_id, None)
            claim = claim or waiting is None or not waiting.complete
            if waiting is not None:
                unsent += self._deliver(waiting, frame.suppressed)
        self._give_back(unsent)
        if claim:
            self._wake()

    def _deliver(self, waiting: _Waiting, suppressed: Sequence[int]) -> list[Transaction]:
        """Put what has a place into its lane. Returns the rest."""
        if not self._queue.process.holds(waiting.lease):
            self._release(waiting)
            self.counts["left"] += 1
            return []
        email = waiting.email.without(suppressed)
        self._handoff.put(email, waiting.places)
        rest: list[Transaction] = []
        if not waiting.complete:
            rest = [each for each in self._transactions(email, waiting.lease) if each.destination not in waiting.places]
        self.counts["given_back" if rest else "sent"] += 1
        if not self._holds.account_paused(email.account_id):
            return rest
        for transaction in rest:
            self._leases.add(transaction)
            self._leases.return_paused(transaction)
        return []

    def dropped(self, email_id: UUID) -> None:
        """It is not in the queue, or its leases will be found without it (delivery/chores)."""
        self._leases.forget_passed(email_id)
        waiting = self._waiting.pop(email_id, None)
        if waiting is not None:
            self._release(waiting)

    def lost(self, owner: object) -> None:
        """The other process has ended, or is about to: what it committed without saying so is given back."""
        self._withdraw([each for each in self._waiting.values() if each.owner is owner], _COMMITTING)

    def forget(self) -> None:
        """Give back what this process was not told about in time, if it is there: the other process may stand still."""
        self._withdraw([each for each in self._waiting.values() if self._late(each.at)])

    @property
    def keys(self) -> set[Key]:
        """The rows of all emails whose commit is awaited."""
        return {(email_id, number) for email_id, each in self._waiting.items() for number in range(len(each.email.recipients))}

    def _late(self, at: float) -> bool:
        return bool(self._queue.clock.seconds() - at > LATE)

    def _withdraw(self, emails: Iterable[_Waiting], pause: float = 0.0) -> None:
        unsent: list[Transaction] = []
        for waiting in emails:
            del self._waiting[waiting.email.email_id]
            self._release(waiting)
            unsent += self._transactions(waiting.email, waiting.lease)
        self._give_back(unsent, pause)

    def _transactions(self, email: HandedEmail, lease: int) -> list[Transaction]:
        return [
            transaction
            for destination in email.destinations
            for transaction in from_email(email, destination, lease, self._most, email.message)
        ]

    def _release(self, waiting: _Waiting) -> None:
        self._handoff.release(waiting.email.email_id, waiting.places)

    def _give_back(self, transactions: Sequence[Transaction], pause: float = 0.0) -> None:
        for transaction in transactions:
            self._leases.add(transaction)  # until it is done, so that nobody else looks for these leases
        if transactions:
            self._tasks.spawn(self._given_back(transactions, pause))

    async def _given_back(self, transactions: Sequence[Transaction], pause: float) -> None:
        if pause:
            await pace.sleep(self._queue.clock, pause)
        await self._leases.give_back(transactions)
        self._wake()
