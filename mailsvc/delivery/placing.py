"""Placing: claimed rows on their way into lanes. Routes are resolved here, where nothing else waits for DNS.

Rows queued under a bare domain move to the domain's destination, to share its lane, its order and its holds. If a domain accepts no
mail, its recipients bounce here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from twisted.internet.defer import Deferred, gatherResults

from mailsvc.bounces.diagnosis import known
from mailsvc.delivery.admission.holds import Holds
from mailsvc.delivery.attempt import Attempts
from mailsvc.delivery.connection.route import Answer, NoMail, Route, Routes, Unknown
from mailsvc.delivery.lanes import Lanes
from mailsvc.delivery.leases import LeaseBook
from mailsvc.delivery.reading import refused
from mailsvc.delivery.transaction import PoolOf, Transaction, domain_of, from_rows
from mailsvc.store.queue.claims import Leased


class Placing:
    """`most`: recipients of one transaction. `pool_of`: the pool of a transaction's mail."""

    def __init__(
        self, routes: Routes, holds: Holds, attempts: Attempts, lanes: Lanes, leases: LeaseBook, most: int, pool_of: PoolOf
    ) -> None:
        self._routes, self._holds, self._attempts, self._lanes, self._leases, self._most = routes, holds, attempts, lanes, leases, most
        self._pool_of = pool_of

    def known(self, destination: str) -> Answer | None:
        """What is known of a destination that is still a bare domain. None also for the name of a set of hosts."""
        return None if any(sign in destination for sign in " /@") else self._routes.cached(destination)

    async def place(self, destination: str, rows: Sequence[Leased], lease: int) -> None:
        """All rows of a claim, each domain as soon as its route is known."""
        rows_by_domain: dict[str, list[Leased]] = {}
        for row in rows:
            rows_by_domain.setdefault(domain_of(row.address), []).append(row)
        by_domain = {domain: list(from_rows(found, lease, self._most)) for domain, found in rows_by_domain.items()}
        placing: list[Awaitable[None]] = []
        for found in by_domain.values():
            for transaction in found:
                self._leases.add_claimed(transaction)
            found[:] = [transaction for transaction in found if not self._paused(transaction)]
        for domain, found in by_domain.items():
            if found:
                placing.append(Deferred.fromCoroutine(self._domain(destination, domain, found)))
        await gatherResults(placing)  # type: ignore[arg-type]

    def _paused(self, transaction: Transaction) -> bool:
        """Whether its account is paused. If so, it goes back to the queue."""
        if not self._holds.account_paused(transaction.account_id):
            return False
        self._leases.return_paused(transaction)
        return True

    async def _domain(self, destination: str, domain: str, transactions: list[Transaction]) -> None:
        try:
            answer = self._routes.cached(domain) or await self._routes.resolve(domain)
            if isinstance(answer, Route):
                pools: dict[str, list[Transaction]] = {}
                for transaction in transactions:
                    pools.setdefault(self._pool_of(transaction), []).append(transaction)
                for pool, found in pools.items():
                    await self._routed(destination, domain, answer.of_pool(pool), found)
            elif isinstance(answer, NoMail):
                for transaction in transactions:
                    await self._attempts.settle(transaction, [refused(answer.reply) for _ in transaction.recipients])
            else:
                await self._unknown(domain, answer, transactions)
        except Exception as error:
            for transaction in transactions:
                await self._attempts.poisoned(transaction, error)

    async def _routed(self, destination: str, domain: str, route: Route, transactions: list[Transaction]) -> None:
        if domain != route.destination:
            self._holds.lift(domain)  # DNS has an answer again
        if destination == domain != route.destination:
            await self._leases.give_back(transactions, route.destination)
            return
        # If `destination` names another set of hosts, the domain's MX records have changed; if another pool, its assignment has. Mail
        # without room moves to the new one.
        left = [transaction for transaction in transactions if not self._lanes.accept(route, transaction)]
        if left:
            await self._leases.give_back(left, None if destination == route.destination else route.destination)

    async def _unknown(self, domain: str, answer: Unknown, transactions: list[Transaction]) -> None:
        """DNS has no answer: hold the domain, not the destination that it may share. The first email gets the reason as its outcome."""
        self._holds.fail(domain, answer.reason)
        first, *others = transactions
        await self._attempts.deferred(first, answer.reason, known("network"))
        await self._leases.give_back(others, domain)
