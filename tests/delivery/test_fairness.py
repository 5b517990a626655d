"""Fairness: hanging servers, one account's backlog and bulk mail do not delay other mail."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from mailsvc.outcome import Delivered, Uncertain
from tests.delivery.fakes import START, DeliveryRig, number, taken


def hanging(rig: DeliveryRig, count: int, *, at: str = "dot") -> list[Any]:
    """Domains whose servers never reply, either to the connection or to the mail."""
    servers = []
    for n in range(count):
        server = rig.server(f"slow{n}.example", f"9.9.{n // 200}.{n % 200 + 1}")
        if at == "greeting":
            server.greeting = Deferred
        else:
            server.answer = lambda envelope: Deferred()
        servers.append(server)
    return servers


def sent_at(server: Any) -> list[float]:
    return [mail.at - START for mail in server.mails]


def test_a_new_destination_does_not_wait_for_many_that_do_not_greet() -> None:
    rig = DeliveryRig(connections=30, connections_max=5, patience_seconds=20.0)
    hanging(rig, 200, at="greeting")
    for email in range(200):
        rig.store.add(email, f"x@slow{email}.example")
    rig.start().run(5)
    good = rig.server("good.example", "1.1.1.1")
    rig.store.add(1000, "x@good.example")
    rig.run(300)
    [at] = sent_at(good)
    # Ahead of it in the line are those that came before; each round of 20 s tries 20 of them.
    assert at <= 5 + 20 * 200 / 20 + 20
    assert rig.delivery.slots.taken <= 30


def test_giving_up_a_connection_for_others_holds_the_destination_and_loses_no_mail() -> None:
    rig = DeliveryRig(connections=3, connections_initial=1, patience_seconds=20.0)
    hanging(rig, 4, at="greeting")
    for email in range(4):
        rig.store.add(email, f"x@slow{email}.example")
    rig.start().run(30)
    assert any("other mail waited" in hold.reason for hold in rig.store.hold_rows.values())
    assert len(rig.store.rows) == 4


def test_a_slow_server_keeps_its_time_if_nobody_waits() -> None:
    rig = DeliveryRig(connections=30)
    [server] = hanging(rig, 1, at="greeting")
    rig.store.add(1, "x@slow0.example")
    rig.start().run(250)
    assert (server.dials, rig.store.hold_rows) == (server.dials[:1], {})


def test_a_message_that_was_sent_completely_keeps_its_time_for_a_reply() -> None:
    rig = DeliveryRig(connections=3, connections_initial=1, patience_seconds=20.0)
    servers = hanging(rig, 5)
    for server in servers:
        server.sent_dot = True
    for email in range(5):
        rig.store.add(email, f"x@slow{email}.example")
    rig.start().run(200)
    assert not any(isinstance(outcome, Uncertain) for outcomes in rig.store.outcomes.values() for outcome in outcomes)
    assert sum(len(server.mails) for server in servers) == 2


def test_proven_destinations_are_not_delayed_by_a_thousand_that_hang() -> None:
    rig = DeliveryRig(connections=60, connections_max=5)
    good = rig.server("good.example", "1.1.1.1")
    rig.store.add(1, "x@good.example")
    rig.start().run(3)
    hanging(rig, 1000)
    for email in range(1000):
        rig.store.add(10 + email, f"x@slow{email}.example")
    rig.run(30)
    assert rig.delivery.slots.taken >= 40
    waits = []
    for n in range(50):
        email, reservations = rig.email(5000 + n, "x@good.example")
        began = rig.clock.seconds()
        rig.commit(email, reservations)
        rig.run(1)
        assert isinstance(rig.store.last(5000 + n), Delivered)
        waits.append(good.mails[-1].at - began)
    assert max(waits) < 0.1


def test_one_accounts_backlog_does_not_delay_another_account_in_the_same_lane() -> None:
    rig = DeliveryRig(connections_max=1, connections_initial=1, window=500)
    server = rig.server("example.com", "1.1.1.1")
    for email in range(300):
        rig.store.add(email, "x@example.com", account=1, destination="mx.example.com")
    rig.start().run(0.5)
    for email in range(300, 310):
        rig.store.add(email, "x@example.com", account=2, destination="mx.example.com")
    rig.run(20)
    places = [n for n, mail in enumerate(server.mails) if int(mail.sender[2:].partition("@")[0]) >= 300]
    assert len(places) == 10
    assert places[-1] < 310


def test_bulk_mail_gives_up_its_connection_for_transactional_mail_elsewhere() -> None:
    rig = DeliveryRig(connections=2, connections_max=2, messages_per_connection=1000)
    bulk, urgent = rig.server("bulk.example", "1.1.1.1"), rig.server("urgent.example", "1.1.1.2")
    bulk.answer = lambda envelope: deferLater(rig.clock, 0.05, taken, envelope)
    for email in range(2000):
        rig.store.add(email, "x@bulk.example", bulk=True)
    rig.start().run(3)
    assert 0 < len(bulk.mails) < 2000
    rig.store.add(5000, "x@urgent.example")
    began = rig.clock.seconds()
    rig.run(5)
    assert urgent.mails
    assert urgent.mails[0].at - began < 1.5  # a look at the queue and a route, no bulk mail's end
    assert number(5000) not in {key[0] for key in rig.store.rows}


def test_transactional_mail_comes_first_within_a_lane() -> None:
    rig = DeliveryRig(connections_max=1, connections_initial=1)
    server = rig.server("example.com", "1.1.1.1")
    stuck: list[Deferred[Any]] = []
    server.answer = lambda envelope: stuck.append(Deferred()) or stuck[-1]
    for email in range(1, 9):
        rig.store.add(email, "x@example.com", bulk=email <= 4)
    rig.start().run(3)
    server.answer = taken
    stuck[0].callback(taken(type("E", (), {"recipients": ("x",)})()))
    rig.run(5)
    order = [int(mail.sender[2:].partition("@")[0]) for mail in server.mails]
    assert sorted(order[:4]) == [5, 6, 7, 8]


def test_a_paused_account_waits_and_others_do_not() -> None:
    rig = DeliveryRig()
    server = rig.server("example.com", "1.1.1.1")
    rig.store.add(1, "x@example.com", account=1)
    rig.start().run(3)
    rig.store.paused[number(1)] = rig.store.now + timedelta(seconds=600)
    rig.run(2)
    for email in (2, 3):
        rig.store.add(email, "x@example.com", account=email - 1, destination="mx.example.com")
    email, reservations = rig.email(4, "x@example.com", account=1)
    rig.commit(email, reservations)
    rig.run(100)
    assert [mail.sender[:3] for mail in server.mails] == ["b-1", "b-3"]
    assert {key[0].int for key in rig.store.rows} == {2, 4}
    assert rig.store.calls["claim"] < 20
    rig.store.paused.clear()
    rig.run(700)
    assert not rig.store.rows


def test_mail_of_a_paused_account_is_not_leased_when_it_is_accepted() -> None:
    rig = DeliveryRig()
    rig.server("example.com", "1.1.1.1")
    rig.start()
    rig.store.paused[number(1)] = rig.store.now + timedelta(seconds=600)
    rig.store.add(1, "x@example.com", account=2)
    rig.run(3)  # the route is known, and so is the pause

    def leased(account: int) -> bool:
        reservation = rig.delivery.handoff.reserve("example.com", 10, False, account_id=number(account))
        rig.delivery.handoff.release(number(1), {"example.com": reservation})
        return reservation.leased

    assert (leased(1), leased(2)) == (False, True)
    rig.store.paused.clear()
    rig.run(3)
    assert leased(1)


def test_bulk_mail_from_the_queue_leaves_room_for_new_transactional_mail() -> None:
    rig = DeliveryRig(window=40, connections_max=5)
    server = rig.server("bulk.example", "1.1.1.1")
    server.answer = lambda envelope: deferLater(rig.clock, 0.5, taken, envelope)
    for email in range(1000):
        rig.store.add(email, "x@bulk.example", bulk=True)
    rig.start().run(5)
    assert server.mails
    for _ in range(20):
        rig.run(0.3)
        reservation = rig.delivery.handoff.reserve("bulk.example", 10, bulk=False)
        assert reservation.leased
        rig.delivery.handoff.release(number(1), {"bulk.example": reservation})
