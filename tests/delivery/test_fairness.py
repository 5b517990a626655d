"""Fairness: hanging servers, one account's backlog and bulk mail do not delay other mail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mailsvc.outcome import Delivered, Uncertain
from tests.delivery.fakes import START, World, number, taken


def hanging(world: World, count: int, *, at: str = "dot") -> list[Any]:
    """Domains whose servers never reply, either to the connection or to the mail."""
    servers = []
    for n in range(count):
        server = world.server(f"slow{n}.example", f"9.9.{n // 200}.{n % 200 + 1}")
        if at == "greeting":
            server.greeting = Deferred
        else:
            server.answer = lambda envelope: Deferred()
        servers.append(server)
    return servers


def sent_at(server: Any) -> list[float]:
    return [mail.at - START for mail in server.mails]


def test_a_new_destination_does_not_wait_for_many_that_do_not_greet() -> None:
    world = World(connections=30, connections_max=5, patience_seconds=20.0)
    hanging(world, 200, at="greeting")
    for email in range(200):
        world.store.add(email, f"x@slow{email}.example")
    world.start().run(5)
    good = world.server("good.example", "1.1.1.1")
    world.store.add(1000, "x@good.example")
    world.run(300)
    [at] = sent_at(good)
    # Ahead of it in the line are those that came before; each round of 20 s tries 20 of them.
    assert at <= 5 + 20 * 200 / 20 + 20
    assert world.delivery.slots.taken <= 30


def test_giving_up_a_connection_for_others_holds_the_destination_and_loses_no_mail() -> None:
    world = World(connections=3, connections_initial=1, patience_seconds=20.0)
    hanging(world, 4, at="greeting")
    for email in range(4):
        world.store.add(email, f"x@slow{email}.example")
    world.start().run(30)
    assert any("other mail waited" in hold.reason for hold in world.store.hold_rows.values())
    assert len(world.store.rows) == 4


def test_a_slow_server_keeps_its_time_if_nobody_waits() -> None:
    world = World(connections=30)
    [server] = hanging(world, 1, at="greeting")
    world.store.add(1, "x@slow0.example")
    world.start().run(250)
    assert (server.dials, world.store.hold_rows) == (server.dials[:1], {})


def test_a_message_that_was_sent_completely_keeps_its_time_for_a_reply() -> None:
    world = World(connections=3, connections_initial=1, patience_seconds=20.0)
    servers = hanging(world, 5)
    for server in servers:
        server.sent_dot = True
    for email in range(5):
        world.store.add(email, f"x@slow{email}.example")
    world.start().run(200)
    assert not any(isinstance(outcome, Uncertain) for outcomes in world.store.outcomes.values() for outcome in outcomes)
    assert sum(len(server.mails) for server in servers) == 2


def test_proven_destinations_are_not_delayed_by_a_thousand_that_hang() -> None:
    world = World(connections=60, connections_max=5)
    good = world.server("good.example", "1.1.1.1")
    world.store.add(1, "x@good.example")
    world.start().run(3)
    hanging(world, 1000)
    for email in range(1000):
        world.store.add(10 + email, f"x@slow{email}.example")
    world.run(30)
    assert world.delivery.slots.taken >= 40
    waits = []
    for n in range(50):
        email, reservations = world.email(5000 + n, "x@good.example")
        began = world.clock.seconds()
        world.commit(email, reservations)
        world.run(1)
        assert isinstance(world.store.last(5000 + n), Delivered)
        waits.append(good.mails[-1].at - began)
    assert max(waits) < 0.1


def test_one_accounts_backlog_does_not_delay_another_account_in_the_same_lane() -> None:
    world = World(connections_max=1, connections_initial=1, window=500)
    server = world.server("example.com", "1.1.1.1")
    for email in range(300):
        world.store.add(email, "x@example.com", account=1, destination="mx.example.com")
    world.start().run(0.5)
    for email in range(300, 310):
        world.store.add(email, "x@example.com", account=2, destination="mx.example.com")
    world.run(20)
    places = [n for n, mail in enumerate(server.mails) if int(mail.sender[2:].partition("@")[0]) >= 300]
    assert len(places) == 10
    assert places[-1] < 310


def test_bulk_mail_gives_up_its_connection_for_transactional_mail_elsewhere() -> None:
    world = World(connections=2, connections_max=2, messages_per_connection=1000)
    bulk, urgent = world.server("bulk.example", "1.1.1.1"), world.server("urgent.example", "1.1.1.2")
    bulk.answer = lambda envelope: deferLater(world.clock, 0.05, taken, envelope)
    for email in range(2000):
        world.store.add(email, "x@bulk.example", bulk=True)
    world.start().run(3)
    assert 0 < len(bulk.mails) < 2000
    world.store.add(5000, "x@urgent.example")
    began = world.clock.seconds()
    world.run(5)
    assert urgent.mails
    assert urgent.mails[0].at - began < 1.5  # a look at the queue and a route, no bulk mail's end
    assert number(5000) not in {key[0] for key in world.store.rows}


def test_transactional_mail_comes_first_within_a_lane() -> None:
    world = World(connections_max=1, connections_initial=1)
    server = world.server("example.com", "1.1.1.1")
    stuck: list[Deferred[Any]] = []
    server.answer = lambda envelope: stuck.append(Deferred()) or stuck[-1]
    for email in range(1, 9):
        world.store.add(email, "x@example.com", bulk=email <= 4)
    world.start().run(3)
    server.answer = taken
    stuck[0].callback(taken(type("E", (), {"recipients": ("x",)})()))
    world.run(5)
    order = [int(mail.sender[2:].partition("@")[0]) for mail in server.mails]
    assert sorted(order[:4]) == [5, 6, 7, 8]


def test_a_paused_account_waits_and_others_do_not() -> None:
    world = World()
    server = world.server("example.com", "1.1.1.1")
    world.store.add(1, "x@example.com", account=1)
    world.start().run(3)
    world.store.paused[number(1)] = world.store.now + timedelta(seconds=600)
    world.run(2)
    for email in (2, 3):
        world.store.add(email, "x@example.com", account=email - 1, destination="mx.example.com")
    email, reservations = world.email(4, "x@example.com", account=1)
    world.commit(email, reservations)
    world.run(100)
    assert [mail.sender[:3] for mail in server.mails] == ["b-1", "b-3"]
    assert {key[0].int for key in world.store.rows} == {2, 4}
    assert world.store.calls["claim"] < 20
    world.store.paused.clear()
    world.run(700)
    assert not world.store.rows
