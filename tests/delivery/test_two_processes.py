"""Two processes of a region on one Postgres share holds and limits."""

from __future__ import annotations

from typing import Any

import pytest_twisted
from twisted.internet.defer import Deferred

from mailsvc.delivery.connection.connect import Connector
from mailsvc.delivery.connection.route import Routes
from mailsvc.delivery.limits import DeliveryLimits
from mailsvc.delivery.service import Delivery
from mailsvc.delivery.shaping import Limits, Provider, Reaction, Shaping
from mailsvc.mail.reply import Reply
from mailsvc.store.ids import uuid7
from mailsvc.store.mail.messages import InPieces, Messages
from mailsvc.store.postgres.pool import Pool
from mailsvc.store.queue.claims import Queue
from mailsvc.store.queue.processes import ProcessRegistration
from mailsvc.store.queue.settle import Settling
from tests.delivery.fakes import FakeClient, Names, Sending, Server, answered, taken
from tests.dnsserver import after
from tests.store.fixtures import NOW, REGION, StoreRig, email

SLOW = Reaction("big-1", "slow", 600.0, "it says so", enhanced="4.7.28", messages_per_minute=6.0)
BIG = Shaping({"big": Provider("big", (".big.example",), Limits(connections=6, messages_per_second=8.0), (SLOW,))})


class Half:
    """One process: all of delivery except SMTP."""

    def __init__(self, pool: Pool, server: Server, names: Names) -> None:
        from twisted.internet import reactor

        self.reactor: Any = reactor
        self.server = server
        self.process = ProcessRegistration(pool, reactor)
        terms = DeliveryLimits(poll_seconds=0.05, connections_initial=1, drain_seconds=0.1, window=2)
        routes = Routes(self.reactor, names, {}, port=25, provider=BIG.provider)
        self.delivery = Delivery(
            self.reactor, terms, REGION, self.process, Queue(pool), routes, Connector(self.reactor, names, self.dial, terms),
            InPieces(Messages(pool, self.reactor)), Settling(pool, self.reactor), Sending(), lambda: uuid7(self.reactor.seconds()),
            shaping=BIG,
        )  # fmt: skip

    @property
    def clock(self) -> Any:
        return self.reactor

    async def dial(self, address: str, port: int, host: str, how: Any) -> Any:
        return FakeClient(self.server)

    @property
    def budget(self) -> Any:
        return self.delivery.lanes.get("big/mx.big.example").budget


async def until(half: Half, condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        await after(half.reactor, 0.01)
    raise AssertionError("it did not happen")


def at_big(address: str) -> Any:
    return email(address, expires_at=NOW.replace(year=NOW.year + 1))


@pytest_twisted.ensureDeferred
async def test_a_reply_to_one_process_slows_both_down_and_is_the_reason_of_waiting_mail(pool: Pool) -> None:
    names = Names()
    names.mxs["b.example"], names.hosts["mx.big.example"] = [(10, "mx.big.example")], ["1.1.1.1"]
    server: Any = Server.__new__(Server)
    first, second = (Half(pool, server, names) for _ in range(2))
    Server.__init__(server, first)  # type: ignore[arg-type]
    store = StoreRig(pool, first.reactor)
    for half in (first, second):
        await half.process.start(REGION, ("delivery",))
    await first.process.count_live()
    assert [half.process.peers("delivery") for half in (first, second)] == [2, 2]

    waiting: list[Deferred[Any]] = []
    server.answer = lambda envelope: waiting.append(Deferred()) or waiting[-1]
    await store.accept(*(at_big(f"x{n}@b.example") for n in range(4)))
    first.delivery.startService()
    await until(first, lambda: waiting)
    second.delivery.startService()
    await store.accept(*(at_big(f"y{n}@b.example") for n in range(40)))
    await until(second, lambda: second.delivery.lanes.get("big/mx.big.example"))
    assert [(half.budget.connections, half.budget.rate) for half in (first, second)] == [(3, 4.0), (3, 4.0)]

    [client] = [client for client in server.open if client.waiting is waiting[0]]
    waiting[0].callback(answered(client.envelope, Reply(421, "slow down", "4.7.28"), "dot"))
    server.answer = taken
    await until(second, lambda: second.budget.connections == 1)
    assert [(half.budget.connections, half.budget.rate) for half in (first, second)] == [(1, 0.05), (1, 0.05)]
    assert await store.count("slowdowns") == 1
    due = "SELECT DISTINCT reason FROM waiting_at(now()) WHERE status = 'queued' AND next_at <= now()"
    assert await pool.rows(due) == [("big gets 6 emails a minute because it says so (rule big-1).",)]

    await Queue(pool).lift(REGION, "big", paused=True)
    await until(second, lambda: first.budget.connections == second.budget.connections == 3)
    for half in (first, second):
        await half.delivery.stopService()
        await half.process.end()
