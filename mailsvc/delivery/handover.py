"""From acceptance to delivery within one process: what intake.Handover asks for, over dispatch, or without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from mailsvc.delivery.dispatch import Dispatch, Seat
from mailsvc.store.values import NewEmail


@attrs.frozen
class Offer:
    """Where mail for a domain is filed, and the seat that was reserved for it, if there was one."""

    destination: str
    seat: Seat | None = None

    @property
    def leased(self) -> bool:
        return self.seat is not None


@attrs.frozen
class Handing:
    """To the dispatch of this process."""

    dispatch: Dispatch

    @property
    def lease(self) -> int:
        return self.dispatch.lease

    def offer(self, domain: str, size: int, bulk: bool) -> Offer:
        seat = self.dispatch.offer(domain, size, bulk)
        return Offer(self.dispatch.destination(domain) if seat is None else seat.destination, seat)

    def take(self, email: NewEmail, offers: Mapping[str, object]) -> None:
        self.dispatch.take(email, _seats(offers))

    def free(self, offers: Mapping[str, object]) -> None:
        self.dispatch.free(_seats(offers))


@attrs.frozen
class Leaving:
    """To the queue: this process does not deliver."""

    lease: int

    def offer(self, domain: str, size: int, bulk: bool) -> Offer:
        return Offer(domain.lower())

    def take(self, email: NewEmail, offers: Mapping[str, object]) -> None:
        """Whoever delivers finds it."""

    def free(self, offers: Mapping[str, object]) -> None:
        """Nothing was reserved."""


def _seats(offers: Mapping[str, object]) -> Iterator[Seat]:
    """A scheduled email has places in the queue only, which are no offers of ours."""
    return (offer.seat for offer in offers.values() if isinstance(offer, Offer) and offer.seat is not None)
