"""Local hand-off: mail goes from acceptance to a lane of the same process without being read back from the queue.

`intake.Handoff` is the interface; `writing` is for store/mail/accept. A process that does not deliver uses `QueueOnly`, or passing/handoff
if others on its machine do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.delivery.admission.decision import Admission, EmailFacts
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.claiming import Backlog
from mailsvc.delivery.connection.route import Route, Routes
from mailsvc.delivery.lane import Lane
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.message_loader import MessageLoader
from mailsvc.delivery.process_queue import ProcessQueue
from mailsvc.delivery.shaping import pooled
from mailsvc.delivery.transaction import NewMail, from_email
from mailsvc.store.mail.values import NewEmail

_AHEAD = 250  # emails that are signed before their commit, or less if recipients wait in memory
_LOOKUPS = 100  # domains that a process without delivery looks up at once


@attrs.define(eq=False)
class Reservation:
    """Where mail for a domain is queued, and the lease that its recipients are stored with, or 0.

    `lane`: where a place is kept for it in this process, `charged`: bytes of the memory budget that are kept for the message.
    """

    destination: str
    lease: int = 0
    lane: Lane | None = None
    charged: int = 0

    @property
    def leased(self) -> bool:
        return self.lease != 0


class LocalHandoff:
    """To the lanes of this process."""

    def __init__(
        self,
        limits: DeliveryLimits,
        admission: Admission,
        queue: ProcessQueue,
        routes: Routes,
        holds: Holds,
        backlog: Backlog,
        lanes: Lanes,
        leases: LeaseBook,
        loader: MessageLoader,
    ) -> None:
        self._loader = loader
        self._limits, self._admission, self._queue, self._routes = limits, admission, queue, routes
        self._holds, self._backlog, self._lanes, self._leases = holds, backlog, lanes, leases

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> Reservation:
        """A place for one email if it can be sent at once and overtakes nothing; otherwise only where to queue it.

        Mail of another region is left to that region's processes, and that of a paused account to the queue.
        """
        route = self._routes.cached(domain)
        if not isinstance(route, Route):
            return Reservation(domain.lower())
        if pool:
            route = route.of_pool(pool)
        destination = route.destination
        if region not in (None, self._queue.region) or (account_id is not None and self._holds.account_paused(account_id)):
            return Reservation(destination)
        lane, leases = self._lanes.get(destination), self._leases
        facts = EmailFacts(
            self._lanes.accepting, self._queue.process.fresh, self._holds.held(destination),
            self._backlog.waits(destination, bulk), bulk, size,
            1 if lane is None else lane.room, lane.window if bulk and lane is not None else 1, leases.memory.left, len(leases.held),
        )  # fmt: skip
        decision = self._admission.reserve(facts)
        if not decision.admitted:
            if decision.full:
                self._backlog.add(destination, bulk)
            return Reservation(destination)
        lane = self._lanes.of(route)
        lane.reserve()
        self._leases.memory.charge(size)
        return Reservation(destination, self._queue.lease, lane, size)

    def prepare(self, email: NewEmail) -> None:
        """Nothing to do: its places are reserved."""

    def writing(self, emails: Sequence[NewMail]) -> None:
        """They are about to be committed. Sign meanwhile those that are then sent at once, unless mail is waiting anyway."""
        room = max(0, _AHEAD - len(self._leases.held))
        leased = [each for each in emails if any(new.leased for new in each.recipients)]
        self._loader.sign_ahead(leased[:room])

    def deliver(self, email: NewEmail, reservations: Mapping[str, object]) -> None:
        """After the commit: put leased recipients into their lanes."""
        if (
            email.scheduled_at is None
            and email.topic_id is None
            and email.region == self._queue.region
            and not all(each.leased for each in email.recipients)
        ):
            self._leases.keep(email)
        self.put(email, reservations)

    def put(self, email: NewMail, reservations: Mapping[str, object]) -> None:
        """Its leased recipients into their lanes."""
        lanes: dict[str, Reservation] = {}
        for reservation in _leased(reservations):
            if reservation.destination in lanes:  # two domains have reserved in one lane: one place serves both
                self._release(reservation)
            else:
                lanes[reservation.destination] = reservation
        for reservation in lanes.values():
            self._put(email, reservation)
            self._release(reservation)

    def _put(self, email: NewMail, reservation: Reservation) -> None:
        lane, leases = reservation.lane, self._leases
        assert lane is not None
        most = self._limits.recipients_per_message
        for transaction in from_email(email, reservation.destination, reservation.lease, most, email.message):
            leases.add(transaction)
            if reservation.charged:
                transaction.charged, reservation.charged = reservation.charged, 0
            if self._holds.account_paused(transaction.account_id):
                leases.return_paused(transaction)
            elif lane.closing:
                leases.return_unsent(transaction)
            else:
                lane.put(transaction)

    def release(self, email_id: UUID, reservations: Mapping[str, object]) -> None:
        for reservation in _leased(reservations):
            self._release(reservation)

    def _release(self, reservation: Reservation) -> None:
        if reservation.charged:
            self._leases.memory.release(reservation.charged)
            reservation.charged = 0
        if reservation.lane is not None:
            reservation.lane.unreserve()


@attrs.define(eq=False)
class QueueOnly:
    """Everything is queued. The destination comes from a route that is already known, so that whoever claims the mail need not move it.

    Unknown domains are looked up for the next mail; nothing waits for that.
    """

    log = Logger()

    routes: Routes
    _looking_up: set[str] = attrs.field(factory=set, init=False)

    def reserve(
        self, domain: str, size: int, bulk: bool, pool: str = "", region: str | None = None, account_id: UUID | None = None
    ) -> Reservation:
        return Reservation(self.known(domain, pool) or domain.lower())

    def known(self, domain: str, pool: str) -> str | None:
        """The destination of a domain, if it has been looked up."""
        answer = self.routes.cached(domain.lower())
        if answer is None:
            self._look_up(domain.lower())
        return pooled(answer.destination, pool) if isinstance(answer, Route) else None

    def prepare(self, email: NewEmail) -> None:
        """Nothing is reserved, so there is nothing to do here and in the methods below."""

    def writing(self, emails: Sequence[NewEmail]) -> None: ...

    def deliver(self, email: NewEmail, reservations: Mapping[str, object]) -> None: ...

    def release(self, email_id: UUID, reservations: Mapping[str, object]) -> None: ...

    def _look_up(self, domain: str) -> None:
        if domain in self._looking_up or len(self._looking_up) >= _LOOKUPS:
            return
        self._looking_up.add(domain)
        lookup = Deferred.fromCoroutine(self.routes.resolve(domain))
        lookup.addErrback(lambda failure: self.log.failure("looking up a route failed", failure=failure))
        lookup.addBoth(lambda _: self._looking_up.discard(domain))


def _leased(reservations: Mapping[str, object]) -> Iterator[Reservation]:
    """Reservations of a scheduled email are made by intake and reserve nothing."""
    return (each for each in reservations.values() if isinstance(each, Reservation) and each.lane is not None)
