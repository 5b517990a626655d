"""What one account asks for at once delays nobody else: making keys, questions to nameservers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.domains.authoritative_dns import CONCURRENT, Authorities
from mailsvc.net.address_guard import networks
from mailsvc.net.dns import Records
from mailsvc.store.domains.values import DomainLimits
from mailsvc.store.people.accounts import Accounts
from tests.domains.rig import Rig


@pytest_twisted.ensureDeferred
async def test_many_adds_of_one_account_do_not_delay_another(rig: Rig) -> None:
    created = 0
    running: list[tuple[Callable[[], Any], Deferred[Any]]] = []

    def in_thread(work: Callable[[], Any]) -> Deferred[Any]:
        result: Deferred[Any] = Deferred()
        running.append((work, result))
        return result

    rig.maintenance.in_thread = in_thread
    rig.maintenance.limits = DomainLimits(1000, 1000, 1000)
    many = [Deferred.fromCoroutine(rig.maintenance.add(rig.account.id, f"n{number}.example", "r1")) for number in range(150)]
    while not running:
        await rig.pool.rows("SELECT 1")
    quick = Deferred.fromCoroutine(rig.maintenance.add((await Accounts(rig.pool, rig.clock).create("other")).id, "quick.example", "r1"))
    while not quick.called:
        if running:
            work, result = running.pop(0)
            created += 1
            result.callback(work())
        await rig.pool.rows("SELECT pg_sleep(0)")
    assert created <= 10
    for one in many:
        one.addErrback(lambda _: None)
        one.cancel()


def test_slow_nameservers_of_one_account_do_not_delay_others() -> None:
    class Names:
        async def ns(self, name: str) -> Records[str]:
            return Records(name, ("ns.example",))

        async def addresses(self, host: str) -> Records[str]:
            return Records(host, ("127.0.0.1",))

    queried: list[str] = []

    async def exchange(server: Any, query: Any, seconds: float) -> Any:
        queried.append(query.question[0].name.to_text())
        await Deferred()

    authorities = Authorities(None, Names(), networks(["127.0.0.1"]), exchange=exchange)
    slow = [Deferred.fromCoroutine(authorities.query(f"slow{number}.example", "TXT", "one")) for number in range(2 * CONCURRENT)]
    Deferred.fromCoroutine(authorities.query("quick.example", "TXT", "two"))
    assert queried[-1] == "quick.example." and len(queried) == CONCURRENT // 4 + 1
    assert not any(one.called for one in slow)
    for one in slow:
        one.addErrback(lambda _: None)
        one.cancel()
