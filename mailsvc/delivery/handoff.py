"""From acceptance to delivery within one process: what intake.Handoff asks for, over dispatch, or without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from mailsvc.delivery.connection.route import Route, Routes
from mailsvc.delivery.dispatch import Dispatch, Seat
from mailsvc.store.mail.values import NewEmail

_ASKED = 100  # domains that are looked up at once by a process that only takes mail in


@attrs.frozen
class Offer:
    """Where mail for a domain is filed, and the seat that was reserved for it, if there was one."""

    destination: str
    seat: Seat | None = None

    @property
    def leased(self) -> bool:
        return self.seat is not None


@attrs.frozen
class LocalHandoff:
    """To the dispatch of this process."""

    dispatch: Dispatch

    @property
    def lease(self) -> int:
        return self.dispatch.lease

    def reserve(self, domain: str, size: int, bulk: bool) -> Offer:
        seat = self.dispatch.offer(domain, size, bulk)
        return Offer(self.dispatch.destination(domain) if seat is None else seat.destination, seat)

    def deliver(self, email: NewEmail, reservations: Mapping[str, object]) -> None:
        self.dispatch.take(email, _seats(reservations))

    def release(self, reservations: Mapping[str, object]) -> None:
        self.dispatch.free(_seats(reservations))


@attrs.define(eq=False)
class QueueOnly:
    """To the queue: this process does not deliver.

    What it knows of a domain's route says under which destination mail waits, so that whoever claims it need not file it anew. What it
    does not know it looks up for the next mail; nobody waits for that.
    """

    log = Logger()

    lease: int
    routes: Routes
    _asked: set[str] = attrs.field(factory=set, init=False)

    def reserve(self, domain: str, size: int, bulk: bool) -> Offer:
        domain = domain.lower()
        answer = self.routes.cached(domain)
        if answer is None:
            self._ask(domain)
        return Offer(answer.destination if isinstance(answer, Route) else domain)

    def deliver(self, email: NewEmail, reservations: Mapping[str, object]) -> None:
        """Whoever delivers finds it."""

    def release(self, reservations: Mapping[str, object]) -> None:
        """Nothing was reserved."""

    def _ask(self, domain: str) -> None:
        if domain in self._asked or len(self._asked) >= _ASKED:
            return
        self._asked.add(domain)
        asking = Deferred.fromCoroutine(self.routes.resolve(domain))
        asking.addErrback(lambda failure: self.log.failure("looking up a route failed", failure=failure))
        asking.addBoth(lambda _: self._asked.discard(domain))


def _seats(reservations: Mapping[str, object]) -> Iterator[Seat]:
    """A scheduled email has places in the queue only, which are no reservations of ours."""
    return (offer.seat for offer in reservations.values() if isinstance(offer, Offer) and offer.seat is not None)
