"""Claimed rows on their way into a lane: routes are resolved here, away from everybody who must not wait for DNS.

A row that is filed under its bare domain is filed anew under its real destination, so that it shares that destination's lane,
its order and its holds. A domain that takes no mail ends its recipients here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from twisted.internet.defer import Deferred, gatherResults

from mailsvc.delivery import pace
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.attempt import Attempts
from mailsvc.delivery.connection.route import Answer, NoMail, Route, Routes, Unknown
from mailsvc.delivery.reading import refused
from mailsvc.delivery.transaction import Transaction, domain_of, from_rows
from mailsvc.store.queue.claims import Leased


class Placer(Protocol):
    """Where placed parcels go: dispatch."""

    def accept(self, route: Route, parcel: Transaction) -> bool:
        """Into the lane of that route, when it takes it."""

    def paused(self, parcel: Transaction) -> bool:
        """Whether its account is, and it was given back for that."""

    async def give_back(self, parcels: Sequence[Transaction], destination: str | None = None) -> None:
        """Leases back to the queue, filed under `destination` when one is given."""


class Placing:
    """Sorts what a claim brought."""

    def __init__(self, clock: Any, routes: Routes, holds: Holds, attempts: Attempts, placer: Placer, most: int) -> None:
        self._clock, self._routes, self._holds, self._attempts, self._placer, self._most = clock, routes, holds, attempts, placer, most

    def known(self, destination: str) -> Answer | None:
        """What is known of a destination that is still a bare domain; None too for the name of a set of hosts."""
        return None if " " in destination or "/" in destination else self._routes.cached(destination)

    async def place(self, destination: str, rows: Sequence[Leased], lease: int, own: Callable[[Transaction], None]) -> None:
        """All rows of a claim, each domain as soon as its route is known. `own` hears of each parcel before anything else."""
        domains: dict[str, list[Leased]] = {}
        for row in rows:
            domains.setdefault(domain_of(row.address), []).append(row)
        under_way: list[Awaitable[None]] = []
        parcels = {domain: list(from_rows(found, lease, self._most)) for domain, found in domains.items()}
        for found in parcels.values():
            for parcel in found:
                own(parcel)
            found[:] = [parcel for parcel in found if not self._placer.paused(parcel)]
        for domain, found in ((domain, found) for domain, found in parcels.items() if found):
            under_way.append(Deferred.fromCoroutine(self._domain(destination, domain, found)))
        await gatherResults(under_way)  # type: ignore[arg-type]

    async def _domain(self, destination: str, domain: str, parcels: list[Transaction]) -> None:
        try:
            answer = self._routes.cached(domain) or await self._routes.resolve(domain)
            if isinstance(answer, Route):
                await self._routed(destination, domain, answer, parcels)
            elif isinstance(answer, NoMail):
                for parcel in parcels:
                    await self._attempts.settle(parcel, [refused(answer.reply) for _ in parcel.recipients])
            else:
                await self._unknown(domain, answer, parcels)
        except Exception as error:
            for parcel in parcels:
                await self._attempts.poisoned(parcel, error)

    async def _routed(self, destination: str, domain: str, route: Route, parcels: list[Transaction]) -> None:
        if domain != route.destination:
            self._holds.lift(domain)  # DNS has an answer again
        if destination == domain != route.destination:
            await self._placer.give_back(parcels, route.destination)
            return
        # Under the name of another set of hosts the exchangers have changed since: what has no room is filed under the new one.
        left = [parcel for parcel in parcels if not self._placer.accept(route, parcel)]
        if left:
            await self._placer.give_back(left, None if destination == route.destination else route.destination)

    async def _unknown(self, domain: str, answer: Unknown, parcels: list[Transaction]) -> None:
        """DNS has no answer: the domain rests, not the destination that it may share with others. One email tells."""
        self._holds.fail(domain, answer.reason)
        first, *others = parcels
        await self._attempts.deferred(first, answer.reason)
        await self._placer.give_back(others, domain)


async def nothing_left(clock: Any, parts: Sequence[Deferred[Any]], seconds: float) -> bool:
    """Whether all of `parts` fired within `seconds`."""
    left = [part for part in parts if not part.called]
    deadline = clock.seconds() + seconds
    while left and clock.seconds() < deadline:
        await pace.sleep(clock, min(0.1, deadline - clock.seconds()))
        left = [part for part in left if not part.called]
    return not left
